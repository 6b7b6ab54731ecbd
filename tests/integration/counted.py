"""Records that a topology counts, what a batch over them gives, and the config of a pipeline that does."""

import json
import random
import threading
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from common.storage.store import FsspecStore
from devservices.kafka import KafkaCluster
from tests.integration.topologies import NEGATIVE, is_dead
from tests.reading import place_of, rows_of

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
        assert producer.flush(180) == 0


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
            for message in consumer.consume(min(1_000, records - seen), 5.0):
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


def counted_rows(folder: Path) -> list[Row]:
    rows = rows_of(f"{folder}/counts")
    return sorted((*place_of(row)[1:], row["key"], row["count"], row["total"]) for row in rows)


def settings(kafka: KafkaCluster, folder: Path, topic: str, **more: object) -> dict[str, object]:
    stream = {
        "app_id": "counts",
        "topics": [topic],
        "table": f"{folder}/counts",
        "columns": "key STRING, count BIGINT NOT NULL, total BIGINT",
        "topology": "tests.integration.topologies:counts",
        **more,
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
