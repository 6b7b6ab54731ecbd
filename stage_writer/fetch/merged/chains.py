"""The merged chains of this group member.

Rules:

1. A chain is the writer's while all of its inputs are assigned; it comes and goes as a whole. The inputs of an
   incomplete chain wait for the others.
2. Each input is read from the offset in the chain's position (`common.stage.merged.MergedPosition`). After a seek, or
   for a new chain, nothing read before counts.
3. A chain's end is reported once, and again after a pause: it may have moved since it was read.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from common.spans import Position, TopicPartition
from common.stage.merged import InputEnd, inputs_at, inputs_of, is_merged, merged_position
from stage_writer.decode.merged_batch import MergedBatch
from stage_writer.fetch.merged.groups import TopicGroups
from stage_writer.fetch.merged.order import MergeInput, next_messages, skip_to_ends

CHECK_AGAIN_S = 1.0
"""After a longer pause, the end that an input was read to may be outdated."""


@dataclass(slots=True)
class MergedChain:
    partition: TopicPartition
    inputs: tuple[MergeInput, ...]
    longest_idle_s: float
    paused: bool = False
    _paused_at_s: float = 0.0
    _reported: Position | None = None

    def begin_at(self, position: Position) -> None:
        """Read from there on (rule 2)."""
        ends = {end.partition: end.position for end in inputs_at(position)}
        self._reported = None
        for merge_input in self.inputs:
            merge_input.begin_at(ends[merge_input.partition])

    def pause(self, now_s: float) -> None:
        """Pass nothing on; waiting messages are kept."""
        self.paused, self._paused_at_s = True, now_s

    def resume(self, now_s: float) -> None:
        self.paused, self._reported = False, None
        if now_s - self._paused_at_s > CHECK_AGAIN_S:
            for merge_input in self.inputs:
                merge_input.check_again()

    @property
    def is_ready(self) -> bool:
        """Whether all of its inputs have messages."""
        return not self.paused and all(merge_input.waiting for merge_input in self.inputs)

    def next_messages(self, now_s: float) -> MergedBatch | None:
        return None if self.paused else next_messages(self.partition, self.inputs, now_s, self.longest_idle_s)

    def new_end(self) -> Position | None:
        """Its end, where it was passed on up to there since that was last reported."""
        if self.paused or not skip_to_ends(self.inputs):
            return None
        end = merged_position(InputEnd(merge_input.partition, merge_input.position) for merge_input in self.inputs)
        if end == self._reported:
            return None
        self._reported = end
        return end


class MergedChains:
    """Called from the loop's thread only."""

    def __init__(self, groups: TopicGroups) -> None:
        self._groups = groups
        self.by_partition: dict[TopicPartition, MergedChain] = {}
        self.inputs: dict[TopicPartition, MergeInput] = {}
        """The inputs of the chains that have a position."""
        self._incomplete: dict[TopicPartition, float] = {}
        """Assigned inputs whose chain is incomplete, and since when."""

    def is_input(self, partition: TopicPartition) -> bool:
        """Whether a Kafka partition belongs to a merged chain."""
        return is_merged(self._groups.chain_of(partition).topic)

    def assign(self, inputs: Iterable[TopicPartition], now_s: float) -> list[TopicPartition]:
        """Take over inputs that were assigned. Returns the chains that they complete."""
        self._incomplete |= dict.fromkeys(inputs, now_s)
        chains = {self._groups.chain_of(partition) for partition in self._incomplete}
        complete = [chain for chain in sorted(chains) if all(part in self._incomplete for part in inputs_of(chain))]
        for chain in complete:
            merge_inputs = tuple(MergeInput(partition, Position(0), Position(0)) for partition in inputs_of(chain))
            self.by_partition[chain] = MergedChain(chain, merge_inputs, self._groups.longest_idle_s(chain))
            for merge_input in merge_inputs:
                del self._incomplete[merge_input.partition]
        return complete

    def begin(self, chain: MergedChain, position: Position) -> None:
        chain.begin_at(position)
        self.inputs |= {merge_input.partition: merge_input for merge_input in chain.inputs}

    def touched(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """What goes with these Kafka partitions: the chains that they are inputs of, and partitions without a chain."""
        chains = {partition: self._groups.chain_of(partition) for partition in partitions}
        return sorted({chain for each, chain in chains.items() if chain == each or chain in self.by_partition})

    def release(self, partitions: Collection[TopicPartition], now_s: float) -> set[TopicPartition]:
        """Release Kafka partitions. Returns the inputs that stay, and have lost their chain."""
        left: set[TopicPartition] = set()
        for touched in self.touched(partitions):
            chain = self.by_partition.pop(touched, None)
            left |= set() if chain is None else {merge_input.partition for merge_input in chain.inputs}
        for partition in left:
            self.inputs.pop(partition, None)
        left -= set(partitions)
        self._incomplete |= dict.fromkeys(left, now_s)
        for partition in partitions:
            self._incomplete.pop(partition, None)
        return left

    def overdue(self, now_s: float, longest_s: float) -> list[TopicPartition]:
        """The inputs that wait for others, if one of them has waited for too long; all wait again from now on."""
        if all(now_s - since_s <= longest_s for since_s in self._incomplete.values()):
            return []
        self._incomplete = dict.fromkeys(self._incomplete, now_s)
        return sorted(self._incomplete)
