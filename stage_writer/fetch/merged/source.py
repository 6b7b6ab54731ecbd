"""A source of records in front of another: co-partitioned topics as one chain (common/stage/merged.py).

Rules:

1. To the writer there is a Kafka partition ``A+B/3`` with messages in one order (order.py), where
   the group has assigned ``A/3`` and ``B/3`` (chains.py). A topic without a group passes through unchanged.
2. An incomplete chain waits; where topics now have different numbers of partitions it would wait forever, so that is an
   error after a while.
3. A fault of an input is a fault of its chain. Positions, ends and topic ids are combined from the inputs'.
4. Only what is necessary is done inside the group's callbacks; seeking inputs that were assigned earlier, and pausing
   those that have lost their chain, is done after them.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import cast

from structlog.typing import FilteringBoundLogger

from common.ports import Clock
from common.settings import Stream
from common.spans import Position, TopicPartition
from common.stage.markers import LastRecord
from common.stage.merged import inputs_at
from stage_writer.decode.batch import MessageBatch
from stage_writer.fetch.chain_metadata import ChainMetadata
from stage_writer.fetch.merged.chains import MergedChains
from stage_writer.fetch.merged.groups import TopicGroups, spread
from stage_writer.fetch.merged.order import MergeInput
from stage_writer.ports import GroupListener, PartitionFault, Polled, RecordSource

INCOMPLETE_S = 120.0
"""How long to wait for the other inputs of a chain before their topics' partitions are counted."""


class MergingSource:
    """A `stage_writer.ports.RecordSource`, and the listener of the one behind it."""

    def __init__(
        self, inner: RecordSource, groups: TopicGroups, clock: Clock, log: FilteringBoundLogger, ahead_bytes: int
    ) -> None:
        """``ahead_bytes`` is how much may wait for other inputs before reading pauses."""
        self._inner = inner
        self._groups = groups
        self._clock = clock
        self._log = log
        self.metadata = ChainMetadata(inner.metadata, self._end_positions)
        self._chains = MergedChains(groups)
        self._read_ahead = ReadAhead(ahead_bytes)
        self._streams: tuple[Stream, ...] = ()
        self._listener: GroupListener | None = None
        self._starting: dict[TopicPartition, Position] = {}
        """Inputs that were assigned before their chain was complete (rule 4)."""
        self._stopping: set[TopicPartition] = set()
        """Inputs that have lost their chain (rule 4)."""

    def _end_positions(self, streams: Collection[Stream]) -> Mapping[TopicPartition, Position]:
        """The end of every chain of the streams. Raises ConfigError where topics cannot be merged."""
        positions = self._inner.metadata.end_positions(streams)
        self._groups.require_equal_counts(positions)
        return self._groups.chains(positions)

    def subscribe(self, streams: Collection[Stream], listener: GroupListener) -> None:
        """Join the group for the streams' topics. Raises ConfigError where topics cannot be merged."""
        self._streams = tuple(streams)
        self._listener = listener
        self._groups.require_equal_counts(self._inner.metadata.end_positions(self._streams))
        self._inner.subscribe(self._streams, self)

    def poll(self, timeout_s: float) -> Polled:
        """Wait up to the given time for messages, and serve the group; returns the messages that can be merged."""
        chains = self._chains.by_partition
        is_ready = any(chain.is_ready for chain in chains.values())
        fetched = self._inner.poll(0.0 if is_ready else timeout_s)
        polled = fetched.without(self._starting)  # records already read of these are from another position
        self._settle()
        batches: list[MessageBatch] = []
        for batch in polled.batches:
            if (merge_input := self._chains.inputs.get(batch.partition)) is not None:
                merge_input.take(batch)
            elif not self._chains.is_input(batch.partition):
                batches.append(batch)
        ends: dict[TopicPartition, Position] = {}
        for partition, end in polled.ends.items():
            if (merge_input := self._chains.inputs.get(partition)) is not None:
                merge_input.reached_end(end)
            elif not self._chains.is_input(partition):
                ends[partition] = end
        now_s = self._clock.monotonic_s()
        batches += [merged for chain in chains.values() if (merged := chain.next_messages(now_s)) is not None]
        ends |= {
            partition: merged_end for partition, chain in chains.items() if (merged_end := chain.new_end()) is not None
        }
        self._balance()
        faults = (self._fault(fault) for fault in fetched.faults)
        return Polled(tuple(batches), ends, tuple(fault for fault in faults if fault is not None))

    def expect(self, last: Mapping[TopicPartition, LastRecord]) -> None:
        """Pass on records of single topics; markers of several have no last record."""
        self._inner.expect(last)

    def seek(self, partition: TopicPartition, position: Position) -> None:
        chain = self._chains.by_partition.get(partition)
        if chain is None:
            self._inner.seek(partition, position)
            return
        self._chains.begin(chain, position)
        for merge_input in chain.inputs:
            self._inner.seek(merge_input.partition, merge_input.position)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Stop reading these; waiting messages are kept."""
        for partition in partitions:
            if (chain := self._chains.by_partition.get(partition)) is not None:
                chain.pause(self._clock.monotonic_s())
        self._inner.pause(spread(partitions))

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Read these again, except for inputs that are ahead."""
        for partition in partitions:
            if (chain := self._chains.by_partition.get(partition)) is not None:
                chain.resume(self._clock.monotonic_s())
        self._inner.resume([partition for partition in spread(partitions) if partition not in self._read_ahead.ahead])

    def report(self, positions: Mapping[TopicPartition, Position]) -> None:
        reported: dict[TopicPartition, Position] = {}
        for partition, position in positions.items():
            ends = inputs_at(position)
            reported |= {end.partition: end.position for end in ends} if ends else {partition: position}
        self._inner.report(reported)

    def close(self) -> None:
        self._inner.close()

    # The consumer group's callbacks. The underlying source calls these from poll and close.

    def assigned(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        """Pass on complete chains (rule 1), and where their inputs start."""
        inputs = {partition for partition in partitions if self._chains.is_input(partition)}
        plain = [partition for partition in partitions if partition not in inputs]
        complete = self._chains.assign(inputs, self._clock.monotonic_s())
        self._stopping.difference_update(spread(complete))
        positions = cast("GroupListener", self._listener).assigned([*plain, *complete])
        begun = {partition: positions[partition] for partition in plain if partition in positions}
        for partition in positions.keys() & complete:
            self._chains.begin(self._chains.by_partition[partition], positions[partition])
            begun |= {end.partition: end.position for end in inputs_at(positions[partition])}
        fresh = set(partitions)
        self._starting |= {partition: position for partition, position in begun.items() if partition not in fresh}
        return {partition: position for partition, position in begun.items() if partition in fresh}

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Chains that lose an input are revoked as a whole."""
        cast("GroupListener", self._listener).revoked(self._chains.touched(partitions))
        self._release(partitions)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Chains that have lost an input are lost as a whole."""
        cast("GroupListener", self._listener).lost(self._chains.touched(partitions))
        self._release(partitions)

    def _release(self, partitions: Collection[TopicPartition]) -> None:
        self._stopping |= self._chains.release(partitions, self._clock.monotonic_s())
        self._stopping.difference_update(partitions)
        for partition in partitions:
            self._starting.pop(partition, None)
        self._read_ahead.ahead &= self._chains.inputs.keys()

    def _settle(self) -> None:
        """Work deferred from the group's callbacks (rule 4), and inputs that have waited for too long (rule 2)."""
        for partition, position in self._starting.items():
            self._inner.seek(partition, position)
        if self._starting:
            self._inner.resume(list(self._starting))
        if self._stopping:
            self._inner.pause(list(self._stopping))
        self._starting, self._stopping = {}, set()
        if overdue := self._chains.overdue(self._clock.monotonic_s(), INCOMPLETE_S):
            self._log.warning(
                "inputs wait for the other topics of their chain", partitions=", ".join(map(str, overdue[:5]))
            )
            self._groups.require_equal_counts(self._inner.metadata.end_positions(self._streams))

    def _balance(self) -> None:
        """Pause inputs that are ahead, resume those that no longer are."""
        paused = [
            merge_input.partition
            for chain in self._chains.by_partition.values()
            if chain.paused
            for merge_input in chain.inputs
        ]
        ahead, behind = self._read_ahead.balance(self._chains.inputs, paused)
        if ahead:
            self._inner.pause(ahead)
        if behind:
            self._inner.resume(behind)

    def _fault(self, fault: PartitionFault) -> PartitionFault | None:
        chain = self._groups.chain_of(fault.partition)
        if chain == fault.partition:
            return fault
        remedy = (
            "restore the records, or start the stream again under another app_id: a chain of several topics cannot skip"
        )
        return replace(fault, partition=chain, remedy=remedy) if chain in self._chains.by_partition else None


class ReadAhead:
    """Bounds the messages that wait for another input, over all chains.

    Beyond the bound the inputs that have messages are paused, and those that the chains wait for are read. So every
    chain makes progress.
    """

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
