"""The writer's ports: where records come from, and where flushes go.

A simulation implements them without threads, and decides what happens when.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, BinaryIO, Protocol, TypeVar

from common.stage.markers import digest_of, marker_to_bytes
from common.stage.state_files import EMPTY_STATE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from common.errors import KafkaDeltaExpressError
    from common.schema import StructType
    from common.settings import Start, Stream
    from common.spans import Position, Topic, TopicPartition
    from common.stage.chain_origins import Beginning
    from common.stage.idle import IdleFact, StreamFact
    from common.stage.markers import LastRecord, Marker
    from common.stage.state_files import Change, MarkedState, StateFileName, StateFiles, StateKind
    from common.storage.pieces import Pieces
    from stage_writer.core.batch import MessageBatch
    from stage_writer.core.parquet.buffer import Buffer, StagedRows, TableFormat

Item = TypeVar("Item")
Result = TypeVar("Result")
Made_co = TypeVar("Made_co", covariant=True)


OUT_OF_RANGE = "out_of_range"
UNEXPECTED = "unexpected"
"""Of a `PartitionFault`: Kafka does not have the position that is wanted."""
TRUNCATED = "topic_truncated"
"""Of a `PartitionFault`: Kafka has lost records before that position, under the same topic id."""


@dataclass(frozen=True, slots=True)
class PartitionFault:
    """Kafka cannot serve one partition; the others go on."""

    source: TopicPartition
    problem: str
    remedy: str
    reason: str = "kafka"
    """In a word, for metrics."""


@dataclass(frozen=True, slots=True)
class Polled:
    """What one poll brought."""

    batches: tuple[MessageBatch, ...] = ()
    ends: Mapping[TopicPartition, Position] = field(default_factory=dict)
    """Partitions whose end was reached, and the position there."""
    faults: tuple[PartitionFault, ...] = ()


class GroupListener(Protocol):
    """Whom a source tells about the consumer group; called inside of `RecordSource.poll` and ``close``."""

    def assigned(self, sources: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        """These are ours now: where each begins. One that is left out stays unread."""

    def revoked(self, sources: Collection[TopicPartition]) -> None:
        """These go to somebody else when this call returns."""

    def lost(self, sources: Collection[TopicPartition]) -> None:
        """These have gone to somebody else already."""


class RecordSource(Protocol):
    """A member of a consumer group. Raises BrokerError when Kafka cannot be used at all."""

    def subscribe(self, streams: Collection[Stream], listener: GroupListener) -> None:
        """Join the group for the streams' topics."""

    def poll(self, timeout_s: float) -> Polled:
        """Wait that long at most for messages, and serve the group."""

    def expect(self, last: Mapping[TopicPartition, LastRecord]) -> None:
        """The records before the places that these are read from next, by an assignment or a seek.

        Where Kafka has lost one of them, a poll reports `TRUNCATED`.
        """

    def seek(self, source: TopicPartition, position: Position) -> None:
        """Go on reading an assigned partition from another position."""

    def pause(self, sources: Collection[TopicPartition]) -> None:
        """Stop reading these; the place in the group is kept."""

    def resume(self, sources: Collection[TopicPartition]) -> None:
        """Read these again."""

    def resolve(self, source: TopicPartition, start: Start) -> Position:
        """The position that a start stands for."""

    def end_positions(self, streams: Collection[Stream]) -> Mapping[TopicPartition, Position]:
        """The end of every partition of the streams' topics."""

    def high_watermarks(self, sources: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        """The end of these partitions, open transactions included."""

    def topic_ids(self, topics: Collection[Topic]) -> Mapping[Topic, str | None]:
        """The id of each topic that is there; None from a broker that has no ids. Safe to call from any thread."""

    def ownerless(self, sources: Collection[TopicPartition]) -> Collection[TopicPartition] | None:
        """Those of these partitions that nobody in the group has; None while the group is not at rest.

        Raises ConfigError when this member may not ask.
        """

    def report(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Commit positions to the group for people's lag tools."""

    def close(self) -> None:
        """Leave the group; tells the listener what is revoked."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """The flush's marker is there: its rows are staged."""

    marker: Marker
    files: int
    size_bytes: int
    chain_moved: bool
    """The marker before it has gone meanwhile (settled, or put aside by an operator): read the chain again."""

    @property
    def tail(self) -> Tail:
        """The chain's end after this flush."""
        digest = digest_of(marker_to_bytes(self.marker))
        manifest = self.marker.manifest
        lineage = Lineage() if manifest is None else Lineage(manifest.generation, manifest.topic_id)
        state = EMPTY_STATE if manifest is None or manifest.state is None else manifest.state.files
        outboxes = () if manifest is None else manifest.outboxes
        name = self.marker.name
        last = None if manifest is None else manifest.last_record
        return Tail(self.marker.span.end, name.start, name.path, digest, lineage, state, outboxes, last_record=last)


@dataclass(frozen=True, slots=True)
class LostClaim:
    """Somebody else has sealed this position; our files are left for VACUUM."""


@dataclass(frozen=True, slots=True)
class Postponed:
    """Nothing was claimed: this writer may be one that its group has given up. Run the job again later."""


@dataclass(frozen=True, slots=True)
class OtherTopic:
    """Nothing was claimed: the topic has been created again, and an unknown format of the two was read."""

    topic_id: str


@dataclass(frozen=True, slots=True)
class Incompatible:
    """Nothing was written: a table can never take the rows (stage_writer/shell/table_compatibility.py)."""

    start: Position
    """Of the flush's span."""
    tables: tuple[TableFormat, ...]
    """Those that the rows are for."""
    problem: str
    remedy: str

    def fault(self, source: TopicPartition) -> PartitionFault:
        """What holds the partition."""
        return PartitionFault(source, self.problem, self.remedy, "table_incompatible")


FlushOutcome = Sealed | LostClaim | Postponed | OtherTopic | Incompatible


class ClaimVerdict(Enum):
    """What a guard says of a claim."""

    CLAIM = "claim"
    WAIT = "wait"


class ClaimGuard(Protocol):
    """Asked by a job, in its own thread, right before it claims. Raises BrokerError when Kafka does not answer."""

    def __call__(self) -> ClaimVerdict | OtherTopic:
        """Whether the claim may be made now."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """Which chain of its Kafka partition a flush belongs to (common/stage/chain_origins.py, rule 2)."""

    generation: int = 0
    topic_id: str | None = None


class Runs(Protocol[Made_co]):
    """A job."""

    def run(self) -> Made_co:
        """Do it."""


class Running(Protocol[Made_co]):
    """A job that runs somewhere else."""

    def done(self) -> bool:
        """Whether it has ended."""

    def result(self) -> Made_co:
        """How it ended; raises what it raised."""


Flushing = Running[FlushOutcome]


class Workers(Protocol):
    """Where flush jobs run, and what else waits for the store."""

    def start(self, job: Runs[Result]) -> Running[Result]:
        """Run the job soon, beside the loop."""

    def wait(self, running: Collection[Flushing], timeout_s: float) -> None:
        """Wait until one of them has ended, or the time is over."""

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """The function of each, in their order, asked side by side; returns when all have been."""

    def close(self) -> None:
        """Take no more jobs; nobody waits for those that run."""


class Wait(Protocol):
    """Something that messages cannot be converted without, and that is asked for beside the loop."""

    @property
    def error(self) -> KafkaDeltaExpressError:
        """What is missing, and why as far as that is known. Safe to read from any thread."""

    def is_over(self) -> bool:
        """Whether it is there now; never waits for it. Has it asked for again when it is time to."""


class Converts(Protocol):
    """Turns messages of one stream into rows."""

    @property
    def stream(self) -> Stream:
        """The stream's settings."""

    def slices(self, batches: Sequence[MessageBatch]) -> Iterator[Sequence[tuple[MessageBatch, StagedRows]]]:
        """The batches, or parts of them in their order, with rows for each of `formats` and what became of the others.

        Each slice is made when it is asked for, of a size that fits; most often there is one (`StagedRows.is_piece`).
        """


class Converter(Converts, Protocol):
    """The conversion of one stream."""

    @property
    def formats(self) -> Sequence[TableFormat]:
        """The stream's tables."""

    def waits(self, batch: MessageBatch) -> Wait | None:
        """What has to be there before this batch can be converted; None when nothing is missing."""

    def at(self, gained: StructType) -> Converter:
        """The same for a stream that has gained columns, beside the declared ones."""

    def restores(self, source: TopicPartition, state: StateFiles, store: StateStore) -> Runs[PartitionTask] | None:
        """A job that makes the task of a Kafka partition as it was; None for a stream without a topology."""


class PartitionTask(Protocol):
    """What a Kafka partition of a stream with a topology keeps from message to message; it goes with its buffer.

    Rows and state move together: what the messages of a buffer have changed is sealed with it, written before its
    marker and named by it. A task of a partition that was dropped is never used again.
    """

    @property
    def converter(self) -> Converter:
        """What makes rows of this partition's messages; it changes the state as it does."""

    @property
    def memory_bytes(self) -> int:
        """What has changed since the last `seal`."""

    @property
    def wants_flush(self) -> bool:
        """Whether the user's code has asked for a flush since the last `seal`."""

    def seal(self, buffer: Buffer) -> StateChange:
        """What the messages of this buffer have changed."""

    def sealed(self, state: StateFiles) -> None:
        """The flush of the last `seal` has its marker, which names these files."""

    def renewal(self, store: StateStore, tail: Tail) -> Runs[StateFiles] | None:
        """A job that writes what ``tail`` names of the state to the stage, where it should not stay in a topic.

        None where there is nothing to do. To be asked while no flush is under way.
        """

    def renewed(self, before: StateFiles, state: StateFiles) -> None:
        """That job is done: the state that ``before`` made is in these files too."""

    def close(self) -> None:
        """Let go of it all; a flush may still be under way."""


class StateChange(Protocol):
    """What a flush changes in its task's state, on its way to the stage."""

    @property
    def memory_bytes(self) -> int:
        """What it holds."""

    def write(self, store: StateStore, name: Callable[[StateKind], StateFileName]) -> MarkedState:
        """Write it, and say what the marker has to name.

        Called by the flush's job, once unless it raises StoreError or BrokerError; ``name`` makes a new one.
        """


class StateStore(Protocol):
    """Where state files are. Raises StoreError, and StateError for one that is not there.

    Where changes are in Kafka topics, also BrokerError.
    """

    def write(self, name: StateFileName, data: Pieces) -> Change:
        """Write a file; its name is nobody else's. Where it is."""

    def changes(self, source: TopicPartition, state: StateFiles) -> Iterator[tuple[str, bytes]]:
        """What a task's state has on top of its snapshot, the oldest first: what to call it, and its bytes."""

    def open(self, path: str) -> BinaryIO:
        """A file that is read as it is needed."""


class FlushJob(Protocol):
    """One flush, from encoding to its marker."""

    @property
    def memory_bytes(self) -> int:
        """What it holds until it is done."""

    def run(self) -> FlushOutcome:
        """Do what is still to be done; after a StoreError it may be called again."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a chain, as a writer has to know it."""

    end: Position
    """Where the next span begins."""
    marker: Position
    """The start of the chain's last marker."""
    path: str
    """That marker's object; a hand-typed name is not padded."""
    digest: str
    """Of that marker's bytes (`common.stage.markers.digest_of`): another one may get its name once it is gone."""
    lineage: Lineage = field(default_factory=Lineage)
    """The generation of the chain, and the topic that the marker is of."""
    state: StateFiles = EMPTY_STATE
    """The task's at this end; empty unless the marker itself says it."""
    outboxes: tuple[str, ...] = ()
    """What is not known to be delivered of the chain's (common/stage/outboxes.py); the oldest first."""
    is_bare: bool = False
    """Whether the last marker is an empty one, which somebody made by hand."""
    last_record: LastRecord | None = None
    """The last one that the last marker covers."""


class Stage(Protocol):
    """The stage and the tables' folders. Raises StoreError, and MarkerError for a marker that cannot be read."""

    def tail(self, source: TopicPartition) -> Tail | None:
        """The end of a partition's chain, or None while there is none."""

    def is_there(self, tail: Tail) -> bool:
        """Whether a marker still exists, and is the one that it was."""

    @property
    def states(self) -> StateStore:
        """The files of tasks' states."""

    def state_at(self, source: TopicPartition, tail: Tail | None) -> StateFiles:
        """The state of a partition's task at its chain's end. Raises StateError where it is unknown."""

    def beginning(self, source: TopicPartition) -> Beginning | None:
        """Where a partition's chain begins while it has no marker; None while nothing says so."""

    def tell_idle(self, facts: Collection[IdleFact], streams: Collection[StreamFact]) -> None:
        """Write down which partitions had nothing new, and which there were, in place of what was said before."""

    def tell_news(self, app_id: str) -> None:
        """Give the sign that a stream has new markers."""

    def begin(self, source: TopicPartition, beginning: Beginning) -> None:
        """Write down where a new chain begins; what is there already wins."""

    def gained(self, app_id: str) -> StructType | None:
        """The columns that a stream has gained, as the loader published them last; None while there are none."""

    def incompatible(self, start: Position, tables: Sequence[TableFormat]) -> Incompatible | None:
        """Why rows for these tables can never be loaded; None where they can be, or it is unknown."""

    def flush_job(
        self,
        source: TopicPartition,
        stream: Stream,
        buffer: Buffer,
        tail: Tail | None,
        *,
        lineage: Lineage = ...,
        guard: ClaimGuard = ...,
    ) -> FlushJob:
        """A job that seals the buffer as the marker after ``tail``, when the guard lets it."""
