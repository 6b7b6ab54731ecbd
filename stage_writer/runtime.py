"""The common state of one writer's parts, the options that they run with, and the loop's state as its pages read it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from structlog.typing import FilteringBoundLogger

from common.errors import KafkaDeltaExpressError
from common.http.pages import Pausing
from common.metrics import Metrics
from common.ports import Clock
from common.remedies import CONFIG
from common.spans import TopicPartition
from common.stage.paused_streams import PausedStreams
from stage_writer.changelog.watch import NO_WATCH, TopicWatch
from stage_writer.notifications.notifier import NO_NOTIFIER, Notifier
from stage_writer.outbox.ports import NO_OUTLETS, Outlets
from stage_writer.parquet.buffer import FilePolicy
from stage_writer.partitions.flush_decision import BackpressureState, FlushLimits
from stage_writer.partitions.partition import AssignedPartition, HeldPartition, StartingPartition
from stage_writer.ports import ColumnFollower
from stage_writer.stopping import Stopping
from stage_writer.telemetry import WriterTelemetry

POLL_S = 0.2
SESSION_S = 45.0
"""librdkafka's default."""


@dataclass(frozen=True, slots=True)
class WriterOptions:
    limits: FlushLimits
    revoke_timeout_s: float
    report_positions: bool = False
    session_s: float = SESSION_S
    file_policy: FilePolicy = FilePolicy()  # noqa: RUF009 - frozen


@dataclass(frozen=True, slots=True)
class Runtime:
    clock: Clock
    log: FilteringBoundLogger
    metrics: Metrics
    telemetry: WriterTelemetry
    stopping: Stopping
    """The one that the converters use."""


@dataclass(frozen=True, slots=True)
class Attachments:
    pausing: Pausing | None = None
    paused: PausedStreams | None = None
    notifier: Notifier = NO_NOTIFIER
    outlets: Outlets = NO_OUTLETS
    changelogs: TopicWatch = NO_WATCH
    columns: Mapping[str, ColumnFollower] = field(default_factory=dict)
    """By stream, of those that do not declare their columns."""


FAILING_REMEDY = (
    f"`stage-writer check {CONFIG}` says which of them does not respond, and why; the log names each failure"
)


@dataclass(frozen=True, slots=True)
class LoopSnapshot:
    assigned: Sequence[AssignedPartition]
    starting: Mapping[TopicPartition, StartingPartition]
    held: Mapping[TopicPartition, HeldPartition]
    backpressure: BackpressureState
    joined: bool
    is_failing: bool
    """Whether the store, or Kafka, is failing now."""
    memory_bytes: int
    """The bound for all buffers."""
    telemetry: WriterTelemetry
    notes: tuple[str, ...] = ()
    """Why the control topic accepts no notifications."""
    changelogs: tuple[str, ...] = ()
    """Which changelog topics are no longer suitable."""
    undelivered: tuple[KafkaDeltaExpressError, ...] = ()
    """Which outboxes' deliveries fail."""

    @property
    def partitions(self) -> set[TopicPartition]:
        return {*(assigned.partition for assigned in self.assigned), *self.starting, *self.held}
