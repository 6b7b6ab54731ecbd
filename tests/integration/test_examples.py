"""The examples' pipeline on a real broker: writers are killed and replaced, and the tables are like a batch's."""

import json
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from common.storage.store import FsspecStore
from devservices.kafka import KafkaCluster
from stage_writer.topologies.testing import Message
from tests import examples as batch
from tests.integration import in_process
from tests.integration.conftest import Programs
from tests.integration.counted import flushes
from tests.reading import rows_of
from tests.unit.test_examples import CONFIG
from tests.waiting import until, until_left

pytestmark = [pytest.mark.broker, pytest.mark.spark]

PARTITIONS = 2
TOPICS = ("web_requests", "orders", "customers", "readings", "alerts")
PHASES = 2
SECONDS = 2.0
"""Of a phase."""


@pytest.fixture
def topics(kafka: KafkaCluster) -> Iterator[None]:
    """The examples' topics, whose messages are of a day that is long past."""
    for topic in TOPICS:
        kafka.create_topic(topic, PARTITIONS, {"retention.ms": "-1"})
    yield
    admin = kafka.admin
    for done in admin.delete_topics([*TOPICS]).values():
        done.result(60)


def partition_of(message: Message) -> int:
    return zlib.crc32(message.key.encode()) // 16 % PARTITIONS


def by_partition(sent: Sequence[Message]) -> list[list[Message]]:
    by_number: dict[int, list[Message]] = defaultdict(list)
    for message in sent:
        by_number[partition_of(message)].append(message)
    return list(by_number.values())


def produce(kafka: KafkaCluster, streams: Sequence[Sequence[Message]], phase: int) -> None:
    """A phase's part of each stream, in its order and side by side, over `SECONDS`."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5})
    places = [(place / len(stream) * PHASES, message) for stream in streams for place, message in enumerate(stream)]
    began_s = time.monotonic()
    for share, message in sorted(places, key=lambda message: message[0]):
        if int(share) != phase:
            continue
        time.sleep(max(0.0, began_s + SECONDS * (share - phase) - time.monotonic()))
        value = None if message.value is None else json.dumps(message.value)
        producer.produce(message.topic, value, message.key, partition_of(message), timestamp=message.timestamp_ms)
        producer.poll(0)
    assert producer.flush(180) == 0


def config_of(kafka: KafkaCluster, lake: Path, programs: Programs) -> Path:
    """The examples' own config, for this broker and folder, with flushes that come soon."""
    text = CONFIG.read_text("utf-8").replace("${KAFKA}", kafka.bootstrap_servers).replace("${LAKE}", str(lake))
    settings: dict[str, Any] = yaml.safe_load(text)
    settings["kafka"]["session.timeout.ms"] = 6_000
    settings["writer"] |= {"flush_after": "700ms", "http": None}
    settings["loader"] = {"http": None, "spark": {"spark.master": "local[2]"}}
    settings["streams"][2]["route_tables"]["alerts"]["load"] = "append"  # through Spark, next to a table without
    return programs.config(settings)


def alerts_in(kafka: KafkaCluster, count: int) -> list[tuple[str, str]]:
    """What readers of committed messages see in the topic of alerts: device and beginning."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "reader", "isolation.level": "read_committed"}
    )
    alerts: list[tuple[str, str]] = []
    try:
        consumer.assign([TopicPartition("alerts", number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        deadline_s = time.monotonic() + 600
        while len(alerts) < count and time.monotonic() < deadline_s:
            came = consumer.consume(min(100, count - len(alerts)), 1.0)
            alerts += [(message.key().decode(), json.loads(message.value())["began"]) for message in came]
        alerts += [(message.key().decode(), "one too many") for message in consumer.consume(100, 1.0)]
    finally:
        consumer.close()
    return sorted(alerts)


def load(config: Path, spark: SparkSession) -> None:
    for report in in_process.load_all(config, spark):
        assert report.failure is None
        assert not report.held


def test_tables_of_the_examples_are_those_of_batches_though_writers_are_killed(
    programs: Programs, kafka: KafkaCluster, topics: None, tmp_path: Path, spark: SparkSession
) -> None:
    del topics
    requests, orders, readings = batch.requests(), batch.orders_and_customers(), batch.readings()
    config, store = config_of(kafka, tmp_path, programs), FsspecStore(f"{tmp_path}/stage")
    writers = [programs.start("stage-writer", "run", config) for _ in range(2)]
    for phase in range(PHASES):
        produce(kafka, (requests, orders, readings), phase)
        until(lambda: flushes(store) >= 2 * phase + 2, "a flush")  # noqa: B023 - called at once
        writers.pop(0).kill()
        writers.append(programs.start("stage-writer", "run", config))
    for writer in writers:
        writer.kill()
    load(config, spark)  # the rest goes on from the positions that the tables have then, of joined topics too
    until_left(kafka, "examples")
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    load(config, spark)
    verified = in_process.verify(config, spark, "orders")
    assert (verified.failure, verified.faults) == (None, ())

    def table(name: str) -> list[dict[str, Any]]:
        rows = rows_of(f"{tmp_path}/tables/{name}")
        return batch.shown({key: row[key] for key in row if not key.startswith("_kafka_")} for row in rows)

    def by_writers(name: str) -> set[bool]:
        files = DeltaTable(f"{tmp_path}/tables/{name}").file_uris()
        return {path.rpartition("/")[2].startswith("readings-") for path in files}

    def expected(rows: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
        return batch.shown(row for of_partition in rows for row in of_partition)

    assert set(map(partition_of, [*requests, *orders, *readings])) == set(range(PARTITIONS))
    assert table("visits") == expected([batch.visits(sent) for sent in by_partition(requests)])
    assert table("orders") == batch.enriched(orders)
    assert table("device_minutes") == expected([batch.tallies(sent, 1) for sent in by_partition(readings)])
    alarming = expected([batch.alarming(batch.tallies(sent, 5)) for sent in by_partition(readings)])
    assert table("alerts") == alarming
    assert by_writers("device_minutes") == {True}
    assert by_writers("alerts") == {False}, "Spark has written them, from files in the stage"
    expected_alarms = sorted((row["device"], row["began"].isoformat()) for row in alarming)
    assert alerts_in(kafka, len(expected_alarms)) == expected_alarms
