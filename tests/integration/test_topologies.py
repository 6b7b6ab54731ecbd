"""A stream with a topology on a real broker: writers are killed, and the table is like a batch's over the topic."""

from __future__ import annotations

import json
import random
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from common.markers import MarkerName, marker_from_bytes
from common.store import FsspecStore
from tests.integration import in_process
from tests.integration.topologies import NEGATIVE, is_dead

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from devservices.kafka import KafkaCluster
    from tests.integration.conftest import Programs

pytestmark = [pytest.mark.broker, pytest.mark.spark]

PARTITIONS = 4
KEYS = [f"key-{number}" for number in range(20)]
Row = tuple[int, int, str, int, int]
"""Partition, offset, key, how many records of the key there were, and their sum."""


@dataclass
class Sender:
    """Sends records of some keys until it is stopped: tombstones, what is no JSON, and what the topology fails for."""

    kafka: KafkaCluster
    topic: str
    sent: int = 0
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        dice = random.Random(7)  # noqa: S311 - a test's dice
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "linger.ms": 5})
        while not self.stopped.wait(0.02):
            for _ in range(10):
                key, chance = dice.choice(KEYS), dice.random()
                value = json.dumps({"amount": NEGATIVE if chance < 0.03 else self.sent})
                sent = None if 0.03 <= chance < 0.05 else "{" if 0.05 <= chance < 0.07 else value
                producer.produce(self.topic, sent, key)  # a key's records are in one partition
                self.sent += 1
            producer.poll(0)
        assert producer.flush(30) == 0


def batch_of(kafka: KafkaCluster, topic: str, records: int) -> tuple[list[Row], int]:
    """What a batch over the whole topic gives: the rows, and how many dead letters."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "batch", "enable.auto.commit": False}
    )
    counts: dict[str, tuple[int, int]] = {}
    rows: list[Row] = []
    dead = 0
    try:
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        seen = 0
        while seen < records:
            for message in consumer.consume(1_000, 5.0):
                seen += 1
                key, value = message.key().decode(), message.value()
                if value is None:
                    counts.pop(key, None)
                elif is_dead(value):
                    dead += 1
                else:
                    count, total = counts.get(key, (0, 0))
                    counts[key] = (count + 1, total + json.loads(value)["amount"])
                    rows.append((message.partition(), message.offset(), key, *counts[key]))
    finally:
        consumer.close()
    return sorted(rows), dead


def settings(kafka: KafkaCluster, folder: Path, topic: str) -> dict[str, object]:
    stream = {
        "app_id": "counts",
        "topics": [topic],
        "table": f"{folder}/counts",
        "columns": "key STRING, count BIGINT NOT NULL, total BIGINT",
        "topology": "tests.integration.topologies:counts",
    }
    return {
        "kafka": {"bootstrap.servers": kafka.bootstrap_servers, "session.timeout.ms": 6_000},
        "stage": {"url": f"{folder}/stage"},
        "writer": {"group_id": topic, "http": None, "flush_after": "700ms"},
        "loader": {"http": None, "spark": {"spark.master": "local[2]"}},
        "streams": [stream],
    }


def flushes(store: FsspecStore) -> int:
    return sum(1 for _ in store.list("done"))


def wait_until(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.1)


def test_writers_killed_in_the_middle_give_the_table_that_a_batch_gives(  # noqa: PLR0917 - fixtures
    programs: Programs,
    kafka: KafkaCluster,
    new_topic: Callable[..., str],
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = new_topic(PARTITIONS)
    monkeypatch.setenv("COUNTED_TOPIC", topic)
    config, store = programs.config(settings(kafka, tmp_path, topic)), FsspecStore(f"{tmp_path}/stage")
    sender = Sender(kafka, topic)
    sending = threading.Thread(target=sender.run, daemon=True)
    sending.start()
    writers = [programs.start("stage-writer", "run", config) for _ in range(2)]
    wait_until(lambda: flushes(store) >= PARTITIONS)
    writers.pop(0).kill()  # its partitions come to the other one, and its successor takes some of them back
    writers.append(programs.start("stage-writer", "run", config))
    before = flushes(store)
    wait_until(lambda: flushes(store) >= before + PARTITIONS)
    sender.stopped.set()
    sending.join()
    writers.pop().kill()
    assert writers.pop().stop() == 0
    programs.succeed("stage-writer", "run", config, "--until-caught-up")

    report = in_process.load(config, spark)
    assert report.failure is None
    assert not report.held
    found = (
        spark.read.format("delta")
        .load(f"{tmp_path}/counts")
        .select("_kafka_partition", "_kafka_offset", "key", "count", "total")
    )
    rows, dead = batch_of(kafka, topic, sender.sent)
    assert sorted(map(tuple, found.collect())) == rows
    letters = spark.read.format("delta").load(f"{tmp_path}/counts_dead_letters")
    assert letters.count() == dead
    assert {row[0] for row in letters.select("error_class").distinct().collect()} == {"topology", "invalid_json"}
    verified = in_process.verify(config, spark)
    assert (verified.failure, verified.faults) == (None, ())
    assert [one.proved for one in verified.partitions] == [True] * PARTITIONS
    assert every_state_is_there(store)


def every_state_is_there(store: FsspecStore) -> bool:
    """Whether each marker's state can still be read."""
    for item in store.list("done"):
        name = MarkerName.parse(item.path)
        assert name is not None
        manifest = marker_from_bytes(name, store.read(item.path) or b"").manifest
        assert manifest is not None
        assert manifest.state is not None
        for path in (*manifest.state.files.paths, *manifest.state.before.paths):
            if store.read(path) is None:
                return False
    return True
