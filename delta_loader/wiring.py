"""The ports of a loader over Spark and the real stores: in one place, for the service and for tests."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from threading import Thread
from typing import TYPE_CHECKING

from pyspark import InheritableThread
from pyspark.sql import SparkSession
from structlog.typing import FilteringBoundLogger

from common.clock import SystemClock
from common.kafka.transactions import KafkaTransactions
from common.metrics import Metrics
from common.ports import Clock
from common.settings import Settings
from common.settings.stores import stage_store, table_stores
from common.stage.topic_owners import StageTopicOwners
from common.tables.log_files import remove_torn_checkpoints
from delta_loader.catalog.registering import Registering
from delta_loader.check_result import Check
from delta_loader.dead_letters.kafka import RawRecordFetcher
from delta_loader.load.merged_keys import MergedKeys
from delta_loader.load.ports import Ports, RefusalPorts
from delta_loader.load.refused_to_topic import RefusedToTopic
from delta_loader.load.replace_ranges import Replacements
from delta_loader.load.valid_through import PropertySetter, ValidThrough
from delta_loader.ports import OpenStore, ParallelMap
from delta_loader.scheduling.stream_scheduler import StreamScheduler
from delta_loader.spark.catalog import SparkCatalog
from delta_loader.spark.checkpoint_threads import BackgroundCheckpoints
from delta_loader.spark.constraint_check import ConstraintChecker
from delta_loader.spark.merging.validation import RepeatedKeys
from delta_loader.spark.replace import SparkReplacer
from delta_loader.stage.reading import Stage
from delta_loader.status.kafka import KafkaPartitions

if TYPE_CHECKING:
    from delta_loader.spark.delta import SparkDeltaTables


def spark_ports(
    settings: Settings,
    spark: SparkSession,
    tables: SparkDeltaTables,
    parallel: ParallelMap,
    *,
    log: FilteringBoundLogger,
    metrics: Metrics,
) -> Ports:
    """The ports of a service whose ``tables`` are those of a running session."""
    store = stage_store(settings)
    replacer = SparkReplacer(spark, settings.stage.url)
    refusal_reader = ConstraintChecker(spark, settings.stage.url)
    dead_letters, begin = refusal_reader.dead_letters, KafkaTransactions.begin
    sends = RefusedToTopic(settings.kafka, settings.writer.group_id, dead_letters, begin, store)
    return Ports(
        stage=Stage(store, parallel, StageTopicOwners(settings, store, make=True, parallel=parallel)),
        tables=tables,
        open_store=table_stores(settings),
        parallel=parallel,
        clock=SystemClock(),
        new_id=new_id,
        log=log,
        metrics=metrics,
        valid_through=_valid_through(settings, tables, log),
        registering=registering_of(settings, spark),
        refusing=RefusalPorts(refusal_reader, RawRecordFetcher(settings)),
        sends_refused=sends,
        partitions=KafkaPartitions(settings, SystemClock()),
        merged_keys=MergedKeys(RepeatedKeys(spark)),
        replacements=Replacements(store, tables, replacer, new_id, log, metrics, sends.replayed),
    )


def registering_of(settings: Settings, spark: SparkSession) -> Registering | None:
    """The registering in catalogs; None where no stream has a table in one."""
    return Registering(SparkCatalog(spark)) if any(stream.catalog_tables for stream in settings.streams) else None


def catalog_checks(settings: Settings, spark: SparkSession, app_id: str | None = None) -> list[Check]:
    registering = registering_of(settings, spark)
    if registering is None:
        return []
    wanted = [stream for stream in settings.streams if app_id is None or stream.app_id == app_id]
    return [check for stream in wanted for check in registering.checks(stream)]


def spark_scheduler(spark: SparkSession, slots: int) -> StreamScheduler:
    """Turns of streams in threads that the JVM knows; Spark's jobs of different streams share its cores."""
    context = spark.sparkContext
    return StreamScheduler(
        slots,
        new_thread=lambda work: InheritableThread(work, name="stream-turn"),
        on_begin=lambda app_id: context.setLocalProperty("spark.scheduler.pool", app_id),
    )


def spark_checkpoints(
    spark: SparkSession, clock: Clock, open_store: OpenStore, *, log: FilteringBoundLogger, metrics: Metrics
) -> BackgroundCheckpoints:
    """Checkpoints in threads that the JVM knows; their Spark jobs get a share next to the loads'."""
    context = spark.sparkContext

    def new_thread(work: Callable[[], None]) -> Thread:
        def within() -> None:
            context.setLocalProperty("spark.scheduler.pool", "checkpoints")
            work()

        thread: Thread = InheritableThread(within, name="checkpoints")
        return thread

    return BackgroundCheckpoints(clock, log, metrics, lambda url: remove_torn_checkpoints(open_store(url)), new_thread)


def _valid_through(settings: Settings, setter: PropertySetter, log: FilteringBoundLogger) -> ValidThrough | None:
    wanted = [stream for stream in settings.streams if stream.valid_through_property_s is not None]
    return ValidThrough(wanted, setter, SystemClock(), log) if wanted else None


def new_id() -> str:
    return str(uuid.uuid4())
