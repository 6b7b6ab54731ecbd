"""Columns that nobody wrote down: from the first records, then from the table, by the commands, a loader and Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from common.errors import ExitCode
from tests.integration import in_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from devservices.kafka import KafkaCluster
    from tests.integration.conftest import Programs

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def test_columns_come_from_the_records_and_then_from_the_table(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, spark: SparkSession, tmp_path: Path
) -> None:
    topic, table = new_topic(2), f"{tmp_path}/orders"
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    def config(**stream: object) -> Path:
        usual = {"app_id": "orders", "topics": [topic], "table": table, "kafka_columns": False}
        return programs.config(
            {
                "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
                "stage": {"url": f"{tmp_path}/stage"},
                "writer": {"group_id": topic, "http": None},
                "loader": {"http": None},
                "streams": [{**usual, **stream}],
            }
        )

    def staged(written: Path, *values: str, writers: int = 1) -> None:
        for number, value in enumerate(values):
            producer.produce(topic, value, partition=number % 2)
        assert producer.flush(30) == 0
        started = [programs.start("stage-writer", "run", written, "--until-caught-up") for _ in range(writers)]
        assert [writer.process.wait(180) for writer in started] == [0] * writers

    def load(written: Path) -> None:
        report = in_process.load(written, spark)
        assert (report.failure, report.held) == (None, {})

    missing = programs.run("stage-writer", "check", config(columns="from_table"))
    assert missing.returncode == ExitCode.USAGE
    assert f"columns is from_table, and there is no Delta table at {table}" in missing.stderr
    staged(config())  # an empty topic is no reason to fail

    inferring = config()
    staged(inferring, '{"id": 1, "at": "2026-03-01T00:00:00Z"}', '{"id": 2, "price": 1.5}', writers=2)
    columns = "id BIGINT, at TIMESTAMP, price DOUBLE"
    assert f"orders: from_records: {columns}" in programs.succeed("stage-writer", "check", inferring)
    load(inferring)
    staged(inferring, '{"id": 3, "late": true}')
    load(inferring)
    assert f"orders: from_records: {columns}" in programs.succeed("delta-loader", "check", inferring)

    following = config(columns="from_table", unknown_fields="rescue")
    staged(following, '{"id": 4, "late": false, "new": 1}')
    load(following)
    spark.sql(f"ALTER TABLE delta.`{table}` ADD COLUMNS (new DECIMAL(9, 2))")
    assert "from_table: id BIGINT, at TIMESTAMP, price DOUBLE, late BOOLEAN, new DECIMAL(9,2)" in programs.succeed(
        "stage-writer", "check", following
    )
    staged(following, '{"id": 5, "new": 1.25}')
    load(following)

    rows = spark.read.format("delta").load(table).orderBy("id").selectExpr("to_json(struct(*))").collect()
    assert [row[0] for row in rows] == [
        '{"id":1,"at":"2026-03-01T00:00:00.000Z"}',
        '{"id":2,"price":1.5}',
        '{"id":3,"_rescued":"{\\"late\\":true}"}',
        '{"id":4,"_rescued":"{\\"new\\":1}","late":false}',
        '{"id":5,"new":1.25}',
    ]
