"""A Kafka partition in memory that can be truncated, and a writer that checks what its chains read from it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from common.settings import Start, Stream
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.markers import LastRecord
from common.stage.merged import shared_chain
from stage_writer.decode.batch import MessageBatch
from stage_writer.fetch.shared.source import SharedTopicSource
from stage_writer.ports import OUT_OF_RANGE, TRUNCATED, GroupListener, KafkaMetadata, PartitionFault, Polled
from tests.fakes.group import HandClock

CLICKS = TopicPartition(Topic("clicks"), Partition(0))
CHAINS = (CLICKS, *(TopicPartition(shared_chain("clicks", app_id), Partition(0)) for app_id in ("b", "c")))
ALONE = TopicPartition(Topic("alone"), Partition(0))


@dataclass(slots=True)
class Log:
    """The records of one partition: ids by offset. A transaction marker may be at its end."""

    records: dict[int, int] = field(default_factory=dict)
    low: int = 0
    end: int = 0
    appended: int = 0

    def append(self, count: int, hole: int = 0) -> None:
        for offset in range(self.end, self.end + count):
            self.appended += 1
            self.records[offset] = self.appended
        self.end += count + hole

    def truncate(self, end: int) -> None:
        self.records = {offset: record for offset, record in self.records.items() if offset < end}
        self.end = max(end, self.low)

    def retain(self, low: int) -> None:
        self.low = max(self.low, min(low, self.end))
        self.records = {offset: record for offset, record in self.records.items() if offset >= self.low}

    def batch(self, partition: TopicPartition, start: int, count: int) -> MessageBatch:
        offsets = [offset for offset in sorted(self.records) if offset >= start][:count]
        ids = [self.records[offset] for offset in offsets]
        return MessageBatch(
            partition,
            np.array(offsets, np.int64),
            np.array(ids, np.int64),
            pa.array([b"%d" % record_id for record_id in ids], pa.binary()),
            pa.nulls(len(offsets), pa.binary()),
            None,
        )


@dataclass(slots=True)
class Broker:
    """A `stage_writer.ports.RecordSource` over logs; a poll takes up to ``at_once`` records of each partition."""

    clock: HandClock
    logs: dict[TopicPartition, Log]
    at_once: int = 3
    listener: GroupListener | None = None
    assigned: set[TopicPartition] = field(default_factory=set)
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    paused: set[TopicPartition] = field(default_factory=set)
    at_end: set[TopicPartition] = field(default_factory=set)
    """The partitions whose end was reported."""
    expected: dict[TopicPartition, LastRecord] = field(default_factory=dict)
    compared: dict[TopicPartition, LastRecord] = field(default_factory=dict)
    """The record that must be right before the next one that is read."""
    differing: set[TopicPartition] = field(default_factory=set)
    """The partitions whose record before the read position has changed."""
    seeks: int = 0
    committed: dict[TopicPartition, int] = field(default_factory=dict)

    @property
    def metadata(self) -> KafkaMetadata:
        return self

    def subscribe(self, streams: Collection[Stream], listener: GroupListener) -> None:
        del streams
        self.listener = listener

    def poll(self, timeout_s: float) -> Polled:
        self.clock.sleep_s(timeout_s)
        batches, ends, faults = [], {}, []
        for partition in sorted(self.positions.keys() - self.paused):
            log, position = self.logs[partition], self.positions[partition]
            last = self.compared.pop(partition, None)
            time_ms = None if last is None else log.records.get(last.offset, last.timestamp_ms)
            if partition in self.differing or (last is not None and time_ms != last.timestamp_ms):
                faults.append(PartitionFault(partition, "lost", f"--topic {partition.topic} --partition 0", TRUNCATED))
                del self.positions[partition]  # nothing more is read without a seek
                continue
            if not log.low <= position <= log.end:
                faults.append(
                    PartitionFault(partition, "range", f"--topic {partition.topic} --partition 0", OUT_OF_RANGE)
                )
                del self.positions[partition]
                continue
            batch = log.batch(partition, position, self.at_once)
            if len(batch):
                self.positions[partition] = int(batch.end)
                self.at_end.discard(partition)
                batches.append(batch)
            elif partition not in self.at_end:
                self.positions[partition] = log.end
                self.at_end.add(partition)
                ends[partition] = Position(log.end)
        return Polled(tuple(batches), ends, tuple(faults))

    def assign(self, *partitions: TopicPartition) -> None:
        assert self.listener is not None
        positions = self.listener.assigned(partitions)
        self.assigned |= set(partitions)
        self.paused |= set(partitions) - positions.keys()
        for partition in partitions:
            self._start(partition, int(positions.get(partition, Position(0))))
        self.paused -= positions.keys()

    def revoke(self, *partitions: TopicPartition, lost: bool = False) -> None:
        assert self.listener is not None
        (self.listener.lost if lost else self.listener.revoked)(partitions)
        self.assigned -= set(partitions)
        for partition in partitions:
            self.positions.pop(partition, None)

    def truncate(self, partition: TopicPartition, end: int) -> None:
        """An election loses records; the client notices it when it reads."""
        self.logs[partition].truncate(end)
        if self.positions.get(partition, 0) > end:
            self.differing.add(partition)

    def expect(self, last: Mapping[TopicPartition, LastRecord]) -> None:
        self.expected |= last

    def seek(self, partition: TopicPartition, position: Position) -> None:
        assert partition in self.assigned
        self.seeks += 1
        self._start(partition, int(position))

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        assert self.assigned.issuperset(partitions)
        self.paused |= set(partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        assert self.assigned.issuperset(partitions)
        self.paused -= set(partitions)
        self.at_end -= set(partitions)

    def resolve(self, partition: TopicPartition, start: Start) -> Position:
        del start
        return Position(self.logs[partition].low)

    def end_positions(self, streams: Collection[Stream]) -> Mapping[TopicPartition, Position]:
        del streams
        return {partition: Position(log.end) for partition, log in self.logs.items()}

    def high_watermarks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        return {partition: Position(self.logs[partition].end) for partition in partitions}

    def topic_ids(self, topics: Collection[Topic]) -> Mapping[Topic, str | None]:
        there = {partition.topic for partition in self.logs}
        return {topic: f"id of {topic}" for topic in topics if topic in there}

    def refused(self, topics: Collection[str]) -> Collection[str]:
        del topics
        return ()

    def ownerless(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition] | None:
        return set(partitions) - self.positions.keys()

    def report(self, positions: Mapping[TopicPartition, Position]) -> None:
        self.committed |= {partition: int(position) for partition, position in positions.items()}

    def close(self) -> None:
        self.revoke(*self.positions)

    def _start(self, partition: TopicPartition, position: int) -> None:
        self.positions[partition] = position
        self.at_end.discard(partition)
        self.differing.discard(partition)
        self.compared.pop(partition, None)
        last = self.expected.pop(partition, None)
        if last is not None and last.offset < position:
            self.compared[partition] = last


@dataclass(slots=True)
class ChainState:
    """What the writer knows about one chain."""

    position: int = 0
    last: LastRecord | None = None
    read: list[int] = field(default_factory=list)
    """The ids of the records that it read."""
    paused: bool = False
    starting: bool = False
    """Whether the chain waits for a seek, as after a fault."""
    end: int | None = None
    spoiled: bool = False
    """Whether Kafka has lost the chain's last known record: the chain must fail before it is read again."""
    may_fail: bool = False
    """Whether Kafka has lost any records before the chain's position."""


class Writer:
    """Uses a `SharedTopicSource` as the writer's loop does, and checks every batch against the log."""

    def __init__(self, chains: int, at_once: int = 3, *, starting: Collection[int] = ()) -> None:
        """``starting`` are the chains that have no position when they are assigned."""
        self.clock = HandClock()
        self.broker = Broker(self.clock, {CLICKS: Log(), ALONE: Log()}, at_once)
        self.chains = {chain: ChainState() for chain in (*CHAINS[:chains], ALONE)}
        names = [chain.topic for chain in CHAINS[:chains]]
        self.source = SharedTopicSource(
            self.broker, lambda topic: names if topic == CLICKS.topic else [topic], self.clock
        )
        self.starting = {CHAINS[number] for number in starting}
        self.owned: set[TopicPartition] = set()
        self.faults: list[PartitionFault] = []
        self.pauses_failed = True
        self.source.subscribe([], self)

    @property
    def log(self) -> Log:
        return self.broker.logs[CLICKS]

    def assigned(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        assert not self.owned & set(partitions)
        self.owned |= set(partitions)
        given = {}
        for partition in partitions:
            chain = self.chains[partition]
            chain.paused = chain.starting = partition in self.starting
            chain.end = None
            if not chain.starting:
                given[partition] = Position(chain.position)
        self.source.expect(
            {partition: last for partition in given if (last := self.chains[partition].last) is not None}
        )
        return given

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.owned -= set(partitions)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        self.revoked(partitions)

    def pause(self, partition: TopicPartition) -> None:
        if partition in self.owned:
            self.chains[partition].paused = True
            self.source.pause([partition])

    def resume(self, partition: TopicPartition) -> None:
        chain = self.chains[partition]
        if partition in self.owned and not chain.starting:
            chain.paused, chain.end = False, None
            self.source.resume([partition])

    def start(self, partition: TopicPartition, position: int | None = None) -> None:
        """Read a chain from its own position, or from one where the previous record is unknown."""
        chain = self.chains[partition]
        if position is not None:
            chain.position, chain.last, chain.spoiled, chain.may_fail = position, None, False, False
            chain.read = [record for offset, record in sorted(self.log.records.items()) if offset < position]
        if partition in self.owned:
            if chain.last is not None:
                self.source.expect({partition: chain.last})
            self.source.seek(partition, Position(chain.position))
            chain.starting = False
            self.resume(partition)

    def truncate(self, end: int) -> None:
        for partition, chain in self.chains.items():
            known = -1 if partition == ALONE or chain.last is None else chain.last.offset
            chain.spoiled = chain.spoiled or (known >= end and known in self.log.records)
            chain.may_fail = chain.may_fail or chain.position > end
        self.broker.truncate(CLICKS, end)

    def poll(self, timeout_s: float = 0.1) -> Polled:
        polled = self.source.poll(timeout_s)
        for batch in polled.batches:
            chain = self.chains[batch.partition]
            assert batch.partition in self.owned
            assert not chain.paused
            assert not chain.spoiled, "records come after others were lost"
            log = self.broker.logs[ALONE if batch.partition == ALONE else CLICKS]
            wanted = log.batch(batch.partition, chain.position, len(batch))
            assert batch.offsets.tolist() == wanted.offsets.tolist()
            assert batch.values == wanted.values
            chain.read += batch.timestamps_ms.tolist()
            chain.position, chain.last, chain.end = int(batch.end), batch.record_at(-1), None
        for partition, end in polled.ends.items():
            chain = self.chains[partition]
            assert partition in self.owned
            assert not chain.paused
            log = self.broker.logs[ALONE if partition == ALONE else CLICKS]
            assert len(log.batch(partition, chain.position, 1)) == 0, "the end is reported before it is reached"
            chain.end = int(end)
        for fault in polled.faults:
            chain = self.chains[fault.partition]
            assert f"--topic {fault.partition.topic} --partition" in fault.remedy
            out = not self.log.low <= chain.position <= self.log.end
            assert out or (chain.may_fail and fault.reason == TRUNCATED), "a fault of another chain"
            chain.starting = True
            if self.pauses_failed:
                self.pause(fault.partition)
            self.faults.append(fault)
        return polled

    def drain(self) -> None:
        """Read everything that can be read: each chain reaches its end or fails, independent of the others."""
        for partition, chain in self.chains.items():
            if chain.starting:
                self.start(partition)
            else:
                self.resume(partition)
        most = 40 + len(self.chains) * (self.broker.logs[CLICKS].end + 40)
        for _ in range(most):
            self.poll(1.0)
            if all(chain.starting or chain.end is not None for chain in self.chains.values()):
                return
        raise AssertionError({partition: (chain.position, chain.end) for partition, chain in self.chains.items()})
