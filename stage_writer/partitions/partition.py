"""The service's state of an assigned Kafka partition: reading it, waiting for its chain, or holding it."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.backoff import Backoff
from common.http.pages import with_remedy
from common.spans import Position, TopicPartition
from stage_writer.chain_end import Lineage, Tail
from stage_writer.decode.dependency import Dependency
from stage_writer.outbox.ports import Outlet
from stage_writer.parquet.buffer import Buffer
from stage_writer.partitions.flush_decision import BufferStats, FlushLimits, FlushReason
from stage_writer.partitions.resume_points import ResumePoint
from stage_writer.ports import (
    ClaimGuard,
    Converter,
    FlushIdentity,
    Flushing,
    Incompatible,
    PartitionFault,
    PartitionTask,
    Running,
)
from stage_writer.stage.staging import Job, ObjectStage


@dataclass(slots=True)
class InFlightFlush:
    job: Job
    reason: FlushReason
    began_s: float
    running: Flushing | None
    """None while a failed one waits for its next attempt."""
    arrow_bytes: int = 0
    backoff: Backoff = field(default_factory=Backoff)
    retry_at_s: float = 0.0


@dataclass(slots=True)
class AssignedPartition:
    partition: TopicPartition
    converter: Converter
    tail: Tail | None
    lineage: Lineage
    buffer: Buffer
    checked_at_s: float
    """When its chain was last read, or claimed from."""
    age_fraction: float = 1.0
    in_flight: InFlightFlush | None = None
    paused: bool = False
    """Whether it is not read now, because of its memory or the operator's request."""
    caught_up: bool = False
    read_to: Position = Position(0)  # noqa: RUF009 - a number
    """The last end that reading has reached; records need not lie right before it."""
    taken: Position = Position(0)  # noqa: RUF009
    """The position after what was read of it and is in the buffer, or on its way there."""
    wait: Dependency | None = None
    """The dependency that it waits for before reading continues (stage_writer/partitions/dependency_wait.py)."""
    waits_since_s: float = 0.0
    stop: PartitionFault | None = None
    """Why it is to be held at its buffer's end, once that is flushed: nothing more is taken of it until then."""
    skipped: bool = False
    """Whether messages that arrived while its stream is paused were dropped: it is read again (pauses.py)."""
    outlet: Outlet | None = None
    """Records of its stream's topology for Kafka topics, not yet delivered."""
    task: PartitionTask | None = None
    """The task of a stream with a topology; ``converter`` is then the task's own."""

    @property
    def resume_point(self) -> ResumePoint:
        return ResumePoint(self.tail, self.buffer.end if self.tail is None else self.tail.end, self.lineage)

    @property
    def waits_for_columns(self) -> bool:
        """Whether what is read next needs other columns than its buffer has."""
        return self.wait is not None and self.wait.changes_columns

    def continues(self, stage: ObjectStage) -> bool:
        """Whether its chain still ends, or begins, where its buffer does. Raises StoreError."""
        if self.tail is not None:
            return stage.chains.is_there(self.tail)
        return stage.chains.has_origin_at(self.partition, self.buffer.start, self.lineage)

    def flush_job(self, stage: ObjectStage, guard: ClaimGuard) -> Job:
        """A job that seals its buffer, with what the buffer's messages changed in the task's state."""
        state, stream = None if self.task is None else self.task.seal(self.buffer), self.converter.stream
        flush = FlushIdentity(self.partition, stream, self.buffer, self.tail, self.lineage, state, self.outlet)
        return stage.flush_job(flush, guard)

    def reach_end(self, position: Position) -> None:
        """Kafka has nothing before ``position`` that was not read."""
        if self.wait is None and not self.skipped and position >= self.buffer.end:
            self.caught_up, self.read_to = True, position
            if not self.buffer.is_empty:
                # The offsets between hold no records (transaction markers, aborted records) and are covered too:
                # otherwise the chain would end at a position that Kafka no longer has once retention has removed it.
                self.buffer.end = position

    def buffer_stats(self, limits: FlushLimits | None = None) -> BufferStats:
        """The input of the flush decision; ``limits`` are its stream's own."""
        buffer, in_flight = self.buffer, self.in_flight
        held = 0 if in_flight is None else in_flight.job.memory_bytes
        return BufferStats(
            self.partition,
            buffer.first_record_at_s,
            buffer.records,
            buffer.parquet_bytes,
            buffer.memory_bytes + (0 if self.task is None else self.task.memory_bytes),
            in_flight is not None,
            held,
            self.age_fraction,
            self.stop is not None or self.waits_for_columns or (self.task is not None and self.task.wants_flush),
            limits,
        )


@dataclass(slots=True)
class StartingPartition:
    """A partition of ours whose chain must be read first."""

    converter: Converter
    retry_at_s: float
    backoff: Backoff = field(default_factory=Backoff)
    restoring: Restoring | None = None


@dataclass(frozen=True, slots=True)
class Restoring:
    resume_point: ResumePoint
    running: Running[PartitionTask]


@dataclass(slots=True)
class HeldPartition:
    problem: str
    converter: Converter
    resume_point: ResumePoint | None
    """Where its chain ended at that time; None when it could not be read."""
    check_at_s: float
    remedy: str = ""
    reason: str = "kafka"
    """A short label for metrics."""
    incompatible: Incompatible | None = None
    """The refused rows, where that is the reason."""

    @property
    def line(self) -> str:
        return with_remedy(self.problem, self.remedy)

    def takes_rows_now(self, stage: ObjectStage) -> bool:
        """Whether the table that could not accept its rows was replaced or fixed."""
        incompatible = self.incompatible
        return incompatible is not None and stage.incompatible(incompatible.start, incompatible.tables) is None
