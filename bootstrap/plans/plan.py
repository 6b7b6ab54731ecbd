"""Which markers set where chains start: the plan behind ``bootstrap plan`` and ``bootstrap write``.

Rules:

1. The marker for position p covers ``[p-1, p)`` and has no rows: the same as one made with ``touch``. No marker can
   exist before position 0: where the stream's ``start`` is not there anyway, an origin sets it.
2. A chain is never overwritten. A partition with any marker is refused, and after any refusal nothing is written. If
   the chain begins there by such a marker, there is nothing to do. Nor is there after a command that was cut off, even
   if it wanted another position (``latest``): the same command completes it.
3. Nothing is given up silently. A position that Kafka does not have, or one beyond the table's next position, is
   refused; giving positions up is what ``bootstrap skip`` is for.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bootstrap.plans.state import Author, PartitionState, origin_at_zero
from bootstrap.plans.task_states import TaskStates
from common.errors import UsageError
from common.remedies import repair
from common.settings import FromOffsets, FromTimestamp, Start, StartAt
from common.spans import Position, TopicPartition
from common.stage.chain_origins import ChainOrigin, origin_path
from common.stage.markers import Marker, Origin


@dataclass(frozen=True, slots=True)
class Make:
    marker: Marker
    note: str = ""


@dataclass(frozen=True, slots=True)
class BeginChain:
    """An origin to record: position 0, for which there is no marker, or the current ``latest``."""

    partition: TopicPartition
    chain_origin: ChainOrigin

    @property
    def path(self) -> str:
        return origin_path(self.partition, self.chain_origin.number)


@dataclass(frozen=True, slots=True)
class NotNeeded:
    """The stream starts there without a marker."""

    why: str


@dataclass(frozen=True, slots=True)
class NoPosition:
    """The source names no position for this partition."""

    why: str


@dataclass(frozen=True, slots=True)
class RefusedPartition:
    """A partition for which no marker may be created."""

    problem: str
    remedy: str


Outcome = Make | BeginChain | NotNeeded | NoPosition | RefusedPartition


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    partition: TopicPartition
    position: Position | None
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class StreamPlan:
    app_id: str
    partitions: tuple[PlannedPartition, ...]

    @property
    def beginnings(self) -> tuple[BeginChain, ...]:
        return tuple(planned.outcome for planned in self.partitions if isinstance(planned.outcome, BeginChain))

    @property
    def markers(self) -> tuple[Marker, ...]:
        """The markers to create. Raises UsageError when anything is refused (rule 2)."""
        refused = [
            (planned.partition, planned.outcome)
            for planned in self.partitions
            if isinstance(planned.outcome, RefusedPartition)
        ]
        if refused:
            _, first = refused[0]
            more = [str(partition) for partition, _ in refused[1:]]
            rest = f" (refused as well: {', '.join(more)})" if more else ""
            raise UsageError(f"nothing was written: {first.problem}{rest}", first.remedy)
        return tuple(planned.outcome.marker for planned in self.partitions if isinstance(planned.outcome, Make))


def plan_partition(state: PartitionState, position: Position | None, why_none: str, author: Author) -> PlannedPartition:
    """The plan for one partition; ``why_none`` is why the source has no position for it."""
    if position is None and state.start is StartAt.LATEST and not state.staged and state.chain_origin is None:
        # Recorded with the others: in a topic whose partition 0 has a chain, one without would be treated as new.
        end = state.ends.high
        return PlannedPartition(state.partition, end, BeginChain(state.partition, ChainOrigin(end, state.generation)))
    return PlannedPartition(state.partition, position, _outcome(state, position, why_none, author))


def _outcome(state: PartitionState, position: Position | None, why_none: str, author: Author) -> Outcome:
    if position is None:
        return NoPosition(f"{why_none}; {_begins_without(state)}")
    if state.foreign is not None or state.staged:
        return _has_chain(state, position) if state.foreign is None else _is_foreign(state, state.foreign, position)
    if not state.ends.low <= position <= state.ends.high:
        return _not_in_kafka(state, position)
    if state.table is not None and state.table < position:
        return RefusedPartition(
            f"the table wants position {state.table} of {state.partition} next, so starting at {position} would "
            f"leave out [{state.table}, {position})",
            f"start at {state.table} with --from delta, or skip the positions with `{_skip(state, position)}`",
        )
    if position == 0:
        return _zero(state)
    of_task = TaskStates.from_chain(state).point(position)
    return Make(author.begin_at(state, position, of_task), _note(state, position))


def _note(state: PartitionState, position: Position) -> str:
    low, high = state.ends.low, state.ends.high
    if state.table is not None and state.table > position:
        return f"the table already has [{position}, {state.table}); the loader skips it"
    if state.table is not None or low == position:
        return ""
    left_out = f"[{low}, {position})"
    return f"leaves out all that Kafka has, {left_out}" if position == high else f"leaves out {left_out}"


def _begins_without(state: PartitionState) -> str:
    if state.staged:
        return "its chain stays as it is"
    return f"it begins at the stream's start, {start_words(state.start)}"


def _sets_start(first: Marker) -> bool:
    """Whether a chain's first marker only says where it begins."""
    return first.previous is None and (first.manifest is None or first.manifest.origin is Origin.BOOTSTRAP)


def _has_chain(state: PartitionState, position: Position) -> NotNeeded | RefusedPartition:
    first, last = state.staged[0].marker, state.staged[-1]
    if first is not None and _sets_start(first) and (first.span.end == position or state.cut_off):
        return NotNeeded(f"its chain begins at {first.span.end} already")
    ends = f", and is staged up to {last.marker.span.end}" if last.marker is not None else ""
    return RefusedPartition(
        f"{state.partition} already has a chain: the marker {last.path} exists{ends}",
        f"a chain is never overwritten: rewind it with `{repair('rewind', state.partition)} --to …`, skip positions "
        f"with `{repair('skip', state.partition)} --to …`, or remove the partition from a file of positions (--from)",
    )


def _is_foreign(state: PartitionState, why: str, position: Position) -> RefusedPartition:
    return RefusedPartition(
        f"{state.partition} does not match the table's positions: {why}",
        "use another app_id for the stream, or start a new chain with "
        f"`{repair('restart', state.partition)} --at {position} --yes`",
    )


def _not_in_kafka(state: PartitionState, position: Position) -> RefusedPartition:
    ends = state.ends
    if position > ends.high:
        return RefusedPartition(
            f"{state.partition} ends at {ends.high} in Kafka, before position {position}",
            "check that the position belongs to this topic; a topic that was deleted and recreated begins at 0",
        )
    return RefusedPartition(
        f"Kafka no longer has [{position}, {ends.low}) of {state.partition}: it begins at {ends.low}",
        f"skip those positions with `{_skip(state, ends.low)}` if the table has a position, or start at "
        f"{ends.low} with --from earliest or --from FILE",
    )


def _zero(state: PartitionState) -> Outcome:
    if state.begins_at_zero():
        return NotNeeded(f"position 0 needs no marker: the stream's start, {start_words(state.start)}, begins there")
    return BeginChain(state.partition, origin_at_zero(state))


def start_words(start: Start) -> str:
    """A stream's start as an operator would write it."""
    if isinstance(start, FromTimestamp):
        return f"the first record at or after {start.timestamp_ms} ms"
    if isinstance(start, FromOffsets):
        return "its map of positions, else earliest"
    return start.value


def _skip(state: PartitionState, to: Position) -> str:
    return repair("skip", state.partition, to)


def check_known(named: Iterable[TopicPartition], known: Sequence[TopicPartition], source: str) -> None:
    """Raise UsageError when a position was given for a partition that Kafka does not have."""
    strange = sorted(set(named) - set(known))
    if strange:
        msg = f"{source} names {strange[0]}, which does not exist in Kafka, or is not the stream's"
        raise UsageError(msg, f"name partitions of {known[0]} … {known[-1]}" if known else "check the stream's topics")
