"""``schedule: on-marker`` and the calls over HTTP, with both services as a user runs them."""

import json
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path

import pytest

from common.storage.store import FsspecStore
from common.tables.delta_log import read_table_state
from devservices.kafka import KafkaCluster
from devservices.processes import Child
from tests.integration.conftest import Programs
from tests.producing import produce

pytestmark = [pytest.mark.broker, pytest.mark.spark]
TOKEN = "a-token-of-a-test"


def settings(kafka: KafkaCluster, folder: Path, topic: str, **loader: str) -> dict[str, object]:
    return {
        "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
        "stage": {"url": f"{folder}/stage"},
        "writer": {"group_id": topic, "flush_after": "500ms", "http": "127.0.0.1:0", "http_token": TOKEN},
        "loader": {
            "schedule": "on-marker",
            "max_commits_per_minute": 600,
            "http": "127.0.0.1:0",
            "http_token": TOKEN,
            "spark": {"spark.master": "local[2]"},
            **loader,
        },
        "logs": {"format": "json"},
        "streams": [{"app_id": "orders", "topics": [topic], "table": f"{folder}/orders", "columns": "id BIGINT"}],
    }


class Service:
    """One of the programs, while it runs."""

    def __init__(self, child: Child) -> None:
        self.child = child
        child.wait_until(lambda: '"event": "serving"' in child.log.read_text("utf-8"), "a port", 600)
        lines = [line for line in child.log.read_text("utf-8").splitlines() if '"event": "serving"' in line]
        self.port = int(json.loads(lines[0])["port"])

    def get(self, path: str) -> tuple[int, str]:
        return self._ask("GET", path, {})

    def post(self, path: str, token: str = TOKEN) -> tuple[int, str]:
        return self._ask("POST", path, {"Authorization": f"Bearer {token}"})

    def until(self, condition: Callable[[], bool], what: str) -> None:
        self.child.wait_until(condition, what, 600)

    def _ask(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


class Pipeline:
    """Both services on a topic of one partition."""

    def __init__(self, kafka: KafkaCluster, topic: str, folder: Path, programs: Programs, **loader: str) -> None:
        self._kafka, self._topic = kafka, topic
        self.table, self.stage = FsspecStore(f"{folder}/orders"), FsspecStore(f"{folder}/stage")
        self._sent = 0
        config = programs.config(settings(kafka, folder, topic, **loader))
        self.loader = Service(programs.start("delta-loader", "run", config))
        self.writer = Service(programs.start("stage-writer", "run", config))

    def produce(self, count: int = 10) -> int:
        values = (b'{"id": %d}' % number for number in range(count))
        produce(self._kafka.bootstrap_servers, self._topic, *values, partition=0)
        self._sent += count
        return self._sent

    def loaded(self) -> int:
        state = read_table_state(self.table)
        return 0 if state is None else state.transactions.get("orders-0", -1) + 1

    def staged(self) -> int:
        metrics = self.writer.get("/metrics")[1]
        samples = [line for line in metrics.splitlines() if line.startswith("stage_writer_staged_position{")]
        return int(float(samples[0].rpartition(" ")[2])) if samples else 0

    def signs(self) -> list[str]:
        return [item.path for item in self.stage.list("news/")]


def test_notified_records_are_loaded_and_http_calls_control_both_services(
    kafka: KafkaCluster, new_topic: Callable[..., str], tmp_path: Path, programs: Programs
) -> None:
    pipeline = Pipeline(kafka, new_topic(1), tmp_path, programs)
    loader, writer = pipeline.loader, pipeline.writer
    loader.until(lambda: loader.get("/ready")[0] == 200, "a first look at everything")
    metric = "delta_loader_turns_total"
    for _ in range(3):
        sent = pipeline.produce()
        loader.until(lambda sent=sent: pipeline.loaded() == sent, "what the writer told of")  # type: ignore[misc]
    assert f'{metric}{{reason="on_marker"}}' in loader.get("/metrics")[1]

    assert loader.post("/pause", "another-token-than-that")[0] == 401
    assert loader.post("/pause")[0] == 200
    before = pipeline.loaded()
    sent = pipeline.produce()
    writer.until(lambda: pipeline.staged() == sent and bool(pipeline.signs()), "a marker, and a sign of it")
    status, text = loader.post("/load?wait=1")
    assert (status, text) == (409, "paused; POST /resume first\n")
    assert pipeline.loaded() == before
    assert "paused since" in loader.get("/healthcheck")[1]
    assert loader.post("/resume")[0] == 200
    loader.until(lambda: pipeline.loaded() == sent, "what came meanwhile")

    assert writer.post("/pause")[0] == 200
    writer.until(lambda: "stage_writer_paused 1.0" in writer.get("/metrics")[1], "the partition's pause")
    sent = pipeline.produce()
    status, text = loader.post("/load?wait=1")
    assert status == 200, text
    [stream] = json.loads(text)["streams"]
    assert (stream["app_id"], stream["failure"], stream["held"]) == ("orders", None, [])
    assert pipeline.loaded() < sent
    assert writer.post("/resume")[0] == 200
    loader.until(lambda: pipeline.loaded() == sent, "what was read after the writer's pause")
    assert f'{metric}{{reason="asked"}} 1.0' in loader.get("/metrics")[1]
    for service in (writer, loader):
        assert TOKEN not in service.child.log.read_text("utf-8")
        assert service.child.stop(600) == 0
