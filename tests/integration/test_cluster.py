"""The loader on a real cluster of two workers: what is Spark's work is done by the workers, in one commit as always."""

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from devservices.spark_cluster import running_cluster
from tests.fakes.staging import DECLARED, OneOfMany
from tests.integration.conftest import Programs

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

DAYS = [f"2026-01-{day:02}" for day in range(1, 21)]


def events(folder: Path) -> list[dict[str, object]]:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith((".", "appstatus"))]
    return [json.loads(line) for path in files for line in path.read_text("utf-8").splitlines()]


def places(staging: OneOfMany) -> list[tuple[int, int]]:
    rows = DeltaTable(staging.table).to_pyarrow_table(columns=["_kafka_partition", "_kafka_offset"]).to_pylist()
    return sorted((row["_kafka_partition"], row["_kafka_offset"]) for row in rows)


def test_mixed_files_and_appends_run_on_the_workers(tmp_path: Path, programs: Programs) -> None:
    mixed, appended = (OneOfMany.below(tmp_path / topic, topic) for topic in ("mixed", "appended"))
    mixed.flush(0, 0, 100, days=DAYS, mixed=True)
    for partition in range(4):
        appended.flush(partition, 0, 50)
    log = tmp_path / "events"
    log.mkdir()
    with running_cluster(tmp_path) as master:
        spark = {
            "spark.master": master,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.eventLog.enabled": True,
            "spark.eventLog.dir": log.as_uri(),
            "spark.eventLog.compress": False,
        }
        config = programs.config(
            {
                "kafka": {"bootstrap.servers": "127.0.0.1:1"},
                "stage": {"url": mixed.stage_url},
                "loader": {"http": None, "spark": spark},
                "streams": [
                    {
                        "app_id": staging_of.topic,
                        "topics": [staging_of.topic],
                        "table": staging_of.table,
                        "load": load,
                        **DECLARED,
                    }
                    for staging_of, load in ((mixed, "auto"), (appended, "append"))
                ],
            }
        )
        programs.succeed("delta-loader", "run", config, "--once")

    assert places(mixed) == [(0, offset) for offset in range(100)]
    assert places(appended) == [(partition, offset) for partition in range(4) for offset in range(50)]
    events_logged = events(log)
    assert len({event["Executor ID"] for event in events_logged if event["Event"] == "SparkListenerExecutorAdded"}) == 2
    tasks = [event["Task Info"] for event in events_logged if event["Event"] == "SparkListenerTaskEnd"]
    hosts = {task["Executor ID"] for task in tasks if isinstance(task, dict)}
    assert hosts
    assert "driver" not in hosts
