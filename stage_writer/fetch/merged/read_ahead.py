"""Bounds the messages that wait for another input, over all chains.

Beyond the bound the inputs that have messages are paused, and those that the chains wait for are read. So memory is
bounded, and every chain makes progress.
"""

from collections.abc import Collection, Mapping

from common.spans import TopicPartition
from stage_writer.fetch.merged.order import MergeInput


class ReadAhead:
    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.ahead: set[TopicPartition] = set()
        """Inputs that are paused because their messages wait."""

    def balance(
        self, inputs: Mapping[TopicPartition, MergeInput], paused: Collection[TopicPartition]
    ) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """The inputs to pause, which are ahead now, and those to resume; ``paused`` ones of whole chains stay so."""
        waiting_bytes = {partition: merge_input.waiting_bytes for partition, merge_input in inputs.items()}
        total_bytes = sum(waiting_bytes.values())
        ahead: set[TopicPartition] = set()
        if total_bytes > self._most_bytes:
            ahead = {partition for partition, size in waiting_bytes.items() if size} - self.ahead - set(paused)
            self.ahead |= ahead
        few = total_bytes <= self._most_bytes // 2
        behind = {partition for partition in self.ahead if few or not inputs[partition].waiting}
        self.ahead -= behind
        return sorted(ahead), sorted(behind - set(paused))
