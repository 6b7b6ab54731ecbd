"""Two chains of one Kafka partition on a real broker: each from its own position, and read once where they meet."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping

import pytest
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from structlog import get_logger

from common.clock import SystemClock
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.markers import LastRecord
from common.stage.merged import shared_chain
from devservices.kafka import KafkaCluster
from stage_writer.fetch.kafka import KafkaSource
from stage_writer.fetch.shared.source import SharedTopicSource
from stage_writer.ports import OUT_OF_RANGE, PartitionFault
from tests.builders import settings_of
from tests.producing import produce

pytestmark = pytest.mark.broker


class Member:
    """A writer's side of the source: each chain goes on where it was left, and notes what comes."""

    def __init__(self, kafka: KafkaCluster, topic: str, **properties: str) -> None:
        self.settings = settings_of(
            {"app_id": "a", "topics": [topic], "table": "file:///t", "columns": "id INT"},
            kafka={"bootstrap.servers": kafka.bootstrap_servers, **properties},
            stage={"url": "file:///s"},
            writer={"group_id": topic},
        )
        clock = SystemClock()
        names = [Topic(topic), shared_chain(topic, "b")]
        self.source = SharedTopicSource(KafkaSource(self.settings, clock, get_logger()), lambda _: names, clock)
        self.chains = [TopicPartition(name, Partition(0)) for name in names]
        self.begin: dict[TopicPartition, Position] = {}
        self.last: dict[TopicPartition, LastRecord] = {}
        self.read: dict[TopicPartition, list[int]] = {chain: [] for chain in self.chains}
        self.ends: dict[TopicPartition, Position] = {}
        self.faults: list[PartitionFault] = []

    def assigned(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        self.source.expect({partition: last for partition, last in self.last.items() if partition in partitions})
        return {partition: self.begin.get(partition, Position(0)) for partition in partitions}

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        del partitions

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        del partitions

    def until(self, done: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + 600
        while not done():
            assert time.monotonic() < deadline_s, (self.read, self.ends, self.faults)
            polled = self.source.poll(0.1)
            for batch in polled.batches:
                self.read[batch.partition] += batch.offsets.tolist()
                self.begin[batch.partition] = batch.end
                if (last := batch.record_at(-1)) is not None:
                    self.last[batch.partition] = last
            self.ends |= polled.ends
            self.faults += polled.faults


@pytest.fixture(params=[{}, {"partition.assignment.strategy": "range"}], ids=["cooperative", "eager"])
def member(kafka: KafkaCluster, request: pytest.FixtureRequest) -> Iterator[Callable[[str], Member]]:
    made: list[Member] = []

    def join(topic: str) -> Member:
        made.append(Member(kafka, topic, **request.param))
        return made[-1]

    yield join
    for member in made:
        member.source.close()


def send(kafka: KafkaCluster, topic: str, count: int) -> None:
    produce(kafka.bootstrap_servers, topic, *(b'{"id": %d}' % number for number in range(count)), partition=0)


def test_each_chain_gets_its_records_through_pauses_seeks_and_retention(
    kafka: KafkaCluster, new_topic: Callable[..., str], member: Callable[[str], Member]
) -> None:
    topic = new_topic(1)
    send(kafka, topic, 3000)
    reader = member(topic)
    plain, own = reader.chains
    reader.begin = {plain: Position(2000)}
    reader.source.subscribe(reader.settings.streams, reader)
    reader.until(lambda: reader.ends == {plain: Position(3000), own: Position(3000)})
    assert reader.read == {plain: list(range(2000, 3000)), own: list(range(3000))}
    # One chain is paused for long, and goes on from where it was.
    reader.source.pause([own])
    send(kafka, topic, 500)
    reader.until(lambda: reader.ends[plain] == 3500)
    assert len(reader.read[own]) == 3000
    reader.source.resume([own])
    reader.until(lambda: reader.ends[own] == 3500)
    assert reader.read == {plain: list(range(2000, 3500)), own: list(range(3500))}
    # One chain goes back, and the other one is not disturbed.
    reader.source.seek(own, Position(100))
    send(kafka, topic, 500)
    reader.until(lambda: reader.ends == {plain: Position(4000), own: Position(4000)})
    assert reader.read == {plain: list(range(2000, 4000)), own: [*range(3500), *range(100, 4000)]}
    # Retention passes one chain alone.
    reader.source.seek(own, Position(50))
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for future in admin.delete_records([KafkaPartition(topic, 0, 1000)]).values():
        future.result(60)
    reader.until(lambda: bool(reader.faults))
    send(kafka, topic, 10)
    reader.until(lambda: reader.ends[plain] == 4010)
    (fault,) = reader.faults
    assert (fault.partition, fault.reason) == (own, OUT_OF_RANGE)
    skip = f"bootstrap skip ⟨config⟩ --topic {topic}@b --partition 0 --to "
    assert f"{skip}1000" in fault.remedy or f"{skip}OFFSET" in fault.remedy  # where the broker does not say in time
    assert reader.read[plain] == list(range(2000, 4010))
    reader.source.seek(own, Position(1000))
    reader.until(lambda: reader.ends[own] == 4010)
    assert reader.read[own][-3010:] == list(range(1000, 4010))
    assert reader.read[plain] == list(range(2000, 4010))
