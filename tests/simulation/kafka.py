"""Kafka in memory: logs with holes, and a consumer group of both rebalance protocols with sessions that end.

Rules:

1. A member that is paused or dead for longer than its session is expelled; others get its partitions at once. At its
   next poll it is notified that they are lost.
2. Cooperative: a member gives back only partitions that move to another member, and a partition is handed over after
   that. Eager: everything is given back on every rebalance.
3. A fetch may deliver records again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np
import pyarrow as pa

from common.settings import Start, StartAt, Stream
from common.spans import Position, Topic, TopicPartition
from common.stage.markers import LastRecord
from common.stage.merged import (
    InputEnd,
    ids_together,
    inputs_of,
    is_merged,
    kafka_partition,
    merged_position,
    topics_of,
)
from stage_writer.decode.batch import MessageBatch
from stage_writer.ports import OUT_OF_RANGE, GroupListener, KafkaMetadata, PartitionFault, Polled
from tests.simulation.world import Crash, Fault, Process, World

SESSION_MS = 10_000
_POLLS_LONGER = 4.0
"""How much longer a poll waits than the service asks: most would get nothing."""
_offset = attrgetter("offset")


@dataclass(frozen=True, slots=True)
class Record:
    offset: int
    timestamp_ms: int
    value: bytes | None
    key: bytes | None = None


@dataclass(slots=True)
class Broker:
    world: World
    eager: bool
    together: bool = False
    """Whether partitions of one number go to one member, as by range."""
    logs: dict[TopicPartition, list[Record]] = field(default_factory=dict)
    members: list[GroupMember] = field(default_factory=list)
    owners: dict[TopicPartition, GroupMember] = field(default_factory=dict)
    generation: int = 0
    sticky: bool = True
    topic_id: int = 1
    past: list[dict[TopicPartition, list[Record]]] = field(default_factory=list)
    """The logs of topics that were deleted."""
    places: set[tuple[int, int, int]] | None = None
    """Those that have a record, where several topics use the same offsets."""
    low: dict[TopicPartition, int] = field(default_factory=dict)
    """Where a log begins after retention; the final check still has the deleted records."""
    hidden: dict[TopicPartition, int] = field(default_factory=dict)
    """Where the newest control record of a log ends, which no consumer gets."""
    unstable: dict[TopicPartition, int] = field(default_factory=dict)
    """Where an open transaction began: nothing from there on is read."""

    def append(self, partition: TopicPartition, value: bytes | None, key: bytes | None = None) -> None:
        """Add a record; sometimes Kafka leaves a hole before it."""
        log = self.logs[partition]
        after = self._end(partition)
        offset = after + self.world.rng.choice([0, 0, 0, 0, 0, 1, 3])
        time_ms = self.world.now_ms
        if self.together:
            time_ms -= self.world.rng.choice([0, 0, 0, 0, 50, 2_000])  # a clock that is behind
        if self.places is not None:
            while (partition.partition, offset, time_ms) in self.places:
                time_ms += 1  # of two topics too, a place and a time name one record
            self.places.add((partition.partition, offset, time_ms))
        log.append(Record(offset, time_ms, value, key))

    def recreate(self) -> None:
        """Delete the topic and create it again. Clients continue at their offsets, as librdkafka does."""
        self.world.now_ms += 1  # so that no record of the new topic has the place and time of an old one
        self.past.append(self.logs)
        self.logs = {partition: [] for partition in self.logs}
        self.topic_id += 1

    def id_of(self, topic: Topic) -> str | None:
        """Of a topic, or of the chain of several."""
        return ids_together(topic, {input_topic: self._id_of(input_topic) for input_topic in topics_of(topic)})

    def _id_of(self, topic: str) -> str:
        del topic
        return str(self.topic_id)

    def end(self, partition: TopicPartition) -> Position:
        """The next position of a Kafka partition, or of a chain of several."""
        if is_merged(partition.topic):
            return merged_position(
                InputEnd(input_partition, self.end(input_partition)) for input_partition in inputs_of(partition)
            )
        return Position(self._end(partition))

    def _end(self, partition: TopicPartition) -> int:
        return self.log_end(kafka_partition(partition))

    def log_end(self, partition: TopicPartition) -> int:
        """Where a Kafka partition's log ends."""
        log = self.logs[partition]
        return max(log[-1].offset + 1 if log else 0, self.hidden.get(partition, 0))

    def begin(self, partition: TopicPartition) -> Position:
        """The first position of a Kafka partition, or of a chain of several."""
        if is_merged(partition.topic):
            return merged_position(
                InputEnd(input_partition, self.begin(input_partition)) for input_partition in inputs_of(partition)
            )
        return Position(self.low.get(kafka_partition(partition), 0))

    def has_records(self, chain: TopicPartition) -> bool:
        """Whether consumers get any: all may have expired, or been aborted."""
        return any(log[-1].offset >= self.begin(log_of) for log_of in inputs_of(chain) if (log := self.logs[log_of]))

    def stable_end(self, partition: TopicPartition) -> Position:
        """Up to where a consumer of committed records reads."""
        return Position(self.unstable.get(partition, self.log_end(partition)))

    def join(self, member: GroupMember) -> None:
        """A new member; the group rebalances."""
        self.members.append(member)
        self.rebalance()

    def leave(self, member: GroupMember) -> None:
        """A member leaves; its partitions are free."""
        if member in self.members:
            self.members.remove(member)
        for partition in [partition for partition, owner in self.owners.items() if owner is member]:
            del self.owners[partition]
        self.rebalance()

    def expel_silent(self) -> None:
        """End the sessions of members without a heartbeat (rule 1)."""
        for member in list(self.members):
            if self.world.now_ms - member.process.last_heartbeat_ms > SESSION_MS and not member.is_running():
                self.expel(member)

    def expel(self, member: GroupMember) -> None:
        """End a member's session; it does not know before it polls."""
        self.world.faults[Fault.EXPELLED] += 1
        self.world.note(f"{member.process.name} is expelled from the group")
        member.expelled = True
        self.leave(member)

    def rebalance(self, *, sticky: bool = True) -> None:
        """A new generation; not sticky: all partitions move to other members."""
        if not sticky:
            self.members.append(self.members.pop(0))
        self.sticky = sticky
        self.generation += 1

    def target(self, member: GroupMember) -> set[TopicPartition]:
        """The assignment of a member: an even share, with as much of its current one as possible."""
        if self.together:
            return self._by_range(member)
        free = sorted(self.logs)
        share = -(-len(free) // max(1, len(self.members)))
        wanted: dict[int, set[TopicPartition]] = {}
        for index, other in enumerate(self.members):
            kept = sorted(partition for partition in other.owned if partition in free and self.sticky)[:share]
            wanted[index] = set(kept)
            free = [partition for partition in free if partition not in wanted[index]]
        for index, other in enumerate(self.members):
            for partition in [partition for partition in free if other.takes(partition)][: share - len(wanted[index])]:
                wanted[index].add(partition)
                free.remove(partition)
        return wanted[self.members.index(member)]

    def _by_range(self, member: GroupMember) -> set[TopicPartition]:
        partitions = sorted({partition.partition for partition in self.logs})
        share = -(-len(partitions) // len(self.members))
        first = share * self.members.index(member)
        mine = partitions[first : first + share]
        return {partition for partition in self.logs if partition.partition in mine and member.takes(partition)}


class GroupMember:
    """A `stage_writer.ports.RecordSource`: one writer's consumer."""

    def __init__(self, world: World, broker: Broker, process: Process) -> None:
        self._world = world
        self._broker = broker
        self.process = process
        self.owned: dict[TopicPartition, int] = {}
        """The partitions that it reads, and from where."""
        self.assigned: set[TopicPartition] = set()
        """Also those that it does not read yet."""
        self.expelled = False
        self.is_cut_off = False
        """Whether its session ended by a network fault, so that it cannot know."""
        self._generation = -1
        self._paused: set[TopicPartition] = set()
        self._streams: tuple[Stream, ...] = ()
        self._listener: GroupListener | None = None
        self._is_member = False

    def takes(self, partition: TopicPartition) -> bool:
        return any(stream.reads(partition.topic) for stream in self._streams)

    def is_running(self) -> bool:
        return self.process.alive and (self._world.faults_ended or self.process.paused_until_ms <= self._world.now_ms)

    @property
    def metadata(self) -> KafkaMetadata:
        return self

    def subscribe(self, streams: Collection[Stream], listener: GroupListener) -> None:
        self._streams = tuple(streams)
        self._listener = listener
        self._join()

    def poll(self, timeout_s: float) -> Polled:
        self._world.sleep_s(timeout_s * _POLLS_LONGER)
        self._serve_group()
        batches: list[MessageBatch] = []
        faults: list[PartitionFault] = []
        for partition in sorted(self.owned):
            if partition not in self._paused:
                self._fetch(partition, batches, faults)
        ends = {
            partition: Position(position)
            for partition, position in self.owned.items()
            if partition not in self._paused and position == self._broker.stable_end(partition)
        }
        if batches and not self._world.faults_ended:
            self._world.sleep_s(0)  # a process can be stopped between what it was given and what it does with it
        return Polled(tuple(batches), ends, tuple(faults))

    def expect(self, last: Mapping[TopicPartition, LastRecord]) -> None:
        del last

    def seek(self, partition: TopicPartition, position: Position) -> None:
        self.owned[partition] = position

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self._paused |= set(partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self._paused -= set(partitions)

    def resolve(self, partition: TopicPartition, start: Start) -> Position:
        return self._broker.begin(partition) if start is StartAt.EARLIEST else Position(self._broker.end(partition))

    def end_positions(self, streams: Collection[Stream]) -> Mapping[TopicPartition, Position]:
        del streams
        return {partition: Position(self._broker.end(partition)) for partition in self._broker.logs}

    def high_watermarks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        return {partition: Position(self._broker.end(partition)) for partition in partitions}

    def topic_ids(self, topics: Collection[Topic]) -> Mapping[Topic, str | None]:
        """The broker's; a recreated topic has another id."""
        return {topic: self._broker.id_of(topic) for topic in topics}

    def refused(self, topics: Collection[str]) -> Collection[str]:
        del topics
        return ()

    def ownerless(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition] | None:
        return [partition for partition in partitions if partition not in self._broker.owners]

    def report(self, positions: Mapping[TopicPartition, Position]) -> None: ...

    def close(self) -> None:
        if not self.process.alive:
            raise Crash
        if self._is_member and not self.expelled:
            self._revoke(set(self.assigned))
            self._broker.leave(self)
        self._is_member = False

    def _join(self) -> None:
        self.expelled = False
        self.is_cut_off = False
        self._is_member = True
        self._generation = -1
        self._broker.join(self)

    def _serve_group(self) -> None:
        listener = self._listener
        assert listener is not None
        if self.expelled:
            gone = set(self.assigned)
            self.assigned.clear()
            self.owned.clear()
            self._paused.clear()  # a partition that comes back is read
            listener.lost(gone)
            self._join()
        if self._generation != self._broker.generation:
            generation = self._broker.generation
            wanted = self._broker.target(self)
            self._revoke(set(self.assigned) if self._broker.eager else self.assigned - wanted)
            self._generation = generation
        if self.expelled or self._generation != self._broker.generation:
            return
        if len(self._broker.owners) == len(self._broker.logs):
            return
        free = {
            partition for partition in self._broker.target(self) - self.assigned if partition not in self._broker.owners
        }
        if free:
            for partition in free:
                self._broker.owners[partition] = self
            self.assigned |= free
            positions = listener.assigned(sorted(free))
            if not self.expelled:
                self.owned |= {partition: int(positions[partition]) for partition in free if partition in positions}

    def _revoke(self, partitions: set[TopicPartition]) -> None:
        if not partitions:
            return
        assert self._listener is not None
        self._listener.revoked(sorted(partitions))
        for partition in partitions:
            self.owned.pop(partition, None)
            self.assigned.discard(partition)
            self._paused.discard(partition)
            if self._broker.owners.get(partition) is self:
                del self._broker.owners[partition]

    def _fetch(self, partition: TopicPartition, batches: list[MessageBatch], faults: list[PartitionFault]) -> None:
        position, rng = self.owned[partition], self._world.rng
        if position > self._broker.log_end(partition):
            faults.append(PartitionFault(partition, f"no position {position}", ""))
            return
        low = Position(self._broker.low.get(partition, 0))
        if position < low:
            faults.append(PartitionFault(partition, f"Kafka's records begin at {low}", "", OUT_OF_RANGE))
            return
        if not self._world.faults_ended and rng.random() < 0.02:
            self._world.faults[Fault.REDELIVERY] += 1
            position = max(low, position - rng.randrange(1, 5))
        log = self._broker.logs[partition]
        first = bisect_left(log, position, key=_offset)
        end = self._broker.stable_end(partition)
        records = [record for record in log[first : first + 1 + rng.below(11)] if record.offset < end]
        if not records:
            self.owned[partition] = max(self.owned[partition], end)  # past control records
            return
        self.owned[partition] = records[-1].offset + 1
        batches.append(
            MessageBatch(
                partition,
                np.array([record.offset for record in records], np.int64),
                np.array([record.timestamp_ms for record in records], np.int64),
                pa.array([record.value for record in records], pa.binary()),
                _keys(records),
                None,
            )
        )


def _keys(records: Sequence[Record]) -> pa.Array:
    if all(record.key is None for record in records):
        return pa.nulls(len(records), pa.binary())
    return pa.array([record.key for record in records], pa.binary())
