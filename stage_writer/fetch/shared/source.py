"""A source of records in front of another: Kafka partitions that several chains read, fetched once.

Rules:

1. To the writer, each chain of a Kafka partition is a partition of its own: ``clicks/0`` and ``clicks@b/0``, each with
   its position, its pauses, its end and its faults. A topic that only its own chain reads passes through unchanged.
2. The group assigns Kafka partitions, so all chains of one come and go together.
3. Where each is read is decided by `SharedPartition`. Here that is done: between polls, never in the group's callbacks.
4. A position is committed to the group for monitoring tools: the lowest of the chains.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from common.remedies import of_chain
from common.spans import Topic, TopicPartition
from common.stage.merged import kafka_partition, kafka_topic
from stage_writer.fetch.shared.partition import ChainReader, SharedPartition
from stage_writer.ports import Polled

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from common.ports import Clock
    from common.settings import Start, Stream
    from common.spans import Position
    from common.stage.markers import LastRecord
    from stage_writer.decode.batch import MessageBatch
    from stage_writer.ports import GroupListener, PartitionFault, RecordSource


class SharedTopicSource:
    """A `stage_writer.ports.RecordSource`, and the listener of the one behind it."""

    def __init__(self, inner: RecordSource, chains_of: Callable[[Topic], Sequence[Topic]], clock: Clock) -> None:
        """``chains_of`` returns the topics of the chains that read a Kafka topic, always the same."""
        self._inner = inner
        self._chains_of = chains_of
        self._clock = clock
        self._listener: GroupListener | None = None
        self._partitions: dict[TopicPartition, SharedPartition] = {}
        """By Kafka partition."""
        self._readers: dict[TopicPartition, tuple[SharedPartition, ChainReader]] = {}
        """By chain."""
        self._expected: dict[TopicPartition, LastRecord] = {}
        self._unsettled: set[TopicPartition] = set()
        """Kafka partitions of which the read position may have to move, or that may have to be paused or resumed."""

    def subscribe(self, streams: Collection[Stream], listener: GroupListener) -> None:
        self._listener = listener
        self._inner.subscribe(streams, self)

    def poll(self, timeout_s: float) -> Polled:
        """Wait up to the given time for messages, and serve the group."""
        settling = self._settle()
        polled = self._inner.poll(timeout_s)
        batches: list[MessageBatch] = []
        for batch in polled.batches:
            if (shared := self._partitions.get(batch.partition)) is not None:
                batches += shared.take(batch)
            else:
                batches.append(batch)
        ends: dict[TopicPartition, Position] = {}
        for source, end in polled.ends.items():
            if (shared := self._partitions.get(source)) is not None:
                shared.reach_end(end)
                settling.add(source)
            else:
                ends[source] = end
        for source in settling & self._partitions.keys():
            ends |= self._partitions[source].new_ends()
        faults = tuple(fault for found in polled.faults for fault in self._faults(found))
        return Polled(tuple(batches), ends, faults)

    def expect(self, last: Mapping[TopicPartition, LastRecord]) -> None:
        self._expected |= {chain: record for chain, record in last.items() if chain in self._readers}
        if plain := {source: record for source, record in last.items() if source not in self._readers}:
            self._inner.expect(plain)

    def seek(self, source: TopicPartition, position: Position) -> None:
        if (found := self._readers.get(source)) is None:
            self._inner.seek(source, position)
            return
        shared, chain = found
        chain.begin(position, self._expected.pop(source, None))
        self._unsettled.add(shared.source)

    def pause(self, sources: Collection[TopicPartition]) -> None:
        """Stop reading these; the other chains of a Kafka partition are still read."""
        if plain := self._set_paused(sources, paused=True):
            self._inner.pause(plain)

    def resume(self, sources: Collection[TopicPartition]) -> None:
        """Read these again, each from its own position."""
        if plain := self._set_paused(sources, paused=False):
            self._inner.resume(plain)

    def resolve(self, source: TopicPartition, start: Start) -> Position:
        return self._inner.resolve(kafka_partition(source), start)

    def end_positions(self, streams: Collection[Stream]) -> Mapping[TopicPartition, Position]:
        """The end of every chain of the streams."""
        return {
            chain: position
            for source, position in self._inner.end_positions(streams).items()
            for chain in self._chains(source)
            if any(stream.takes(chain.topic) for stream in streams)
        }

    def high_watermarks(self, sources: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        found = self._inner.high_watermarks({kafka_partition(source) for source in sources})
        return {source: found[kafka_partition(source)] for source in sources if kafka_partition(source) in found}

    def topic_ids(self, topics: Collection[Topic]) -> Mapping[Topic, str | None]:
        """The ids of topics, and of the Kafka topics of chains. Safe to call from any thread."""
        found = self._inner.topic_ids({kafka_topic(topic) for topic in topics})
        return {topic: found[kafka_topic(topic)] for topic in topics if kafka_topic(topic) in found}

    def ownerless(self, sources: Collection[TopicPartition]) -> Collection[TopicPartition] | None:
        """The chains whose Kafka partition has no owner in the group; None while the group is rebalancing."""
        found = self._inner.ownerless({kafka_partition(source) for source in sources})
        return None if found is None else {source for source in sources if kafka_partition(source) in found}

    def report(self, positions: Mapping[TopicPartition, Position]) -> None:
        found: dict[TopicPartition, Position] = {}
        for source, position in positions.items():
            reader = self._readers.get(source)
            if reader is None:
                found[source] = position
                continue
            shared, chain = reader
            chain.staged = position
            found[shared.source] = min(each.staged for each in shared.chains if each.staged is not None)
        self._inner.report(found)

    def close(self) -> None:
        self._inner.close()

    # The consumer group's callbacks. The underlying source calls these from poll and close.
    def assigned(self, sources: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        """Pass on the chains; a Kafka partition is first read where the lowest of them starts."""
        shared = [self._begin(source) for source in sources if self._is_shared(source)]
        positions = self._listening.assigned(self._spread(sources))
        begun = {source: position for source, position in positions.items() if source not in self._readers}
        for partition in shared:
            for chain in partition.chains:
                chain.begin(positions.get(chain.source), self._expected.pop(chain.source, None))
                chain.paused = chain.position is None
            first = min(partition.wanted, key=lambda chain: cast("Position", chain.position), default=None)
            if first is not None and first.position is not None:
                self._move(partition, first)
                partition.is_read = True
                begun[partition.source] = first.position
        return begun

    def revoked(self, sources: Collection[TopicPartition]) -> None:
        """All chains of these Kafka partitions are revoked."""
        self._listening.revoked(self._spread(sources))
        self._forget(sources)

    def lost(self, sources: Collection[TopicPartition]) -> None:
        """All chains of these Kafka partitions are lost."""
        self._listening.lost(self._spread(sources))
        self._forget(sources)

    @property
    def _listening(self) -> GroupListener:
        return cast("GroupListener", self._listener)

    def _chains(self, source: TopicPartition) -> list[TopicPartition]:
        """The chains of a Kafka partition."""
        return [TopicPartition(topic, source.partition) for topic in self._chains_of(source.topic)]

    def _spread(self, sources: Iterable[TopicPartition]) -> list[TopicPartition]:
        return [chain for source in sources for chain in self._chains(source)]

    def _is_shared(self, source: TopicPartition) -> bool:
        """Whether a Kafka partition has other chains than the one of its own name alone."""
        return self._chains(source) != [source]

    def _begin(self, source: TopicPartition) -> SharedPartition:
        chains = [ChainReader(chain) for chain in self._chains(source)]
        shared = self._partitions[source] = SharedPartition(source, chains)
        self._readers |= {chain.source: (shared, chain) for chain in chains}
        self._unsettled.add(source)
        return shared

    def _forget(self, sources: Iterable[TopicPartition]) -> None:
        for source in sources:
            self._unsettled.discard(source)
            shared = self._partitions.pop(source, None)
            for chain in () if shared is None else shared.chains:
                del self._readers[chain.source]
                self._expected.pop(chain.source, None)

    def _set_paused(self, sources: Collection[TopicPartition], *, paused: bool) -> list[TopicPartition]:
        """Note it of chains; returns the partitions that pass through."""
        plain = []
        for source in sources:
            if (found := self._readers.get(source)) is None:
                plain.append(source)
                continue
            shared, chain = found
            chain.paused, chain.told_end = paused, None
            self._unsettled.add(shared.source)
        return plain

    def _settle(self) -> set[TopicPartition]:
        """Move, pause and resume what is due; returns the Kafka partitions that were considered."""
        settling, self._unsettled = self._unsettled, set()
        for source in settling:
            shared = self._partitions[source]
            chain = shared.next_chain(self._clock.monotonic_s())
            if chain is not None and chain.position is not None:
                self._move(shared, chain)
                self._inner.seek(source, chain.position)
            is_wanted = bool(shared.wanted)
            if is_wanted and not shared.is_read:
                shared.is_read = True
                self._inner.resume([source])
            elif shared.is_read and not is_wanted:
                shared.stop()
                self._inner.pause([source])
            if shared.is_apart:
                self._unsettled.add(source)
        return settling

    def _move(self, shared: SharedPartition, chain: ChainReader) -> None:
        shared.move_to(chain, self._clock.monotonic_s())
        if chain.last is not None:
            self._inner.expect({shared.source: chain.last})

    def _faults(self, fault: PartitionFault) -> list[PartitionFault]:
        """The fault of a Kafka partition as those of the chains that it concerns."""
        shared = self._partitions.get(fault.partition)
        if shared is None:
            return [fault]
        self._unsettled.add(fault.partition)
        return [
            replace(fault, partition=chain.source, remedy=of_chain(fault.remedy, fault.partition, chain.source))
            for chain in shared.fail()
        ]
