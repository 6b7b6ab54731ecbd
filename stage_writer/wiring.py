"""Builds the parts of one writer from its settings."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from structlog.typing import FilteringBoundLogger

from common import metrics as all_metrics
from common.errors import KafkaDeltaExpressError
from common.http.pages import Pausing
from common.metrics import Metrics
from common.pages.samples import Samples
from common.pause_commands import paused_streams
from common.ports import Clock, ObjectStore
from common.settings import Settings
from common.settings.overlap import UnsubscribedTopics
from common.settings.stores import stage_store, table_stores
from common.stage.paused import StreamPart
from common.stage.topic_owners import StageTopicOwners
from common.storage.store import prove_exclusive_create
from stage_writer.changelog.watch import NO_WATCH, TopicWatch
from stage_writer.columns.wiring import ColumnsOfStreams
from stage_writer.converters import ConverterParts, converters_of, plain_converter, with_topologies
from stage_writer.fetch.consumer_properties import session_s
from stage_writer.fetch.kafka import KafkaSource
from stage_writer.fetch.merged.groups import TopicGroup, TopicGroups
from stage_writer.loop import StageWriter
from stage_writer.memory_shares import MemoryShares
from stage_writer.native.library import REMEDY, NativeDecoders, find_reader
from stage_writer.notifications.notifier import notifier_of
from stage_writer.outbox.outlets import KafkaOutlets
from stage_writer.parquet.buffer import FilePolicy
from stage_writer.partitions.catching_up import undelivered
from stage_writer.partitions.flush_decision import FlushLimits
from stage_writer.ports import NO_CHANGELOG, Changelog, RecordSource
from stage_writer.process_memory import keep_memory, rarely_collect
from stage_writer.runtime import Attachments, Runtime, WriterOptions
from stage_writer.stage.staging import ObjectStage
from stage_writer.stage.table_compatibility import TableCompatibility, prove_tables
from stage_writer.stopping import Stopping
from stage_writer.telemetry import WriterTelemetry
from stage_writer.threads import ThreadWorkers
from stage_writer.web.serving import WriterServing

if TYPE_CHECKING:
    from stage_writer.converters import AnyConverter
    from stage_writer.tasks.look_ups import LookUps


@dataclass(frozen=True, slots=True)
class WiredWriter:
    service: StageWriter
    serving: WriterServing
    stopping: Stopping
    outlets: KafkaOutlets
    workers: ThreadWorkers

    def close(self, within_s: float) -> KafkaDeltaExpressError | None:
        """Release everything after the service has ended; the error of records that still wait for Kafka topics."""
        late = None if self.outlets.close(within_s) else undelivered(self.outlets.problems())
        self.workers.close()
        self.serving.close()
        return late


def wired_writer(settings: Settings, clock: Clock, log: FilteringBoundLogger, metrics: Metrics) -> WiredWriter:
    """A writer that is ready to run, in a process that is set up for its memory.

    Raises KafkaDeltaExpressError where it cannot work.
    """
    shares = _memory(settings)
    reader = _reader(settings, log)
    look_ups = _look_ups() if settings.writer.state_queries else None
    unsuitable_topics: set[str] = set()
    stopping = Stopping(clock.monotonic_s, settings.writer.revoke_timeout_s)
    columns = ColumnsOfStreams(settings, clock)
    settings = columns.known()
    passes = ConverterParts(reader.make, reader.make_avro, columns.read_file)
    converters = converters_of(settings, passes, metrics, look_ups, unsuitable_topics, stopping=stopping)
    store = open_stage(settings)
    workers = ThreadWorkers(settings.writer.upload_threads)
    owners = StageTopicOwners(settings, store, make=True, parallel=workers.map)
    owners.read_all()
    changelog, changelogs = _changelogs(settings, unsuitable_topics, clock=clock, log=log, metrics=metrics)
    stage = _stage(settings, store, changelog, clock, log)
    outlets = _outlets(settings, converters, store, log, metrics)
    pausing = Pausing(clock, log, metrics, all_metrics.WRITER_PAUSED_BY_REQUEST)
    paused = paused_streams(settings, StreamPart.STAGING, log, metrics)
    unsubscribed = UnsubscribedTopics()
    source = source_of(
        settings, converters, clock, log, native=reader.library, unsubscribed=unsubscribed, owners=owners
    )
    service = StageWriter(
        converters,
        _options(settings, shares),
        source=source,
        stage=stage,
        workers=workers,
        runtime=Runtime(clock, log, metrics, _telemetry(settings, clock, log, metrics, unsubscribed), stopping),
        attachments=Attachments(
            pausing,
            paused,
            notifier_of(settings, stage, clock, log, metrics),
            outlets,
            changelogs,
            columns.followed(converters, partial(plain_converter, settings, passes), log),
        ),
    )
    metrics.set(all_metrics.WRITER_MEMORY_BOUND, shares.buffers)
    serving = WriterServing(
        settings, service, pausing, paused, clock=clock, log=log, metrics=metrics, look_ups=look_ups
    )
    return WiredWriter(service, serving, stopping, outlets, workers)


def open_stage(settings: Settings) -> ObjectStore:
    """The stage's store, after a check that it honors conditional writes. Raises ConfigError."""
    store = stage_store(settings)
    prove_exclusive_create(store)
    return store


def source_of(
    settings: Settings,
    converters: Sequence[AnyConverter],
    clock: Clock,
    log: FilteringBoundLogger,
    *,
    native: Path | None = None,
    unsubscribed: UnsubscribedTopics | None = None,
    owners: StageTopicOwners,
) -> RecordSource:
    """The streams' source: Kafka, with merged chains where a topology reads topics together.

    ``owners`` decides whose the chains of shared topics are. Raises ConfigError.
    """
    groups = _groups(converters)
    source: RecordSource = KafkaSource(
        settings,
        clock,
        log,
        with_headers=[converter.stream for converter in converters if converter.needs_headers],
        co_partitioned=bool(groups.groups),
        native=native,
        unsubscribed=unsubscribed,
        sharing=owners.agree,
    )
    if settings.may_share:
        from stage_writer.fetch.shared.source import SharedTopicSource  # noqa: PLC0415 - few writers share topics

        source = SharedTopicSource(source, settings.chains_of, clock)
    if not groups.groups:
        return source
    from stage_writer.fetch.merged.source import MergingSource  # noqa: PLC0415 - few writers merge

    return MergingSource(source, groups, clock, log, MemoryShares.divided(settings.writer.memory_bytes).poll)


def _groups(converters: Sequence[AnyConverter]) -> TopicGroups:
    """The topics that tasks read together; single topics have no group. Raises ConfigError."""
    return TopicGroups(
        tuple(
            TopicGroup(tuple(group.topics), converter.stream.max_task_idle_s)
            for converter in with_topologies(converters)
            for group in converter.topology.groups
            if len(group.topics) > 1
        )
    )


def _memory(settings: Settings) -> MemoryShares:
    """The shares of the writer's memory, for which the process is set up."""
    shares = MemoryShares.divided(settings.writer.memory_bytes)
    keep_memory(shares.kept)
    rarely_collect(settings.writer.consume_records)
    return shares


def _reader(settings: Settings, log: FilteringBoundLogger) -> NativeDecoders:
    reader = find_reader(settings.writer.native)
    if reader.problem is not None:
        log.warning(
            "decoding without the C reader, at many times the cost per message", problem=reader.problem, remedy=REMEDY
        )
    return reader


def _options(settings: Settings, shares: MemoryShares) -> WriterOptions:
    writer = settings.writer
    policy = FilePolicy(shares.row_group, writer.max_partition_values, writer.compression)
    limits = FlushLimits(writer.flush_after_s, writer.flush_bytes, writer.flush_records, shares.buffers)
    return WriterOptions(limits, writer.revoke_timeout_s, writer.report_positions, session_s(settings.kafka), policy)


def _stage(
    settings: Settings, store: ObjectStore, changelog: Changelog, clock: Clock, log: FilteringBoundLogger
) -> ObjectStage:
    """The stage, with tables that are checked to be writable. Raises StoreError."""
    open_table = table_stores(settings)
    prove_tables(settings, open_table)
    return ObjectStage(
        store,
        open_table,
        clock,
        lambda: str(uuid.uuid4()),
        f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
        compatibility=TableCompatibility(open_table, clock, log),
        state_keep_s=settings.writer.state_keep_s,
        changelog=changelog,
    )


def _outlets(
    settings: Settings,
    converters: Sequence[AnyConverter],
    store: ObjectStore,
    log: FilteringBoundLogger,
    metrics: Metrics,
) -> KafkaOutlets:
    writing = {built.stream.app_id for built in with_topologies(converters) if built.topology.topics_written}
    writing |= {stream.app_id for stream in settings.streams if stream.dead_letters_topic is not None}
    return KafkaOutlets(settings.kafka, settings.writer.group_id, store, writing, log=log, metrics=metrics)


def _telemetry(
    settings: Settings, clock: Clock, log: FilteringBoundLogger, metrics: Metrics, unsubscribed: UnsubscribedTopics
) -> WriterTelemetry:
    writer = settings.writer
    samples = Samples(writer.dead_letter_samples) if writer.dead_letter_samples else None
    alarm = writer.dead_letter_alarm
    return WriterTelemetry(clock, log, metrics, samples, dead_letter_alarm=alarm, unsubscribed=unsubscribed)


def _changelogs(
    settings: Settings, unsuitable: set[str], *, clock: Clock, log: FilteringBoundLogger, metrics: Metrics
) -> tuple[Changelog, TopicWatch]:
    """The changelog topics of tasks' state, and the periodic check of those topics. Raises ConfigError."""
    if all(stream.topology is None for stream in settings.streams):
        return NO_CHANGELOG, NO_WATCH
    from stage_writer.changelog.wiring import changelog_of, watch_of  # noqa: PLC0415 - only with topologies

    changelog = changelog_of(settings, unsuitable, clock=clock, log=log, metrics=metrics)
    return changelog, watch_of(settings, unsuitable, clock=clock, log=log, metrics=metrics)


def _look_ups() -> LookUps:
    from stage_writer.tasks.look_ups import LookUps  # noqa: PLC0415 - only with topologies

    return LookUps()
