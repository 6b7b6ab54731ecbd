"""Two streams that read one topic, as a user runs them: each for itself, and refused where they cannot share it."""

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from delta_loader.inspect.verify.findings import Verdict
from devservices.kafka import KafkaCluster
from tests.integration import in_process
from tests.integration.conftest import Programs
from tests.integration.test_on_marker import Service
from tests.reading import rows_of
from tests.waiting import until

pytestmark = pytest.mark.broker


def test_topic_that_two_patterns_cannot_share_is_refused_at_start_and_reported_later(
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
                {"app_id": app_id, "topics": [expression], "table": f"{tmp_path}/both", "columns": "id BIGINT"}
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
    assert producer.flush(180) == 0
    message = f"the streams 'shop' and 'orders' both read the topic '{both}'"
    writer.until(lambda: message in writer.get("/healthcheck")[1], "a note")
    assert writer.get("/healthcheck")[0] == 200, "a restart would end with an error, for all topics"
    (problem,) = (
        problem for problem in json.loads(writer.get("/status.json")[1])["problems"] if both in problem["title"]
    )
    assert message in problem["problem"]
    done = tmp_path / "stage" / "done"
    writer.until(lambda: any((done / f"{name}-shop-cart").rglob("*.done")), "a marker of the other topic")
    assert not (done / both).exists()

    def status() -> tuple[int, bool]:
        answer = programs.run("delta-loader", "status", config)
        return answer.returncode, message in answer.stdout

    writer.until(lambda: status() == (3, True), "a status for which Kafka answered in time")
    writer.child.stop()
    for command in (("check",), ("run", "--until-caught-up")):
        refused = programs.run("stage-writer", command[0], config, *command[1:])
        assert refused.returncode == 2
        assert message in refused.stderr
        assert "streams[].topics" in refused.stderr


@dataclass
class Shared:
    """A topic of two partitions that two streams of one config read: one as it comes, one merged, from offset 1 on."""

    kafka: KafkaCluster
    topic: str
    programs: Programs
    spark: SparkSession
    folder: Path

    @property
    def chains(self) -> tuple[str, str]:
        return self.topic, f"{self.topic}@latest"

    def config(self, *app_ids: str) -> Path:
        streams: dict[str, dict[str, object]] = {
            app_id: {
                "app_id": app_id,
                "topics": [self.topic],
                "table": self.table(app_id),
                "columns": "id INT, v STRING",
            }
            for app_id in ("every", "latest")
        }
        streams["latest"] |= {"load": "merge", "merge": {"keys": ["id"]}, "start": {self.topic: {1: 1}}}
        settings = {
            "kafka": {"bootstrap.servers": self.kafka.bootstrap_servers},
            "stage": {"url": f"{self.folder}/stage"},
            "writer": {"group_id": self.topic, "http": None, "flush_after": "300ms"},
            "loader": {"http": None, "spark": {"spark.master": "local[2]"}},
            "streams": [streams[app_id] for app_id in app_ids],
        }
        return self.programs.config(settings, f"{'-'.join(app_ids)}.yaml")

    def table(self, app_id: str) -> str:
        return f"{self.folder}/{app_id}"

    def produce(self, *values: str) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers})
        for partition in (0, 1):
            for number, value in enumerate(values):
                row = {"id": 10 * partition + number % 2, "v": value}
                producer.produce(self.topic, json.dumps(row), partition=partition)
        assert producer.flush(120) == 0

    def ends(self, chain: str) -> list[int]:
        paths = [sorted((self.folder / "stage" / "done" / chain / number).glob("*.done")) for number in "01"]
        return [json.loads(markers[-1].read_text())["end"] if markers else 0 for markers in paths]

    def load(self, config: Path) -> None:
        for report in in_process.load_all(config, self.spark):
            assert (report.failure, report.held) == (None, {})

    def values(self, app_id: str) -> list[tuple[int, str]]:
        rows = rows_of(self.table(app_id))
        assert {row["_kafka_topic"] for row in rows} == {self.topic}
        return sorted((row["id"], row["v"]) for row in rows)

    def require_proved(self, config: Path) -> None:
        """What the commands say of both streams, and of each of their chains."""
        for app_id in ("every", "latest"):
            findings = in_process.verify(config, self.spark, app_id).findings
            assert Verdict.FAULT not in {finding.verdict for finding in findings}, findings
        self.programs.succeed("bootstrap", "markers", "verify", config)

        def lag() -> dict[tuple[str, int], int | None]:
            status = json.loads(self.programs.succeed("delta-loader", "status", config, "--json"))
            partitions = [partition for stream in status["streams"] for partition in stream["partitions"]]
            return {(partition["topic"], partition["partition"]): partition["lag"] for partition in partitions}

        loaded = {(chain, partition): 0 for chain in self.chains for partition in (0, 1)}
        until(lambda: lag() == loaded, "a status for which Kafka answered in time")
        for chain, app_id in zip(self.chains, ("every", "latest"), strict=True):
            where = ("--topic", chain, "--partition", "1", "--offset", "4", "--json")
            story = json.loads(self.programs.succeed("delta-loader", "explain", config, *where))
            assert story["table"] == self.table(app_id)


@pytest.mark.spark
def test_two_streams_of_one_config_read_one_topic_each_for_itself(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, spark: SparkSession, tmp_path: Path
) -> None:
    shared = Shared(kafka, new_topic(2), programs, spark, tmp_path)
    own, other = shared.chains
    alone, both = shared.config("every"), shared.config("latest", "every")

    # One stream reads the topic for a while. Then another one comes, and stands first in the config.
    shared.produce("a", "b", "c")
    programs.succeed("stage-writer", "run", alone, "--until-caught-up")
    shared.load(alone)
    programs.succeed("stage-writer", "check", both)
    assert not (tmp_path / "stage" / "shared").exists()
    programs.succeed("stage-writer", "run", both, "--until-caught-up")
    assert shared.ends(own) == shared.ends(other) == [3, 3]
    shared.load(both)
    assert shared.values("every") == [(0, "a"), (0, "c"), (1, "b"), (10, "a"), (10, "c"), (11, "b")]
    assert shared.values("latest") == [(0, "c"), (1, "b"), (10, "c"), (11, "b")]

    # Two writers have the partitions, of a config with the streams in the other order. One stream is paused.
    swapped = shared.config("every", "latest")
    programs.succeed("stage-writer", "pause", swapped, "--stream", "latest", "--reason", "a test")
    writers = [programs.start("stage-writer", "run", swapped) for _ in range(2)]
    shared.produce("d")
    writers[0].wait_until(lambda: shared.ends(own) == [4, 4], "the other stream's markers", 600)
    assert shared.ends(other) == [3, 3]
    programs.succeed("stage-writer", "resume", swapped, "--stream", "latest")
    shared.produce("e")
    writers[0].wait_until(lambda: shared.ends(own) == shared.ends(other) == [5, 5], "all markers", 600)
    for writer in writers:
        writer.stop()
    shared.load(swapped)
    assert shared.values("latest") == [(0, "e"), (1, "b"), (10, "e"), (11, "b")]

    # A repair of the one stream leaves the other's chain alone.
    others = [path for path in (tmp_path / "stage" / "done" / own).rglob("*.done") if path.is_file()]
    rewind = ("--topic", other, "--partition", "0", "--to", "0", "--below-table", "--yes")
    programs.succeed("bootstrap", "rewind", both, *rewind)
    assert [path for path in others if not path.exists()] == []
    shared.produce("f")
    programs.succeed("stage-writer", "run", both, "--until-caught-up")
    shared.load(both)
    values = [*enumerate("abc"), (0, "d"), (0, "e"), (0, "f")]
    assert shared.values("every") == sorted((10 * copy + number % 2, v) for copy in (0, 1) for number, v in values)
    assert shared.values("latest") == [(0, "f"), (1, "b"), (10, "f"), (11, "b")]
    assert json.loads((tmp_path / "stage" / "shared" / f"{shared.topic}.json").read_text())["owner"] == "every"
    shared.require_proved(both)
