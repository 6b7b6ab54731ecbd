"""The order of a merged chain's messages, and whether it is known yet.

Rules:

1. Of the inputs' next messages the one with the lowest record time comes first; of several with the same time that of
   the first topic by name. An input's own messages stay in Kafka's order, regardless of their times. So the order
   depends on the records alone, and not on when a poll returned them, as long as each input has a known next message.
2. The chain waits for an input without a known next message. Once that was read to its end, the wait is bounded; then
   the input is skipped until it has messages again. Only this makes the order depend on anything else.
3. Messages are passed on in bulk: everything before the point where the first input would run dry is taken at once.
   (Record times, raised to the highest before them in their input, give the same order as rule 1, and can be sorted.)
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from common.spans import Position, TopicPartition
from stage_writer.decode.batch import MessageBatch
from stage_writer.decode.merged_batch import MergedBatch, merged_batch


@dataclass(slots=True)
class MergeInput:
    """One Kafka partition of a merged chain, and its waiting messages."""

    partition: TopicPartition
    position: Position
    """Everything before it has been passed on."""
    read: Position
    """The position after what was read."""
    waiting: deque[MessageBatch] = field(default_factory=deque)
    end: Position | None = None
    """Its end as reported by Kafka; None when unknown, or when it may have grown since."""
    idle_since_s: float | None = None
    """Since when it has had nothing to pass on."""

    @property
    def waiting_bytes(self) -> int:
        return sum(batch.values.nbytes + batch.keys.nbytes for batch in self.waiting)

    @property
    def is_at_end(self) -> bool:
        """Whether everything in Kafka has been read."""
        return self.end is not None and self.end >= self.read

    def take(self, batch: MessageBatch) -> None:
        new = batch.after(self.read)
        if len(new):
            self.waiting.append(new)
            self.read = new.end
            self.idle_since_s = None

    def reached_end(self, position: Position) -> None:
        """Kafka reports that it ends there, for now."""
        self.end = position

    def begin_at(self, position: Position) -> None:
        """Drop everything, and continue from there."""
        self.position = self.read = position
        self.waiting.clear()
        self.check_again()

    def check_again(self) -> None:
        """Its end may have moved since it was read."""
        self.end = None
        self.idle_since_s = None

    def is_skipped(self, now_s: float, longest_s: float) -> bool:
        """Whether it has no messages, and the wait for it is over (rule 2)."""
        if self.waiting or not self.is_at_end:
            return False
        if self.idle_since_s is None:
            self.idle_since_s = now_s
        return now_s - self.idle_since_s >= longest_s


def next_messages(
    chain: TopicPartition, inputs: Sequence[MergeInput], now_s: float, longest_idle_s: float
) -> MergedBatch | None:
    """The messages whose order is known, from ``inputs`` sorted by topic, or None."""
    skipped = [
        chain_input.is_skipped(now_s, longest_idle_s) for chain_input in inputs
    ]  # for each of them, to update their clocks
    full = [(number, chain_input) for number, chain_input in enumerate(inputs) if chain_input.waiting]
    if not full or any(not chain_input.waiting and not over for chain_input, over in zip(inputs, skipped, strict=True)):
        return None
    times = {number: _raised(chain_input.waiting) for number, chain_input in full}
    last, rank = min((int(input_times[-1]), number) for number, input_times in times.items())
    before = [chain_input.position for chain_input in inputs]
    parts: list[tuple[int, MessageBatch]] = []
    keys = []
    for number, merge_input in full:
        # With equal times, messages of the topic that sorts first come first.
        count = int(np.searchsorted(times[number], last, "right" if number <= rank else "left"))
        parts += [(number, batch) for batch in _taken(merge_input, count)]
        keys.append(times[number][:count])
    numbers = np.concatenate([np.full(len(batch), number, np.int64) for number, batch in parts])
    order = np.lexsort((numbers, np.concatenate(keys)))  # stable: an input's own order is kept
    return merged_batch(chain, [chain_input.partition for chain_input in inputs], before, parts, order.astype(np.int64))


def skip_to_ends(inputs: Sequence[MergeInput]) -> bool:
    """Whether all inputs have been passed on to their ends; if so, skips positions without records before these."""
    if any(chain_input.waiting or not chain_input.is_at_end for chain_input in inputs):
        return False
    for merge_input in inputs:
        merge_input.position = merge_input.read = Position(merge_input.end or merge_input.read)
    return True


def _raised(waiting: deque[MessageBatch]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Record times, each raised to the highest one before it (rule 3)."""
    return np.maximum.accumulate(np.concatenate([batch.timestamps_ms for batch in waiting]))


def _taken(chain_input: MergeInput, count: int) -> list[MessageBatch]:
    """The first waiting messages."""
    taken = []
    while count:
        batch = chain_input.waiting.popleft()
        if len(batch) > count:
            chain_input.waiting.appendleft(batch.part(count, len(batch)))
            batch = batch.part(0, count)
        count -= len(batch)
        chain_input.position = batch.end
        taken.append(batch)
    return taken
