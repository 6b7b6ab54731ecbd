"""The input of the tool's decisions: one Kafka partition in Kafka, in the stage, and in the table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from common.settings import FromOffsets, Start, StartAt
from common.spans import MAX_POSITION, Position, Span, TopicPartition
from common.stage.chain import Chain, emptied, read_chain
from common.stage.chain_origins import ChainOrigin
from common.stage.markers import Manifest, Marker, MarkerName, Origin
from common.stage.merged import kafka_topic
from common.stage.task_files import MarkedState, StateFiles


@dataclass(frozen=True, slots=True)
class Ends:
    """The contents of a partition in Kafka: the positions ``[low, high]`` are those that a reader can start at."""

    low: Position
    high: Position


@dataclass(frozen=True, slots=True)
class StagedMarker:
    """A marker in the stage, readable or not."""

    path: str
    """The object's own path; a hand-typed name is not padded."""
    name: MarkerName
    marker: Marker | None
    """None when its content cannot be read."""
    is_newer: bool = False
    """Whether it cannot be read because a newer release made it."""
    problem: str = "cannot be read"
    """Why ``marker`` is None."""


def without_emptied(
    staged: Iterable[StagedMarker], table: Position | None, origin: ChainOrigin | None
) -> tuple[StagedMarker, ...]:
    """A chain's markers; those that were emptied (common/stage/chain.py, rule 5) and not loaded cannot be read."""
    ordered = tuple(staged)
    start = None if origin is None else origin.position
    why = emptied((marker.marker for marker in ordered if marker.marker is not None), start)
    return tuple(
        replace(marker, marker=None, problem=f"cannot be used: {why[marker.name]}")
        if marker.name in why and (table is None or marker.name.start >= table)
        else marker
        for marker in ordered
    )


_NOTHING = Position(0)


@dataclass(frozen=True, slots=True)
class PartitionState:
    partition: TopicPartition
    app_id: str
    start: Start
    """The stream's start for a partition without markers."""
    ends: Ends
    table: Position | None
    """The next position that the table wants; None when it has none for this partition."""
    staged: Sequence[StagedMarker] = field(default=())
    """The markers of the chain in the stage, in the order of their positions."""
    older: Sequence[StagedMarker] = field(default=())
    """Markers from before the chain's origin, which no longer belong to it."""
    put_aside: Sequence[Manifest] = field(default=())
    """What earlier repairs put aside of a chain that is behind the tables (common/stage/put_aside.py)."""
    chain_origin: ChainOrigin | None = None
    """The recorded origin of the chain (common/stage/chain_origins.py)."""
    generation: int = 0
    topic_id: str | None = None
    """The broker's id of the current topic; None where it has none."""
    foreign: str | None = None
    """Why the chain is not the one of the table's positions (common/tables/identity.py); None where it is."""
    elsewhere: Position | None = None
    """Where ``foreign``: how far the table has this topic, under this app_id or one that the chain was staged for."""
    unknown_inputs: TopicPartition | None = None
    """Where ``foreign``: a chain of several topics, of which it is unknown how far the table has this topic by it."""
    unsent: TopicPartition | None = None
    """Where ``foreign``: a chain that the table has instead, whose records for Kafka topics are not all sent."""
    loaded_under: str | None = None
    """The app_id of the other stream that loaded the chain's settled start (common/tables/identity.py, rule 5)."""
    replaced_generation: int = 0
    """The highest generation of the chains that the table has instead."""
    loaded: Position = _NOTHING
    """How far the main table has the Kafka partition by its newest chain, or by those in its place; 0 for nothing."""
    deferred_from: Position | None = None
    """Where the ranges begin that another table of the stream lacks and the main table has."""

    repairs: int = 0
    """The number of the partition's last repair lock."""
    cut_off: bool = False
    """Whether a repair that was cut off is to be finished, also where nothing of it is left to do."""

    @property
    def next_origin(self) -> int:
        """The number of an origin that a repair makes (common/stage/chain_origins.py, rule 1b)."""
        return max(self.repairs, 0 if self.chain_origin is None else self.chain_origin.number) + 1

    @property
    def loaded_before(self) -> Position | None:
        """What an origin of the same generation goes on saying (common/stage/chain_origins.py, rule 9)."""
        return None if self.chain_origin is None else self.chain_origin.loaded_before

    @property
    def in_all_tables(self) -> Position | None:
        """The end of what every table of the stream has; None while the main table has no position."""
        if self.table is None or self.deferred_from is None:
            return self.table
        return min(self.table, self.deferred_from)

    @property
    def _manifests(self) -> list[Manifest]:
        return [staged.marker.manifest for staged in self.staged if staged.marker and staged.marker.manifest]

    @property
    def chain_topic_id(self) -> str | None:
        """The id of the topic that the chain is of; None where it is unknown."""
        named = [manifest.topic_id for manifest in self._manifests if manifest.topic_id is not None]
        if named:
            return named[-1]
        return None if self.chain_origin is None else self.chain_origin.topic_id

    @property
    def staged_for(self) -> tuple[str, ...]:
        """The app_ids of the streams that the chain was staged for, each once."""
        named = [manifest.app_id for manifest in self._manifests]
        return tuple(dict.fromkeys(named if self.loaded_under is None else [self.loaded_under, *named]))

    @property
    def staged_generation(self) -> int:
        """The generation of the chain in the stage; the table's may be a later one."""
        begun = 0 if self.chain_origin is None else self.chain_origin.generation
        return max([begun, *(manifest.generation for manifest in self._manifests)])

    @property
    def origin(self) -> ChainOrigin | None:
        """The recorded origin of the chain in the stage. None without one; an earlier chain's does not count."""
        begun = self.chain_origin
        return begun if begun is not None and begun.generation == self.staged_generation else None

    @property
    def chain(self) -> Chain:
        return read_chain(staged.marker for staged in self.staged if staged.marker is not None)

    @property
    def end(self) -> Position:
        """Where the chain in the stage ends: at its last marker or, without one, at its origin."""
        end = self.chain.end
        if end is not None:
            return end
        return Position(0) if self.origin is None else self.origin.position

    @property
    def is_behind_tables(self) -> bool:
        """Whether every table has more than the chain."""
        return self.in_all_tables is not None and self.in_all_tables > self.end

    def end_of(self, marker: StagedMarker) -> Position:
        """The end of a marker's span; an unreadable marker is assumed to reach up to the next one."""
        if marker.marker is not None:
            return marker.marker.span.end
        later = [other.name.start for other in self.staged if other.name.start > marker.name.start]
        return min(later, default=Position(MAX_POSITION))

    def begins_at_zero(self) -> bool:
        """Whether a writer starts at position 0 while there is no marker."""
        if self.chain_origin is not None:
            return self.chain_origin.position == 0
        if isinstance(self.start, FromOffsets):
            given = self.start.position(kafka_topic(self.partition.topic), self.partition.partition)
            return given in {0, None}
        return self.start is StartAt.EARLIEST


@dataclass(frozen=True, slots=True)
class TaskPoint:
    """A topology's state and outboxes at a position of a chain (bootstrap/plans/task_states.py)."""

    state: StateFiles | None = None
    """The state of its task; None where it is unknown, and without a task."""
    outboxes: tuple[str, ...] = ()
    """Outboxes not known to be delivered, oldest first."""


NO_TASK = TaskPoint()


@dataclass(frozen=True, slots=True)
class Author:
    """The author and time of new markers, for people who read the manifest."""

    name: str
    now_ms: int

    def marker(
        self, state: PartitionState, origin: Origin, span: Span, previous: Position | None, of_task: TaskPoint = NO_TASK
    ) -> Marker:
        """A marker that covers a span without rows."""
        manifest = Manifest(
            span=span,
            previous=previous,
            app_id=state.app_id,
            origin=origin,
            writer=self.name,
            created_ms=self.now_ms,
            topic_id=state.topic_id if state.chain_topic_id is None else state.chain_topic_id,
            generation=state.generation,
            outboxes=of_task.outboxes,
            state=None if of_task.state is None else MarkedState(of_task.state, of_task.state),
            chain_origin=0 if state.chain_origin is None else state.chain_origin.number,
        )
        return Marker(MarkerName(state.partition, span.start), manifest)

    def begin_at(self, state: PartitionState, position: Position, of_task: TaskPoint = NO_TASK) -> Marker:
        """A marker that sets the start to ``position``. Position 0 has an origin instead."""
        return self.marker(state, Origin.BOOTSTRAP, Span(Position(position - 1), position), None, of_task)


def origin_at_zero(state: PartitionState) -> ChainOrigin:
    """An origin that sets a chain without a marker to start at position 0."""
    number = 0 if state.chain_origin is None else state.next_origin
    return ChainOrigin(
        Position(0), state.generation, state.chain_topic_id, number=number, loaded_before=state.loaded_before
    )
