"""A new chain for a topic that was deleted and created again.

Rules:

1. The new chain has the next generation, so that its positions are never taken for the old topic's: in the markers, in
   the table's txn actions, or by a writer that comes late (common/stage/beginnings.py).
2. Nothing that was staged of the old topic is given up in silence: a chain that the table does not have whole is
   refused, unless the operator gives the rest up. Kafka no longer has it. So is one whose table went back and waits for
   an answer, whatever its positions say (bootstrap/accepting.py).
3. A chain of the topic that is there is refused: its records would be loaded a second time.
4. The order: all markers are copied below ``stray/``; the beginning is written; then they go, highest first. From the
   beginning on they are of an older generation, which nobody obeys, so a crash in between harms nothing, and the same
   command tidies up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.errors import UsageError
from common.stage.beginnings import Beginning

if TYPE_CHECKING:
    from bootstrap.core.state import PartitionState, StagedMarker
    from common.spans import TopicPartition


@dataclass(frozen=True, slots=True)
class Restart:
    """What changes in one partition."""

    source: TopicPartition
    beginning: Beginning | None
    """None where the new chain has begun, and only markers of the old one are to go."""
    put_aside: tuple[StagedMarker, ...]
    """In the order in which they go."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Left:
    """A partition that stays as it is."""

    source: TopicPartition
    why: str


def plan_restart(state: PartitionState, *, give_up: bool) -> Restart | Left:
    """The plan for one partition. Raises UsageError when something would be lost (rule 2)."""
    older = tuple(reversed(state.older))
    if not state.staged and state.beginning is None and state.table is None:
        return Left(state.source, "it has no chain yet") if not older else Restart(state.source, None, older)
    if _is_of_this_topic(state):
        if older:
            return Restart(state.source, None, older, ("its new chain has begun; these are of the old one",))
        return Left(state.source, "its chain is of the topic that is there")
    notes = list(_lost(state, give_up=give_up))
    if state.chain_topic_id is None or state.topic_id is None:
        notes.append(
            "nobody can tell whether the topic is another one, because its id was not recorded: if it is the same, "
            "its records will be loaded a second time"
        )
    beginning = Beginning(state.ends.low, state.generation + 1, state.topic_id)
    return Restart(state.source, beginning, (*reversed(state.staged), *older), tuple(notes))


def _is_of_this_topic(state: PartitionState) -> bool:
    """Whether the chain is of the topic that is there, and Kafka still has what follows it."""
    if state.chain_topic_id is None or state.chain_topic_id != state.topic_id:
        return False
    end = state.chain.end
    return end is None or end <= state.ends.high


def _lost(state: PartitionState, *, give_up: bool) -> tuple[str, ...]:
    broken = next((found for found in state.staged if found.marker is None), None)
    if broken is not None and not give_up:
        msg = f"the marker {broken.path} cannot be read, so nobody can say what the old chain of {state.source} has"
        raise UsageError(msg, "put it back from a backup of the bucket, or give it up with --give-up")
    end, loaded = state.chain.end, state.in_all_tables
    if end is None or (loaded is not None and loaded >= end):
        return ()
    begin = state.chain.markers[0].span.start if loaded is None else loaded
    if not give_up:
        msg = f"[{begin}, {end}) of the old {state.source} is staged and not loaded into every table"
        raise UsageError(msg, "load it with `delta-loader run CONFIG --once`, or give it up with --give-up")
    return (f"[{begin}, {end}) of the old topic is given up: it was staged and never loaded",)
