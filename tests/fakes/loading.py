"""A loader over real stores, for tests: everything that `delta_loader.__main__` wires, in one object."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import structlog

from common.clock import SystemClock
from common.metrics import Metrics
from common.ports import Clock, ObjectStore
from common.settings import Settings, Stream
from common.spans import MAX_POSITION, Position, TopicPartition
from common.stage.idle import StreamFact
from common.stage.markers import MarkerName
from common.stage.merged import topics_of
from common.storage.store import FsspecStore
from delta_loader.catalog.registering import Registering
from delta_loader.load.ports import Ports, RefusalPorts, SendRefused
from delta_loader.ports import DeltaTables, ParallelMap, in_turn
from delta_loader.service import LoaderService
from delta_loader.stage.reading import Stage
from delta_loader.status.collecting import stream_status
from delta_loader.status.values import StreamStatus
from tests.builders import settings_of
from tests.fakes.staging import Staging

Item = TypeVar("Item")
Result = TypeVar("Result")


def settings_for(staging: Staging, *streams: Mapping[str, object], **loader: object) -> Settings:
    """A stream for what is staged there, or one for each of these, which say what is different."""
    return routed_settings_for(staging, (), *streams, **loader)


def routed_settings_for(
    staging: Staging, routes: Sequence[str], *streams: Mapping[str, object], **loader: object
) -> Settings:
    """The same for streams with routes of these names."""
    topics = topics_of(staging.topic)
    usual: dict[str, object] = {"topics": list(topics), "table": staging.table}
    usual |= {"topology": "tests.fakes.joining:build"} if len(topics) > 1 else {"route": "name"} if routes else {}
    routing = {"routes": {name: staging.route(name) for name in routes}} if routes else {}
    return settings_of(
        *(usual | routing | dict(stream) for stream in streams or ({},)),
        stage={"url": staging.stage_url, "storage_options": staging.storage_options},
        loader={"http": None, "spark": {"spark.master": "local[2]"}, **loader},
    )


def as_staged(staging: Staging, stream: Stream) -> StreamFact:
    """What Kafka says where it has just the partitions that were staged."""
    names = (MarkerName.parse(path) for path in staging.markers())
    partitions = {
        name.topic_partition for name in names if name is not None and stream.takes(name.topic_partition.topic)
    }
    return StreamFact(
        stream.app_id, MAX_POSITION, {partition.topic: int(partition.partition) + 1 for partition in sorted(partitions)}
    )


def status_of(
    staging: Staging, ends: Mapping[TopicPartition, Position] | None = None, stream: Stream | None = None
) -> StreamStatus:
    """What `delta-loader status` finds of a stream, where Kafka tells of these ends."""
    stage = Stage(staging.store(staging.stage_url), in_turn)
    return stream_status(stream or settings_for(staging).streams[0], stage, staging.store, lambda _: ends or {})


def ports_for(
    stage: ObjectStore,
    tables: DeltaTables,
    open_store: Callable[[str], FsspecStore] = FsspecStore,
    *,
    parallel: ParallelMap = in_turn,
    **more: Any,  # noqa: ANN401 - the other fields of `Ports`
) -> Ports:
    """A loader's ports, of which ``more`` are given, and the others are the usual ones."""
    numbers = itertools.count(1)
    usual: dict[str, Any] = {
        "clock": SystemClock(),
        "new_id": lambda: f"load-{next(numbers)}",
        "log": structlog.get_logger(),
        "metrics": Metrics(),
    }
    stage_read = Stage(stage, parallel)
    return Ports(stage=stage_read, tables=tables, open_store=open_store, parallel=parallel, **{**usual, **more})


def loader_for(
    staging: Staging,
    tables: DeltaTables,
    settings: Settings | None = None,
    clock: Clock | None = None,
    *,
    refusing: RefusalPorts | None = None,
    sends_refused: SendRefused | None = None,
    registering: Registering | None = None,
    partitions: Callable[[Stream], StreamFact | None] | None = None,
    metrics: Metrics | None = None,
    may_load: Callable[[str], bool] = lambda _app_id: True,
) -> LoaderService:
    settings = settings or settings_for(staging)
    ports = ports_for(
        staging.store(staging.stage_url),
        tables,
        staging.store,
        clock=clock or SystemClock(),
        metrics=metrics or Metrics(),
        refusing=refusing,
        sends_refused=sends_refused,
        registering=registering,
        partitions=partitions or (lambda stream: as_staged(staging, stream)),
        may_load=may_load,
    )
    return LoaderService(settings.streams, settings.loader, ports)
