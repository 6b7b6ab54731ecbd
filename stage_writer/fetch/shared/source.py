"""A source of records in front of another: Kafka partitions that several chains read, fetched once.

Rules:

1. To the writer, each chain of a Kafka partition is a partition of its own: ``clicks/0`` and ``clicks@b/0``, each with
   its position, its pauses, its end and its faults. A topic that only its own chain reads passes through unchanged.
2. The group assigns Kafka partitions, so all chains of one come and go together.
3. Where each is read is decided by `SharedPartition`. Here that is done: between polls, never in the group's callbacks.
4. A position is committed to the group for monitoring tools: the lowest of the chains.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from common.ports import Clock
from common.remedies import of_chain
from common.settings import Stream
from common.settings.overlap import TopicReaders
from common.spans import Position, Topic, TopicPartition
from common.stage.markers import LastRecord
from stage_writer.decode.batch import MessageBatch
from stage_writer.fetch.chain_metadata import ChainMetadata
from stage_writer.fetch.shared.partition import ChainReader, SharedPartition
from stage_writer.ports import GroupListener, PartitionFault, Polled, RecordSource

ChainsOf = Callable[[Topic], Sequence[Topic]]
"""The topics of the chains that read a Kafka topic, always the same."""


class SharedTopicSource:
    """A `stage_writer.ports.RecordSource`, and the listener of the one behind it."""

    def __init__(self, inner: RecordSource, chains_of: ChainsOf, clock: Clock) -> None:
        self._inner = inner
        self._chains_of = chains_of
        self._clock = clock
        self.metadata = ChainMetadata(inner.metadata, self._end_positions)
        self._listener: GroupListener | None = None
        self._partitions: dict[TopicPartition, SharedPartition] = {}
        """By Kafka partition."""
        self._readers: dict[TopicPartition, tuple[SharedPartition, ChainReader]] = {}
        """By chain."""
        self._expected: dict[TopicPartition, LastRecord] = {}
        self._unsettled: set[TopicPartition] = set()
        """Kafka partitions of which the read position may have to move, or that may have to be paused or resumed."""

    def _end_positions(self, streams: Collection[Stream]) -> Mapping[TopicPartition, Position]:
        read_by = TopicReaders(streams)
        return {
            chain: position
            for partition, position in self._inner.metadata.end_positions(streams).items()
            for chain in _chains_in(partition, self._chains_of)
            if read_by.taking(chain.topic)
        }

    def subscribe(self, streams: Collection[Stream], listener: GroupListener) -> None:
        self._listener = listener
        self._inner.subscribe(streams, self)

    def poll(self, timeout_s: float) -> Polled:
        settling = self._settle()
        polled = self._inner.poll(timeout_s)
        batches: list[MessageBatch] = []
        for batch in polled.batches:
            if (shared := self._partitions.get(batch.partition)) is not None:
                batches += shared.take(batch)
            else:
                batches.append(batch)
        ends: dict[TopicPartition, Position] = {}
        for partition, end in polled.ends.items():
            if (shared := self._partitions.get(partition)) is not None:
                shared.reach_end(end)
                settling.add(partition)
            else:
                ends[partition] = end
        for partition in settling & self._partitions.keys():
            ends |= self._partitions[partition].new_ends()
        faults = tuple(fault for fault_of_kafka in polled.faults for fault in self._faults(fault_of_kafka))
        return Polled(tuple(batches), ends, faults)

    def expect(self, last: Mapping[TopicPartition, LastRecord]) -> None:
        self._expected |= {chain: record for chain, record in last.items() if chain in self._readers}
        if plain := {partition: record for partition, record in last.items() if partition not in self._readers}:
            self._inner.expect(plain)

    def seek(self, partition: TopicPartition, position: Position) -> None:
        if (reader := self._readers.get(partition)) is None:
            self._inner.seek(partition, position)
            return
        shared, chain = reader
        chain.begin(position, self._expected.pop(partition, None))
        self._unsettled.add(shared.partition)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Stop reading these; the other chains of a Kafka partition are still read."""
        if plain := self._set_paused(partitions, paused=True):
            self._inner.pause(plain)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Read these again, each from its own position."""
        if plain := self._set_paused(partitions, paused=False):
            self._inner.resume(plain)

    def report(self, positions: Mapping[TopicPartition, Position]) -> None:
        staged: dict[TopicPartition, Position] = {}
        for partition, position in positions.items():
            reader = self._readers.get(partition)
            if reader is None:
                staged[partition] = position
                continue
            shared, chain = reader
            chain.staged = position
            staged[shared.partition] = min(each.staged for each in shared.chains if each.staged is not None)
        self._inner.report(staged)

    def close(self) -> None:
        self._inner.close()

    # The consumer group's callbacks. The underlying source calls these from poll and close.
    def assigned(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        """Pass on the chains; a Kafka partition is first read where the lowest of them starts."""
        shared = [
            self._begin(partition, chains)
            for partition in partitions
            if (chains := _chains_in(partition, self._chains_of)) != [partition]  # others pass through
        ]
        positions = cast("GroupListener", self._listener).assigned(self._spread(partitions))
        begun = {partition: position for partition, position in positions.items() if partition not in self._readers}
        for each in shared:
            for chain in each.chains:
                chain.begin(positions.get(chain.partition), self._expected.pop(chain.partition, None))
                chain.paused = chain.position is None
            first = min(each.wanted, key=lambda chain: cast("Position", chain.position), default=None)
            if first is not None and first.position is not None:
                self._move(each, first)
                each.is_read = True
                begun[each.partition] = first.position
        return begun

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """All chains of these Kafka partitions are revoked."""
        cast("GroupListener", self._listener).revoked(self._spread(partitions))
        self._forget(partitions)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """All chains of these Kafka partitions are lost."""
        cast("GroupListener", self._listener).lost(self._spread(partitions))
        self._forget(partitions)

    def _spread(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        chains = []
        for partition in partitions:
            shared = self._partitions.get(partition)
            chains += [partition] if shared is None else [chain.partition for chain in shared.chains]
        return chains

    def _begin(self, partition: TopicPartition, chains: Iterable[TopicPartition]) -> SharedPartition:
        shared = self._partitions[partition] = SharedPartition(partition, [ChainReader(chain) for chain in chains])
        self._readers |= {reader.partition: (shared, reader) for reader in shared.chains}
        self._unsettled.add(partition)
        return shared

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._unsettled.discard(partition)
            shared = self._partitions.pop(partition, None)
            for chain in () if shared is None else shared.chains:
                del self._readers[chain.partition]
                self._expected.pop(chain.partition, None)

    def _set_paused(self, partitions: Collection[TopicPartition], *, paused: bool) -> list[TopicPartition]:
        """Note it of chains; returns the partitions that pass through."""
        plain = []
        for partition in partitions:
            if (reader := self._readers.get(partition)) is None:
                plain.append(partition)
                continue
            shared, chain = reader
            chain.paused, chain.reported_end = paused, None
            self._unsettled.add(shared.partition)
        return plain

    def _settle(self) -> set[TopicPartition]:
        """Move, pause and resume what is due; returns the Kafka partitions that were considered."""
        settling, self._unsettled = self._unsettled, set()
        for partition in sorted(settling):
            shared = self._partitions[partition]
            chain = shared.next_chain(self._clock.monotonic_s())
            if chain is not None and chain.position is not None:
                self._move(shared, chain)
                self._inner.seek(partition, chain.position)
            is_wanted = bool(shared.wanted)
            if is_wanted and not shared.is_read:
                shared.is_read = True
                self._inner.resume([partition])
            elif shared.is_read and not is_wanted:
                shared.stop()
                self._inner.pause([partition])
            if shared.is_apart:
                self._unsettled.add(partition)
        return settling

    def _move(self, shared: SharedPartition, chain: ChainReader) -> None:
        shared.move_to(chain, self._clock.monotonic_s())
        if chain.last is not None:
            self._inner.expect({shared.partition: chain.last})

    def _faults(self, fault: PartitionFault) -> list[PartitionFault]:
        """The fault of a Kafka partition as those of the chains that it concerns."""
        shared = self._partitions.get(fault.partition)
        if shared is None:
            return [fault]
        self._unsettled.add(fault.partition)
        return [
            replace(fault, partition=chain.partition, remedy=of_chain(fault.remedy, fault.partition, chain.partition))
            for chain in shared.fail()
        ]


def _chains_in(partition: TopicPartition, chains_of: ChainsOf) -> list[TopicPartition]:
    return [TopicPartition(topic, partition.partition) for topic in chains_of(partition.topic)]
