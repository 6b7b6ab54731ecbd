"""Two streams whose regular expressions take one topic, as a user runs them."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from tests.integration.test_on_marker import Service

if TYPE_CHECKING:
    from pathlib import Path

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
