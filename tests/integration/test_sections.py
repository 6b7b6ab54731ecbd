"""Sections of `routes` that gain columns and are merged by keys of their own, by programs of which one is killed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from delta_loader.inspect.verify.findings import Verdict
from devservices.kafka import KafkaCluster
from tests.integration import in_process
from tests.integration.conftest import Programs
from tests.reading import rows_of

pytestmark = [pytest.mark.broker, pytest.mark.spark]

ADDED, MERGED = "added", "merged"


def streams(folder: Path, topics: dict[str, str], **edits: object) -> list[dict[str, object]]:
    """One whose rows are added, and one whose rows are merged."""
    made: list[dict[str, object]] = []
    for app_id, topic in topics.items():
        click = {"table": f"{folder}/{app_id}/clicks", "columns": "id STRING, url STRING"}
        view = {"table": f"{folder}/{app_id}/views", "columns": "page STRING, user STRING"}
        stream: dict[str, object] = {
            "app_id": app_id,
            "topics": [topic],
            "table": f"{folder}/{app_id}/events",
            "columns": "id BIGINT, kind STRING",
            "route": "substr(kafka.key_text, 1, 1)",
            "routes": {"c": click, "v": view},
            "unknown_fields": "evolve",
            **edits,
        }
        if app_id == MERGED:
            keys = {"keys": ["id"], "route_keys": {"v": ["page", "user"]}, "tombstones": "ignore"}
            operation = {"operation": "kafka.key_text[2:2]", "deletes": ["-"]}
            stream |= {"load": "merge", "merge": {**keys, **operation}}
        made.append(stream)
    return made


def stream_of_canal(folder: Path, topic: str) -> dict[str, object]:
    """Events of several rows, some of which `where` leaves out, to tables without the columns that it sees."""
    routes = {f"shop.{name}": {"table": f"{folder}/{name}", "columns": f"{name} STRING"} for name in ("a", "b")}
    return {
        "app_id": "canal",
        "topics": [topic],
        "table": f"{folder}/others",
        "columns": "id BIGINT",
        "envelope": "canal",
        "where": "id > 1 AND _cdc.op <> 'DELETE'",
        "route": "_cdc.source",
        "routes": routes,
    }


def stream_of_changes(folder: Path, topic: str) -> dict[str, object]:
    """The same, merged: `where` leaves out rows, old ones that an update deletes among them."""
    routes = {f"shop.{name}": {"table": f"{folder}/{name}", "columns": f"id INT, {name} STRING"} for name in ("a", "b")}
    merge = {"load": "merge", "merge": {"keys": ["id"], "tombstones": "ignore"}}
    where = "v > 1 AND id < 100"
    stream = stream_of_canal(folder, topic)
    return {**stream, "app_id": "changes", "columns": "id BIGINT, v INT", "where": where, "routes": routes, **merge}


class Pipeline:
    """The programs, a topic for each stream, and the tables."""

    def __init__(
        self, kafka: KafkaCluster, topics: dict[str, str], programs: Programs, spark: SparkSession, folder: Path
    ) -> None:
        self.topics = topics
        self._programs = programs
        self._spark = spark
        self._folder = folder
        self._settings: dict[str, object] = {
            "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
            "stage": {"url": f"{folder}/stage"},
            "writer": {"group_id": topics[ADDED], "http": None},
            "loader": {"http": None, "spark": {"spark.master": "local[2]"}},
        }
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        self.edit()

    def edit(self, **edits: object) -> None:
        self.config = self._programs.config({**self._settings, "streams": streams(self._folder, self.topics, **edits)})

    def next(self, app_id: str, stream: dict[str, object]) -> None:
        """Continue with another stream alone."""
        self.topics = {app_id: str(stream["topics"][0])}  # type: ignore[index] # a list
        self.config = self._programs.config({**self._settings, "streams": [stream]})

    def send(self, *records: tuple[str, dict[str, object]]) -> None:
        for topic in self.topics.values():
            for key, record in records:
                self._producer.produce(topic, json.dumps(record), key, partition=0)
        assert self._producer.flush(120) == 0

    def killed(self) -> None:
        """A writer that dies when the files of its second flush are there, and their marker is not."""
        self._programs.writer_dies(self.config, flushes=1)

    def stage(self) -> None:
        self._programs.succeed("stage-writer", "run", self.config, "--until-caught-up")

    def load(self) -> None:
        for report in in_process.load_all(self.config, self._spark):
            assert (report.failure, report.held) == (None, {})

    def rows(self, app_id: str, table: str, *columns: str) -> list[tuple[object, ...]]:
        rows = rows_of(f"{self._folder}/{app_id}/{table}")
        return sorted((tuple(value_at(row, column) for column in columns) for row in rows), key=repr)

    def gained(self) -> dict[str, set[str]]:
        shown = json.loads(self._programs.succeed("delta-loader", "status", self.config, "--json"))["streams"]
        return {stream["app_id"]: {gained["column"] for gained in stream["gained"]} for stream in shown}


def value_at(row: dict[str, Any], column: str) -> object:
    """A column's value, or that of a field in it: ``a.b``."""
    name, _, field = column.partition(".")
    return value_at(row[name], field) if field and row[name] is not None else row[name]


def test_sections_gain_columns_and_are_merged_by_keys_of_their_own(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = Pipeline(kafka, {ADDED: new_topic(1), MERGED: new_topic(1)}, programs, spark, tmp_path)
    pipeline.send(
        ("c", {"id": "a", "url": "/"}),
        ("v", {"page": "p", "user": "u", "ms": 1}),
        ("o", {"id": 1, "kind": "other"}),
        ("c", {"id": "b", "ms": "text"}),
    )
    pipeline.killed()
    pipeline.stage()
    pipeline.load()
    for app_id in pipeline.topics:
        assert pipeline.rows(app_id, "events", "id", "kind") == [(1, "other")]
        assert pipeline.rows(app_id, "clicks", "id", "url", "ms") == [("a", "/", None), ("b", None, "text")]
        assert pipeline.rows(app_id, "views", "page", "user", "ms") == [("p", "u", 1)]

    pipeline.send(
        ("v", {"page": "p", "user": "u", "ms": 2}),
        ("v", {"page": "p", "user": "w", "of": {"x": 1.5}}),
        ("c-", {"id": "a"}),
        ("o", {"id": 2, "ms": True}),
        ("c", {"id": 3}),
    )
    pipeline.killed()
    pipeline.stage()
    pipeline.load()
    new = ("p", "w", None, 1.5)
    assert pipeline.rows(ADDED, "views", "page", "user", "ms", "of.x") == [
        ("p", "u", 1, None),
        ("p", "u", 2, None),
        new,
    ]
    assert pipeline.rows(MERGED, "views", "page", "user", "ms", "of.x") == [("p", "u", 2, None), new]
    assert pipeline.rows(ADDED, "clicks", "id", "url", "ms") == [
        ("a", "/", None),
        ("a", None, None),
        ("b", None, "text"),
    ]
    assert pipeline.rows(MERGED, "clicks", "id", "url", "ms") == [("b", None, "text")]
    for app_id, gained in pipeline.gained().items():
        assert pipeline.rows(app_id, "events", "id", "kind", "ms") == [(1, "other", None), (2, None, True)]
        assert pipeline.rows(app_id, "events_dead_letters", "error_class") == [("wrong_type",)]
        own = f"`{tmp_path}/{app_id}/events` STRUCT<ms: BOOLEAN>"
        assert {"c STRUCT<ms: STRING>", "v STRUCT<ms: BIGINT>", own} <= gained

    # Evolving ends while files of the former config are staged.
    pipeline.send(("c", {"id": "d", "late": 1}), ("v", {"page": "q", "user": "u", "ms": 3}))
    pipeline.stage()
    pipeline.load()
    pipeline.edit(unknown_fields="rescue")
    pipeline.send(("c", {"id": "e", "ms": "more"}))
    pipeline.stage()
    pipeline.load()
    for app_id in pipeline.topics:
        clicks = pipeline.rows(app_id, "clicks", "id", "late", "_rescued")
        assert {("d", 1, None), ("e", None, '{"ms":"more"}')} <= {*clicks}
        assert ("q", 3) in pipeline.rows(app_id, "views", "page", "ms")
        report = in_process.verify(pipeline.config, spark, app_id)
        assert report.failure is None
        assert not [finding for finding in report.findings if finding.verdict is Verdict.FAULT], report.findings

    # Of a message with several rows, tables get those that the stream's columns let through.
    pipeline.next("canal", stream_of_canal(tmp_path / "canal", new_topic(1)))
    about = {"database": "shop", "isDdl": False, "es": 1, "ts": 1, "old": None}
    for table, kind, *numbers in (("a", "INSERT", 1, 2, 3), ("b", "INSERT", 0), ("b", "DELETE", 2), ("b", "INSERT", 4)):
        data = [{"id": str(number), str(table): f"{table}{number}"} for number in numbers]
        pipeline.send(("", {**about, "table": table, "type": kind, "data": data}))
    pipeline.stage()
    pipeline.load()
    assert pipeline.rows("canal", "a", "_kafka_offset", "a") == [(0, "a2"), (0, "a3")]
    assert pipeline.rows("canal", "b", "_kafka_offset", "b") == [(3, "b4")]
    report = in_process.verify(pipeline.config, spark, "canal")
    assert (report.failure, report.is_clean) == (None, True)
    require_moved_rows(pipeline, tmp_path / "changes", new_topic(1))
    report = in_process.verify(pipeline.config, spark, "changes")
    assert (report.failure, report.is_clean) == (None, True)


def require_moved_rows(pipeline: Pipeline, folder: Path, topic: str) -> None:
    """Where such events are merged, a row that leaves a table by its key is deleted there."""
    pipeline.next("changes", stream_of_changes(folder, topic))
    before = [(1, 5), (2, 0), (3, 5), (4, 5)], None
    after = [(5, 6), (300, 6), (4, 6)], [{"id": "1"}, {"id": "3"}, {"v": "5"}]
    for kind, (images, old) in (("INSERT", before), ("UPDATE", after)):
        for table in ("a", "b"):
            data = [{"id": str(number), "v": str(v), table: f"{table}{v}"} for number, v in images]
            event = {"database": "shop", "isDdl": False, "es": 1, "ts": 1, "table": table, "type": kind}
            pipeline.send(("", {**event, "data": data, "old": old}))
        pipeline.stage()
        pipeline.load()
    for table in ("a", "b"):
        assert pipeline.rows("changes", table, "id", table) == [(4, f"{table}6"), (5, f"{table}6")]
