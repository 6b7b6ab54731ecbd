"""Kafka's transactions and compaction on a real broker: holes in the offsets, and no gap in a chain."""

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from common.storage.store import FsspecStore
from devservices.kafka import KafkaCluster
from tests.integration.conftest import Programs
from tests.staged import markers

pytestmark = pytest.mark.broker


def settings(kafka: KafkaCluster, folder: Path, topic: str) -> dict[str, object]:
    return {
        "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
        "stage": {"url": f"{folder}/stage"},
        "writer": {"group_id": topic, "http": None},
        "streams": [{"app_id": "orders", "topics": [topic], "table": f"{folder}/orders", "columns": "id INT"}],
    }


def transactional(kafka: KafkaCluster, name: str) -> Producer:
    named = {"transactional.id": name, "transaction.timeout.ms": 900_000}  # a program may run while one is open
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, **named})
    producer.init_transactions(180)
    return producer


def send(producer: Producer, topic: str, *numbers: int, key: bytes | None = None) -> None:
    for number in numbers:
        producer.produce(topic, b'{"id": %d}' % number, key)
    assert producer.flush(180) == 0


def staged(folder: Path, topic: str) -> tuple[list[tuple[int, int]], list[int]]:
    """The markers' spans, and the ids of all rows that they bring."""
    spans, ids = [], []
    for marker in markers(FsspecStore(f"{folder}/stage"), f"done/{topic}"):
        spans.append((int(marker.span.start), int(marker.span.end)))
        for file in (file for table in marker.tables for file in table.files):
            rows: pa.Table = pq.read_table(f"{folder}/orders/{file.path}", columns=["id"], partitioning=None)
            ids += rows["id"].to_pylist()
    return spans, ids


def end_of(kafka: KafkaCluster, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "readers"})
    try:
        return int(consumer.get_watermark_offsets(KafkaPartition(topic, 0), timeout=60)[1])
    finally:
        consumer.close()


def test_aborted_records_never_arrive_and_leave_no_gap(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path
) -> None:
    topic = new_topic(1)
    config = programs.config(settings(kafka, tmp_path, topic))
    producer = transactional(kafka, topic)
    for number, ends in enumerate([producer.commit_transaction, producer.abort_transaction] * 3):
        producer.begin_transaction()
        send(producer, topic, *range(number * 10, number * 10 + 5))
        ends(60)
        if number == 2:
            programs.succeed("stage-writer", "run", config, "--until-caught-up")
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    spans, ids = staged(tmp_path, topic)
    assert ids == [*range(5), *range(20, 25), *range(40, 45)]
    assert spans[0][0] == 0
    assert all(span[1] == other[0] for span, other in pairwise(spans)), spans
    assert spans[-1][1] == end_of(kafka, topic), "the aborted records and the markers behind the last row are covered"


def test_open_transaction_is_staged_once_it_is_committed(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path
) -> None:
    topic = new_topic(1)
    config = programs.config(settings(kafka, tmp_path, topic))
    plain = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    send(plain, topic, 1, 2, 3)
    producer = transactional(kafka, topic)
    producer.begin_transaction()
    send(producer, topic, 10, 11)
    send(plain, topic, 4)  # after the open one: not readable yet
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    assert staged(tmp_path, topic) == ([(0, 3)], [1, 2, 3])
    producer.commit_transaction(180)
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    assert staged(tmp_path, topic) == ([(0, 3), (3, 7)], [1, 2, 3, 10, 11, 4])


def test_partition_with_only_aborted_records_is_caught_up(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path
) -> None:
    topic = new_topic(1)
    config = programs.config(settings(kafka, tmp_path, topic))
    producer = transactional(kafka, topic)
    producer.begin_transaction()
    send(producer, topic, 1, 2)
    producer.abort_transaction(180)
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    assert staged(tmp_path, topic) == ([], [])


def test_compaction_makes_holes_and_no_gap(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path
) -> None:
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.001", "min.compaction.lag.ms": "0"}
    topic = new_topic(1, compacted)  # of one segment, which is never compacted, no matter how long the first run takes
    config = programs.config(settings(kafka, tmp_path, topic))
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    send(producer, topic, *range(10), key=b"one")
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    short = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in (("segment.ms", "200"), ("max.compaction.lag.ms", "500"))
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=short)
    admin = kafka.admin
    admin.incremental_alter_configs([resource])[resource].result(60)
    send(producer, topic, *range(10, 40), key=b"one")
    until_s = time.monotonic() + 600
    while (left := offsets(kafka, topic))[1] < 35:  # the position 10 of the chain is a hole by now
        time.sleep(0.5)
        send(producer, topic, 99, key=b"other")  # a segment is closed when the next record comes
        assert time.monotonic() < until_s, left
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    spans, ids = staged(tmp_path, topic)
    assert spans[0] == (0, 10)
    assert all(span[1] == other[0] for span, other in pairwise(spans)), spans
    assert ids[:10] == list(range(10))
    assert 39 in ids[10:], "the last value of a key is kept"
    assert not set(range(10, 35)) & set(ids), "and compacted records are in no table"


def offsets(kafka: KafkaCluster, topic: str) -> tuple[int, int]:
    """The first and the second offset that there still are."""
    properties = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "readers", "enable.partition.eof": True}
    consumer, offsets_read = Consumer(properties), list[int]()
    try:
        consumer.assign([KafkaPartition(topic, 0, 0)])
        while len(offsets_read) < 2:
            message = consumer.poll(10)
            if message is None or message.error():
                break
            offsets_read.append(int(message.offset() or 0))
    finally:
        consumer.close()
    return (*offsets_read, 0, 0)[:2]  # type: ignore[return-value]
