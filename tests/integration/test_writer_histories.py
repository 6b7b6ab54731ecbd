"""What a writer lives through in a real consumer group, each history with its own test."""

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from pathlib import Path

import pytest
import structlog
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as KafkaPartition

from common.clock import SystemClock
from common.settings import Settings
from common.spans import Partition, Position, Topic, TopicPartition
from common.storage.store import FsspecStore
from devservices.kafka import KafkaCluster
from stage_writer.fetch.fetching import Fetcher, NativeFetcher
from stage_writer.fetch.kafka import KafkaSource
from stage_writer.native.library import library_path
from tests.integration.conftest import Programs
from tests.staged import markers

pytestmark = pytest.mark.broker


def settings(kafka: KafkaCluster, folder: Path, topic: str, start: str = "earliest") -> dict[str, object]:
    return {
        "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
        "stage": {"url": f"{folder}/stage"},
        "writer": {"group_id": topic, "http": None},
        "streams": [
            {"app_id": "orders", "topics": [topic], "table": f"{folder}/orders", "columns": "id INT", "start": start}
        ],
    }


def produce(kafka: KafkaCluster, topic: str, records: int, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(records):
        producer.produce(topic, b'{"id": %d}' % number, partition=partition)
    assert producer.flush(180) == 0


def produce_in_transaction(kafka: KafkaCluster, topic: str, records: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(180)
    producer.begin_transaction()
    for number in range(records):
        producer.produce(topic, b'{"id": %d}' % number)
    producer.commit_transaction(180)


def staged(folder: Path) -> dict[int, tuple[int, int]]:
    """By partition, where its chain ends and how many records it has."""
    ends: dict[int, tuple[int, int]] = {}
    for marker in markers(FsspecStore(f"{folder}/stage")):
        partition = marker.name.topic_partition.partition
        end, records = ends.get(partition, (0, 0))
        more = 0 if marker.manifest is None else marker.manifest.records
        ends[partition] = (max(end, marker.span.end), records + more)
    return ends


class Beginner:
    """A listener that begins everywhere at one position."""

    def __init__(self, position: int) -> None:
        self.position = Position(position)

    def assigned(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        return dict.fromkeys(partitions, self.position)

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        pass

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        pass


def read(source: KafkaSource, records: int, within_s: float = 180.0) -> list[int]:
    offsets: list[int] = []
    end_s = time.monotonic() + within_s
    while len(offsets) < records and time.monotonic() < end_s:
        for batch in source.poll(0.2).batches:
            offsets += batch.offsets.tolist()
    return offsets


def source_of(config: Settings, native: Path | None) -> KafkaSource:
    """Takes messages in C where it is given the library, and says so if it cannot."""
    source = KafkaSource(config, SystemClock(), structlog.get_logger(), native=native)
    assert isinstance(source._fetcher, Fetcher if native is None else NativeFetcher)
    return source


IN_C_AND_NOT = pytest.mark.parametrize("native", [library_path(), None], ids=["in C", "as objects"])


class Later:
    """A listener that knows of no partition where it begins when it is told that it is its own."""

    def __init__(self) -> None:
        self.waiting: list[TopicPartition] = []

    def assigned(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        self.waiting += partitions
        return {}

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        pass

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        pass


@IN_C_AND_NOT
def test_partition_is_read_from_the_position_sought_after_assignment(
    kafka: KafkaCluster, new_topic: Callable[..., str], tmp_path: Path, native: Path | None
) -> None:
    partitions, records = 40, 30
    topic = new_topic(partitions)
    for partition in range(partitions):
        produce(kafka, topic, records, partition)
    config = Settings.model_validate(settings(kafka, tmp_path, topic))
    listener, offsets_of = Later(), dict[TopicPartition, list[int]]()
    end_s = time.monotonic() + 600
    with closing(source_of(config, native)) as source:
        source.subscribe(config.streams, listener)
        while sum(map(len, offsets_of.values())) < partitions * records and time.monotonic() < end_s:
            for batch in source.poll(0.02).batches:
                offsets_of.setdefault(batch.partition, []).extend(batch.offsets.tolist())
            # A few in each round: some while librdkafka may still be finding out where they end.
            for waiting_partition in listener.waiting[:4]:
                source.seek(waiting_partition, Position(0))
                source.resume([waiting_partition])
            del listener.waiting[:4]
    assert len(offsets_of) == partitions
    assert {tuple(offsets) for offsets in offsets_of.values()} == {tuple(range(records))}


@pytest.mark.in_turn("a paused partition comes back")
@IN_C_AND_NOT
@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
def test_partition_paused_at_its_revocation_is_read_when_it_returns(
    kafka: KafkaCluster, new_topic: Callable[..., str], tmp_path: Path, strategy: str, native: Path | None
) -> None:
    topic = new_topic(2)
    produce(kafka, topic, 10, 0)
    produce(kafka, topic, 10, 1)
    given = settings(kafka, tmp_path, topic)
    given["kafka"] = {"bootstrap.servers": kafka.bootstrap_servers, "partition.assignment.strategy": strategy}
    config = Settings.model_validate(given)
    both = {TopicPartition(Topic(topic), Partition(partition)) for partition in (0, 1)}
    first, second = source_of(config, native), source_of(config, native)
    with closing(first):
        first.subscribe(config.streams, Beginner(0))
        assert len(read(first, 20)) == 20
        first.pause(both)
        with closing(second):
            second.subscribe(config.streams, Beginner(0))
            end_s = time.monotonic() + 600
            while not read(second, 1, 0.2):  # both have to be polled for a rebalance to come to its end
                first.poll(0.1)
                assert time.monotonic() < end_s
        first.resume(both)  # the service forgets what was taken from it; this is for what it kept
        produce(kafka, topic, 5, 0)
        produce(kafka, topic, 5, 1)
        assert len(read(first, 20)) >= 20, "the partition that came back begins at 0, the other one goes on"


@IN_C_AND_NOT
def test_stopped_partition_continues_from_another_position(
    kafka: KafkaCluster, new_topic: Callable[..., str], tmp_path: Path, native: Path | None
) -> None:
    topic = new_topic(1)
    produce(kafka, topic, 10)
    config = Settings.model_validate(settings(kafka, tmp_path, topic))
    place = TopicPartition(Topic(topic), Partition(0))
    with closing(source_of(config, native)) as source:
        source.subscribe(config.streams, Beginner(500))
        end_s = time.monotonic() + 600
        while not source.poll(0.2).faults:
            assert time.monotonic() < end_s
        source.pause([place])
        source.seek(place, Position(4))
        source.resume([place])
        assert read(source, 6) == list(range(4, 10))


def test_messages_that_c_takes_are_those_that_consume_gives(
    kafka: KafkaCluster, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(3)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    values = [b"{}", None, b"", b"\0\xff", b"x" * 700_000, *[b'{"id":%d}' % number for number in range(2000)]]
    for number, value in enumerate(values):
        key = [None, b"", b"key", b"\0"][number % 4]
        producer.produce(topic, value, key, partition=number % 3, timestamp=1_600_000_000_000 + number)
    assert producer.flush(180) == 0
    messages = []
    for native in (library_path(), None):
        given = settings(kafka, tmp_path, topic)
        given["writer"] = {"group_id": f"{topic}-{native is None}", "http": None}
        config = Settings.model_validate(given)
        rows: dict[int, list[tuple[object, ...]]] = {}
        ends: dict[TopicPartition, Position] = {}
        with closing(source_of(config, native)) as source:
            source.subscribe(config.streams, Beginner(0))
            end_s = time.monotonic() + 600
            while len(ends) < 3:
                polled = source.poll(0.2)
                ends |= polled.ends
                for batch in polled.batches:
                    columns = (batch.offsets.tolist(), batch.timestamps_ms.tolist())
                    rows.setdefault(batch.partition.partition, []).extend(
                        zip(*columns, batch.values.to_pylist(), batch.keys.to_pylist(), strict=True)
                    )
                assert time.monotonic() < end_s
        messages.append((rows, ends))
    assert messages[0] == messages[1]
    assert sum(map(len, messages[0][0].values())) == len(values)


class Shared:
    """A listener that begins where whoever had the partition before has read to."""

    def __init__(self, read_to: dict[TopicPartition, Position]) -> None:
        self.read_to = read_to
        self.mine: set[TopicPartition] = set()

    def assigned(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        self.mine |= set(partitions)
        return {partition: self.read_to[partition] for partition in partitions}

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.mine -= set(partitions)

    lost = revoked

    def take(self, source: KafkaSource) -> None:
        """What is read goes on from where the partition was read to, without a gap and with nothing twice."""
        for batch in source.poll(0.1).batches:
            if batch.partition in self.mine:
                first, end = self.read_to[batch.partition], batch.end
                assert batch.offsets.tolist() == list(range(first, end))
                self.read_to[batch.partition] = end


@pytest.mark.in_turn("partitions move")
@IN_C_AND_NOT
def test_partitions_that_move_while_they_are_read_leave_no_gap(
    kafka: KafkaCluster, new_topic: Callable[..., str], tmp_path: Path, native: Path | None
) -> None:
    topic = new_topic(6)
    config = Settings.model_validate(settings(kafka, tmp_path, topic))
    places = [TopicPartition(Topic(topic), Partition(partition)) for partition in range(6)]
    read_to = dict.fromkeys(places, Position(0))
    first, second = Shared(read_to), Shared(read_to)
    sent, wanted = 0, 1000

    def go_on(members: list[tuple[Shared, KafkaSource]], until: Callable[[], bool]) -> None:
        nonlocal sent
        end_s = time.monotonic() + 600
        while not until():
            assert time.monotonic() < end_s
            for partition in range(6):
                produce(kafka, topic, 20, partition)
            sent += 20
            for listener, source in members:
                listener.take(source)

    with closing(source_of(config, native)) as second_source:
        second_source.subscribe(config.streams, first)
        go_on([(first, second_source)], lambda: len(first.mine) == 6)
        with closing(source_of(config, native)) as other:
            other.subscribe(config.streams, second)
            go_on([(first, second_source), (second, other)], lambda: len(first.mine) == len(second.mine) == 3)
        go_on([(first, second_source)], lambda: len(first.mine) == 6 and sent >= wanted)
        end_s = time.monotonic() + 600
        while min(read_to.values()) < sent:
            first.take(second_source)
            assert time.monotonic() < end_s


def test_until_caught_up_fails_when_a_partition_is_held(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path
) -> None:
    topic = new_topic(2)
    for partition in (0, 1):
        produce(kafka, topic, 10, partition)
    FsspecStore(f"{tmp_path}/stage").write(f"done/{topic}/0/3.done", b"{")
    done = programs.run("stage-writer", "run", programs.config(settings(kafka, tmp_path, topic)), "--until-caught-up")
    assert done.returncode == 3
    assert f"done/{topic}/0/" in done.stderr
    assert FsspecStore(f"{tmp_path}/stage").stat(f"done/{topic}/1/{0:020d}.done")


def test_writers_that_catch_up_together_leave_nothing_between_them(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path
) -> None:
    topic = new_topic(4)
    for partition in range(4):
        produce(kafka, topic, 50, partition)
    config = programs.config(settings(kafka, tmp_path, topic))
    writers = [programs.start("stage-writer", "run", config, "--until-caught-up") for _ in range(3)]
    assert [writer.process.wait(600) for writer in writers] == [0, 0, 0]
    assert staged(tmp_path) == dict.fromkeys(range(4), (50, 50))


def test_latest_of_an_empty_partition_stays_where_it_was(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path
) -> None:
    topic = new_topic(1)
    config = programs.config(settings(kafka, tmp_path, topic, "latest"))
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    produce(kafka, topic, 7)
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    assert staged(tmp_path) == {0: (7, 7)}


def test_retention_behind_a_transaction_holds_nothing(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path
) -> None:
    """The marker of the transaction has the offset 10; once it has gone, too, Kafka knows no position 10."""
    topic = new_topic(1)
    config = programs.config(settings(kafka, tmp_path, topic))
    produce_in_transaction(kafka, topic, 10)
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    everything = KafkaPartition(topic, 0, -1)
    admin = kafka.admin  # held, because the answer is lost when the client is collected
    admin.delete_records([everything])[everything].result(60)
    produce_in_transaction(kafka, topic, 5)
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    assert staged(tmp_path) == {0: (17, 15)}
