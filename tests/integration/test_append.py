"""Tables that ask something of each row: Delta's own writer gives it to them, in the commit that moves positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from common.ports import SystemClock
from common.table_history import read_history, store_lines
from delta_loader.shell.delta import SparkDeltaTables
from tests.fakes.loading import loader_for
from tests.fakes.staging import Staging
from tests.verifier import spark_reader

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ORDERS = "id BIGINT, name STRING, _kafka_topic STRING, _kafka_partition INT, _kafka_offset BIGINT, day STRING"


def create(spark: SparkSession, staging: Staging, columns: str, more: str = "") -> None:
    spark.sql(f"CREATE TABLE delta.`{staging.table}` ({columns}) USING delta {more}")


def load(staging: Staging, spark: SparkSession) -> None:
    tables = SparkDeltaTables(spark, SystemClock(), staging.stage_url)
    (report,) = loader_for(staging, tables).run_pass()
    assert report.failure is None
    assert not report.held


def offsets(rows: Sequence[dict[str, object]]) -> list[tuple[int, int]]:
    return sorted((int(str(row["_kafka_partition"])), int(str(row["_kafka_offset"]))) for row in rows)


def versions(staging: Staging) -> list[str]:
    """The operations in the table's log, the newest first."""
    store = staging.store(staging.table)
    newest = sum(found.path.endswith(".json") for found in store.list("_delta_log")) - 1
    return [commit.operation for commit in read_history(newest, store_lines(store))]


def test_generated_identity_and_default_columns_are_made_and_the_partitioning_is_the_tables(
    tmp_path: Path, spark: SparkSession
) -> None:
    staging = Staging.below(tmp_path)
    made = (
        "number BIGINT GENERATED ALWAYS AS IDENTITY (START WITH 10 INCREMENT BY 5), "
        "month STRING GENERATED ALWAYS AS (substr(day, 1, 7)), "
        "colour STRING DEFAULT 'blue'"
    )
    properties = "TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')"
    create(spark, staging, f"{ORDERS}, {made}", f"PARTITIONED BY (month) {properties}")
    staging.flush(0, 0, 20, days=["2026-01-01", "2026-02-01"])
    staging.flush(1, 0, 10, days=["2026-02-03"], mixed=True)
    load(staging, spark)
    staging.flush(0, 20, 30, days=["2026-02-01", None])
    load(staging, spark)

    rows = spark_reader(spark)(staging.table)
    assert offsets(rows) == sorted([*((0, offset) for offset in range(30)), *((1, offset) for offset in range(10))])
    numbers = [int(str(row["number"])) for row in rows]
    assert len(set(numbers)) == 40
    assert all(number >= 10 and (number - 10) % 5 == 0 for number in numbers)
    first = {
        int(str(row["number"])) for row in rows if row["_kafka_partition"] == 1 or int(str(row["_kafka_offset"])) < 20
    }
    assert max(first) < min(set(numbers) - first), "the high-water mark moved with the first commit"
    for row in rows:
        assert row["month"] == (None if row["day"] is None else str(row["day"])[:7])
        assert row["colour"] == "blue"
        assert row["id"] == int(str(row["_kafka_offset"])) * 10
    assert versions(staging) == ["STREAMING UPDATE", "STREAMING UPDATE", "CREATE TABLE"]
    table = DeltaTable(staging.table)
    assert table.to_pyarrow_dataset().count_rows() == 40
    months = {
        str(path).split("/")[0] for path in table.file_uris() for path in [path.removeprefix(staging.table + "/")]
    }
    assert len(months) == 3


@pytest.mark.parametrize("mode", ["name", "id"])
def test_column_mapping(tmp_path: Path, spark: SparkSession, mode: str) -> None:
    staging = Staging.below(tmp_path)
    create(
        spark,
        staging,
        ORDERS.replace("name STRING", "label STRING"),
        f"PARTITIONED BY (day) TBLPROPERTIES ('delta.columnMapping.mode' = '{mode}')",
    )
    spark.sql(f"ALTER TABLE delta.`{staging.table}` RENAME COLUMN label TO name")
    staging.flush(0, 0, 10, days=["2026-01-01", None])
    staging.flush(1, 0, 10, mixed=True)
    load(staging, spark)
    expected = sorted([*((0, offset) for offset in range(10)), *((1, offset) for offset in range(10))])
    rows = spark_reader(spark)(staging.table)
    assert offsets(rows) == expected
    assert all(row["name"] == f"n{row['_kafka_offset']}" for row in rows)


def test_small_files_become_one(tmp_path: Path, spark: SparkSession) -> None:
    staging = Staging.below(tmp_path)
    create(spark, staging, ORDERS, "TBLPROPERTIES ('delta.constraints.positive' = 'id >= 0')")
    for start in range(0, 40, 4):
        staging.flush(0, start, start + 4, days=["2026-01-01", "2026-01-02"])
    load(staging, spark)
    assert len(offsets(spark_reader(spark)(staging.table))) == 40
    assert len(DeltaTable(staging.table).file_uris()) == 1
