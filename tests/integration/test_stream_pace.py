"""Streams of one config with a pace, a compression and a pause of their own, through the commands."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable, Schema
from pyspark.sql import SparkSession

from common.storage.store import FsspecStore
from devservices.kafka import KafkaCluster
from tests.integration import in_process
from tests.integration.conftest import Programs

pytestmark = [pytest.mark.broker, pytest.mark.spark]
FAST, SLOW = "alerts", "audit"
COLUMNS = pa.schema(
    {
        "id": pa.int32(),
        "_kafka_topic": pa.string(),
        "_kafka_partition": pa.int32(),
        "_kafka_offset": pa.int64(),
        "_kafka_timestamp": pa.timestamp("us", "UTC"),
    }
)
Header = tuple[str, bytes | None]
HEADERS: list[list[Header] | None] = [None, [], [("a", b"1"), ("a", None), ("é", b"")], [("b", b"\xff")]]


class Streams:
    """Two streams, one whose files are added, and one that Spark writes."""

    def __init__(self, kafka: KafkaCluster, topics: Sequence[str], folder: Path, programs: Programs) -> None:
        self.servers, self.topics, self.folder, self.programs = kafka.bootstrap_servers, topics, folder, programs
        self.config = self.write()

    def write(self, **more: object) -> Path:
        tables = {name: f"{self.folder}/{name}" for name in (FAST, SLOW)}
        common = {"columns": "id INT"}
        fast = {"app_id": FAST, "topics": [self.topics[0]], "table": tables[FAST], "include": ["key", "headers"]}
        slow = {"app_id": SLOW, "topics": [self.topics[1]], "table": tables[SLOW], "load": "append", **more}
        return self.programs.config(
            {
                "kafka": {"bootstrap.servers": self.servers},
                "stage": {"url": f"{self.folder}/stage"},
                "writer": {"group_id": self.topics[0], "http": None},
                "loader": {"http": None, "lease": "0s", "spark": {"spark.master": "local[1]"}},
                "logs": {"format": "json"},
                "streams": [{**common, **fast, "flush_after": "1s", "compression": "zstd"}, {**common, **slow}],
            }
        )

    def produce(self, topic: str, first: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for number, headers in enumerate(HEADERS, first):
            more = {} if headers is None else {"headers": headers}
            key = b"key %d" % number if number % 2 else None
            producer.produce(topic, b'{"id": %d}' % number, key, partition=0, **more)
        assert producer.flush(180) == 0

    def markers(self, topic: str) -> int:
        return len(list(FsspecStore(f"{self.folder}/stage").list(f"done/{topic}/")))

    def rows(self, name: str, *columns: str) -> list[dict[str, object]]:
        rows = DeltaTable(f"{self.folder}/{name}").to_pyarrow_table(columns=["id", *columns]).to_pylist()
        return sorted(rows, key=lambda row: row["id"])

    def stage(self, code: int = 0) -> str:
        done = self.programs.run("stage-writer", "run", self.config, "--until-caught-up")
        assert done.returncode == code, done.stderr
        return done.stderr


def expected(first: int = 0) -> list[dict[str, object]]:
    return [
        {
            "id": number,
            "_kafka_key": b"key %d" % number if number % 2 else None,
            "_kafka_headers": [{"key": key, "value": value} for key, value in headers] if headers else None,
        }
        for number, headers in enumerate(HEADERS, first)
    ]


def test_one_config_serves_streams_of_different_paces_of_which_one_is_paused(
    kafka: KafkaCluster, new_topic: Callable[..., str], tmp_path: Path, programs: Programs, spark: SparkSession
) -> None:
    topics = [new_topic(1), new_topic(1)]
    streams = Streams(kafka, topics, tmp_path, programs)
    for topic in topics:
        streams.produce(topic)
    wanted = {"delta.parquet.compression.codec": "ZSTD"}
    DeltaTable.create(
        f"{tmp_path}/{SLOW}", Schema.from_arrow(COLUMNS), configuration=wanted, raise_if_key_not_exists=False
    )

    programs.succeed("stage-writer", "pause", streams.config, "--stream", SLOW, "--reason", "a test")
    assert "staging is paused since" in streams.stage(code=3)
    assert (streams.markers(topics[0]) > 0, streams.markers(topics[1])) == (True, 0)
    programs.succeed("stage-writer", "resume", streams.config, "--stream", SLOW)
    streams.stage()
    assert streams.markers(topics[1]) == 1

    programs.succeed("delta-loader", "pause", streams.config, "--stream", SLOW)
    done = programs.run("delta-loader", "run", streams.config, "--once")
    assert (done.returncode, f"{SLOW}: loading is paused since" in done.stderr) == (3, True), done.stdout + done.stderr
    assert streams.rows(FAST, "_kafka_key", "_kafka_headers") == expected()
    files = DeltaTable(f"{tmp_path}/{FAST}").file_uris()
    assert {file_name.rpartition("-")[2].partition(".")[2] for file_name in files} == {"zstd.parquet"}
    assert DeltaTable(f"{tmp_path}/{SLOW}").version() == 0
    status = json.loads(programs.succeed("delta-loader", "status", streams.config, "--json", code=3))
    assert [list(stream["paused"]) for stream in status["streams"]] == [[], ["loading"]]

    programs.succeed("delta-loader", "resume", streams.config, "--stream", SLOW)
    streams.config = streams.write(include=["headers"], evolution="add")
    streams.produce(topics[1], 10)
    streams.stage()
    assert [report.failure for report in in_process.load_all(streams.config, spark)] == [None, None]
    files = DeltaTable(f"{tmp_path}/{SLOW}").file_uris()
    assert {file_name.endswith(".zstd.parquet") for file_name in files} == {True}, "as the table's property says"
    without = [{**row, "_kafka_headers": None} for row in expected()]
    assert streams.rows(SLOW, "_kafka_headers") == [
        {name: row[name] for name in ("id", "_kafka_headers")} for row in [*without, *expected(10)]
    ]
