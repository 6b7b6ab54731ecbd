"""The registry's client and the routes in the stage, as a writer sees them where the answers are there in time."""

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

from structlog import get_logger

from common.clock import SystemClock
from common.ports import Clock, ObjectStore
from common.settings import Stream
from common.settings.section import Option
from stage_writer.fetch.schema_registry import SchemaRegistry
from stage_writer.stage.route_registry import RouteRegistry
from tests.fakes.clock import IdleClock

_PATIENCE_S = 120.0
"""Longer than any answer takes on a machine that is busy."""


def schema_registry(
    url: str,
    clock: Clock | None = None,
    *,
    resolves: Collection[str] = (),
    settings: Mapping[str, Option] = MappingProxyType({}),
) -> SchemaRegistry:
    options = {"url": url, "max.retries": 0, **settings}
    return SchemaRegistry(options, clock or IdleClock(), get_logger(), resolves=resolves, patience_s=_PATIENCE_S)


def route_registry(
    stream: Stream, open_stage: Callable[[], ObjectStore], clock: Clock | None = None, *, preview: bool = False
) -> RouteRegistry:
    return RouteRegistry(
        stream, open_stage, clock or SystemClock(), get_logger(), preview=preview, patience_s=_PATIENCE_S
    )
