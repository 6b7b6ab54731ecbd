"""The real parts are what they say, and leave nothing behind."""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import s3fs
from confluent_kafka import Consumer, Producer
from pyspark.sql import SparkSession

from common.ports import AlreadyExists
from common.storage.store import FsspecStore, prove_exclusive_create
from devservices import ports, processes
from devservices.kafka import KafkaCluster, KafkaOptions, running_kafka
from devservices.ports import free_ports, is_open
from devservices.s3 import S3Kind, S3Server, running_s3
from devservices.tcp_proxy import TcpProxy, running_tcp_proxies
from tests.conftest import Lake, built
from tests.producing import produce


@pytest.mark.broker
def test_record_goes_through_the_broker(kafka: KafkaCluster, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=2)
    produce(kafka.bootstrap_servers, topic, b'{"id": 1}', partition=1)
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    [message] = consumer.consume(1, 180)
    consumer.close()
    assert (message.partition(), message.offset(), message.value()) == (1, 0, b'{"id": 1}')


@pytest.mark.in_turn("brokers die")
@pytest.mark.broker
def test_killed_broker_comes_back_with_its_records() -> None:
    with running_kafka(KafkaOptions()) as cluster:
        topic = cluster.create_topic("kept")
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        producer.produce(topic, b"1")
        assert producer.flush(180) == 0
        [broker] = cluster.brokers
        broker.kill()
        assert not is_open(broker.port)
        broker.start()
        cluster.wait_until_ready()
        producer.produce(topic, b"2")
        assert producer.flush(180) == 0
    assert not is_open(broker.port)


@pytest.mark.in_turn("brokers die")
@pytest.mark.broker
def test_one_broker_of_three_may_go_and_connections_may_be_cut_and_stalled() -> None:
    with running_tcp_proxies() as proxies:
        made: list[TcpProxy] = []

        def before(port: int) -> int:
            made.append(proxies.before(port))
            return made[-1].port

        with running_kafka(KafkaOptions(brokers=3, proxy_before=before)) as cluster:
            topic = cluster.create_topic("kept", partitions=3)
            producer = Producer({"bootstrap.servers": cluster.proxied_servers, "log_level": 0, "acks": "all"})

            def sent(timeout_s: float) -> bool:
                for partition in range(3):
                    producer.produce(topic, b"1", partition=partition)
                return bool(producer.flush(timeout_s) == 0)

            assert sent(180)
            cluster.brokers[0].kill()
            assert sent(180)
            cluster.brokers[0].start()
            cluster.wait_until_ready()
            for proxy in made:
                proxy.cut()
            assert sent(180)
            for proxy in made:
                proxy.stall()
            assert not sent(1)  # and no client bypassed the proxies
            for proxy in made:
                proxy.resume()
            assert producer.flush(180) == 0


@pytest.mark.s3
@pytest.mark.parametrize("kind", built("versitygw", "minio"))
def test_killed_s3_server_comes_back_with_its_objects(kind: S3Kind, tmp_path: Path) -> None:
    with running_s3(kind, tmp_path) as server:
        server.create_bucket("kept")
        store = FsspecStore("s3://kept/stage", server.storage_options)
        prove_exclusive_create(store)
        store.create("one", b"1")
        server.kill()
        assert not is_open(server.port)
        server.start()
        assert isinstance(store.create("one", b"2"), AlreadyExists)
        assert store.read("one") == b"1"


def test_ports_are_not_those_of_outgoing_connections() -> None:
    numbers = free_ports(50)
    assert len(set(numbers)) == 50
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        # Of a range whose first port is unknown here; two samples do.
        assert max(numbers) < min(server.getsockname()[1], client.getsockname()[1])


@pytest.mark.skipif(sys.platform != "linux", reason="names that the system forgets are Linux's")
def test_port_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    candidates = ports._candidates()
    monkeypatch.setattr(ports, "_candidates", lambda: candidates)
    assert free_ports(1) != free_ports(1)


@pytest.mark.s3
def test_versitygw_refuses_a_wrong_key(versitygw: S3Server) -> None:
    stranger = s3fs.S3FileSystem(skip_instance_cache=True, **{**versitygw.storage_options, "secret": "wrong"})
    with pytest.raises(PermissionError):
        stranger.ls(versitygw.kind)


@pytest.mark.in_turn("Spark reads what it writes")
@pytest.mark.spark
def test_spark_writes_and_reads_delta_where_the_lake_is(lake: Lake, spark: SparkSession) -> None:
    url = lake.url.replace("s3://", "s3a://") + "/table"
    for _ in range(2):
        spark.range(100).write.format("delta").mode("append").save(url)
    assert spark.read.format("delta").load(url).count() == 200
    assert spark.sql(f"DESCRIBE HISTORY delta.`{url}`").count() == 2


@pytest.mark.skipif(sys.platform != "linux", reason="the operating system's leash is Linux's")
def test_child_process_ends_with_its_parent(tmp_path: Path) -> None:
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
    deadline = time.monotonic() + 600
    while _is_alive(child_id) and time.monotonic() < deadline:
        time.sleep(0.05)
    alive = _is_alive(child_id)
    with suppress(ProcessLookupError):
        os.kill(child_id, signal.SIGKILL)
    assert not alive


def _is_alive(process_id: int) -> bool:
    try:
        # A killed process is dead even before its parent has waited for it.
        with open(f"/proc/{process_id}/stat", "rb") as file:  # noqa: PTH123
            return file.read().rpartition(b")")[2].split()[0] != b"Z"
    except (FileNotFoundError, ProcessLookupError):  # it ends between the two, or while it is read
        return False
