"""The table services of a running loader, over its Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.clock import SystemClock
from common.settings.stores import stage_store, table_stores
from common.stage.appeared_routes import with_appeared
from common.stage.topic_owners import StageTopicOwners
from delta_loader.maintenance.services.reading import FactsReader
from delta_loader.maintenance.services.runs import TableServices
from delta_loader.maintenance.services.spark import SparkServices
from delta_loader.maintenance.services.thread import ScheduledServices
from delta_loader.stage.reading import Stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from pyspark.sql import SparkSession
    from structlog.typing import FilteringBoundLogger

    from common.metrics import Metrics
    from common.settings import Settings
    from delta_loader.ports import ParallelMap


def scheduled_services(
    settings: Settings,
    spark: SparkSession,
    parallel: ParallelMap,
    stack: ExitStack,
    *,
    may_run: Callable[[], bool],
    is_loading: Callable[[], bool],
    may_load: Callable[[str], bool],
    log: FilteringBoundLogger,
    metrics: Metrics,
) -> ScheduledServices | None:
    """The services for a job to run, which ``stack`` closes; None when the settings have none.

    ``is_loading``: see `ScheduledServices`; ``may_load``: see `TableServices`.

    Raises ConfigError for an invalid cron line.
    """
    if not settings.table_services.is_on:
        return None
    store = stage_store(settings)
    stage = Stage(store, parallel, StageTopicOwners(settings, store, make=False))
    inspector = FactsReader(settings, stage, table_stores(settings), parallel, SystemClock())
    services = TableServices(
        settings,
        inspector,
        SparkServices(spark),
        SystemClock(),
        log=log,
        metrics=metrics,
        may_load=may_load,
        now=lambda settings: with_appeared(settings, store),
    )
    scheduled = ScheduledServices(services, settings.table_services, may_run, is_loading=is_loading)
    stack.callback(scheduled.close)
    return scheduled
