"""The operator's repairs: giving positions up (skip), and staging them again (rewind).

Rules:

1. A skip makes one marker, ``[held position, to)`` with the origin ``skip``. The marker fills the first gap that holds
   the loader. Without a gap, it continues the chain's end or, if the chain has no marker, the chain's origin. It never
   covers what another marker covers.
2. A rewind makes the chain end at a *sound* position: one before which no record is lost. Sound positions are:
   - those that all tables of the stream have reached;
   - the ends of markers;
   - while the main table has no position, also the chain's start, and any position before that.
   Any other position is rounded down to the next sound one. Two kinds of positions only seem to be sound:
   - the start of a marker after a gap: the marker that says "start here" would cover the gap's last position;
   - while the main table has no position, anything above a first gap between the recorded origin and the first marker:
     only the origin shows that gap, and a rewind moves the origin.
3. Markers that reach beyond the new end are put aside, in an order that is safe to interrupt:
   a. First, the new end is recorded as the chain's origin. A loader that listed the chain earlier may settle every
      marker that stays. Without a marker and an origin, the partition would begin at the stream's ``start``, which may
      be ``latest``.
   b. Then the markers are removed, the highest first. What is left is always the lower part of the chain. A writer that
      reads it at any time therefore stages records again, and leaves none out.
   c. Before the lowest of them is removed, the marker for the new start is written.
   An interrupted rewind leaves markers from before the newest origin. They are put aside with the others.
4. In a stream with a topology, the new end is also a position at which the task's state is known
   (plans/task_states.py). The origin records that state and the undelivered outboxes, as the settled markers had them.
5. Positions that the table has are staged again only on request: the loader skips them. One table of the stream may
   have records that another one lacks. The table that lacks them then gets what is staged again, by the config as it is
   at that time. If routes or conditions were edited since, or tables exchanged, the two tables do not agree on where
   these records belong. The plan therefore names the range, and the command that loads it again into all of them.
6. In a chain of several topics, positions that the table has are never staged again. Where topics were read to their
   ends, the order of their messages depended on timing, and would differ the next time.
"""

from dataclasses import dataclass, replace

from bootstrap.plans.state import Author, PartitionState, StagedMarker
from bootstrap.plans.task_states import TaskStates
from common.errors import UsageError
from common.remedies import CONFIG, repair, replay
from common.spans import Position, Span, TopicPartition
from common.stage.chain_origins import ChainOrigin
from common.stage.markers import Marker, Origin
from common.stage.merged import is_merged


@dataclass(frozen=True, slots=True)
class SkipPlan:
    marker: Marker
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """Where the chain will end, and what must move for it."""

    requested: Position
    position: Position
    put_aside: tuple[StagedMarker, ...]
    """In the order of removal: highest first."""
    marker: Marker | None
    """Created before the last one is removed; None where the chain already ends at the position, or at position 0."""
    partition: TopicPartition
    chain_origin: ChainOrigin | None = None
    """The chain's origin, recorded before anything else; None where nothing is removed or comes before the chain."""
    chain_start: Position | None = None
    """Where the chain started, if records from before that are staged; None if no table may lack such records."""
    to_replay: Span | None = None
    """What another table gets by a config that may differ from the main table's (rule 5); None where nothing is."""
    tables_ahead: Span | None = None
    """What the main table gets by a config that may differ from another table's (rule 5); None where nothing is."""
    notes: tuple[str, ...] = ()


def plan_skip(state: PartitionState, to: Position, author: Author) -> SkipPlan:
    """The marker that fills the first gap, or extends the chain. Raises UsageError."""
    if is_merged(state.partition.topic):
        msg = f"{state.partition} is a chain of several topics, so one number does not say which of them to skip in"
        raise UsageError(msg, "restore the records, or start the stream again under another app_id")
    _check_readable(state)
    gap = _first_gap(state)
    begin = gap.start if gap is not None else _end(state)
    if to <= begin:
        msg = f"{state.partition} is staged or loaded up to {begin}, so there are no records to skip before {to}"
        if state.cut_off:
            ending = repair("rewind", state.partition, begin, f"--take-over {state.repairs}", "--yes")
            raise UsageError(msg, f"if the process of its last repair is gone, end that with `{ending}`")
        raise UsageError(msg, f"use a position after {begin}, or rewind with `{repair('rewind', state.partition, to)}`")
    if gap is not None and to > gap.end:
        after = next(staged for staged in state.staged if staged.name.start >= gap.end)
        msg = f"{state.partition} lacks {gap}, and the marker {after.path} follows it before {to}"
        raise UsageError(msg, f"skip the gap with --to {gap.end}")
    if to > state.ends.high:
        msg = f"{state.partition} ends at {state.ends.high} in Kafka, before {to}"
        raise UsageError(msg, f"use a position up to {state.ends.high}")
    notes = () if gap is None or to == gap.end else (f"[{to}, {gap.end}) stays a gap, and the partition stays held",)
    of_task = TaskStates.from_chain(state).point(begin)
    if gap is not None:
        of_task = replace(of_task, state=None)  # the markers above it have their own
    return SkipPlan(author.marker(state, Origin.SKIP, Span(begin, to), _previous(state, begin), of_task), notes)


def _check_readable(state: PartitionState) -> None:
    broken = next((staged for staged in state.staged if staged.marker is None), None)
    if broken is not None:
        msg = f"the marker {broken.path} {broken.problem}, so it is unknown where {state.partition} is held"
        raise UsageError(msg, f"stage its records again: {repair('rewind', state.partition, broken.name.start)}")


def _first_gap(state: PartitionState) -> Span | None:
    """The first positions that are neither loaded nor staged, below some that are staged."""
    markers = state.chain.markers
    if not markers:
        return None
    first = markers[0]
    position = state.in_all_tables
    if position is None:
        # A first marker that follows another one is the rest of a chain; its predecessors are the gap.
        position = first.span.start if first.previous is None else first.previous
        if state.chain_origin is not None and first.previous is None and first.origin is Origin.FLUSH:
            position = min(position, state.chain_origin.first_position)  # as in delta_loader/plan/plan.py, rule 3
    for marker in markers:
        if marker.span.start > position:
            return Span(position, marker.span.start)
        position = max(position, marker.span.end)
    return None


def _end(state: PartitionState) -> Position:
    known = [end for end in (state.chain.end, state.in_all_tables) if end is not None]
    if not known and state.chain_origin is not None:
        return state.chain_origin.first_position
    if not known:
        msg = f"{state.partition} has no marker, and the table has no position for it: there is nothing to skip from"
        raise UsageError(msg, f"set its start with `bootstrap write {CONFIG} --from earliest`, or another source")
    return max(known)


def plan_rewind(
    state: PartitionState, to: Position, author: Author, *, below_table: bool = False, give_up: bool = False
) -> RewindPlan:
    """The moves after which the next owner stages again from ``to``, or from before it. Raises UsageError.

    With ``give_up`` a marker covers what Kafka no longer has from there on.
    """
    _check_above_table(state, to, below_table=below_table)
    states = TaskStates.from_chain(state)
    position = states.highest_sound(
        _highest_sound(state, to), lambda candidate: _highest_sound(state, candidate) == candidate
    )
    _check_merged(state, position)
    is_gone = position < state.ends.low
    if is_gone and (not give_up or is_merged(state.partition.topic)):
        msg = f"Kafka no longer has [{position}, {state.ends.low}) of {state.partition}: it cannot be staged again"
        remedy = (
            "use a later position where one of its markers ends: a chain of several topics gives none up"
            if is_merged(state.partition.topic)
            else "add --give-up to start where Kafka begins; those records are then never loaded"
        )
        raise UsageError(msg, remedy)
    if position > state.ends.high:
        msg = f"{state.partition} ends at {state.ends.high} in Kafka, before {position}"
        raise UsageError(msg, "check that the topic is still the one that was staged")
    kept = tuple(staged for staged in state.staged if state.end_of(staged) <= position)
    there = sorted((*state.staged, *state.older), key=lambda staged: (staged.name, staged.path), reverse=True)
    aside = tuple(staged for staged in there if state.end_of(staged) > position)
    rest = replace(state, staged=kept)
    at_zero = position == 0 and not is_gone
    of_task = states.point(position)
    marker = None
    if is_gone:
        lost = Span(position, state.ends.low)
        marker = author.marker(rest, Origin.SKIP, lost, _previous(rest, position), of_task)
    elif not at_zero and rest.chain.end != position:
        marker = author.begin_at(rest, position, of_task)
    if marker is not None and is_merged(state.partition.topic):
        ends = ", ".join(str(staged.marker.span.end) for staged in state.staged if staged.marker is not None)
        msg = (
            f"{state.partition} is a chain of several topics, and the position of each of them is unknown at {position}"
        )
        raise UsageError(msg, f"use a position where one of its markers ends: {ends or 'there is none'}")
    end = max(position, state.ends.low)
    root = _root(state) if state.table is None else position
    chain_start = root if position < root else None
    chain_origin = None
    if aside or chain_start is not None or (at_zero and not state.begins_at_zero()):
        chain_origin = replace(_origin(state, rest, end), outboxes=of_task.outboxes, state=of_task.state)
        if marker is not None and marker.manifest is not None:
            marker = replace(marker, manifest=replace(marker.manifest, chain_origin=chain_origin.number))
    if marker is None and chain_origin is None and not state.cut_off:
        raise UsageError(f"the chain of {state.partition} already ends at {position}", "there is nothing to rewind")
    to_replay = _by_another_config(state, position)
    notes = (*_rewind_notes(state, to, position, to_replay), *states.note(position))
    if is_gone:
        notes = (*notes, f"Kafka no longer has [{position}, {state.ends.low}): it will never be loaded")
    return RewindPlan(to, end, aside, marker, state.partition, chain_origin, chain_start, to_replay, notes=notes)


def _by_another_config(state: PartitionState, position: Position) -> Span | None:
    """The restaged records that the main table has and another table lacks (rule 5)."""
    if state.table is None or state.deferred_from is None:
        return None
    start = max(position, state.deferred_from)
    return Span(start, state.table) if start < state.table else None


def with_tables_ahead(plan: RewindPlan, table: Position | None, highest: Position | None) -> RewindPlan:
    """The plan, which names what another table has and the main table lacks (rule 5).

    ``table`` is the main table's position, and ``highest`` that of the table which has most.
    """
    span = loaded_ahead(plan, table, highest)
    if span is None:
        return plan
    note = (
        f"another table of the stream has records of {span} that the main table lacks; if the stream's "
        "tables, routes or conditions have changed since those were loaded, load them again after this: "
        f"`{replay(plan.partition, span.start, span.end)}`"
    )
    return replace(plan, tables_ahead=span, notes=(*plan.notes, note))


def loaded_ahead(plan: RewindPlan, table: Position | None, highest: Position | None) -> Span | None:
    """The restaged records that another table has and the main table lacks, by the positions of both."""
    start = max(plan.position, table or Position(0))
    return None if highest is None or highest <= start else Span(start, highest)


def _previous(chain: PartitionState, position: Position) -> Position | None:
    """The start of the marker that ends there, which a marker of an operator continues."""
    return next((marker.span.start for marker in chain.chain.markers if marker.span.end == position), None)


def _origin(state: PartitionState, rest: PartitionState, position: Position) -> ChainOrigin:
    """The new end as the chain's origin (rule 3); ``rest`` is what stays."""
    end = rest.chain.end
    generation = rest.staged_generation if rest.staged else state.generation
    position_of_origin = (
        end if end is not None and end == position else position
    )  # with the inputs' positions, in a merged chain
    root = _root(state) if state.table is None and rest.staged else position
    return ChainOrigin(
        position_of_origin,
        generation,
        state.chain_topic_id,
        number=state.next_origin,
        staged_from=root if root < position else None,
        loaded_before=state.loaded_before,
    )


def _check_above_table(state: PartitionState, to: Position, *, below_table: bool) -> None:
    if state.table is None or to >= state.table or below_table:
        return
    msg = f"the table has {state.partition} up to {state.table}, so the records in [{to}, {state.table}) are loaded"
    raise UsageError(
        msg,
        f"{repair('rewind', state.partition, state.table)}; with --below-table the records are staged "
        "again, and the loader skips them",
    )


def _check_merged(state: PartitionState, position: Position) -> None:
    """In a chain of several topics nothing that is loaded may be staged again (rule 6)."""
    if is_merged(state.partition.topic) and state.table is not None and position < state.table:
        msg = (
            f"the table has {state.partition} up to {state.table}, and its topics may be read in another order from "
            f"{position} on, so it would be unknown which records it has"
        )
        remedy = (
            f"{repair('rewind', state.partition, state.table)}, or start the stream "
            "again under another app_id, with tables of its own"
        )
        raise UsageError(msg, remedy)


def _highest_sound(state: PartitionState, to: Position) -> Position:
    """The highest sound position up to ``to`` (rule 2)."""
    loaded = state.in_all_tables
    edges = {staged.marker.span.end for staged in state.staged if staged.marker is not None}
    begin = loaded if loaded is not None else _root(state)
    if loaded is None and _origin_is_below(state, begin):
        edges.clear()
    if to <= begin:
        return to
    last = max([begin, state.table or begin, *(state.end_of(staged) for staged in state.staged)])
    if to > last:
        msg = f"{state.partition} is staged up to {last} only, before {to}"
        raise UsageError(msg, f"to skip positions: {repair('skip', state.partition, to)}")
    return max(edge for edge in {*edges, begin} if edge <= to)


def _origin_is_below(state: PartitionState, begin: Position) -> bool:
    """Whether the first records from the chain's origin on were never staged (delta_loader/plan/plan.py, rule 3)."""
    first = state.staged[0].marker if state.staged else None
    return first is not None and first.previous is None and first.origin is Origin.FLUSH and begin < first.span.start


def _root(state: PartitionState) -> Position:
    """Where the complete chain would start."""
    if not state.staged and state.chain_origin is not None:
        return state.chain_origin.first_position
    if not state.staged:
        msg = f"{state.partition} has no marker, and the table has no position for it: there is nothing to rewind"
        raise UsageError(msg, f"set its start with `bootstrap write {CONFIG} --from earliest`, or another source")
    first = state.staged[0]
    previous = None if first.marker is None else first.marker.previous
    root = first.name.start if previous is None else min(previous, first.name.start)
    if state.chain_origin is None:
        return root
    # A rewind that was interrupted, or a late claim, left markers above it; the range between was never staged.
    starts = (state.chain_origin.first_position, state.chain_origin.position)
    return min([root, *(start for start in starts if start >= state.ends.low)])


def _rewind_notes(state: PartitionState, to: Position, position: Position, to_replay: Span | None) -> tuple[str, ...]:
    notes: list[str] = []
    if position < to:
        notes.append(f"{to} lies within a marker or a gap; the chain is rewound to {position}, so that nothing is lost")
    if state.table is not None and position < state.table:
        notes.append(f"the table already has [{position}, {state.table}); the loader skips what is staged of it")
    if to_replay is not None:
        command = replay(state.partition, to_replay.start, to_replay.end)
        notes.append(
            f"another table of the stream lacks records of {to_replay} that the main table has; if routes or "
            f"conditions of the stream have changed since those were loaded, load them again after this: `{command}`"
        )
    return tuple(notes)
