"""Two streams that take one topic, as a user runs them: refused in one config, and at home in two."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from delta_loader.inspect.verify.findings import Verdict
from tests.integration import in_process
from tests.integration.test_on_marker import Service
from tests.reading import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from devservices.kafka import KafkaCluster
    from tests.integration.conftest import Programs

pytestmark = pytest.mark.broker


def test_a_topic_of_two_expressions_is_refused_at_start_and_reported_where_it_comes_later(
    kafka: KafkaCluster, tmp_path: Path, programs: Programs
) -> None:
    name = uuid.uuid4().hex[:12]
    streams = [("shop", f"^{name}-shop-.*"), ("orders", f"^{name}-.*-orders$")]
    config = programs.config(
        {
            "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
            "stage": {"url": f"{tmp_path}/stage"},
            "writer": {"group_id": name, "flush_after": "500ms", "http": "127.0.0.1:0"},
            "logs": {"format": "json"},
            "streams": [
                {"app_id": app_id, "topics": [expression], "table": f"{tmp_path}/{app_id}", "columns": "id BIGINT"}
                for app_id, expression in streams
            ],
        }
    )
    kafka.create_topic(f"{name}-shop-cart", 1)
    both = f"{name}-shop-orders"
    writer = Service(programs.start("stage-writer", "run", config))
    writer.until(lambda: writer.get("/ready")[0] == 200, "a member of the group")
    kafka.create_topic(both, 1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for topic in (both, f"{name}-shop-cart"):
        producer.produce(topic, b'{"id": 1}', partition=0)
    assert producer.flush(30) == 0
    said = f"the streams 'shop' and 'orders' both take the topic '{both}'"
    writer.until(lambda: said in writer.get("/healthcheck")[1], "a note")
    assert writer.get("/healthcheck")[0] == 200, "a restart would end with an error, for all topics"
    (problem,) = (one for one in json.loads(writer.get("/status.json")[1])["problems"] if both in one["title"])
    assert said in problem["problem"]
    done = tmp_path / "stage" / "done"
    writer.until(lambda: any((done / f"{name}-shop-cart").rglob("*.done")), "a marker of the other topic")
    assert not (done / both).exists()

    def status() -> tuple[int, bool]:
        answer = programs.run("delta-loader", "status", config)
        return answer.returncode, said in answer.stdout

    writer.until(lambda: status() == (3, True), "a status for which Kafka answered in time")
    writer.child.stop()
    for command in (("check",), ("run", "--until-caught-up")):
        refused = programs.run("stage-writer", command[0], config, *command[1:])
        assert refused.returncode == 2
        assert said in refused.stderr
        assert "streams[].topics" in refused.stderr


@pytest.mark.spark
def test_two_configs_read_one_topic_each_for_itself_as_the_refusal_says(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, spark: SparkSession, tmp_path: Path
) -> None:
    topic = new_topic(2)
    streams: dict[str, dict[str, object]] = {
        app_id: {"app_id": app_id, "topics": [topic], "table": f"{tmp_path}/{app_id}", "columns": "id INT, v STRING"}
        for app_id in ("every", "latest")
    }
    streams["latest"] |= {"load": "merge", "merge": {"keys": ["id"]}, "start": {1: 1}}

    def config(name: str, *app_ids: str) -> Path:
        settings = {
            "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
            "stage": {"url": f"{tmp_path}/stage-{name}"},
            "writer": {"group_id": f"{topic}-{name}", "http": None},
            "loader": {"http": None, "spark": {"spark.master": "local[2]"}},
            "streams": [streams[app_id] for app_id in app_ids],
        }
        return programs.config(settings, f"{name}.yaml")

    refused = programs.run("stage-writer", "check", config("both", "every", "latest"))
    assert refused.returncode == 2
    assert "put one of them into a config with a stage.url and a writer.group_id of its own" in refused.stderr
    configs = {app_id: config(app_id, app_id) for app_id in streams}

    def stage(*values: str) -> None:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for partition in (0, 1):
            for number, value in enumerate(values):
                row = {"id": 10 * partition + number % 2, "v": value}
                producer.produce(topic, json.dumps(row), partition=partition)
        assert producer.flush(120) == 0
        for one in configs.values():
            programs.succeed("stage-writer", "run", one, "--until-caught-up")

    def load() -> None:
        for one in configs.values():
            report = in_process.load(one, spark)
            assert (report.failure, report.held) == (None, {})

    def values(app_id: str) -> list[tuple[int, str]]:
        return sorted((row["id"], row["v"]) for row in rows_of(f"{tmp_path}/{app_id}"))

    stage("a", "b", "c")
    load()
    assert values("every") == [(0, "a"), (0, "c"), (1, "b"), (10, "a"), (10, "c"), (11, "b")]
    assert values("latest") == [(0, "c"), (1, "b"), (10, "c"), (11, "b")]

    # A repair of the one stream leaves the other's chain alone.
    others = [path for path in (tmp_path / "stage-latest").rglob("*.done") if path.is_file()]
    rewind = ("--topic", topic, "--partition", "0", "--to", "0", "--below-table", "--yes")
    programs.succeed("bootstrap", "rewind", configs["every"], *rewind)
    assert [path for path in others if not path.exists()] == []
    stage("d")
    load()
    assert values("every") == [
        *((0, "a"), (0, "c"), (0, "d"), (1, "b"), (10, "a"), (10, "c"), (10, "d"), (11, "b")),
    ]
    assert values("latest") == [(0, "d"), (1, "b"), (10, "d"), (11, "b")]
    for one in configs.values():
        programs.succeed("bootstrap", "markers", "verify", one)
        findings = in_process.verify(one, spark).findings
        assert Verdict.FAULT not in {finding.verdict for finding in findings}, findings
