"""A new chain for a topic that was deleted and recreated, or that has lost records which are staged.

Rules:

1. The new chain has the next generation. Its positions are therefore never mistaken for the old topic's: in the
   markers, in the table's txn actions, or by a stale writer (common/stage/chain_origins.py).
2. Nothing that was staged of the old topic is given up silently. If the table does not have all of a chain, the restart
   is refused unless the operator gives the rest up: Kafka no longer has it. The restart is also refused if the table
   was rolled back and waits for a resolution (bootstrap/accepting.py), at any position and also if the chain was staged
   for another app_id.
3. A chain of the current topic is refused: its records would be loaded a second time. The exception is a topic that is
   still the same and whose last records Kafka has lost. Only the operator knows from which offset on Kafka has
   different records (``at``). Records before that offset count as loaded, and those from it on are loaded as new.
4. The table's positions may belong to another stream or another topic than the chain (common/tables/identity.py). The
   chain then restarts in the same way, ``at`` the given position, or else at Kafka's first record. It never starts
   before the end of what the table has of it under another app_id, or of its topics together with others. What is
   staged from its new start on is staged again from Kafka, so it is not given up. Some records are not loaded a second
   time: those that the table has under another app_id, and those of an earlier generation that another stage has gone
   on to load.
5. All markers are copied below ``stray/`` first. Then the origin is written. Then the markers are deleted, the highest
   first. Once the origin is written, they are of an older generation, which is ignored. A crash in between therefore
   does no harm, and the same command cleans up.
6. The old chain's records for Kafka topics that are not yet delivered are still delivered: the new origin names their
   outboxes, up to its position where the topic is the same. A topology's state is not carried over. While the chain
   that the table has instead has such records, the restart is refused unless the operator gives them up: only writers
   that read its topics together send them.
"""

from dataclasses import dataclass

from bootstrap.plans.state import PartitionState, StagedMarker
from bootstrap.plans.task_states import TaskStates
from common.errors import UsageError
from common.remedies import CONFIG
from common.spans import MAX_POSITION, Position, TopicPartition
from common.stage.chain_origins import ChainOrigin
from common.stage.merged import is_merged, topics_of

_OTHER_STREAM = "start the stream again under another app_id, with tables of its own"


@dataclass(frozen=True, slots=True)
class Restart:
    partition: TopicPartition
    chain_origin: ChainOrigin | None
    """None where the new chain has started, and only markers of the old one are left to delete."""
    put_aside: tuple[StagedMarker, ...]
    """In the order of deletion."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnchangedPartition:
    partition: TopicPartition
    why: str


def plan_restart(state: PartitionState, *, give_up: bool, at: Position | None = None) -> Restart | UnchangedPartition:
    """The plan for one partition. Raises UsageError when something would be lost (rule 2), or loaded twice (rule 3)."""
    older = tuple(reversed(state.older))
    if state.foreign is not None:
        return _separate_chain(state, state.foreign, at, give_up=give_up)
    if at is not None:
        _require_place(state, at)
    elif not state.staged and state.chain_origin is None and state.table is None:
        return (
            UnchangedPartition(state.partition, "it has no chain yet")
            if not older
            else Restart(state.partition, None, older)
        )
    if at is None and _is_of_this_topic(state):
        _require_whole(state)
        if older or state.cut_off:
            note = "its new chain has started; " + ("these are of the old one" if older else "nothing is left to do")
            return Restart(state.partition, None, older, (note,))
        return UnchangedPartition(state.partition, "its chain belongs to the current topic")
    notes = list(_lost(state, give_up=give_up, at=at))
    if at is not None:
        notes.append(f"records of Kafka from {at} on are loaded as new ones; rows of the old chain stay in the tables")
    elif state.chain_topic_id is None or state.topic_id is None:
        notes.append(
            "it is unknown whether the topic is a different one, because its id was not recorded: if it is the same, "
            "its records will be loaded a second time"
        )
    outboxes = TaskStates.from_chain(state).outboxes(Position(MAX_POSITION))
    chain_origin = ChainOrigin(
        state.ends.low if at is None else at,
        state.generation + 1,
        state.topic_id,
        outboxes,
        number=state.next_origin,
        loaded_before=state.loaded,
    )
    return Restart(state.partition, chain_origin, (*reversed(state.staged), *older), tuple(notes))


def _separate_chain(state: PartitionState, why: str, at: Position | None, *, give_up: bool) -> Restart:
    """A separate chain, in addition to the one of the table's positions (rule 4). Raises UsageError."""
    ends, loaded = state.ends, state.elsewhere
    if at is not None and is_merged(state.partition.topic):
        msg = f"{state.partition} is a chain of several topics, for which one offset does not say where to start"
        raise UsageError(msg, "remove --at: the chain then starts after what the table has, or at Kafka's first record")
    if at is None and state.unknown_inputs is not None:
        msg = (
            f"the table has records of {state.partition} by the chain {state.unknown_inputs}, and it is no longer "
            "known up to which offset: they could be loaded a second time"
        )
        first = "use --at with the first offset that the table lacks (its column _kafka_offset has the others)"
        raise UsageError(msg, _OTHER_STREAM if is_merged(state.partition.topic) else first)
    if state.unsent is not None and not give_up:
        topics = ", ".join(topics_of(state.unsent.topic))
        msg = f"the chain {state.unsent} has unsent records for Kafka topics, which only writers of {topics} send"
        former = f"set topics: [{topics}] again, run `stage-writer run {CONFIG} --until-caught-up`"
        raise UsageError(msg, f"{former}, and then this with the new topics; or give them up with --give-up")
    begin = max(ends.low, loaded or ends.low) if at is None else at
    if not ends.low <= begin <= ends.high:
        msg = f"the chain would start at {begin}, but Kafka has [{ends.low}, {ends.high}) of {state.partition}"
        raise UsageError(msg, f"use --at with an offset of {ends.low} to {ends.high}")
    if loaded is not None and begin < loaded:
        msg = (
            f"the table has {state.partition} up to {loaded}: from {begin} on its records would be loaded a second time"
        )
        raise UsageError(msg, f"use --at {loaded}")
    notes = [f"it gets a chain of its own, because {why}", *_lost(state, give_up=give_up, begin=begin)]
    if state.unsent is not None:
        notes.append(f"the records of the chain {state.unsent} for Kafka topics that are not sent are given up")
    tasks = TaskStates.from_chain(state)
    if tasks.known:
        notes.append("the state of its topology is empty there, and from there on its records are sent to topics again")
    chain_origin = ChainOrigin(
        begin,
        max(state.generation, state.replaced_generation) + 1,
        state.topic_id,
        tasks.outboxes(begin if _may_be_of_this_topic(state) else Position(MAX_POSITION)),
        number=state.next_origin,
        loaded_before=state.loaded,
    )
    return Restart(state.partition, chain_origin, (*reversed(state.staged), *reversed(state.older)), tuple(notes))


def _is_of_this_topic(state: PartitionState) -> bool:
    return state.chain_topic_id is not None and state.chain_topic_id == state.topic_id


def _require_whole(state: PartitionState) -> None:
    """Raises UsageError where Kafka ends before the chain of its own topic (rule 3)."""
    end, high = state.chain.end, state.ends.high
    if end is not None and end > high:
        msg = (
            f"{state.partition} ends at {high} in Kafka, before its chain's end {end}: the topic is the same, but "
            "lost its last records; a chain that starts at its first record would load the rest a second time"
        )
        differ = (
            f"start where Kafka's records differ (`delta-loader verify {CONFIG} --kafka` names the offset; if it names "
            f"none, it is {high}): --partition {state.partition.partition} --at OFFSET"
        )
        raise UsageError(msg, _OTHER_STREAM if is_merged(state.partition.topic) else differ)


def _require_place(state: PartitionState, at: Position) -> None:
    """Raises UsageError for a position that Kafka does not have, after the chain, or in a chain of several topics."""
    if is_merged(state.partition.topic):
        msg = f"{state.partition} is a chain of several topics, for which one offset does not say where to start"
        raise UsageError(msg, _OTHER_STREAM)
    low, high, end = state.ends.low, state.ends.high, state.chain.end
    last = high if end is None else min(end, high)
    if not low <= at <= last:
        msg = f"--at is {at}, but Kafka has [{low}, {high}) of {state.partition}, and its chain ends at {end}"
        raise UsageError(msg, f"use an offset of {low} to {last}" if low <= last else "remove --at")


def _lost(
    state: PartitionState, *, give_up: bool, begin: Position | None = None, at: Position | None = None
) -> tuple[str, ...]:
    """Staged records, neither loaded nor staged again from Kafka when a chain starts at ``begin`` (rules 2, 4).

    Where it starts ``at`` a position because Kafka lost records, Kafka may have others instead of the staged ones.
    """
    broken = next((staged for staged in state.staged if staged.marker is None), None)
    if broken is not None and not give_up:
        msg = f"the marker {broken.path} {broken.problem}, so it is unknown what the old chain of {state.partition} has"
        raise UsageError(msg, "restore it from a backup of the bucket, or give it up with --give-up")
    loaded = state.in_all_tables if state.foreign is None else state.elsewhere
    end = state.chain.end
    if end is None:
        return ()
    if begin is not None and _may_be_of_this_topic(state):
        end = min(end, begin)
    first = state.chain.markers[0].span.start if loaded is None else loaded
    if first >= end:
        return ()
    if not give_up:
        msg = f"[{first}, {end}) of the old {state.partition} is staged and not loaded into every table"
        load = f"load it with `delta-loader run {CONFIG} --once`" if begin is None else f"use --at {first}"
        raise UsageError(msg, f"{load}, or give it up with --give-up")
    if at is not None and at <= first:
        return (f"[{first}, {end}) was staged and never loaded: Kafka's records of these offsets are loaded instead",)
    return (f"[{first}, {end}) of the old topic is given up: it was staged and never loaded",)


def _may_be_of_this_topic(state: PartitionState) -> bool:
    """Whether Kafka may have the staged records: its topic is the same, as far as is known."""
    return state.chain_topic_id is None or state.topic_id is None or _is_of_this_topic(state)
