"""A consumer group of one member over logs in memory, a clock that tests move, and workers that run in turn."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic

import numpy as np
import pyarrow as pa

from common.settings import Start, StartAt, Stream
from common.spans import Position, Topic, TopicPartition
from common.stage.markers import LastRecord
from stage_writer.decode.batch import MessageBatch
from stage_writer.ports import TRUNCATED, Flushing, GroupListener, Item, PartitionFault, Polled, Result, Runs


@dataclass(slots=True)
class HandClock:
    """A `common.ports.Clock` that stands still until somebody moves it."""

    now_s: float = 1_000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return int(self.now_s * 1000)

    def sleep_s(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass(slots=True)
class Done(Generic[Result]):
    """A `stage_writer.ports.Running` that has ended."""

    outcome: Result | Exception

    def done(self) -> bool:
        return True

    def result(self) -> Result:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class InTurn:
    """`stage_writer.ports.Workers` that run a job when it is started."""

    def start(self, job: Runs[Result]) -> Done[Result]:
        try:
            return Done(job.run())
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
    """Of all records; others where a test has them replaced."""
    expected: dict[TopicPartition, LastRecord] = field(default_factory=dict)
    others: dict[TopicPartition, float] = field(default_factory=dict)
    """What another member has, each until a time."""

    def subscribe(self, streams: Collection[Stream], listener: GroupListener) -> None:
        del streams
        self.listener = listener

    def poll(self, timeout_s: float) -> Polled:
        self.clock.sleep_s(timeout_s)
        assert self.listener is not None
        taken = {source for source, until_s in self.others.items() if until_s > self.clock.now_s}
        self.joined = self.joined and taken == self.others.keys()
        self.others = {source: self.others[source] for source in taken}
        new = self.ends.keys() - self.positions.keys() - taken if not self.joined else set()
        self.joined = True
        if new:
            self.positions |= {source: int(found) for source, found in self.listener.assigned(sorted(new)).items()}
        readable = [source for source in self.positions if source not in self.paused]
        beyond = [source for source in readable if self._is_beyond(source)]
        faults = [PartitionFault(source, "out of range", "", TRUNCATED) for source in beyond]
        readable = [source for source in readable if source not in beyond]
        lost = [source for source in readable if self._is_lost(source)]
        faults += [PartitionFault(source, "records are lost", "", TRUNCATED) for source in lost]
        readable = [source for source in readable if source not in lost]
        batches = tuple(self._batch(source) for source in readable if self._offsets(source))
        ends = {source: Position(self.ends[source]) for source in readable}
        self.positions |= {source: self.ends[source] for source in readable}
        return Polled(batches, ends, tuple(faults))

    def expect(self, last: Mapping[TopicPartition, LastRecord]) -> None:
        self.expected |= last

    def seek(self, source: TopicPartition, position: Position) -> None:
        self.positions[source] = int(position)

    def pause(self, sources: Collection[TopicPartition]) -> None:
        self.paused |= set(sources)

    def resume(self, sources: Collection[TopicPartition]) -> None:
        self.paused -= set(sources)

    def resolve(self, source: TopicPartition, start: Start) -> Position:
        return Position(0 if start is StartAt.EARLIEST else self.ends[source])

    def end_positions(self, streams: Collection[Stream]) -> Mapping[TopicPartition, Position]:
        del streams
        return {source: Position(end) for source, end in self.ends.items()}

    def high_watermarks(self, sources: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        """As far as the logs go."""
        return {source: Position(self.ends[source]) for source in sources}

    def topic_ids(self, topics: Collection[Topic]) -> Mapping[Topic, str | None]:
        return {topic: self.ids[topic] for topic in topics if topic in self.ids}

    def ownerless(self, sources: Collection[TopicPartition]) -> Collection[TopicPartition] | None:
        del sources
        self.asked_group += 1
        return self.unowned

    def report(self, positions: Mapping[TopicPartition, Position]) -> None:
        pass

    def close(self) -> None:
        assert self.listener is not None
        self.listener.revoked(sorted(self.positions))

    def _is_lost(self, source: TopicPartition) -> bool:
        last = self.expected.pop(source, None)
        return last is not None and last.timestamp_ms != self.timestamp_ms

    def _is_beyond(self, source: TopicPartition) -> bool:
        return self.positions[source] > self.ends[source]

    def _offsets(self, source: TopicPartition) -> list[int]:
        return [offset for offset in range(self.positions[source], self.ends[source]) if offset not in self.holes]

    def _batch(self, source: TopicPartition) -> MessageBatch:
        offsets = self._offsets(source)
        return MessageBatch(
            source,
            np.array(offsets, np.int64),
            np.full(len(offsets), self.timestamp_ms, np.int64),
            pa.array([b'{"id": %d}' % offset for offset in offsets], pa.binary()),
            pa.nulls(len(offsets), pa.binary()),
            None,
        )
