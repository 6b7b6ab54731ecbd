"""Records for Kafka topics arrive once, however the process ends: a real broker, read as committed."""

import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from structlog import get_logger
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from common.errors import BrokerError
from common.kafka import transactions
from common.kafka.delivering import DeliveryIdentity, FencedError
from common.kafka.transactions import KafkaTransactions
from common.metrics import Metrics
from common.settings import Settings
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.merged import InputEnd, ends_at, inputs_of, merged_position
from common.stage.task_files import OutboxName
from common.storage.store import FsspecStore
from devservices.kafka import KafkaCluster
from stage_writer.outbox.delivery import Delivery
from stage_writer.outbox.outlets import KafkaOutlets
from stage_writer.outbox.records import SCHEMA, Outgoing, outgoing_to_chunks
from tests.integration import in_process
from tests.integration.conftest import Programs
from tests.reading import rows_of
from tests.waiting import until

pytestmark = pytest.mark.broker

Made = tuple[str, int, int]
"""A record's value, and the input and the offset of its message."""


class Died(BaseException):
    """The process is gone."""


class Sender:
    def __init__(self, kafka: KafkaCluster, folder: Path, partition: TopicPartition, to: str) -> None:
        self.kafka = {"bootstrap.servers": kafka.bootstrap_servers}
        self.store = FsspecStore(str(folder))
        self.partition = partition
        self.to = to
        self.place = DeliveryIdentity(self.kafka, f"writers-{to}", "shop", partition)
        self.paths: list[str] = []

    def box(self, start: int, end: Position, made: Sequence[Made], generation: int = 0) -> str:
        values, inputs, offsets = zip(*made, strict=True)
        count = len(made)
        columns = [
            pa.array([self.to] * count),
            pa.array([b"key"] * count),
            pa.array([value.encode() for value in values]),
            pa.array([1_000] * count),
            pa.array([[{"name": "n", "value": b"v"}]] * count, SCHEMA.field("headers").type),
            pa.array(inputs, pa.int16()),
            pa.array(offsets, pa.int64()),
        ]
        outgoing = Outgoing(self.partition, generation, ends_at(self.partition, end), pa.table(columns, schema=SCHEMA))
        name = OutboxName(self.partition, Position(start), generation, f"{len(self.paths):08x}")
        self.store.upload(name.path, outgoing_to_chunks(outgoing))
        self.paths.append(name.path)
        return name.path

    def process(self, dies_at: str = "") -> Delivery:
        def on_step(step: str) -> None:
            if step == dies_at:
                raise Died

        return Delivery(self.place, self.store, on_step)

    def deliver_first(self, path: str) -> int:
        """As a service does it, which tries again while a broker gets ready for the group and the transactions."""
        delivery = self.process()
        for attempt in Retrying(
            retry=retry_if_exception_type(BrokerError), wait=wait_fixed(0.5), stop=stop_after_delay(600)
        ):
            with attempt:
                delivered = delivery.deliver(path)
        return delivered

    def left(self) -> list[str]:
        return [path for path in self.paths if self.store.read(path) is not None]

    def read(self, count: int) -> list[str]:
        messages = self.messages(count)
        for message in messages:
            assert (message.key(), message.headers(), message.timestamp()[1]) == (b"key", [("n", b"v")], 1_000)
        return [(message.value() or b"").decode() for message in messages]

    def heads(self, count: int) -> list[list[tuple[str, bytes]]]:
        messages = self.messages(count)
        assert {(message.key(), message.timestamp()[1]) for message in messages} == {(b"key", 1_000)}
        return [[(name, bytes(value or b"")) for name, value in message.headers() or []] for message in messages]

    def messages(self, count: int) -> list[Message]:
        """What a committed reader has of the topic once it has so many, and half a second after."""
        reader = Consumer(
            {**self.kafka, "group.id": "reader", "isolation.level": "read_committed", "enable.partition.eof": True}
        )
        try:
            reader.assign([KafkaPartition(self.to, 0, 0)])
            messages: list[Message] = []
            deadline_s, ended = time.monotonic() + 600, False
            while time.monotonic() < deadline_s and not (ended and len(messages) >= count):
                message = reader.poll(0.5)
                if message is None:
                    continue
                error = message.error()
                ended = error is not None and error.code() == KafkaError._PARTITION_EOF
                if error is None:
                    messages.append(message)
            return messages
        finally:
            reader.close()


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No matter how long a broker takes to get ready for a group and its transactions."""
    monkeypatch.setattr(transactions, "_TIMEOUT_S", 300.0)


@pytest.fixture
def sender(kafka: KafkaCluster, new_topic: Callable[..., str], tmp_path: Path) -> Sender:
    return Sender(kafka, tmp_path, TopicPartition(Topic(new_topic(1)), Partition(0)), new_topic(1))


@pytest.mark.parametrize("step", ["produced", "sent", "committed"])
def test_each_record_arrives_once_wherever_the_process_dies(sender: Sender, step: str) -> None:
    first = sender.box(0, Position(3), [("a", 0, 0), ("b", 0, 0), ("c", 0, 2)])
    second = sender.box(3, Position(5), [("d", 0, 4)])
    assert sender.deliver_first(first) == 3
    dying = sender.process(step)
    with pytest.raises(Died):
        dying.deliver(second)
    assert sender.left() == [second]
    third = sender.box(5, Position(6), [("e", 0, 5)])
    next_owner = sender.process()
    assert next_owner.deliver(second) == (0 if step == "committed" else 1)
    assert next_owner.deliver(third) == 1
    assert next_owner.deliver(first) == 0, "what is gone was delivered"
    assert sender.left() == []
    assert sender.read(5) == ["a", "b", "c", "d", "e"]


def test_fenced_process_is_refused(sender: Sender) -> None:
    given_up, owner = sender.process(), sender.process()
    given_up.deliver(sender.box(0, Position(1), [("a", 0, 0)]))
    owner.deliver(sender.box(1, Position(2), [("b", 0, 1)]))
    late = sender.box(2, Position(3), [("c", 0, 2)])
    with pytest.raises(FencedError):
        given_up.deliver(late)
    assert owner.deliver(late) == 1
    assert sender.read(3) == ["a", "b", "c"]


def test_rewound_chain_delivers_nothing_twice_and_a_new_generation_everything(sender: Sender) -> None:
    sender.process().deliver(sender.box(0, Position(3), [("a", 0, 0), ("b", 0, 2)]))
    assert sender.process().deliver(sender.box(0, Position(5), [("a", 0, 0), ("b", 0, 2), ("c", 0, 4)])) == 1
    assert sender.process().deliver(sender.box(0, Position(1), [("x", 0, 0)], generation=1)) == 1
    assert sender.read(4) == ["a", "b", "c", "x"]


def test_chain_of_several_topics_is_delivered_by_each_of_them(
    kafka: KafkaCluster, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    partition = TopicPartition(Topic("+".join(sorted([new_topic(1), new_topic(1)]))), Partition(0))

    def end(first: int, other: int) -> Position:
        return merged_position(map(InputEnd, inputs_of(partition), [Position(first), Position(other)]))

    sender = Sender(kafka, tmp_path, partition, new_topic(1))
    sender.process().deliver(sender.box(0, end(2, 1), [("a", 0, 0), ("b", 1, 0), ("c", 0, 1)]))
    again = sender.box(0, end(2, 3), [("a", 0, 0), ("b", 1, 0), ("c", 0, 1), ("d", 1, 2)])
    assert sender.process().deliver(again) == 1
    assert sender.read(4) == ["a", "b", "c", "d"]


def test_large_outbox_is_split_at_messages(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stage_writer.outbox.delivery._MOST_RECORDS", 3)
    made = [(f"{offset}.{number}", 0, offset) for offset in range(6) for number in range(2)]
    box = sender.box(0, Position(7), made)
    steps: list[str] = []

    def on_step(step: str) -> None:
        steps.append(step)
        if steps.count("sent") == 3:
            raise Died

    with pytest.raises(Died):
        Delivery(sender.place, sender.store, on_step).deliver(box)
    assert sender.process().deliver(box) == 4, "two transactions of two messages each were through"
    assert sender.read(12) == [value for value, _, _ in made]


def alive() -> int:
    gc.collect()
    return sum(type(instance) is KafkaTransactions for instance in gc.get_objects())


@pytest.mark.parametrize(
    ("setting", "too_little", "enough"),
    [("max.message.bytes", "200", "100000"), ("message.timestamp.before.max.ms", "60000", str(2**63 - 1))],
)
def test_refused_records_are_reported_with_the_setting_that_fixes_it(  # noqa: PLR0917 - fixtures
    kafka: KafkaCluster, new_topic: Callable[..., str], tmp_path: Path, setting: str, too_little: str, enough: str
) -> None:
    partition, to = TopicPartition(Topic(new_topic(1)), Partition(0)), new_topic(1, {setting: too_little})
    sender = Sender(kafka, tmp_path, partition, to)
    path = sender.box(0, Position(1), [("x" * 1_000, 0, 0)])

    def remedy() -> str:
        with pytest.raises(BrokerError) as refused:
            sender.process().deliver(path)
        return refused.value.remedy

    until(lambda: setting in remedy(), setting)  # the broker may have to get ready for the group and the transactions
    assert sender.left() == [path]

    topic = ConfigResource(ResourceType.TOPIC, to)
    topic.add_incremental_config(ConfigEntry(setting, enough, incremental_operation=AlterConfigOpType.SET))
    admin = kafka.admin
    admin.incremental_alter_configs([topic])[topic].result(60)
    assert sender.deliver_first(path) == 1


def test_failed_delivery_closes_its_producer(sender: Sender) -> None:
    before = alive()
    path = sender.box(0, Position(1), [*[("x", 0, 0)] * 100, ("x" * 3_000_000, 0, 0)])
    for _ in range(2):
        with pytest.raises(BrokerError, match="too large"):
            sender.process().deliver(path)
    assert alive() == before


def test_outlets_deliver_what_markers_name_and_leave_the_rest(sender: Sender) -> None:
    stream = {"app_id": "shop", "topics": [str(sender.partition.topic)], "table": "file:///t", "columns": "id INT"}
    settings = Settings.model_validate(
        {"kafka": sender.kafka, "stage": {"url": "file:///s"}, "streams": [{**stream, "topology": "no:where"}]}
    )
    lost = sender.box(0, Position(2), [("never", 0, 0)])
    first = sender.box(0, Position(2), [("a", 0, 0)])
    outlets = KafkaOutlets(
        sender.kafka, sender.place.group_id, sender.store, ["shop"], log=get_logger(), metrics=Metrics()
    )
    outlet = outlets.open(sender.partition, settings.streams[0], (first,))
    assert outlet is not None
    second = sender.box(3, Position(4), [("b", 0, 3)])
    outlet.sealed((first, second))
    outlet.leave()
    assert outlets.close(180.0)
    assert sender.left() == [lost]
    assert sender.read(2) == ["a", "b"]


def with_dead_letters(kafka: KafkaCluster, topic: str, errors: str, folder: Path) -> dict[str, Any]:
    """A config of one stream, whose dead letters go to the topic ``errors`` too."""
    stream = {
        "app_id": "shop",
        "topics": [topic],
        "table": f"{folder}/table",
        "columns": "id INT",
        "dead_letters": f"kafka://{errors}",
    }
    return {
        "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
        "stage": {"url": f"{folder}/stage"},
        "writer": {"group_id": topic, "http": None},
        "streams": [stream],
    }


def test_dead_letters_are_in_their_topic_once(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path
) -> None:
    topic, errors = new_topic(1), new_topic(1)
    settings = with_dead_letters(kafka, topic, errors, tmp_path)
    (stream,) = settings["streams"]
    config = programs.config(settings)
    programs.succeed("stage-writer", "check", config)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(2):
        for value in (b'{"id": 1}', b'{"id": "x%d"}' % number):
            producer.produce(topic, value, b"key", timestamp=1_000)
        assert producer.flush(180) == 0
        for _ in range(2):
            programs.succeed("stage-writer", "run", config, "--until-caught-up")
    sender = Sender(kafka, tmp_path / "none", TopicPartition(Topic(topic), Partition(0)), errors)
    headers = [[header for header in headers if header[0] != "dead_letter.error"] for headers in sender.heads(2)]
    same = [("dead_letter.app_id", b"shop"), ("dead_letter.error_class", b"wrong_type")]
    place = [("dead_letter.topic", topic.encode()), ("dead_letter.partition", b"0")]
    assert headers == [[*same, *place, ("dead_letter.offset", offset)] for offset in (b"1", b"3")]
    assert list(FsspecStore(f"{tmp_path}/stage").list("outbox/")) == []
    later = f"{errors}-later"
    settings["streams"] = [{**stream, "dead_letters": f"kafka://{later}"}]
    refused = programs.run("stage-writer", "check", programs.config(settings))
    assert (refused.returncode, "dead_letters_topic of 'shop'" in refused.stderr) == (2, True), refused.stderr
    producer.produce(topic, b"{")
    assert producer.flush(180) == 0
    config = programs.config(settings)
    run = programs.run("stage-writer", "run", config, "--until-caught-up")
    assert (run.returncode, f"the topic '{later}' does not exist" in run.stderr) == (3, True), run.stderr
    kafka.create_topic(later)
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    (head,) = Sender(kafka, tmp_path / "none", TopicPartition(Topic(topic), Partition(0)), later).messages(1)
    assert head.value() == b"{"


@pytest.mark.spark
def test_dead_letters_of_records_that_a_table_refuses_are_in_their_topic_once(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path, spark: SparkSession
) -> None:
    topic, errors = new_topic(1), new_topic(1)
    settings = with_dead_letters(kafka, topic, errors, tmp_path)
    config = programs.config(settings)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    def staged(*values: bytes) -> None:
        for value in values:
            producer.produce(topic, value, b"key", timestamp=1_000)
        assert producer.flush(180) == 0
        programs.succeed("stage-writer", "run", config, "--until-caught-up")

    def load() -> None:
        assert in_process.load(config, spark).failure is None

    staged(b'{"id": 1}')
    load()
    DeltaTable(f"{tmp_path}/table").alter.add_constraint({"positive": "id > 0"})
    staged(b'{"id": -1}', b'{"id": "x"}', b'{"id": 2}', b'{"id": -2}')
    for _ in range(2):
        load()
    assert sorted(row["id"] for row in rows_of(f"{tmp_path}/table")) == [1, 2]
    sender = Sender(kafka, tmp_path / "none", TopicPartition(Topic(topic), Partition(0)), errors)
    sent = [dict(headers) for headers in sender.heads(3)]
    assert sorted((each["dead_letter.offset"], each["dead_letter.error_class"]) for each in sent) == [
        (b"1", b"refused_by_table"),
        (b"2", b"wrong_type"),
        (b"4", b"refused_by_table"),
    ]
    assert {message.value() for message in sender.messages(3)} == {b'{"id": -1}', b'{"id": "x"}', b'{"id": -2}'}
    programs.succeed("stage-writer", "replay", config, "--topic", topic, "--from", "2", "--to", "4", "--yes")
    for _ in range(2):
        load()
    replayed = dict(sender.heads(4)[-1])
    assert (replayed["dead_letter.offset"], replayed["dead_letter.error_class"]) == (b"2", b"wrong_type")

    # A waiting dead letter of a marker that was loaded, and put aside: the chain continues after it.
    later = f"{errors}-later"
    (stream,) = settings["streams"]
    settings["streams"] = [{**stream, "dead_letters": f"kafka://{later}"}]
    settings["writer"] |= {"revoke_timeout": "1s"}
    config = programs.config(settings)
    producer.produce(topic, b"{", b"key")
    assert producer.flush(180) == 0
    assert programs.run("stage-writer", "run", config, "--until-caught-up").returncode == 3, "no such topic"
    load()
    partition = ("--topic", topic, "--partition", "0")
    programs.succeed("bootstrap", "rewind", config, *partition, "--to", "5", "--below-table", "--yes")
    programs.succeed("bootstrap", "rewind", config, *partition, "--to", "6", "--yes")
    kafka.create_topic(later)
    for _ in range(2):
        programs.succeed("stage-writer", "run", config, "--until-caught-up")
    (letter,) = Sender(kafka, tmp_path / "none", TopicPartition(Topic(topic), Partition(0)), later).messages(1)
    assert letter.value() == b"{"
