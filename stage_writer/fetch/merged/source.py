"""A source of records in front of another: co-partitioned topics as one chain (common/stage/merged.py).

Rules:

1. To the writer there is a Kafka partition ``A+B/3`` with messages in one order (order.py), where
   the group has assigned ``A/3`` and ``B/3``. A topic without a group passes through unchanged.
2. A chain is the writer's while all of its inputs are assigned. An incomplete chain waits; where topics now have
   different numbers of partitions it would wait forever, so that is an error after a while.
3. Each input is read from the offset in the chain's position (`common.stage.merged.MergedPosition`). After a seek, or
   for a new chain, nothing read before counts.
4. The messages that wait for another input are bounded, over all chains: beyond that the inputs that have messages are
   paused, and those that the chain waits for are read. So memory is bounded, and every chain makes progress.
5. A fault of an input is a fault of its chain. Positions, ends and topic ids are combined from the inputs'.
6. Only what is necessary is done inside the group's callbacks; seeking inputs that were assigned earlier, and pausing
   those that have lost their chain, is done after them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from common.spans import Position, Topic, TopicPartition
from common.stage.merged import InputEnd, ids_together, inputs_at, inputs_of, is_merged, merged_position, topics_of
from stage_writer.fetch.merged.order import MergeInput, next_messages, pass_holes
from stage_writer.ports import Polled

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from structlog.typing import FilteringBoundLogger

    from common.ports import Clock
    from common.settings import Start, Stream
    from common.stage.markers import LastRecord
    from stage_writer.decode.batch import MessageBatch
    from stage_writer.fetch.merged.groups import TopicGroups
    from stage_writer.ports import GroupListener, PartitionFault, RecordSource

INCOMPLETE_S = 120.0
"""How long to wait for the other inputs of a chain before their topics' partitions are counted."""
CHECK_AGAIN_S = 1.0
"""After a longer pause, the end that an input was read to may be outdated."""


@dataclass(slots=True)
class MergedChain:
    partition: TopicPartition
    inputs: tuple[MergeInput, ...]
    longest_idle_s: float
    paused: bool = False
    paused_at_s: float = 0.0
    reported: Position | None = None
    """The end that was last reported."""


class MergingSource:
    """A `stage_writer.ports.RecordSource`, and the listener of the one behind it."""

    def __init__(
        self, inner: RecordSource, groups: TopicGroups, clock: Clock, log: FilteringBoundLogger, ahead_bytes: int
    ) -> None:
        """``ahead_bytes`` is how much may wait for other inputs before reading pauses (rule 4)."""
        self._inner = inner
        self._groups = groups
        self._clock = clock
        self._log = log
        self._ahead_bytes = ahead_bytes
        self._streams: tuple[Stream, ...] = ()
        self._listener: GroupListener | None = None
        self._chains: dict[TopicPartition, MergedChain] = {}
        self._inputs: dict[TopicPartition, MergeInput] = {}
        """The inputs of our chains."""
        self._incomplete: dict[TopicPartition, float] = {}
        """Assigned inputs whose chain is incomplete, and since when."""
        self._ahead: set[TopicPartition] = set()
        """Inputs that are paused because their messages wait."""
        self._starting: dict[TopicPartition, Position] = {}
        self._stopping: set[TopicPartition] = set()

    def subscribe(self, streams: Collection[Stream], listener: GroupListener) -> None:
        """Join the group for the streams' topics. Raises ConfigError where topics cannot be merged."""
        self._streams = tuple(streams)
        self._listener = listener
        self._groups.require_equal_counts(self._inner.end_positions(self._streams))
        self._inner.subscribe(self._streams, self)

    def poll(self, timeout_s: float) -> Polled:
        """Wait up to the given time for messages, and serve the group; returns the messages that can be merged."""
        ready = any(
            not chain.paused and all(merge_input.waiting for merge_input in chain.inputs)
            for chain in self._chains.values()
        )
        polled = self._inner.poll(0.0 if ready else timeout_s)
        moved = set(self._starting)  # what was read of these is from another position
        self._settle()
        ours: list[MessageBatch] = []
        for batch in polled.batches:
            if batch.partition in moved:
                continue
            if (chain_input := self._inputs.get(batch.partition)) is not None:
                chain_input.take(batch)
            elif not is_merged(self._groups.chain_of(batch.partition).topic):
                ours.append(batch)
        ends: dict[TopicPartition, Position] = {}
        for partition, position in polled.ends.items():
            if partition in moved:
                continue
            if (chain_input := self._inputs.get(partition)) is not None:
                chain_input.reached_end(position)
            elif not is_merged(self._groups.chain_of(partition).topic):
                ends[partition] = position
        merged = self._merge()
        ends |= self._new_ends()
        self._balance()
        faults = tuple(own_fault for fault in polled.faults if (own_fault := self._fault(fault)) is not None)
        return Polled((*ours, *merged), ends, faults)

    def expect(self, last: Mapping[TopicPartition, LastRecord]) -> None:
        """Pass on records of single topics; markers of several have no last record."""
        self._inner.expect(last)

    def seek(self, partition: TopicPartition, position: Position) -> None:
        chain = self._chains.get(partition)
        if chain is None:
            self._inner.seek(partition, position)
            return
        self._begin(chain, position)
        for merge_input in chain.inputs:
            self._inner.seek(merge_input.partition, merge_input.position)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Stop reading these; waiting messages are kept."""
        for partition in partitions:
            if (chain := self._chains.get(partition)) is not None:
                chain.paused, chain.paused_at_s = True, self._clock.monotonic_s()
        self._inner.pause(self._spread(partitions))

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Read these again, except for inputs that are ahead."""
        for topic_partition in partitions:
            if (chain := self._chains.get(topic_partition)) is not None:
                chain.paused, chain.reported = False, None
                if self._clock.monotonic_s() - chain.paused_at_s > CHECK_AGAIN_S:
                    for merge_input in chain.inputs:
                        merge_input.check_again()
        self._inner.resume([partition for partition in self._spread(partitions) if partition not in self._ahead])

    def resolve(self, topic_partition: TopicPartition, start: Start) -> Position:
        """The position that a start stands for; for a chain, each input's position."""
        if not is_merged(topic_partition.topic):
            return self._inner.resolve(topic_partition, start)
        return merged_position(
            InputEnd(partition, self._inner.resolve(partition, start)) for partition in inputs_of(topic_partition)
        )

    def end_positions(self, streams: Collection[Stream]) -> Mapping[TopicPartition, Position]:
        """The end of every chain of the streams. Raises ConfigError where topics cannot be merged."""
        positions = self._inner.end_positions(streams)
        self._groups.require_equal_counts(positions)
        return self._groups.chains(positions)

    def high_watermarks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        return self._groups.chains(self._inner.high_watermarks(self._spread(partitions)))

    def topic_ids(self, topics: Collection[Topic]) -> Mapping[Topic, str | None]:
        """The ids of topics; for a chain's topic, those of all its topics. Safe to call from any thread."""
        topic_ids = self._inner.topic_ids({input_topic for topic in topics for input_topic in topics_of(topic)})
        there = [topic for topic in topics if all(input_topic in topic_ids for input_topic in topics_of(topic))]
        return {topic: ids_together(topic, topic_ids) for topic in there}

    def ownerless(self, topic_partitions: Collection[TopicPartition]) -> Collection[TopicPartition] | None:
        """The chains with an input without an owner in the group; None while the group is rebalancing."""
        partitions = self._inner.ownerless(self._spread(topic_partitions))
        return (
            None
            if partitions is None
            else {partition for partition in topic_partitions if set(partitions).intersection(_behind(partition))}
        )

    def report(self, positions: Mapping[TopicPartition, Position]) -> None:
        spread: dict[TopicPartition, Position] = {}
        for partition, position in positions.items():
            ends = inputs_at(position)
            spread |= {end.partition: end.position for end in ends} if ends else {partition: position}
        self._inner.report(spread)

    def close(self) -> None:
        self._inner.close()

    # The consumer group's callbacks. The underlying source calls these from poll and close.

    def assigned(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        """Pass on complete chains (rule 2), and where their inputs start."""
        now_s = self._clock.monotonic_s()
        plain = [
            topic_partition
            for topic_partition in partitions
            if not is_merged(self._groups.chain_of(topic_partition).topic)
        ]
        self._incomplete |= {topic_partition: now_s for topic_partition in partitions if topic_partition not in plain}
        complete = {self._groups.chain_of(topic_partition) for topic_partition in self._incomplete}
        complete = {chain for chain in complete if all(partition in self._incomplete for partition in inputs_of(chain))}
        for topic_partition in sorted(complete):
            self._start_partition(topic_partition)
        positions = self._listening.assigned([*plain, *sorted(complete)])
        begun = {
            topic_partition: positions[topic_partition] for topic_partition in plain if topic_partition in positions
        }
        for topic_partition in complete & positions.keys():
            self._begin(self._chains[topic_partition], positions[topic_partition])
            begun |= {end.partition: end.position for end in inputs_at(positions[topic_partition])}
        fresh = set(partitions)
        self._starting |= {
            topic_partition: position for topic_partition, position in begun.items() if topic_partition not in fresh
        }
        return {topic_partition: position for topic_partition, position in begun.items() if topic_partition in fresh}

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Chains that lose an input are revoked as a whole."""
        self._listening.revoked(self._touched(partitions))
        self._let_go(partitions)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Chains that have lost an input are lost as a whole."""
        self._listening.lost(self._touched(partitions))
        self._let_go(partitions)

    @property
    def _listening(self) -> GroupListener:
        return cast("GroupListener", self._listener)

    def _touched(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        chains = {partition: self._groups.chain_of(partition) for partition in partitions}
        touched = {chain for partition, chain in chains.items() if chain == partition or chain in self._chains}
        return sorted(touched)

    def _start_partition(self, topic_partition: TopicPartition) -> None:
        inputs = tuple(MergeInput(partition, Position(0), Position(0)) for partition in inputs_of(topic_partition))
        self._chains[topic_partition] = MergedChain(
            topic_partition, inputs, self._groups.longest_idle_s(topic_partition)
        )
        for merge_input in inputs:
            del self._incomplete[merge_input.partition]
            self._stopping.discard(merge_input.partition)

    def _begin(self, chain: MergedChain, position: Position) -> None:
        """Read from there on (rule 3). Messages that its inputs returned before that are dropped."""
        ends = {end.partition: end.position for end in inputs_at(position)}
        chain.reported = None
        for merge_input in chain.inputs:
            merge_input.begin_at(ends[merge_input.partition])
            self._inputs[merge_input.partition] = merge_input

    def _let_go(self, partitions: Collection[TopicPartition]) -> None:
        gone = set(partitions)
        for partition in self._touched(partitions):
            chain = self._chains.pop(partition, None)
            for merge_input in () if chain is None else chain.inputs:
                self._inputs.pop(merge_input.partition, None)
                if merge_input.partition not in gone:
                    self._incomplete[merge_input.partition] = self._clock.monotonic_s()
                    self._stopping.add(merge_input.partition)
        for partition in gone:
            self._incomplete.pop(partition, None)
            self._starting.pop(partition, None)
            self._stopping.discard(partition)
        self._ahead &= self._inputs.keys()

    def _settle(self) -> None:
        """Work deferred from the group's callbacks (rule 6), and inputs that have waited for too long (rule 2)."""
        for partition, position in self._starting.items():
            self._inner.seek(partition, position)
        if self._starting:
            self._inner.resume(list(self._starting))
        if self._stopping:
            self._inner.pause(list(self._stopping))
        self._starting, self._stopping = {}, set()
        now_s = self._clock.monotonic_s()
        if any(now_s - since_s > INCOMPLETE_S for since_s in self._incomplete.values()):
            named = ", ".join(str(partition) for partition in sorted(self._incomplete)[:5])
            self._log.warning("inputs wait for the others of their chain", partitions=named)
            self._groups.require_equal_counts(self._inner.end_positions(self._streams))
            self._incomplete = dict.fromkeys(self._incomplete, now_s)

    # Merging.

    def _merge(self) -> list[MessageBatch]:
        now_s = self._clock.monotonic_s()
        batches: list[MessageBatch] = []
        for chain in self._chains.values():
            if not chain.paused:
                batch = next_messages(chain.partition, chain.inputs, now_s, chain.longest_idle_s)
                batches += [] if batch is None else [batch]
        return batches

    def _new_ends(self) -> dict[TopicPartition, Position]:
        """The chains that were passed on up to their ends since these were last reported."""
        positions: dict[TopicPartition, Position] = {}
        for chain in self._chains.values():
            if not chain.paused and pass_holes(chain.inputs):
                position = merged_position(
                    InputEnd(merge_input.partition, merge_input.position) for merge_input in chain.inputs
                )
                if position != chain.reported:
                    chain.reported = positions[chain.partition] = position
        return positions

    def _balance(self) -> None:
        """Pause inputs that are ahead, resume those that no longer are (rule 4)."""
        waiting_bytes = {partition: merge_input.waiting_bytes for partition, merge_input in self._inputs.items()}
        total_bytes = sum(waiting_bytes.values())
        paused = {
            merge_input.partition for chain in self._chains.values() if chain.paused for merge_input in chain.inputs
        }
        if total_bytes > self._ahead_bytes:
            ahead = {partition for partition, size in waiting_bytes.items() if size} - self._ahead - paused
            if ahead:
                self._ahead |= ahead
                self._inner.pause(sorted(ahead))
        few = total_bytes <= self._ahead_bytes // 2
        behind = {partition for partition in self._ahead if few or not self._inputs[partition].waiting}
        self._ahead -= behind
        if behind - paused:
            self._inner.resume(sorted(behind - paused))

    def _fault(self, fault: PartitionFault) -> PartitionFault | None:
        chain = self._groups.chain_of(fault.partition)
        if chain == fault.partition:
            return fault
        remedy = (
            "put the records back, or start the stream over under another app_id: a chain of several topics cannot skip"
        )
        return replace(fault, partition=chain, remedy=remedy) if chain in self._chains else None

    def _spread(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        return [partition for topic_partition in partitions for partition in _behind(topic_partition)]


def _behind(chain: TopicPartition) -> tuple[TopicPartition, ...]:
    """What the source behind has of a chain: its inputs, or the chain itself where it is not merged."""
    return inputs_of(chain) if is_merged(chain.topic) else (chain,)
