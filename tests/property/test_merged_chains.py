"""A merged chain against a plain oracle: one order, and each message once, in all polls and cuts."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import CapturingLogger

from common.errors import ConfigError
from common.settings import Start, StartAt, Stream
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.markers import LastRecord
from common.stage.merged import InputEnd, inputs_at, inputs_of, merged_position
from stage_writer.decode.batch import MessageBatch, header_lists, headers_column
from stage_writer.decode.merged_batch import MergedBatch
from stage_writer.fetch.merged.groups import TopicGroup, TopicGroups
from stage_writer.fetch.merged.source import INCOMPLETE_S, MergingSource
from stage_writer.ports import GroupListener, KafkaMetadata, PartitionFault, Polled
from tests.fakes.group import HandClock

CHAIN = TopicPartition(Topic("a+b+c"), Partition(0))
INPUTS = inputs_of(CHAIN)
GROUPS = TopicGroups((TopicGroup(("b", "a", "c"), 5.0),))


@dataclass(frozen=True, slots=True)
class Record:
    offset: int
    time_ms: int


Logs = dict[TopicPartition, tuple[Record, ...]]
Place = tuple[str, int]
"""A topic and an offset."""


@st.composite
def logs(draw: st.DrawFn) -> Logs:
    """Logs with gaps between offsets, and with times in any order."""
    made: Logs = {}
    for partition in INPUTS:
        steps = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(-1, 12)), max_size=12))
        offsets = np.cumsum([step for step, _ in steps], dtype=np.int64).tolist()
        made[partition] = tuple(Record(offset, time_ms) for offset, (_, time_ms) in zip(offsets, steps, strict=True))
    return made


def end_of(log: Sequence[Record]) -> int:
    """The end of a log: a transaction's marker always follows the last record."""
    return (log[-1].offset if log else 0) + 2


def oracle(logs: Logs) -> list[Place]:
    """Record by record: of the next records, the one with the lowest time and of the first topic."""
    left = {partition: list(log) for partition, log in logs.items()}
    order: list[Place] = []
    while any(left.values()):
        partition = min(
            (partition for partition in left if left[partition]),
            key=lambda partition: (left[partition][0].time_ms, partition),
        )
        order.append((str(partition.topic), left[partition].pop(0).offset))
    return order


@dataclass(slots=True)
class Brokers:
    """A source that delivers the records that a test plans, of all logs."""

    logs: Logs
    listener: GroupListener | None = None
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    paused: set[TopicPartition] = field(default_factory=set)
    faults: list[PartitionFault] = field(default_factory=list)
    plan: dict[TopicPartition, int] = field(default_factory=dict)
    """How many records of each partition the next poll returns."""

    @property
    def metadata(self) -> KafkaMetadata:
        return self

    def subscribe(self, streams: Collection[Stream], listener: GroupListener) -> None:
        del streams
        self.listener = listener

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        assert self.listener is not None
        positions = self.listener.assigned(partitions)
        self.paused = (self.paused - set(partitions)) | {
            partition for partition in partitions if partition not in positions
        }
        self.positions |= {partition: int(positions.get(partition, 10**6)) for partition in partitions}

    def poll(self, timeout_s: float) -> Polled:
        del timeout_s
        batches, ends = [], {}
        for partition, position in list(self.positions.items()):
            if partition in self.paused:
                continue
            new = [record for record in self.logs[partition] if record.offset >= position][
                : self.plan.get(partition, 0)
            ]
            if new:
                batches.append(batch_of(partition, new))
                self.positions[partition] = new[-1].offset + 1
            if not [record for record in self.logs[partition] if record.offset >= self.positions[partition]]:
                ends[partition] = Position(end_of(self.logs[partition]))
        faults, self.faults = tuple(self.faults), []
        return Polled(tuple(batches), ends, faults)

    def expect(self, last: Mapping[TopicPartition, LastRecord]) -> None:
        del last

    def seek(self, partition: TopicPartition, position: Position) -> None:
        self.positions[partition] = int(position)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self.paused |= set(partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self.paused -= set(partitions)

    def resolve(self, partition: TopicPartition, start: Start) -> Position:
        return Position(0 if start is StartAt.EARLIEST else end_of(self.logs[partition]))

    def end_positions(self, streams: Collection[Stream]) -> Mapping[TopicPartition, Position]:
        del streams
        return {partition: Position(end_of(log)) for partition, log in self.logs.items()}

    def high_watermarks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        return {partition: Position(end_of(self.logs[partition])) for partition in partitions}

    def topic_ids(self, topics: Collection[Topic]) -> Mapping[Topic, str | None]:
        return {topic: f"id-{topic}" for topic in topics}

    def refused(self, topics: Collection[str]) -> Collection[str]:
        del topics
        return ()

    def ownerless(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition] | None:
        return {partition for partition in partitions if partition.topic == "b"}

    def report(self, positions: Mapping[TopicPartition, Position]) -> None:
        assert all(partition in self.logs for partition in positions)

    def close(self) -> None: ...


@dataclass(slots=True)
class Reader:
    """The writer's side: begins chains at ``begin``, and collects batches."""

    begin: Position
    batches: list[MergedBatch] = field(default_factory=list)
    ends: list[Position] = field(default_factory=list)
    had: list[TopicPartition] = field(default_factory=list)

    def assigned(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        self.had += partitions
        return {
            partition: merged_position(InputEnd(i, Position(0)) for i in inputs_of(partition))
            for partition in partitions
        } | {partition: self.begin for partition in partitions if partition == CHAIN}

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.had = [partition for partition in self.had if partition not in partitions]

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        self.revoked(partitions)

    def take(self, polled: Polled) -> None:
        assert not polled.faults
        for batch in polled.batches:
            assert isinstance(batch, MergedBatch)
            assert batch.partition == CHAIN
            self.batches.append(batch)
        self.ends += polled.ends.values()

    @property
    def places(self) -> list[Place]:
        return [message for batch in self.batches for message in messages_of(batch)]


def batch_of(partition: TopicPartition, records: Sequence[Record]) -> MessageBatch:
    return MessageBatch(
        partition,
        np.array([record.offset for record in records], np.int64),
        np.array([record.time_ms for record in records], np.int64),
        pa.array([f"{partition.topic}{record.offset}".encode() for record in records], pa.binary()),
        pa.array([b"key"] * len(records), pa.binary()),
        headers_column([[("offset", b"%d" % record.offset)] for record in records]),
    )


def messages_of(batch: MergedBatch) -> list[Place]:
    """The messages of a batch, read through its inputs' batches; every column of a message has to agree."""
    by_index: dict[int, Place] = {}
    for part in batch.by_input():
        topic = str(part.batch.partition.topic)
        for index, offset, value in zip(
            part.index.tolist(), part.batch.offsets.tolist(), part.batch.values.to_pylist(), strict=True
        ):
            assert value == f"{topic}{offset}".encode() == batch.values[index].as_py()
            assert batch.headers is not None
            assert header_lists(batch.headers)[index] == [("offset", b"%d" % offset)]
            by_index[index] = (topic, offset)
    assert sorted(by_index) == list(range(len(batch)))
    return [by_index[index] for index in sorted(by_index)]


def start_at(position: int = 0) -> Position:
    return merged_position(InputEnd(partition, Position(position)) for partition in INPUTS)


def reading(logs: Logs, begin: Position, clock: HandClock, ahead_bytes: int) -> tuple[Brokers, MergingSource, Reader]:
    brokers, reader = Brokers(logs), Reader(begin)
    source = MergingSource(brokers, GROUPS, clock, CapturingLogger(), ahead_bytes)
    source.subscribe([], reader)
    brokers.assign(INPUTS)
    return brokers, source, reader


def drain(brokers: Brokers, source: MergingSource, reader: Reader, clock: HandClock) -> None:
    """Reads to the ends, with time enough for idle inputs."""
    for _ in range(60):
        brokers.plan = dict.fromkeys(INPUTS, 2)
        reader.take(source.poll(0.0))
        clock.now_s += 1.0


polls = st.lists(st.dictionaries(st.sampled_from(INPUTS), st.integers(0, 4)), max_size=25)


@given(logs(), polls, st.sampled_from([0, 20, 10_000]))
def test_order_is_independent_of_the_interleaving_of_polls(
    all_logs: Logs, planned: list[dict[TopicPartition, int]], ahead: int
) -> None:
    clock = HandClock()
    brokers, source, reader = reading(all_logs, start_at(), clock, ahead)
    for plan in planned:
        brokers.plan = plan
        reader.take(source.poll(0.0))
        clock.now_s += 6.0  # an input that was not read to its end is waited for without a limit
    drain(brokers, source, reader, clock)
    assert reader.places == oracle(all_logs)
    offsets = np.concatenate([batch.offsets for batch in reader.batches]) if reader.batches else np.zeros(0)
    assert np.all(np.diff(offsets) > 0)
    assert inputs_at(reader.ends[-1]) == tuple(
        InputEnd(partition, Position(end_of(all_logs[partition]))) for partition in INPUTS
    )


@given(logs(), polls, st.data())
def test_restart_from_any_message_continues_with_the_next(
    all_logs: Logs, planned: list[dict[TopicPartition, int]], data: st.DataObject
) -> None:
    clock, begin, done = HandClock(), start_at(), []
    for cut_short in [*data.draw(st.lists(st.integers(0, 6), max_size=4)), None]:
        brokers, source, reader = reading(all_logs, begin, clock, 10_000)
        for plan in planned:
            brokers.plan = plan
            reader.take(source.poll(0.0))
        drain(brokers, source, reader, clock)
        if not reader.batches:
            break
        assert all(batch.offsets[0] >= begin for batch in reader.batches)
        # A flush ends after some message of some batch; the process dies, and the next reads on from the marker.
        count = data.draw(st.integers(1, len(reader.batches))) if cut_short is not None else len(reader.batches)
        sealed = [*reader.batches[: count - 1], *_cut(reader.batches[count - 1], cut_short)]
        done += [message for batch in sealed for message in messages_of(batch)]
        begin = sealed[-1].end if sealed else begin
        assert begin == sum(end.position for end in inputs_at(begin))
    assert done == oracle(all_logs)


def _cut(batch: MergedBatch, count: int | None) -> list[MergedBatch]:
    kept = batch if count is None else batch.part(0, min(count, len(batch)))
    rest = batch.after(kept.end) if len(kept) else batch
    assert len(kept) + len(rest) == len(batch)
    return [kept] if len(kept) else []


@given(logs(), polls)
def test_chain_that_loses_and_regains_an_input_loses_nothing(
    all_logs: Logs, planned: list[dict[TopicPartition, int]]
) -> None:
    clock = HandClock()
    brokers, source, reader = reading(all_logs, start_at(), clock, 10_000)
    for number, plan in enumerate(planned):
        brokers.plan = plan
        reader.take(source.poll(0.0))
        if number % 3 == 2:
            taken = reader.batches[-1].end if reader.batches else start_at()
            assert brokers.listener is not None
            brokers.listener.revoked([INPUTS[1]])
            del brokers.positions[INPUTS[1]]
            assert reader.had == []
            if number % 2:
                reader.take(source.poll(0.0))
            reader.begin = taken
            brokers.assign([INPUTS[1]])
            assert reader.had == [CHAIN]
    drain(brokers, source, reader, clock)
    assert reader.places == oracle(all_logs)


def test_incomplete_input_is_a_config_error_and_a_fault_is_the_chain_s() -> None:
    """A topic has gained a partition, and the others have not."""
    clock, alone = HandClock(), TopicPartition(Topic("a"), Partition(1))
    brokers, source, reader = reading(dict.fromkeys(INPUTS, ()), start_at(), clock, 10_000)
    brokers.faults = [PartitionFault(INPUTS[1], "out of range", "bootstrap skip …", "out_of_range")]
    (fault,) = source.poll(0.0).faults
    assert (fault.partition, fault.problem) == (CHAIN, "out of range")
    assert "skip …" not in fault.remedy
    brokers.logs[alone] = ()
    brokers.assign([alone])
    assert reader.had == [CHAIN]
    source.poll(0.0)
    clock.now_s += INCOMPLETE_S + 1
    with pytest.raises(ConfigError, match="a has 2, b has 1, c has 1"):
        source.poll(0.0)
    brokers.logs |= {TopicPartition(Topic(topic), Partition(1)): () for topic in ("b", "c")}
    source.poll(0.0)
    brokers.assign([partition for partition in brokers.logs if partition.partition == 1 and partition != alone])
    assert len(reader.had) == 2, "with the others' partitions it is a chain"
    assert brokers.positions[alone] == 10**6
    source.poll(0.0)
    assert brokers.positions[alone] == 0, "the partition assigned earlier is read from its sought position"
    assert alone not in brokers.paused


def test_paused_chain_returns_nothing_and_reports_its_end_again() -> None:
    all_logs: Logs = {partition: (Record(0, number),) for number, partition in enumerate(INPUTS)}
    clock = HandClock()
    brokers, source, reader = reading(all_logs, start_at(), clock, 10_000)
    source.pause([CHAIN])
    assert brokers.paused == set(INPUTS)
    brokers.paused.clear()  # records fetched earlier still arrive
    brokers.plan = dict.fromkeys(INPUTS, 1)
    reader.take(source.poll(0.0))
    assert (reader.batches, reader.ends) == ([], [])
    source.resume([CHAIN])
    reader.take(source.poll(0.0))
    drain(brokers, source, reader, clock)
    assert reader.places == oracle(all_logs)
    assert len(reader.ends) == 1
    source.resume([CHAIN])
    source.pause([CHAIN])
    brokers.paused.clear()
    reader.take(source.poll(0.0))
    assert len(reader.ends) == 1
    source.resume([CHAIN])
    reader.take(source.poll(0.0))
    assert reader.ends[0] == reader.ends[1]
