"""What tasks change, in a topic of a real broker: pieces are found by what markers name, and by nothing else."""

import json
import random
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyspark.sql import SparkSession
from structlog import get_logger

from bootstrap.__main__ import app as bootstrap
from common.cli import run
from common.clock import SystemClock
from common.errors import BrokerError, ConfigError, StateError
from common.metrics import Metrics
from common.settings import Settings
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.task_files import StateFileName, StateKind, TopicChanges
from common.storage.chunks import ByteChunks
from common.storage.store import FsspecStore
from devservices.kafka import KafkaCluster
from stage_writer.__main__ import app as writer
from stage_writer.changelog.changelog import MESSAGE_BYTES, TopicChangelog
from stage_writer.changelog.kafka import KafkaChangelogs
from stage_writer.changelog.topic import LEAST_MESSAGE_BYTES
from stage_writer.changelog.wiring import changelog_of
from tests.integration import in_process
from tests.integration.conftest import Programs
from tests.integration.counted import PARTITIONS, Sender, batch_of, counted_rows, flushes, settings
from tests.integration.forked import FLUSHES
from tests.reading import rows_of
from tests.staged import manifests
from tests.waiting import until, until_left

pytestmark = pytest.mark.broker

DAY_S = 86_400.0


def seen(kafka: KafkaCluster, topic: str) -> str:
    """The topic, once the broker that made it shows it."""
    until(lambda: topic in kafka.admin.list_topics(timeout=60).topics)
    return topic


class Written:
    """A topic, and the changelog of a writer over it."""

    def __init__(self, kafka: KafkaCluster, topic: str, piece_bytes: int = 1_000) -> None:
        self.kafka = kafka
        self.piece_bytes = piece_bytes
        self.topic = Topic(seen(kafka, topic))
        self.changelog = self.new()

    def new(self, **properties: object) -> TopicChangelog:
        given = {"bootstrap.servers": self.kafka.bootstrap_servers, **properties}
        topics = KafkaChangelogs(given, "readers", DAY_S)  # type: ignore[arg-type]
        return TopicChangelog(topics, SystemClock(), Metrics(), self.piece_bytes)

    def write(self, data: bytes, task: int = 0) -> TopicChanges:
        partition = TopicPartition(Topic("orders"), Partition(task))
        name = StateFileName(partition, Position(7), 0, uuid.uuid4().hex, StateKind.CHANGES)
        return self.changelog.write(self.topic, "shop", name, ByteChunks([data]))

    def read(self, *changes: TopicChanges) -> list[bytes]:
        with self.new().reading() as reading:
            return [reading.read(written_changes) for written_changes in changes]

    def set(self, key: str, value: str) -> None:
        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, self.topic, incremental_configs=[entry])
        admin = self.kafka.admin
        admin.incremental_alter_configs([resource])[resource].result(60)


@pytest.fixture
def written(kafka: KafkaCluster, new_topic: Callable[..., str]) -> Written:
    return Written(kafka, new_topic(2))


def test_concurrent_writes_are_read_as_written(written: Written) -> None:
    given = [bytes([number]) * (number * 700) for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        written_changes = list(pool.map(lambda number: written.write(given[number], task=number % 3), range(24)))
    assert {changes.place.partition for changes in written_changes} == {0, 1}
    assert written.read(*written_changes) == given
    assert written.read(*reversed(written_changes)) == given[::-1]


def test_large_changes_go_into_the_smallest_topic_that_is_fit(
    kafka: KafkaCluster, new_topic: Callable[..., str]
) -> None:
    written = Written(kafka, new_topic(1, {"max.message.bytes": str(LEAST_MESSAGE_BYTES)}), MESSAGE_BYTES)
    given = random.Random(7).randbytes(50 * 2**20)  # noqa: S311 - more than waits in a producer's queue
    assert written.read(written.write(given)) == [given]


def test_message_of_changes_has_headers_and_no_key(written: Written) -> None:
    changes = written.write(b"x" * 1_500)
    reader = Consumer({"bootstrap.servers": written.kafka.bootstrap_servers, "group.id": "people"})
    reader.assign([KafkaPartition(written.topic, 0, 0)])
    messages = [reader.poll(10) for _ in range(2)]
    reader.close()
    assert changes.pieces == 2
    assert [message.key() for message in messages if message] == [None, None]
    assert [dict(message.headers() or ())["kdx.piece"] for message in messages if message] == [b"1/2", b"2/2"]
    assert dict(messages[0].headers() or ())["kdx.task"] == b"orders/0" if messages[0] else False


def test_pieces_that_are_gone_are_named(written: Written) -> None:
    first, second, third = written.write(b"a" * 1_500), written.write(b"b"), written.write(b"c")
    admin, kept = written.kafka.admin, KafkaPartition(written.topic, 0, second.spans[0].start)
    admin.delete_records([kept])[kept].result(60)
    with pytest.raises(
        StateError, match=rf"offset 0 of {written.topic}/0 are gone: Kafka has only offsets 2 to 3 of it"
    ):
        written.read(first)
    assert written.read(second, third) == [b"b", b"c"]


def test_recreated_topic_is_recognized_by_its_id(written: Written) -> None:
    changes = written.write(b"a")
    assert changes.topic_id is not None
    written.kafka.delete_topic(written.topic)
    with pytest.raises(StateError, match="no longer exists"):
        written.read(changes)
    seen(written.kafka, written.kafka.create_topic(written.topic, 2))
    with pytest.raises(StateError, match="was deleted and created again"):
        written.read(changes)


def test_transactions_of_others_hold_nothing_back(written: Written) -> None:
    producer = Producer({"bootstrap.servers": written.kafka.bootstrap_servers, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(180)
    producer.begin_transaction()
    producer.produce(written.topic, b"never committed", partition=0)
    assert producer.flush(180) == 0
    assert written.read(written.write(b"a")) == [b"a"]
    producer.abort_transaction(180)


def test_unfit_topics_are_refused_at_start(
    kafka: KafkaCluster,
    new_topic: Callable[..., str],
    programs: Programs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = new_topic(1)
    monkeypatch.setenv("COUNTED_TOPIC", topic)
    cases = {
        seen(kafka, new_topic(1, {"cleanup.policy": "compact"})): "which has cleanup.policy=compact",
        seen(kafka, new_topic(1, {"retention.ms": "60000"})): "which has retention.ms=60000",
        "nowhere-to-be-found": "which does not exist in Kafka",
    }
    for changes, message in cases.items():
        settings_of_topic = Settings.model_validate(settings(kafka, tmp_path, topic, state_changelog=changes))
        with pytest.raises(ConfigError, match=message):
            changelog_of(settings_of_topic, (), clock=SystemClock(), log=get_logger(), metrics=Metrics())
    assert "nowhere-to-be-found" not in kafka.admin.list_topics(timeout=60).topics
    compacted = next(iter(cases))
    config = programs.config(settings(kafka, tmp_path, topic, state_changelog=compacted))
    done = programs.run("stage-writer", "run", config)
    assert done.returncode == 2
    assert f"state_changelog names the topic '{compacted}', which has cleanup.policy=compact" in done.stderr
    assert "set the topic's cleanup.policy to delete" in done.stderr


def test_topic_that_is_compacted_later_takes_no_more_pieces(written: Written) -> None:
    written.write(b"a")
    written.set("cleanup.policy", "compact")
    with pytest.raises(BrokerError, match="cannot write to") as caught:
        written.write(b"b")
    assert "cleanup.policy=delete" in caught.value.remedy
    with pytest.raises(ConfigError, match=r"cleanup\.policy=compact"):  # the next try looks at the topic again
        written.write(b"b")


def test_unreachable_broker_is_a_failure_that_is_retried(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stage_writer.changelog.topic._TIMEOUT_S", 1.0)
    away = written.new(**{"bootstrap.servers": "127.0.0.1:1"})
    name = StateFileName(TopicPartition(Topic("o"), Partition(0)), Position(7), 0, "0", StateKind.CHANGES)
    with pytest.raises(BrokerError):
        away.write(written.topic, "shop", name, ByteChunks([b"a"]))


def test_chain_whose_messages_are_gone_is_rewound_as_its_error_says(  # noqa: PLR0917 - fixtures
    kafka: KafkaCluster,
    new_topic: Callable[..., str],
    programs: Programs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    topic, changes = new_topic(1), seen(kafka, new_topic(1))
    monkeypatch.setenv("COUNTED_TOPIC", topic)
    config = str(programs.config(settings(kafka, tmp_path, topic, state_changelog=changes)))
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    def staged(records: int) -> int:
        for number in range(records):
            producer.produce(topic, json.dumps({"amount": number}), "key")
        assert producer.flush(180) == 0
        return run(writer, ["run", config, "--until-caught-up"])

    assert [staged(records) for records in (10, 20, 30)] == [0, 0, 0]
    end = messages(kafka, changes)
    admin, gone = kafka.admin, KafkaPartition(changes, 0, end)
    admin.delete_records([gone])[gone].result(60)
    capfd.readouterr()
    assert staged(5) == 3
    errors = capfd.readouterr().err
    assert f"at offset 0 of {changes}/0 are gone: the partition is empty, and continues at {end}" in errors
    assert "(`--to 10 --below-table`)" in errors

    place = ["--topic", topic, "--partition", "0", "--to", "10", "--below-table"]
    assert run(bootstrap, ["rewind", config, *place, "--yes"]) == 0, capfd.readouterr().err
    assert staged(0) == 0
    store = FsspecStore(f"{tmp_path}/stage")
    last = max(manifests(store), key=lambda manifest: manifest.span.end)
    assert last.span.end == 65
    files = [file.path for manifest in manifests(store) for table in manifest.tables for file in table.files]
    counts = [row for path in files for row in pq.read_table(f"{tmp_path}/counts/{path}")["count"].to_pylist()]
    assert sorted(counts) == list(range(1, 66))


@contextmanager
def sending(kafka: KafkaCluster, topic: str) -> Iterator[Sender]:
    sender = Sender(kafka, topic)
    thread = threading.Thread(target=sender.run, daemon=True)
    thread.start()
    yield sender
    sender.stopped.set()
    thread.join()


@pytest.mark.in_turn("writers of tasks are killed")
@pytest.mark.spark
def test_writers_killed_between_topic_and_marker_give_the_table_that_a_batch_gives(  # noqa: PLR0917 - fixtures
    programs: Programs,
    kafka: KafkaCluster,
    new_topic: Callable[..., str],
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, changes = new_topic(PARTITIONS), seen(kafka, new_topic(3))
    monkeypatch.setenv("COUNTED_TOPIC", topic)
    config = programs.config(settings(kafka, tmp_path, topic, state_changelog=changes))
    store = FsspecStore(f"{tmp_path}/stage")
    with sending(kafka, topic) as sender:
        with monkeypatch.context() as environ:
            environ.setenv(FLUSHES, "5")
            first = programs.start("stage-writer", "run", config)
        other = programs.start("stage-writer", "run", config)
        assert first.process.wait(600) == -9, first.log_tail()
        programs.start("stage-writer", "run", config)
        before = flushes(store)  # what the dead one had comes to the others, and some of that back
        until(lambda: flushes(store) >= before + 2 * PARTITIONS)
        other.kill()
    programs.started.pop().kill()
    until_left(kafka, topic)
    programs.succeed("stage-writer", "run", config, "--until-caught-up")

    report = in_process.load(config, spark)
    assert (report.failure, report.held) == (None, {})
    rows, dead = batch_of(kafka, topic, sender.sent)
    assert counted_rows(tmp_path) == rows
    assert len(rows_of(f"{tmp_path}/counts_dead_letters")) == dead
    named = {
        (written_part.place.partition, offset)
        for manifest in manifests(store)
        if manifest.state is not None
        for written_part in manifest.state.files.in_topics
        for span in written_part.spans
        for offset in range(span.start, span.end)
    }
    assert 0 < len(named) < messages(kafka, changes), "some are of flushes that were never sealed"


def messages(kafka: KafkaCluster, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "people"})
    try:
        partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
        ends = [consumer.get_watermark_offsets(KafkaPartition(topic, number), timeout=60) for number in partitions]
    finally:
        consumer.close()
    return sum(high - low for low, high in ends)
