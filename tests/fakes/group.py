"""A consumer group of one member over logs in memory, a clock that tests move, and workers that run in turn."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic

import numpy as np
import pyarrow as pa

from common.settings import Start, StartAt, Stream
from common.spans import Position, Topic, TopicPartition
from common.stage.markers import LastRecord
from stage_writer.decode.batch import MessageBatch
from stage_writer.ports import (
    NOT_ALLOWED,
    TRUNCATED,
    Flushing,
    GroupListener,
    Item,
    KafkaMetadata,
    PartitionFault,
    Polled,
    Result,
)


@dataclass(slots=True)
class HandClock:
    """A `common.ports.Clock` that stands still until a test moves it."""

    now_s: float = 1_000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return int(self.now_s * 1000)

    def sleep_s(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass(slots=True)
class Done(Generic[Result]):
    outcome: Result | Exception

    def done(self) -> bool:
        return True

    def result(self) -> Result:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class InTurn:
    """`stage_writer.ports.Workers` that run a job when it is started."""

    def start(self, job: Callable[[], Result]) -> Done[Result]:
        try:
            return Done(job())
        except Exception as error:  # noqa: BLE001 - it is the loop's, as with a Future
            return Done(error)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        return [function(item) for item in items]

    def wait(self, running: Collection[Flushing], timeout_s: float) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass(slots=True)
class LonelyMember:
    """A `stage_writer.ports.RecordSource` that gets every partition at its first poll."""

    clock: HandClock
    ends: dict[TopicPartition, int]
    """Each partition has the offsets up to its end, less the ``holes``."""
    holes: set[int] = field(default_factory=set)
    ids: dict[Topic, str | None] = field(default_factory=dict)
    unowned: set[TopicPartition] | None = field(default_factory=set)
    asked_group: int = 0
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    paused: set[TopicPartition] = field(default_factory=set)
    listener: GroupListener | None = None
    joined: bool = False
    timestamp_ms: int = 1_000
    """The timestamp of all records, until a test replaces them."""
    expected: dict[TopicPartition, LastRecord] = field(default_factory=dict)
    reported: dict[TopicPartition, Position] = field(default_factory=dict)
    beyond_is: str = TRUNCATED
    """The reason of the fault for a partition that ends before the position it is read from."""
    others: dict[TopicPartition, float] = field(default_factory=dict)
    """Partitions of another member, each until a time."""
    denied: set[str] = field(default_factory=set)
    """Topics that this user may not read, although it may see them."""

    @property
    def metadata(self) -> KafkaMetadata:
        return self

    def subscribe(self, streams: Collection[Stream], listener: GroupListener) -> None:
        del streams
        self.listener = listener

    def poll(self, timeout_s: float) -> Polled:
        self.clock.sleep_s(timeout_s)
        assert self.listener is not None
        taken = {partition for partition, until_s in self.others.items() if until_s > self.clock.now_s}
        self.joined = self.joined and taken == self.others.keys()
        self.others = {partition: self.others[partition] for partition in taken}
        new = self.ends.keys() - self.positions.keys() - taken if not self.joined else set()
        self.joined = True
        if new:
            self.positions |= {
                partition: int(position) for partition, position in self.listener.assigned(sorted(new)).items()
            }
        readable = [partition for partition in self.positions if partition not in self.paused]
        beyond = [partition for partition in readable if self._is_beyond(partition)]
        faults = [PartitionFault(partition, "out of range", "", self.beyond_is) for partition in beyond]
        readable = [partition for partition in readable if partition not in beyond]
        lost = [partition for partition in readable if self._is_lost(partition)]
        faults += [PartitionFault(partition, "records are lost", "", TRUNCATED) for partition in lost]
        refused = [partition for partition in readable if partition.topic in self.denied]
        faults += [PartitionFault(partition, "not allowed", "allow it", NOT_ALLOWED) for partition in refused]
        readable = [partition for partition in readable if partition not in {*lost, *refused}]
        batches = tuple(self._batch(partition) for partition in readable if self._offsets(partition))
        ends = {partition: Position(self.ends[partition]) for partition in readable}
        self.positions |= {partition: self.ends[partition] for partition in readable}
        return Polled(batches, ends, tuple(faults))

    def expect(self, last: Mapping[TopicPartition, LastRecord]) -> None:
        self.expected |= last

    def seek(self, partition: TopicPartition, position: Position) -> None:
        self.positions[partition] = int(position)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self.paused |= set(partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self.paused -= set(partitions)

    def resolve(self, partition: TopicPartition, start: Start) -> Position:
        return Position(0 if start is StartAt.EARLIEST else self.ends[partition])

    def end_positions(self, streams: Collection[Stream]) -> Mapping[TopicPartition, Position]:
        del streams
        return {partition: Position(end) for partition, end in self.ends.items()}

    def high_watermarks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        return {partition: Position(self.ends[partition]) for partition in partitions}

    def topic_ids(self, topics: Collection[Topic]) -> Mapping[Topic, str | None]:
        return {topic: self.ids[topic] for topic in topics if topic in self.ids}

    def refused(self, topics: Collection[str]) -> Collection[str]:
        return [topic for topic in topics if topic in self.denied]

    def ownerless(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition] | None:
        del partitions
        self.asked_group += 1
        return self.unowned

    def report(self, positions: Mapping[TopicPartition, Position]) -> None:
        self.reported |= positions

    def close(self) -> None:
        assert self.listener is not None
        self.listener.revoked(sorted(self.positions))

    def _is_lost(self, partition: TopicPartition) -> bool:
        last = self.expected.pop(partition, None)
        return last is not None and last.timestamp_ms != self.timestamp_ms

    def _is_beyond(self, partition: TopicPartition) -> bool:
        return self.positions[partition] > self.ends[partition]

    def _offsets(self, partition: TopicPartition) -> list[int]:
        return [offset for offset in range(self.positions[partition], self.ends[partition]) if offset not in self.holes]

    def _batch(self, partition: TopicPartition) -> MessageBatch:
        offsets = self._offsets(partition)
        return MessageBatch(
            partition,
            np.array(offsets, np.int64),
            np.full(len(offsets), self.timestamp_ms, np.int64),
            pa.array([b'{"id": %d}' % offset for offset in offsets], pa.binary()),
            pa.nulls(len(offsets), pa.binary()),
            None,
        )


@dataclass(slots=True)
class JsonMember(LonelyMember):
    """Its messages have these values, as JSON; bytes stay as they are."""

    values: dict[TopicPartition, list[object]] = field(default_factory=dict)

    def produce(self, partition: TopicPartition, *values: object) -> None:
        produced = self.values.setdefault(partition, [])
        produced += values
        self.ends[partition] = len(produced)

    def _batch(self, partition: TopicPartition) -> MessageBatch:
        batch = LonelyMember._batch(self, partition)
        contents = [self.values[partition][offset] for offset in batch.offsets.tolist()]
        values = [content if isinstance(content, bytes) else json.dumps(content).encode() for content in contents]
        return replace(batch, values=pa.array(values, pa.binary()))
