"""The operator's resolution for a table that was rolled back: what `bootstrap accept` plans.

Rules:

1. ``--go-on`` changes no chain: the table's current positions are valid. If its txn actions expired, the valid
   positions are those in the table's own commits. If the table was recreated, the position is the chain's first marker.
2. ``--replay`` restarts where the table's records end. From there on, consecutive markers are used as they are, as long
   as all their files exist. If this run of markers ends before the chain does, or if it is empty, the chain is rewound
   to the run's end (bootstrap/plans/repair.py), and the writers stage the rest again.
3. Records that Kafka no longer has are counted, and the command is refused. With ``--give-up``, loading starts where
   Kafka starts.
4. A table of a route, or for dead letters, gets its part of a marker when the stream's main table gets it, never alone.
   It can therefore be replayed only together with the main table, which must have been rolled back as far.
5. The chains are rewound before the resolution is written. After a crash in between, the stream still waits, and the
   same command completes the rest.
6. If a topic was recreated, its lost records are no longer in Kafka, and their positions are not the new topic's. They
   are refused as in rule 3. With ``--give-up``, the new topic's chain continues at the table's position.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from bootstrap.plans.repair import RewindPlan, plan_rewind
from bootstrap.plans.state import Author, PartitionState
from common.errors import UsageError
from common.remedies import repair
from common.sizes import counted
from common.spans import Position, Span, TopicPartition
from common.stage.markers import Marker
from common.tables.commit_metadata import Decision
from common.tables.rollback import Rollback, RollbackKind, described, remedy_of_secondary


@dataclass(frozen=True, slots=True)
class PartitionResolution:
    partition: TopicPartition
    position: Position
    staged_to: Position
    """The end of the existing markers that are used."""
    rewind: RewindPlan | None
    given_up: Span | None = None
    """The positions that Kafka no longer has."""
    generation: int = 0
    """The generation of the chain that continues there."""


@dataclass(frozen=True, slots=True)
class RollbackEvent:
    url: str
    table_id: str
    back: Rollback


@dataclass(frozen=True, slots=True)
class AcceptPlan:
    event: RollbackEvent
    decision: Decision
    partitions: tuple[PartitionResolution, ...]

    @property
    def positions(self) -> Mapping[TopicPartition, Position]:
        return {resolution.partition: resolution.position for resolution in self.partitions}

    @property
    def generations(self) -> Mapping[TopicPartition, int]:
        return {resolution.partition: resolution.generation for resolution in self.partitions if resolution.generation}


def plan_go_on(event: RollbackEvent, states: Sequence[PartitionState]) -> AcceptPlan:
    """The table is right as it is (rule 1)."""
    back = event.back
    resolutions: list[PartitionResolution] = []
    for state in states:
        position = state.table
        if back.kind is RollbackKind.EXPIRED:
            position = back.positions[state.partition]
        elif back.kind is RollbackKind.RECREATED and state.chain.markers:
            position = state.chain.markers[0].span.start
        if position is not None:
            end = state.chain.end or position
            resolutions.append(PartitionResolution(state.partition, position, end, None, generation=state.generation))
    return AcceptPlan(event, Decision.GO_ON, tuple(resolutions))


def plan_replay(
    event: RollbackEvent,
    states: Sequence[PartitionState],
    author: Author,
    has_files: Callable[[Marker], bool],
    *,
    give_up: bool = False,
) -> AcceptPlan:
    """The table gets its lost records again (rules 2 and 3). Raises UsageError."""
    url, back = event.url, event.back
    if back.kind is RollbackKind.EXPIRED:
        msg = f"the table {url} has its rows and lost only its positions; a replay would load the rows twice"
        raise UsageError(msg, "accept it with --go-on, which sets the positions again")
    if back.kind is RollbackKind.UNKNOWN:
        restart = repair("restart", min(back.positions))
        msg = f"the log of {url} does not show whether it lost rows, so the start of a replay is unknown"
        raise UsageError(
            msg, f"accept it with --go-on, or start at an offset of your choice: `{restart} --at OFFSET --yes`"
        )
    if back.over:
        msg = f"version {back.over[-1]} of {url} was loaded over version {back.cause.version}, so a replay would "
        msg += "load its rows twice"
        raise UsageError(msg, f"first RESTORE the table to version {back.over[-1] - 1}; then accept that with --replay")
    if back.gone and not give_up:
        raise _of_an_older_topic(*back.gone[0])
    plans = (_replay(state, back, author, has_files, give_up=give_up) for state in states)
    return AcceptPlan(event, Decision.REPLAY, tuple(plan for plan in plans if plan is not None))


def _of_an_older_topic(partition: TopicPartition, lost: object) -> UsageError:
    msg = f"the table lost {lost} of a topic {partition} that was deleted and created again: Kafka has none of it"
    return UsageError(msg, "add --give-up to load again only the records of the current topic, or accept --go-on")


def _replay(
    state: PartitionState, back: Rollback, author: Author, has_files: Callable[[Marker], bool], *, give_up: bool
) -> PartitionResolution | None:
    """The resolution for one Kafka partition; None where the loader continues by itself (rule 6)."""
    if back.generations.get(state.partition, 0) < state.generation and back.kind is not RollbackKind.RECREATED:
        if not give_up:
            raise _of_an_older_topic(state.partition, f"what came after {back.positions[state.partition]}")
        if state.table is None:
            return None
        end = state.chain.end or state.table
        return PartitionResolution(state.partition, state.table, end, None, generation=state.generation)
    begin = back.positions[state.partition] if back.kind is not RollbackKind.RECREATED else state.ends.low
    usable = _usable_to(state, begin, has_files)
    if state.chain.end == usable:
        return PartitionResolution(state.partition, begin, usable, None, generation=state.generation)
    given_up = None
    if usable < state.ends.low:
        given_up = Span(usable, state.ends.low)
        if not give_up:
            lost = f"{counted(given_up.positions, 'position')} that the table lost"
            msg = f"Kafka no longer has {given_up} of {state.partition}: {lost}"
            raise UsageError(msg, "add --give-up to start where Kafka begins, or accept the table with --go-on")
        given_up = Span(begin, state.ends.low)
        begin = usable = state.ends.low
    # The table's own position is wrong: it has the records up to here once the existing markers are loaded.
    rewind = plan_rewind(replace(state, table=usable), usable, author)
    return PartitionResolution(state.partition, begin, usable, replace(rewind, notes=()), given_up, state.generation)


def _usable_to(state: PartitionState, begin: Position, has_files: Callable[[Marker], bool]) -> Position:
    """The end of the consecutive markers from a position on that can still be loaded (rule 2)."""
    position = begin
    for marker in state.chain.markers:
        if marker.span.start == position and has_files(marker):
            position = marker.span.end
    return position


def require_main_too(plan: AcceptPlan, app_id: str, main: Mapping[TopicPartition, Position | None]) -> None:
    """Raise UsageError when a table would have to be loaded without the stream's main table (rule 4).

    ``main`` is where the main table continues.
    """
    back = plan.event.back
    if back.is_older_copy:
        msg = (
            f"{described(plan.event.url, back)}: a replay loads staged records into all tables of a stream together, "
            "never into one alone"
        )
        raise UsageError(msg, remedy_of_secondary(plan.event.url, app_id, back, main))
    replayed = {
        resolution.partition
        for resolution in plan.partitions
        if resolution.generation == back.generations.get(resolution.partition, 0)
    }
    for partition, first in sorted(back.lost_from.items()):
        begin = main.get(partition) if partition in replayed else None  # rule 6
        if begin is not None and begin > first:
            msg = (
                f"{plan.event.url} lost records of {partition} from {first} on, but the stream's main table "
                f"continues at {begin}: a replay loads staged records into all tables of a stream together, never into "
                "one alone"
            )
            raise UsageError(msg, remedy_of_secondary(plan.event.url, app_id, back, main))
