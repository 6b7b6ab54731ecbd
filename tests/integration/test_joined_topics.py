"""A topology that joins two topics and writes to a third, with a real broker and a process that is killed."""

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from common.stage.markers import Marker, MarkerName, marker_from_bytes
from common.stage.merged import chain_topic, inputs_at
from common.storage.store import FsspecStore
from devservices.kafka import KafkaCluster
from tests.fakes import joining
from tests.integration.conftest import Programs
from tests.waiting import until_left

pytestmark = pytest.mark.broker

EACH = 200
"""Records of each topic and partition in each phase."""
PHASES = 4
Joined = dict[int, list[tuple[int, int]]]
"""By partition what its orders have to be joined with: their ids, and what was paid until then."""


class Shop:
    """Produces orders and payments, and joins them in its own way."""

    def __init__(self, kafka: KafkaCluster, orders: str, payments: str) -> None:
        self.producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 50})
        self.topics = (orders, payments)
        self.dice = random.Random(7)  # noqa: S311 - a test's
        self.joined: Joined = {0: [], 1: []}
        self.paid: dict[tuple[int, str], int] = {}
        self.orders = 0

    def phase(self, number: int) -> None:
        for partition in range(2):
            times = [range(number * 10_000, number * 10_000 + 9_000) for _ in self.topics]
            events = [
                (time_ms, topic, f"k{self.dice.randrange(20)}")
                for topic, count in zip(self.topics, times, strict=True)
                for time_ms in sorted(self.dice.sample(count, EACH))
            ]
            for time_ms, topic, key in sorted(events):
                value = self._order(partition, key) if topic == self.topics[0] else self._payment(partition, key)
                self.producer.produce(topic, value, key.encode(), partition=partition, timestamp=1_000_000 + time_ms)
        assert self.producer.flush(180) == 0

    def _order(self, partition: int, key: str) -> bytes:
        self.orders += 1
        self.joined[partition].append((self.orders, self.paid.get((partition, key), 0)))
        return json.dumps({"id": self.orders}).encode()

    def _payment(self, partition: int, key: str) -> bytes:
        amount = self.dice.randrange(1, 100)
        self.paid[partition, key] = self.paid.get((partition, key), 0) + amount
        return json.dumps({"amount": amount}).encode()


def chain_of(store: FsspecStore, topic: str, partition: int) -> list[Marker]:
    paths = sorted(item.path for item in store.list(f"done/{topic}/{partition}/"))
    names = [name for path in paths if (name := MarkerName.parse(path))]
    return [marker_from_bytes(name, store.read(name.path) or b"") for name in names]


def rows_of(folder: Path, chain: list[Marker], *columns: str) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for path in (file.path for marker in chain for table in marker.tables for file in table.files):
        table = pq.read_table(folder / "table" / path, partitioning=None)
        rows += zip(*(table[column].to_pylist() for column in columns), strict=True)
    return rows


def committed(kafka: KafkaCluster, topic: str, count: int) -> list[tuple[int, int]]:
    reader = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        reader.assign([KafkaPartition(topic, 0, 0)])
        rows: list[tuple[int, int]] = []
        deadline_s = time.monotonic() + 600
        while time.monotonic() < deadline_s:
            message = reader.poll(0.5)
            error = None if message is None else message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF and len(rows) >= count:
                break
            if message is not None and error is None:
                value = json.loads(message.value() or b"")
                rows.append((value["id"], value["paid"]))
        return rows
    finally:
        reader.close()


def settings(kafka: KafkaCluster, folder: Path, topics: list[str], topology: str, columns: str) -> dict[str, object]:
    stream = {
        "app_id": "shop",
        "topics": topics,
        "table": f"{folder}/table",
        "columns": columns,
        "kafka_columns": False,
        "topology": topology,
    }
    return {
        "kafka": {"bootstrap.servers": kafka.bootstrap_servers, "session.timeout.ms": 6000},
        "stage": {"url": f"{folder}/stage"},
        "writer": {"group_id": topics[0], "http": None, "flush_after": "200ms"},
        "streams": [stream],
    }


@pytest.mark.in_turn("writers of tasks are killed")
def test_joined_rows_and_records_are_there_once_whenever_the_writer_is_killed(
    kafka: KafkaCluster,
    new_topic: Callable[..., str],
    programs: Programs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orders, payments, joined = new_topic(2, prefix="orders"), new_topic(2, prefix="payments"), new_topic(1)
    monkeypatch.setenv(joining.TOPICS, f"{orders} {payments} {joined}")
    shop = Shop(kafka, orders, payments)
    config = programs.config(
        settings(kafka, tmp_path, [orders, payments], "tests.fakes.joining:build", "id BIGINT, paid BIGINT")
    )
    store, topic = FsspecStore(f"{tmp_path}/stage"), chain_topic([orders, payments])
    dice = random.Random(3)  # noqa: S311 - a test's
    for phase in range(PHASES - 1):
        shop.phase(phase)
        before = len(list(store.list(f"done/{topic}/")))
        child = programs.start("stage-writer", "run", config)
        child.wait_until(lambda: len(list(store.list(f"done/{topic}/"))) > before, "a flush")  # noqa: B023 - at once
        time.sleep(dice.uniform(0.0, 0.6))  # some time while a flush is made, or its records are delivered
        child.signal(signal.SIGKILL)
        child.process.wait(600)
    shop.phase(PHASES - 1)
    until_left(kafka, orders)
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    outboxes: set[str] = set()
    for partition in range(2):
        chain = chain_of(store, topic, partition)
        outboxes.update(path for marker in chain if marker.manifest for path in marker.manifest.outboxes)
        assert all(marker.span.end == other.span.start for marker, other in pairwise(chain)), chain
        assert [int(end.position) for end in inputs_at(chain[-1].span.end)] == [PHASES * EACH] * 2
        assert rows_of(tmp_path, chain, "id", "paid") == shop.joined[partition]
    records = committed(kafka, joined, shop.orders)
    for partition in range(2):
        ids = {number for number, _ in shop.joined[partition]}
        assert [row for row in records if row[0] in ids] == shop.joined[partition]
    assert len(records) == shop.orders
    # A writer that was killed right before its marker leaves an outbox of which no marker knows: `clean` deletes it.
    left = {item.path for item in store.list("outbox/")} & outboxes
    assert outboxes
    assert not left, "what is delivered is cleared away"


def test_records_meet_again_through_a_topic(
    kafka: KafkaCluster,
    new_topic: Callable[..., str],
    programs: Programs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    visits, countries = new_topic(2, prefix="visits"), new_topic(3, prefix="countries")
    monkeypatch.setenv(joining.TOPICS, f"{visits} {countries}")
    topology, columns = "tests.fakes.joining:by_country", "country STRING, visits BIGINT"
    config = programs.config(settings(kafka, tmp_path, [visits, countries], topology, columns))
    producer, expected = Producer({"bootstrap.servers": kafka.bootstrap_servers}), Counter[str]()
    for number in range(300):
        country = "abcdefg"[number * number % 7]
        expected[country] += 1
        producer.produce(visits, json.dumps({"country": country}).encode(), b"%d" % number, partition=number % 2)
    assert producer.flush(180) == 0
    for _ in range(2):  # first those that are there are sent on, then these are counted
        programs.succeed("stage-writer", "run", config, "--until-caught-up")
    store = FsspecStore(f"{tmp_path}/stage")
    counted: dict[str, list[int]] = {}
    for partition in range(3):
        for name, count in rows_of(tmp_path, chain_of(store, countries, partition), "country", "visits"):
            counted.setdefault(str(name), []).append(int(str(count)))
    assert counted == {country: list(range(1, count + 1)) for country, count in expected.items()}


def test_check_reports_topics_that_cannot_be_joined_or_written(
    kafka: KafkaCluster,
    new_topic: Callable[..., str],
    programs: Programs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orders, payments, other = new_topic(2, prefix="orders"), new_topic(2, prefix="payments"), new_topic(3)
    for second, sink, problem in (
        (payments, "nowhere", "the topology of 'shop' names 'nowhere', which does not exist in Kafka at"),
        (other, payments, "a topology joins topics with different numbers of partitions"),
        ("missing", payments, "names the topic 'missing', which does not exist in Kafka"),
    ):
        monkeypatch.setenv(joining.TOPICS, f"{orders} {second} {sink}")
        columns = "id BIGINT, paid BIGINT"
        config = programs.config(settings(kafka, tmp_path, [orders, second], "tests.fakes.joining:build", columns))
        done = programs.run("stage-writer", "check", config)
        assert done.returncode == 2
        assert problem in done.stderr
