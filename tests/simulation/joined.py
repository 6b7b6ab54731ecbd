"""Worlds whose tasks write to a Kafka topic, most of which join two topics as one chain; and the model of both.

Each counted record increases its key's count and gives rows and records with that count. The order of records of two
topics depends on their times and, at their ends, on chance; so the model does not know a record's count. It knows that
no two records of a key have the same count, that counts rise along each topic, and their maximum.

In some worlds the table has a constraint on the count: records whose rows it refuses are dead letters of their own
topic, with their bytes.
"""

from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from common.metrics import Metrics
from common.settings import Settings, Stream
from common.spans import Partition, Topic, TopicPartition
from delta_loader.load.ports import RefusalPorts
from stage_writer.fetch.merged.groups import TopicGroup, TopicGroups
from stage_writer.fetch.merged.source import MergingSource
from stage_writer.outbox.ports import Outlets
from stage_writer.ports import Converter, RecordSource
from stage_writer.tasks.shared import SnapshotsWhen, TaskEnvironment
from stage_writer.tasks.topology import TopologyConverter
from stage_writer.topologies import Processor, ProcessorContext, Record, Topology
from stage_writer.topologies.stores import Stores
from tests.simulation.counting import BAD, ONE, QUIET, ROWS, TWO
from tests.simulation.delta_log import SimulatedTables, place_of
from tests.simulation.kafka import GroupMember
from tests.simulation.kafka import Record as Sent
from tests.simulation.kinds import DEAD_LETTERS, STAGE, TABLE, Context, Keyed, Wanted, settings_of
from tests.simulation.outgoing import Coordinator, SourceMessage, outlets
from tests.simulation.refusing import CheckedLog, refusing_ports
from tests.simulation.store import SimulatedStore
from tests.simulation.world import SILENT, Process, World, WorldClock

ALONE, BOTH = ("orders",), ("orders", "payments")
_REFUSE = 0.4
"""How many of the worlds have a table that refuses records."""
_AHEAD_BYTES = 200
"""The limit of records that wait for another topic: so few that topics are paused."""


def _forbidden(rows: pa.Table) -> pa.Array:
    return pc.equal(pc.bit_wise_and(rows["seen"], 3), 2).combine_chunks()


class Counts(Processor):
    """Counts the records of each key, over all topics."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.counts = context.store("counts")

    def process(self, record: Record) -> None:
        """Counts one more, with as many rows as its value says."""
        if record.value is None:
            return
        key = record.key or "none"
        seen = (self.counts.get(key) or 0) + 1
        self.counts.put(key, seen)
        if record.value["n"] < 0:
            msg = "less than nothing"
            raise ValueError(msg)
        about = self.context
        place = [about.topic, about.partition, about.offset, record.timestamp_ms]
        for _ in range(record.value["n"]):
            self.context.forward(record.with_value({"key": key, "seen": seen}), "table")
            self.context.forward(record.with_value({"place": place, "seen": seen}), "counted")


def joining(topics: tuple[str, ...], processor: type[Processor] = Counts) -> Topology:
    """A processor of all of these topics, with a store; it writes to the table and to a topic."""
    topology = Topology()
    for topic in topics:
        topology.add_source(topic, topic)
    topology.add_processor("counts", processor, *topics)
    topology.add_state_store(Stores.key_value("counts"), "counts")
    topology.add_sink("table", "counts")
    topology.add_topic_sink("counted", "counts", topic="counted")
    return topology


def task_converter(world: World, stream: Stream, topology: Topology) -> Converter:
    when = SnapshotsWhen(most_changes=4, least_bytes=500)
    return TopologyConverter(stream, topology.check(), TaskEnvironment(WorldClock(world).wall_ms, Metrics(), when=when))


def merging(world: World, member: GroupMember, topics: tuple[str, ...], longest_idle_s: float = 0.0) -> RecordSource:
    """What a task of these topics reads."""
    if len(topics) == 1:
        return member
    groups = TopicGroups((TopicGroup(topics, longest_idle_s),))
    return MergingSource(member, groups, WorldClock(world), SILENT, _AHEAD_BYTES)


class Joined(Keyed):
    """Tasks of one topic or of two, with records for a third."""

    values = (ONE, ONE, ONE, TWO, QUIET, BAD, None)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.topics = context.world.rng.choice([ALONE, BOTH, BOTH])
        self.settings = settings_of(
            topics=list(self.topics), topology="tests.simulation.joined:build", columns="key STRING, seen BIGINT"
        )
        self.coordinator = Coordinator(context.world)
        self._refuses = context.world.rng.random() < _REFUSE
        self.log = CheckedLog(context.bucket, STAGE, _forbidden)
        self.log.checks_at_once = self._refuses
        self._longest_idle_s = context.world.rng.choice([0.0, 0.0, 2.0])

    def converter(self, process: Process) -> Converter:
        del process
        return task_converter(self.context.world, self.stream, joining(self.topics))

    def source(self, member: GroupMember, settings: Settings) -> RecordSource:
        del settings
        return merging(self.context.world, member, self.topics, self._longest_idle_s)

    def outlets(self, process: Process, store: SimulatedStore) -> Outlets:
        return outlets(self.coordinator, process, store, self.stream)

    def inject_faults(self) -> None:
        """Sometimes Kafka commits no transactions."""
        self.coordinator.inject_faults()

    def wanted(self, value: bytes | None) -> Wanted:
        """As many rows as its value says, or a dead letter where the table may refuse them."""
        tables = super().wanted(value)
        return (*tables, {DEAD_LETTERS: 1}) if self._refuses and ROWS.get(value or b"") else tables

    def refusing(self, tables: SimulatedTables) -> RefusalPorts:
        """The table's constraint check, and Kafka for the bytes."""
        return refusing_ports(self.context, tables)

    def problems(self) -> Iterator[str]:
        """Records with several output messages or none, and impossible counts."""
        committed = Counter(self.coordinator.committed)
        for partition, log, deleted in self.context.logs():
            for record in log:
                place = SourceMessage(
                    str(partition.topic), int(partition.partition), record.offset, record.timestamp_ms
                )
                wanted = ROWS.get(record.value or b"", 0)
                may_lack = self.context.may_lack(partition, record.offset, deleted=deleted)
                if committed[place] != wanted and not (may_lack and committed[place] == 0):
                    yield f"{partition} offset {record.offset} has {committed[place]} messages, and not {wanted}"
        yield from self._out_of_order()
        if not self.context.broker.past and not self.context.given_up.spans:
            yield from self._miscounted()

    def _out_of_order(self) -> Iterator[str]:
        """Output is in the order of its source messages, by Kafka partition."""
        last: dict[tuple[str, int], tuple[int, int]] = {}
        for message in self.coordinator.committed:
            source, place = (message.topic, message.partition), (self._generation(message), message.offset)
            if place < last.get(source, place):
                yield f"{message} comes after {last[source]}"
            last[source] = place

    def _generation(self, message: SourceMessage) -> int:
        partition = TopicPartition(Topic(message.topic), Partition(message.partition))
        for generation, logs in enumerate((*self.context.broker.past, self.context.broker.logs)):
            if any(
                (record.offset, record.timestamp_ms) == (message.offset, message.time_ms) for record in logs[partition]
            ):
                return generation
        return -1

    def _miscounted(self) -> Iterator[str]:
        """Counts of a key that two records have, that fall along a topic, or that exceed the number of its records."""
        seen: dict[tuple[int, object], dict[tuple[str, int], object]] = {}
        for row in self.log.rows(TABLE):
            place = place_of(row)
            of_key = seen.setdefault((place.partition, row["key"]), {})
            of_key[str(row["_kafka_topic"]), place.offset] = row["seen"]
        for (partition, key), counts_by_place in seen.items():
            logs = (log for topic_partition, log, _ in self.context.logs() if topic_partition.partition == partition)
            most = sum(_records_of(log, key) for log in logs)
            counts = list(counts_by_place.values())
            if len(set(counts)) < len(counts) or not all(1 <= int(str(count)) <= most for count in counts):
                yield f"{key} in partition {partition} has the counts {sorted(counts, key=str)}, of {most}"
            for topic in self.topics:
                along = [int(str(counts_by_place[place])) for place in sorted(counts_by_place) if place[0] == topic]
                if along != sorted(along):
                    yield f"{key} in partition {partition} of {topic} has the counts {along}"


def _records_of(log: list[Sent], key: object) -> int:
    counted = (record for record in log if record.value not in (None, BAD))
    return sum((record.key or b"none").decode() == key for record in counted)


def build() -> Topology:
    """The topology that the settings name; worlds make their own, of one topic or of two."""
    return joining(BOTH)
