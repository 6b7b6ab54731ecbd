"""Several topics as one chain on a real broker: their order, restarts, idle inputs, and who gets what."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping

import pytest
from confluent_kafka import Producer
from structlog import get_logger

from common.clock import SystemClock
from common.errors import ConfigError
from common.settings import Settings, StartAt
from common.spans import Position, TopicPartition
from common.stage.merged import chain_topic, inputs_at
from devservices.kafka import KafkaCluster
from stage_writer.decode.merged_batch import MergedBatch
from stage_writer.fetch.kafka import KafkaSource
from stage_writer.fetch.merged.groups import TopicGroup, TopicGroups
from stage_writer.fetch.merged.source import MergingSource

pytestmark = pytest.mark.broker

ReadRecord = tuple[str, int, int]
"""A topic, a partition and an offset."""


class Member:
    """A writer's side of the source: begins chains where it left them, and takes what comes."""

    def __init__(self, kafka: KafkaCluster, group: str, topics: tuple[str, ...], idle_s: float = 0.0) -> None:
        stream = {"app_id": "a", "topics": [*topics], "table": "file:///t", "columns": "id INT", "topology": "no:where"}
        self.settings = Settings.model_validate(
            {
                "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
                "stage": {"url": "file:///stage"},
                "writer": {"group_id": group},
                "streams": [stream],
            }
        )
        clock = SystemClock()
        self.inner = KafkaSource(self.settings, clock, get_logger(), co_partitioned=True)
        self.source = MergingSource(self.inner, TopicGroups((TopicGroup(topics, idle_s),)), clock, get_logger(), 1_000)
        self.begin: dict[TopicPartition, Position] = {}
        self.mine: set[TopicPartition] = set()
        self.records: dict[TopicPartition, list[ReadRecord]] = {}
        self.ends: dict[TopicPartition, Position] = {}

    def join(self) -> None:
        self.source.subscribe(self.settings.streams, self)

    def assigned(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        self.mine |= set(partitions)
        return {
            partition: self.begin.get(partition) or self.source.metadata.resolve(partition, StartAt.EARLIEST)
            for partition in partitions
        }

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.mine -= set(partitions)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        self.revoked(partitions)

    def read(self, until: Callable[[], bool], within_s: float = 180.0) -> None:
        deadline_s = time.monotonic() + within_s
        while not until():
            assert time.monotonic() < deadline_s, (self.records, self.ends, self.mine)
            polled = self.source.poll(0.1)
            assert not polled.faults
            for batch in polled.batches:
                assert isinstance(batch, MergedBatch)
                assert batch.partition in self.mine
                of = {int(n): input_messages for input_messages in batch.by_input() for n in input_messages.index}
                messages = self.records.setdefault(batch.partition, [])
                for number, offset in enumerate(batch.input_offsets.tolist()):
                    messages.append((str(of[number].batch.partition.topic), int(batch.partition.partition), offset))
                self.begin[batch.partition] = batch.end
            self.ends |= polled.ends

    def look_for(self, seconds: float) -> None:
        stop_s = time.monotonic() + seconds
        self.read(lambda: time.monotonic() > stop_s)

    def count(self) -> int:
        return sum(map(len, self.records.values()))


@pytest.fixture
def members(kafka: KafkaCluster) -> Iterator[Callable[..., Member]]:
    made: list[Member] = []

    def member(group: str, topics: tuple[str, ...], idle_s: float = 0.0) -> Member:
        made.append(Member(kafka, group, topics, idle_s))
        return made[-1]

    yield member
    for joined in made:
        joined.source.close()


def send(kafka: KafkaCluster, topic: str, partition: int, *times_ms: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for time_ms in times_ms:
        producer.produce(topic, b"{}", partition=partition, timestamp=time_ms)
    assert producer.flush(180) == 0


def test_records_come_in_the_order_of_their_times_and_go_on_where_a_marker_ends(
    kafka: KafkaCluster, new_topic: Callable[..., str], members: Callable[..., Member]
) -> None:
    a, b = sorted([new_topic(2, prefix="a"), new_topic(2, prefix="b")])
    send(kafka, a, 0, *range(1000, 3000, 2))
    send(kafka, b, 0, *range(1001, 3001, 2), 3001)
    send(kafka, a, 1, 1000)
    first = members(f"{a}-1", (b, a))
    first.join()
    first.read(lambda: len(first.ends) == 2)
    chain = next(partition for partition in first.mine if partition.partition == 0)
    assert chain.topic == chain_topic([a, b])
    wanted = [record for offset in range(1000) for record in ((a, 0, offset), (b, 0, offset))] + [(b, 0, 1000)]
    assert first.records[chain] == wanted, "the bound of what waits pauses topics in turn, and their order stays"
    assert first.ends[chain] == 2001
    assert first.source.metadata.end_positions(first.settings.streams)[chain] == 2001
    assert first.source.metadata.high_watermarks([chain]) == {chain: Position(2001)}
    ids = first.source.metadata.topic_ids([chain.topic])
    assert len((ids[chain.topic] or "").split(",")) == 2
    # What was read behind a marker's end is read again, and nothing else.
    first.records.clear()
    middle = first.source.metadata.resolve(chain, StartAt.EARLIEST)
    first.source.seek(chain, middle)
    first.ends.clear()
    first.read(lambda: chain in first.ends)
    assert first.records[chain] == wanted
    # A chain that is paused for long looks again at inputs that were read to their ends.
    first.source.pause([chain])
    send(kafka, a, 0, 5000)
    send(kafka, b, 0, 4000)
    first.look_for(1.5)
    first.records.clear()
    first.source.resume([chain])
    first.read(lambda: first.count() == 2)
    assert first.records[chain] == [(b, 0, 1001), (a, 0, 1000)]


def test_idle_topic_is_waited_for_only_as_long_as_configured(
    kafka: KafkaCluster, new_topic: Callable[..., str], members: Callable[..., Member]
) -> None:
    a, b = new_topic(1), new_topic(1)
    member = members(f"{a}-2", (a, b), 2.0)
    member.join()
    member.read(lambda: bool(member.ends))
    send(kafka, a, 0, 1000)
    member.read(lambda: member.count() == 1)
    send(kafka, b, 0, 1500)  # first: both are idle by now, and none waits for the other
    send(kafka, a, 0, 2000)
    member.read(lambda: member.count() == 3)
    assert [topic for topic, _, _ in member.records[next(iter(member.mine))]] == [a, b, a]


def test_members_share_partitions_by_their_numbers_and_lose_none(
    kafka: KafkaCluster, new_topic: Callable[..., str], members: Callable[..., Member]
) -> None:
    a, b = new_topic(4), new_topic(4)
    for partition in range(4):
        send(kafka, a, partition, 1000, 2000)
        send(kafka, b, partition, 1500, 2500)
    first, second = members(f"{a}-3", (a, b)), members(f"{a}-3", (a, b))
    first.join()
    first.read(lambda: len(first.ends) == 4)
    second.begin = first.begin
    second.join()
    deadline_s = time.monotonic() + 600
    while not (len(first.mine) == len(second.mine) == 2 and first.mine.isdisjoint(second.mine)):
        assert time.monotonic() < deadline_s
        first.read(lambda: True)
        for member in (first, second):
            member.look_for(0.2)
    for partition in range(4):
        send(kafka, a, partition, 3000)
    second.read(lambda: second.count() == 2)
    first.read(lambda: first.count() == 16 + 2)
    all_records = [record for member in (first, second) for records in member.records.values() for record in records]
    assert len(all_records) == len(set(all_records)) == 20


def test_topics_of_differing_numbers_of_partitions_are_refused(
    new_topic: Callable[..., str], members: Callable[..., Member]
) -> None:
    a, b = new_topic(2), new_topic(3)
    member = members(f"{a}-4", (a, b))
    deadline_s = time.monotonic() + 600
    while len(member.inner.metadata.end_positions(member.settings.streams)) < 5:  # until the broker tells of both
        assert time.monotonic() < deadline_s
    with pytest.raises(ConfigError, match=f"{a} has 2, {b} has 3|{b} has 3, {a} has 2") as refused:
        member.join()
    assert "through" in refused.value.remedy


def test_joined_chain_ends_where_its_inputs_end(
    kafka: KafkaCluster, new_topic: Callable[..., str], members: Callable[..., Member]
) -> None:
    a, b = sorted([new_topic(1), new_topic(1)])
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": a})
    producer.init_transactions(180)
    producer.begin_transaction()
    producer.produce(b, b"{}")
    producer.commit_transaction(180)
    send(kafka, a, 0, 1000)
    member = members(f"{a}-5", (a, b))
    member.join()

    def ends() -> list[list[int]]:
        return [[int(input_end.position) for input_end in inputs_at(end)] for end in member.ends.values()]

    member.read(lambda: ends() == [[1, 2]])  # a transaction's marker is passed too, once the broker has written it
