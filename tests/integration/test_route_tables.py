"""One topic to tables of several shapes, and records to several of them, by real programs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from common.storage.store import FsspecStore
from delta_loader.inspect.verify.findings import Verdict
from devservices.kafka import KafkaCluster
from tests.builders import pipeline_config
from tests.conftest import Lake
from tests.integration import in_process
from tests.integration.conftest import Programs
from tests.producing import produce
from tests.reading import rows_of, select

pytestmark = [pytest.mark.broker, pytest.mark.spark]

RECORDS: list[object] = [
    {"kinds": ["click"], "id": "a", "url": "/shop", "sent": "2026-03-01T00:00:00Z"},
    {"kinds": ["other"], "id": 7},
    {"kinds": ["view", "click"], "id": "b", "page": {"name": "p"}, "sent": "2026-03-02T00:00:00Z"},
    {"kinds": ["click"], "id": 8},
    {"kinds": ["view", "other"], "id": 9, "page": {"name": "q"}},
]


def test_tables_of_several_shapes_each_get_their_records_once(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, spark: SparkSession, tmp_path: Path
) -> None:
    topic = new_topic(1)
    click = {
        "table": f"{tmp_path}/clicks",
        "columns": "id STRING, url STRING, sent STRING",
        "derive": {"day": "substr(sent, 1, 10)"},
        "partition_by": ["day"],
        "drop": ["sent"],
        "load": "append",
    }
    stream: dict[str, Any] = {
        "app_id": "events",
        "topics": [topic],
        "table": f"{tmp_path}/events",
        "columns": "kinds ARRAY<STRING>, id BIGINT",
        "route": "kinds",
        "routes": {"click": click, "view": {"table": f"{tmp_path}/views", "columns": "page STRUCT<name: STRING>"}},
    }
    settings: dict[str, object] = pipeline_config(kafka.bootstrap_servers, tmp_path, stream)
    config = programs.config(settings)
    produce(kafka.bootstrap_servers, topic, *map(json.dumps, RECORDS), partition=0)
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    assert in_process.load(config, spark).failure is None

    def rows(name: str, *columns: str) -> list[tuple[object, ...]]:
        query = f"SELECT _kafka_offset, {', '.join(columns)} FROM t ORDER BY 1"  # noqa: S608 - of a test
        rows = select(query, f"{tmp_path}/{name}")
        return [tuple(row.values()) for row in rows]

    assert rows("events", "id") == [(1, 7), (4, 9)]
    assert rows("clicks", "id", "url", "day") == [(0, "a", "/shop", "2026-03-01"), (2, "b", None, "2026-03-02")]
    assert rows("views", "page['name']") == [(2, "p"), (4, "q")]
    assert rows("events_dead_letters", "error_class") == [(3, "wrong_type")]
    report = in_process.verify(config, spark)
    assert report.failure is None
    assert {finding.verdict for finding in report.findings} <= {Verdict.PROVED, Verdict.NOTED}
    assert all(partition.proved for partition in report.partitions)

    # A table refuses a record that another one has by then: a dead letter, which is not taken for a loss.
    spark.sql(f"ALTER TABLE delta.`{tmp_path}/views` ADD CONSTRAINT named CHECK (page.name <> 'bad')")
    refused = {"kinds": ["click", "view", "other"], "id": "z", "page": {"name": "bad"}}
    routes = {**stream["routes"], "other": {"table": f"{tmp_path}/others", "columns": "id STRING"}}
    config = programs.config({**settings, "streams": [{**stream, "routes": routes}]})
    sent = (refused, {"kinds": ["view"], "page": {"name": "s"}})
    produce(kafka.bootstrap_servers, topic, *map(json.dumps, sent), partition=0)
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    assert in_process.load(config, spark).failure is None
    assert [offset for offset, _ in rows("clicks", "id")] == [0, 2, 5], "it was loaded before"
    assert rows("others", "id") == []
    assert rows("views", "page['name']") == [(2, "p"), (4, "q"), (6, "s")]
    assert rows("events_dead_letters", "error_class") == [(3, "wrong_type"), (5, "refused_by_table")]
    report = in_process.verify(config, spark)
    assert not [finding for finding in report.findings if finding.verdict is Verdict.FAULT], report.findings
    assert "row_and_dead_letter" in {finding.kind for finding in report.findings}

    # A route is taken out while records are staged for its table: nothing is passed over until it is back.
    produce(kafka.bootstrap_servers, topic, json.dumps({"kinds": ["view"], "page": {"name": "r"}}), partition=0)
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    without = programs.config({**settings, "streams": [{**stream, "routes": {"click": click}}]})
    (held,) = in_process.load(without, spark).held.values()
    assert held.reason == "unreadable_marker"
    assert f"if {tmp_path}/views was removed from the stream" in held.remedy
    config = programs.config(settings)
    assert in_process.load(config, spark).failure is None
    assert rows("views", "page['name']")[-1] == (7, "r")


@pytest.mark.s3
@pytest.mark.parametrize("lake", ["file", pytest.param("moto", marks=pytest.mark.nightly)], indirect=True)
def test_tables_appear_with_the_values_of_route(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, spark: SparkSession, lake: Lake
) -> None:
    topic = new_topic(1)
    stream = {
        "app_id": "events",
        "topics": [topic],
        "table": f"{lake.url}/all/events",
        "columns": "kind STRING, id BIGINT",
        "route": "kind",
        "route_table": f"{lake.url}/tables/{{route}}",
        "route_limit": 3,
    }
    config = programs.config(pipeline_config(kafka.bootstrap_servers, lake, stream))

    def stage(*kinds: str | None) -> None:
        values = (json.dumps({"kind": kind, "id": number}) for number, kind in enumerate(kinds))
        produce(kafka.bootstrap_servers, topic, *values, partition=0)
        programs.succeed("stage-writer", "run", config, "--until-caught-up")
        assert in_process.load(config, spark).failure is None

    def ids(name: str) -> list[int]:
        return sorted(row["id"] for row in rows_of(f"{lake.url}/{name}", lake.storage_options))

    stage("click", "view", None, "../up", "click")
    stage("view", "late", "page", "click", "page")
    assert (ids("tables/click"), ids("tables/view"), ids("tables/late")) == ([0, 3, 4], [0, 1], [1])
    assert ids("all/events") == [2]
    assert not list(FsspecStore(f"{lake.url}/tables", lake.storage_options).list("page"))
    letters = rows_of(f"{lake.url}/all/events_dead_letters", lake.storage_options)
    assert [row["error_class"] for row in letters] == ["unrouted"] * 3
    report = in_process.verify(config, spark)
    assert {finding.verdict for finding in report.findings} <= {Verdict.PROVED, Verdict.NOTED}, report.findings
    assert set(report.routed) == {f"{lake.url}/tables/{route}" for route in ("click", "view", "late")}
    status = json.loads(programs.succeed("delta-loader", "status", config, "--json"))
    (shown,) = status["streams"]
    assert shown["appeared"] == ["click", "view", "late"]
    page = programs.succeed("delta-loader", "explain", config, "--topic", topic, "--partition", "0", "--offset", "0")
    assert f"{lake.url}/tables/click" in page
    checked = programs.run("stage-writer", "check", config).stdout
    assert "3 of the newest 10 records would be dead letters" in checked, checked
