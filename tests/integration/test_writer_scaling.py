"""Several writers of a group: workers under one command, static members, and a store that holds them back."""

import json
import os
import re
import signal
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from common.storage.store import FsspecStore
from devservices import processes
from devservices.kafka import KafkaCluster, KafkaOptions, running_kafka
from devservices.ports import free_ports
from devservices.proxy import Pass, Refuse, Request, Verdict, running_proxy
from devservices.s3 import S3Server
from tests.integration.conftest import Programs
from tests.integration.test_on_marker import TOKEN, Service
from tests.staged import markers
from tests.waiting import until, until_left

pytestmark = pytest.mark.broker

Settings = dict[str, dict[str, object]]


def settings(kafka: KafkaCluster, folder: str, topic: str, **writer: object) -> Settings:
    return {
        "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
        "stage": {"url": f"{folder}/stage"},
        "writer": {"group_id": topic, "http": None, "flush_after": "1s", **writer},
        "streams": [{"app_id": "orders", "topics": [topic], "table": f"{folder}/orders", "columns": "id INT"}],  # type: ignore[dict-item]
    }


def produce(kafka: KafkaCluster, topic: str, partitions: int, records: int = 100) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(partitions * records):
        producer.produce(topic, b'{"id": %d}' % number, partition=number % partitions)
    assert producer.flush(180) == 0


def staged(store: FsspecStore) -> dict[int, int]:
    """Records by partition; each chain is checked to be unbroken."""
    records: dict[int, int] = {}
    ends: dict[int, int] = {}
    for marker in markers(store):
        assert marker.manifest is not None
        partition = int(marker.name.topic_partition.partition)
        assert marker.span.start == ends.get(partition, 0)
        ends[partition] = marker.span.end
        records[partition] = records.get(partition, 0) + marker.manifest.records
    return records


def events(child: processes.Child, event: str) -> list[dict[str, object]]:
    lines = child.log.read_text("utf-8").splitlines()
    return [
        event_found for line in lines if line.startswith("{") and (event_found := json.loads(line))["event"] == event
    ]


def get(port: int, page: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_workers_catch_up_together_under_one_command(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path, protocol: str
) -> None:
    topic = new_topic(4)
    produce(kafka, topic, 4)
    given = settings(kafka, str(tmp_path), topic, workers=2)
    given["kafka"]["group.protocol"] = protocol
    config = programs.config(given)
    done = programs.run("stage-writer", "run", config, "--until-caught-up")
    assert done.returncode == 0, done.stderr
    assert staged(FsspecStore(f"{tmp_path}/stage")) == dict.fromkeys(range(4), 100)


def test_brokers_without_the_protocol_of_the_config_end_the_writer_with_what_to_remove(
    programs: Programs, tmp_path: Path
) -> None:
    with running_kafka(KafkaOptions(properties={"group.coordinator.rebalance.protocols": "classic"})) as old:
        old.create_topic("orders", 1)
        given = settings(old, str(tmp_path), "orders")
        given["kafka"]["group.protocol"] = "consumer"
        ended = programs.run("stage-writer", "run", programs.config(given))
    assert ended.returncode == 1, ended.stderr
    assert "API version not supported" in ended.stderr
    assert "remove kafka.group.protocol" in ended.stderr


def test_workers_serve_one_page_stop_together_and_fail_together(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path
) -> None:
    topic, port = new_topic(4), free_ports(1)[0]
    store = FsspecStore(f"{tmp_path}/stage")
    given = settings(kafka, str(tmp_path), topic, workers=2, http=f"127.0.0.1:{port}")
    given["kafka"]["session.timeout.ms"] = 6000  # so long a killed worker's partitions have no other owner
    config = programs.config(given)
    pool = programs.start("stage-writer", "run", config)
    until(lambda: get(port, "ready")[0] == 200)
    produce(kafka, topic, 4)
    until(lambda: sum(staged(store).values()) == 400)
    until(lambda: get(port, "healthcheck") == (200, "ok\n"))  # a worker that is slow to answer is a problem there

    def owned() -> dict[str, int]:
        counts = re.findall(r'stage_writer_assigned_partitions\{worker="(\d)"\} (\d)', get(port, "metrics")[1])
        return {worker: int(count) for worker, count in counts}

    until(lambda: (set(owned()), sum(owned().values())) == ({"0", "1"}, 4))  # they may still be handing some over

    assert pool.stop(600) == 0

    pool = programs.start("stage-writer", "run", config)
    until(lambda: get(port, "ready")[0] == 200)
    first, other = children_of(pool.process.pid)
    os.kill(first, signal.SIGKILL)
    assert pool.process.wait(600) == 1
    assert re.search(r"worker \d/2 ended with -9, and the others were stopped", pool.log.read_text("utf-8"))
    until(lambda: not exists(other))
    produce(kafka, topic, 4)
    until_left(kafka, topic)
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    assert staged(store) == dict.fromkeys(range(4), 200)


def test_writer_waiting_for_its_store_exits_with_0_on_sigterm(kafka: KafkaCluster, programs: Programs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        given = settings(kafka, "s3://bucket", "orders")
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        given["stage"]["storage_options"] = {"endpoint_url": endpoint, "key": "k", "secret": "s"}
        writer = programs.start("stage-writer", "run", programs.config(given))
        silent.settimeout(180)
        asking, _ = silent.accept()
        with asking:
            assert writer.stop(600) == 0


def test_workers_without_their_parent_stop(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path
) -> None:
    topic = new_topic(2)
    pool = programs.start("stage-writer", "run", programs.config(settings(kafka, str(tmp_path), topic, workers=2)))
    until(lambda: len(events(pool, "partitions assigned")) >= 2)
    workers = children_of(pool.process.pid)
    pool.process.kill()
    until(lambda: not any(map(exists, workers)))


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8").split()]


def exists(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text("utf-8")
    except (FileNotFoundError, ProcessLookupError):  # it ends between the two, or while it is read
        return False


def test_static_member_that_returns_in_time_moves_no_partition(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path
) -> None:
    topic = new_topic(4)
    given = settings(kafka, str(tmp_path), topic)

    def config(member: str) -> Path:
        given["kafka"] |= {"group.instance.id": member, "session.timeout.ms": 300_000}  # however slow its start
        return programs.config(given, f"{member}.yaml")

    stays = programs.start("stage-writer", "run", config("stays"))
    goes = programs.start("stage-writer", "run", config("goes"))

    def owned(child: processes.Child) -> object:
        changes = [*events(child, "partitions assigned"), *events(child, "partitions revoked")]
        return max(changes, key=lambda event_logged: str(event_logged["timestamp"]))["owned"] if changes else 0

    until(lambda: (owned(stays), owned(goes)) == (2, 2))
    before = len(events(stays, "partitions assigned")) + len(events(stays, "partitions revoked"))
    assert goes.stop(600) == 0
    back = programs.start("stage-writer", "run", config("goes"))
    until(lambda: owned(back) == 2)
    produce(kafka, topic, 4)
    until(lambda: staged(FsspecStore(f"{tmp_path}/stage")) == dict.fromkeys(range(4), 100))
    assert len(events(stays, "partitions assigned")) + len(events(stays, "partitions revoked")) == before


@pytest.mark.s3
def test_slow_failing_store_stops_no_poll_of_the_writer_and_keeps_its_membership(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, versitygw: S3Server
) -> None:
    """While the store lets a file wait, the loop goes on: it is the loop that obeys a pause."""
    topic = new_topic(2)
    produce(kafka, topic, 2)
    asked, answers = threading.Event(), threading.Event()

    def policy(request: Request) -> Verdict:
        if request.method != "PUT" or not request.path.endswith(".parquet") or answers.is_set():
            return Pass()
        asked.set()
        answers.wait(600)
        return Refuse(503, "SlowDown")

    with running_proxy(versitygw.endpoint_url, policy) as proxy:
        url = f"s3://versitygw/{topic}"
        more = {"flush_records": 10, "consume_records": 20, "http": "127.0.0.1:0", "http_token": TOKEN}
        given = settings(kafka, url, topic, **more)
        options = {**versitygw.storage_options, "endpoint_url": proxy.endpoint_url}
        given["stage"]["storage_options"] = options
        writer = Service(programs.start("stage-writer", "run", programs.config(given)))
        writer.until(asked.is_set, "a file")
        for call, paused in (("/pause", 2), ("/resume", 0)):
            assert writer.post(call)[0] == 200
            sample = f"stage_writer_paused {paused}.0"
            writer.until(lambda: sample in writer.get("/metrics")[1], sample)  # noqa: B023 - called at once
        answers.set()
        store = FsspecStore(f"{url}/stage", options)
        until(lambda: staged(store) == {0: 100, 1: 100})
        assert writer.child.stop(600) == 0
    assert not events(writer.child, "partitions lost")
    assert len(events(writer.child, "partitions assigned")) == 1
