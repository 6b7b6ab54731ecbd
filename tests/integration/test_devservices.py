"""The real parts are what they say, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import s3fs
from confluent_kafka import Consumer, Producer

from devservices import processes
from devservices.kafka import KafkaOptions, running_kafka
from devservices.ports import is_open

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from devservices.kafka import KafkaCluster
    from devservices.s3 import S3Server
    from tests.conftest import Lake


@pytest.mark.broker
def test_a_record_goes_through_the_broker(kafka: KafkaCluster, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(topic, b'{"id": 1}', partition=1)
    assert producer.flush(30) == 0
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    [message] = consumer.consume(1, 30)
    consumer.close()
    assert (message.partition(), message.offset(), message.value()) == (1, 0, b'{"id": 1}')


@pytest.mark.broker
def test_a_killed_broker_comes_back_with_its_records() -> None:
    with running_kafka(KafkaOptions()) as cluster:
        topic = cluster.create_topic("kept")
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        producer.produce(topic, b"1")
        assert producer.flush(30) == 0
        [broker] = cluster.brokers
        broker.kill()
        assert not is_open(broker.port)
        broker.start()
        cluster.wait_until_ready()
        producer.produce(topic, b"2")
        assert producer.flush(30) == 0
    assert not is_open(broker.port)


@pytest.mark.s3
def test_versitygw_refuses_a_wrong_key(versitygw: S3Server) -> None:
    stranger = s3fs.S3FileSystem(skip_instance_cache=True, **{**versitygw.storage_options, "secret": "wrong"})
    with pytest.raises(PermissionError):
        stranger.ls(versitygw.kind)


@pytest.mark.spark
def test_spark_writes_and_reads_delta_where_the_lake_is(lake: Lake, spark: SparkSession) -> None:
    url = lake.url.replace("s3://", "s3a://") + "/table"
    for _ in range(2):
        spark.range(100).write.format("delta").mode("append").save(url)
    assert spark.read.format("delta").load(url).count() == 200
    assert spark.sql(f"DESCRIBE HISTORY delta.`{url}`").count() == 2


@pytest.mark.skipif(sys.platform != "linux", reason="the operating system's leash is Linux's")
def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from devservices import processes;"
        f"child = processes.start(['sleep', '600'], Path({str(tmp_path / 'child.log')!r}));"
        "print(child.process.pid, flush=True); time.sleep(600)"
    )
    log = tmp_path / "parent.log"
    parent = processes.start([sys.executable, "-c", script], log)
    parent.wait_until(lambda: log.read_text("utf-8").endswith("\n"), "the parent")
    child_id = int(log.read_text("utf-8"))
    parent.kill()
    deadline = time.monotonic() + 10
    while _is_alive(child_id) and time.monotonic() < deadline:
        time.sleep(0.05)
    alive = _is_alive(child_id)
    with suppress(ProcessLookupError):
        os.kill(child_id, signal.SIGKILL)
    assert not alive


def _is_alive(process_id: int) -> bool:
    try:
        # A killed process that nobody has waited for yet is dead all the same.
        with open(f"/proc/{process_id}/stat", "rb") as file:  # noqa: PTH123
            return file.read().rpartition(b")")[2].split()[0] != b"Z"
    except FileNotFoundError:
        return False
