"""The writer's ports: where records come from, and where flushes go.

A simulation implements them without threads, and decides the order of events.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import BinaryIO, Protocol, TypeVar

from common.errors import StateError
from common.schema import StructType
from common.settings import Start, Stream
from common.spans import Position, Topic, TopicPartition
from common.stage.markers import LastRecord, Marker, digest_of, marker_to_bytes
from common.stage.task_files import Change, MarkedState, StateFileName, StateFiles, StateKind, TopicChanges
from common.storage.chunks import ByteChunks
from stage_writer.chain_end import Lineage, Tail
from stage_writer.decode.batch import MessageBatch
from stage_writer.decode.dependency import Dependency
from stage_writer.outbox.ports import Outlet
from stage_writer.parquet.buffer import Buffer, StagedRows, TableFormat

Item = TypeVar("Item")
Result = TypeVar("Result")
Made_co = TypeVar("Made_co", covariant=True)


OUT_OF_RANGE = "out_of_range"
"""A `PartitionFault`'s reason: Kafka does not have the requested position."""
NOT_ALLOWED = "not_allowed"
"""A `PartitionFault`'s reason: this user may not read the topic. It is read again once the user may."""
UNEXPECTED = "unexpected"
"""A `PartitionFault`'s reason: an exception that no code raises on purpose. The partition is read again."""
TRUNCATED = "topic_truncated"
"""A `PartitionFault`'s reason: Kafka has lost records before that position, under the same topic id."""


@dataclass(frozen=True, slots=True)
class PartitionFault:
    """Kafka cannot serve one partition; the others continue."""

    partition: TopicPartition
    problem: str
    remedy: str
    reason: str = "kafka"
    """A short label for metrics."""


@dataclass(frozen=True, slots=True)
class Polled:
    batches: tuple[MessageBatch, ...] = ()
    ends: Mapping[TopicPartition, Position] = field(default_factory=dict)
    """Partitions whose end was reached, and the position there."""
    faults: tuple[PartitionFault, ...] = ()

    def without(self, partitions: Collection[TopicPartition]) -> Polled:
        if not partitions:
            return self
        return Polled(
            tuple(batch for batch in self.batches if batch.partition not in partitions),
            {partition: end for partition, end in self.ends.items() if partition not in partitions},
            tuple(fault for fault in self.faults if fault.partition not in partitions),
        )


class GroupListener(Protocol):
    """Receives changes of the group's assignment; called from `RecordSource.poll` and ``close``."""

    def assigned(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        """These partitions are now ours; returns where each starts. A partition that is left out is not read."""

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """These partitions go to another member when this call returns."""

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """These partitions belong to another member already."""


class KafkaMetadata(Protocol):
    """The brokers' answers about topics, offsets and the group's members. Raises BrokerError."""

    def resolve(self, partition: TopicPartition, start: Start) -> Position:
        """The position that a ``start`` setting stands for."""

    def end_positions(self, streams: Collection[Stream]) -> Mapping[TopicPartition, Position]: ...

    def high_watermarks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        """The end of these partitions, open transactions included."""

    def topic_ids(self, topics: Collection[Topic]) -> Mapping[Topic, str | None]:
        """The id of each topic that exists; None from a broker without topic ids. Safe to call from any thread."""

    def refused(self, topics: Collection[str]) -> Collection[str]:
        """The topics among these that this user may not read."""

    def ownerless(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition] | None:
        """The partitions among these without an owner in the group; None while the group is rebalancing.

        Raises ConfigError when this member is not allowed to ask.
        """


class RecordSource(Protocol):
    """A member of a consumer group. Raises BrokerError when Kafka cannot be used at all."""

    @property
    def metadata(self) -> KafkaMetadata:
        """About the same partitions as this source has."""

    def subscribe(self, streams: Collection[Stream], listener: GroupListener) -> None: ...

    def poll(self, timeout_s: float) -> Polled:
        """Wait up to the given time for messages, and serve the group."""

    def expect(self, last: Mapping[TopicPartition, LastRecord]) -> None:
        """The record before the position that each partition is read from next, by an assignment or a seek.

        Where Kafka has lost one of them, a poll reports `TRUNCATED`.
        """

    def seek(self, partition: TopicPartition, position: Position) -> None:
        """Continue reading an assigned partition from another position."""

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Stop reading these; their position in the group is kept."""

    def resume(self, partitions: Collection[TopicPartition]) -> None: ...

    def report(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Commit positions to the group, for lag monitoring tools only."""

    def close(self) -> None:
        """Leave the group; the listener is called with what is revoked."""


@dataclass(frozen=True, slots=True)
class Sealed:
    marker: Marker
    files: int
    size_bytes: int
    chain_moved: bool
    """The marker before it is gone (settled, or put aside by an operator): read the chain again."""

    @property
    def tail(self) -> Tail:
        return Tail.from_marker(self.marker, self.marker.name.path, digest_of(marker_to_bytes(self.marker)))


@dataclass(frozen=True, slots=True)
class LostClaim:
    """Another writer has sealed this position; our files are left for VACUUM."""


@dataclass(frozen=True, slots=True)
class Postponed:
    """Nothing was claimed: the group may have given up on this writer. Run the job again later."""


@dataclass(frozen=True, slots=True)
class Outdated:
    """Nothing was claimed: a clean-up may be removing the flush's old files. Stage its records again."""


@dataclass(frozen=True, slots=True)
class OtherTopic:
    """Nothing was claimed: the topic was recreated, and which of the two a record came from is unknown."""

    topic_id: str


@dataclass(frozen=True, slots=True)
class Incompatible:
    """Nothing was written: a table can never accept the rows (stage_writer/stage/table_compatibility.py)."""

    start: Position
    tables: tuple[TableFormat, ...]
    """The tables that the rows are for."""
    problem: str
    remedy: str

    def fault(self, partition: TopicPartition) -> PartitionFault:
        return PartitionFault(partition, self.problem, self.remedy, "table_incompatible")


FlushOutcome = Sealed | LostClaim | Postponed | Outdated | OtherTopic | Incompatible


class ClaimVerdict(Enum):
    CLAIM = "claim"
    WAIT = "wait"


ClaimGuard = Callable[[], ClaimVerdict | OtherTopic]
"""Whether a claim may be made now: called by a job, in its own thread, right before it claims.

Raises BrokerError when Kafka does not answer.
"""


class Running(Protocol[Made_co]):
    def done(self) -> bool: ...

    def result(self) -> Made_co:
        """The job's result; raises what it raised."""


Flushing = Running[FlushOutcome]


class Workers(Protocol):
    """Where flush jobs and other work that waits for the store run."""

    def start(self, job: Callable[[], Result]) -> Running[Result]:
        """Run the job soon, in the background."""

    def wait(self, running: Collection[Flushing], timeout_s: float) -> None:
        """Wait until any of them has finished, or the time is over."""

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Apply the function to each item concurrently; returns the results in order once all are done."""

    def close(self) -> None:
        """Accept no more jobs; does not wait for running ones."""


class BatchConverter(Protocol):
    @property
    def stream(self) -> Stream: ...

    def slices(self, batches: Sequence[MessageBatch]) -> Iterator[Sequence[tuple[MessageBatch, StagedRows]]]:
        """The batches, or parts of them in order, with rows for each of `formats` and the outcome of the other records.

        Each slice is made when the caller asks for it, in a size that fits memory; usually there is one
        (`StagedRows.is_segment`).
        """


class Converter(Protocol):
    """The conversion of one stream. A `BatchConverter` converts its messages: itself, or one for several tasks."""

    @property
    def stream(self) -> Stream: ...

    @property
    def formats(self) -> Sequence[TableFormat]: ...

    def waits(self, batch: MessageBatch) -> Dependency | None:
        """What must be available before this batch can be converted; None when nothing is missing."""

    def at(self, gained: StructType) -> Converter:
        """This converter with the columns that the stream has gained, in addition to the declared ones."""

    def restores(self, partition: TopicPartition, state: StateFiles, store: StateStore) -> RestoreTask | None:
        """A job that restores the task of a Kafka partition; None for a stream without a topology."""


class ColumnFollower(Protocol):
    """Finds the columns of a stream that does not declare them, in the background."""

    def poll(self) -> Converter | None:
        """The converter for columns found since the last call, or None. Never blocks."""


class PartitionTask(Converter, Protocol):
    """The state that a Kafka partition of a stream with a topology keeps between messages; dropped with its buffer.

    As a `Converter` it makes rows of this partition's messages, and changes the state while doing so.

    Rows and state move together: the changes made by a buffer's messages are sealed with it, written before its marker
    and named by it. The task of a dropped partition is never used again.
    """

    @property
    def memory_bytes(self) -> int:
        """The size of the changes since the last `seal`."""

    @property
    def wants_flush(self) -> bool:
        """Whether the user's code has requested a flush since the last `seal`."""

    def seal(self, buffer: Buffer) -> StateChange:
        """The changes made by the messages of this buffer."""

    def sealed(self, state: StateFiles) -> None:
        """The flush of the last `seal` has its marker, which names these files."""

    def renewal(self, store: StateStore, tail: Tail) -> Callable[[], StateFiles] | None:
        """A job that writes the state named by ``tail`` to the stage, where it should not stay in a topic.

        None where there is nothing to do. Call it only while no flush is in progress.
        """

    def renewed(self, before: StateFiles, state: StateFiles) -> None:
        """That job is done: the state at ``before`` is in these files too."""

    def close(self) -> None:
        """Release all resources; a flush may still be in progress."""


RestoreTask = Callable[[], PartitionTask]
"""A job that restores a task."""


class StateChange(Protocol):
    @property
    def memory_bytes(self) -> int: ...

    def write(self, store: StateStore, name: Callable[[StateKind], StateFileName]) -> MarkedState:
        """Write it, and return what the marker must name.

        Called by the flush's job, once unless it raises StoreError or BrokerError; ``name`` makes a new file name.
        """


class StateStore(Protocol):
    """The files of tasks' states. Raises StoreError, and StateError for a file that does not exist.

    Where changes are in Kafka topics, also BrokerError.
    """

    def write(self, name: StateFileName, data: ByteChunks) -> Change:
        """Write a file under a unique name. Returns its path."""

    def changes(self, partition: TopicPartition, state: StateFiles) -> Iterator[tuple[str, bytes]]:
        """The changes to a task's state since its snapshot, oldest first: a name for messages, and the bytes."""

    def open(self, path: str) -> BinaryIO:
        """Open a file that is read on demand."""


class ChangeReader(Protocol):
    def read(self, changes: TopicChanges) -> bytes:
        """All changes of a flush. Raises StateError and BrokerError."""


class Changelog:
    """The changes of tasks' states in topics. This class is for a process that has no topologies."""

    def write(self, topic: Topic, app_id: str, name: StateFileName, data: ByteChunks) -> TopicChanges:
        """Write a flush's changes. Raises BrokerError, and ConfigError for a topic that is no longer suitable."""
        raise NotImplementedError(topic, app_id, name, data)

    def reading(self) -> AbstractContextManager[ChangeReader]:
        """A reader for any number of changes; connects on first use."""
        msg = "the state of this chain is in a Kafka topic, which this program does not read"
        raise StateError(msg, "read it with a stage writer")


NO_CHANGELOG = Changelog()


@dataclass(frozen=True, slots=True)
class FlushIdentity:
    partition: TopicPartition
    stream: Stream
    buffer: Buffer
    tail: Tail | None
    """The marker before it."""
    lineage: Lineage = Lineage()  # noqa: RUF009 - frozen
    state: StateChange | None = None
    """Changes of its messages to their task's state."""
    outlet: Outlet | None = None
    """Where its records for Kafka topics are delivered from, once it is sealed."""
