"""Two streams on one topic, staged by two writers while things go wrong: each chain has every record once."""

import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from common.storage.store import FsspecStore
from devservices.kafka import KafkaCluster
from tests.integration.conftest import Programs
from tests.integration.test_on_marker import Service
from tests.staged import manifests

pytestmark = pytest.mark.broker
PARTITIONS = 2


class Topic:
    """A topic with numbered records, and the config of two streams that read it."""

    def __init__(self, kafka: KafkaCluster, name: str, folder: Path, programs: Programs) -> None:
        self.name, self.folder = name, folder
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        self.admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        self.sent: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self.config = programs.config(
            {
                "kafka": {"bootstrap.servers": kafka.bootstrap_servers, "session.timeout.ms": 6000},
                "stage": {"url": f"{folder}/stage"},
                "writer": {"group_id": name, "http": "127.0.0.1:0", "flush_after": "200ms"},
                "logs": {"format": "json"},
                "streams": [
                    {"app_id": app_id, "topics": [name], "table": f"{folder}/{app_id}", "columns": "id INT"}
                    for app_id in ("first", "second")
                ],
            }
        )

    def send(self, count: int) -> None:
        for partition, ids in enumerate(self.sent):
            for number in range(len(ids), len(ids) + count):
                ids.append(number)
                self._producer.produce(self.name, b'{"id": %d}' % number, partition=partition)
        assert self._producer.flush(120) == 0

    def staged(self, app_id: str, partition: int) -> list[int]:
        """The ids in the files of a stream's markers, in the order of its chain, which has no gap."""
        chain = self.name if app_id == "first" else f"{self.name}@{app_id}"
        ids: list[int] = []
        end = None
        for manifest in manifests(FsspecStore(f"{self.folder}/stage"), f"done/{chain}/{partition}"):
            assert end in (None, manifest.span.start)
            end = manifest.span.end
            for table in manifest.tables:
                for file in table.files:
                    ids += pq.read_table(f"{self.folder}/{app_id}/{file.path}")["id"].to_pylist()
        return ids

    def has_all(self, app_id: str) -> bool:
        return all(len(self.staged(app_id, number)) >= len(ids) for number, ids in enumerate(self.sent))


@pytest.fixture
def topic(kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path) -> Topic:
    return Topic(kafka, new_topic(PARTITIONS), tmp_path, programs)


def test_each_stream_has_every_record_once_through_rebalances_pauses_and_a_killed_writer(
    topic: Topic, programs: Programs
) -> None:
    stop = threading.Event()

    def produce() -> None:
        while not stop.wait(0.05):
            topic.send(20)

    topic.send(500)
    producing = threading.Thread(target=produce)
    producing.start()
    try:
        first = Service(programs.start("stage-writer", "run", topic.config))
        first.until(lambda: all(topic.staged("second", number) for number in range(PARTITIONS)), "a marker of each")
        second = Service(programs.start("stage-writer", "run", topic.config))
        second.until(lambda: second.get("/ready")[0] == 200, "a member of the group")
        programs.succeed("stage-writer", "pause", topic.config, "--stream", "second")
        staged = [len(topic.staged("first", number)) for number in range(PARTITIONS)]
        second.until(
            lambda: all(len(topic.staged("first", number)) > was + 200 for number, was in enumerate(staged)),
            "more of the stream that is not paused",
        )
        first.child.kill()
        staged = [len(topic.staged("first", number)) for number in range(PARTITIONS)]
        second.until(
            lambda: all(len(topic.staged("first", number)) > was + 200 for number, was in enumerate(staged)),
            "the other writer with all partitions",
        )
        programs.succeed("stage-writer", "resume", topic.config, "--stream", "second")
        third = Service(programs.start("stage-writer", "run", topic.config))
        third.until(lambda: third.get("/ready")[0] == 200, "a member of the group")
    finally:
        stop.set()
        producing.join(120)
    third.until(lambda: topic.has_all("first") and topic.has_all("second"), "everything")
    programs.succeed("stage-writer", "run", topic.config, "--until-caught-up")
    for app_id in ("first", "second"):
        for number, ids in enumerate(topic.sent):
            assert topic.staged(app_id, number) == ids


def test_retention_that_passes_a_paused_stream_holds_that_one_alone(topic: Topic, programs: Programs) -> None:
    topic.send(100)
    writer = Service(programs.start("stage-writer", "run", topic.config))
    writer.until(lambda: topic.has_all("first") and topic.has_all("second"), "the first records")
    programs.succeed("stage-writer", "pause", topic.config, "--stream", "second")
    writer.until(lambda: '"event": "stream paused"' in writer.child.log.read_text("utf-8"), "the pause")
    topic.send(100)
    writer.until(lambda: topic.has_all("first"), "the stream that is not paused")
    topic.admin.delete_records([KafkaPartition(topic.name, 0, 150)])[KafkaPartition(topic.name, 0, 150)].result(60)
    programs.succeed("stage-writer", "resume", topic.config, "--stream", "second")
    chain = f"{topic.name}@second"
    skip = f"--topic {chain} --partition 0 --to "

    def is_told() -> bool:
        text = writer.get("/healthcheck")[1]
        return f"{skip}150 --yes" in text or f"{skip}OFFSET --yes" in text  # where the broker does not say in time

    writer.until(is_told, "a held partition, with its command")
    topic.send(100)
    writer.until(lambda: topic.has_all("first"), "the other stream")
    writer.until(lambda: len(topic.staged("second", 1)) == 300, "the stream's other partition")
    assert topic.staged("first", 0) == list(range(300))
