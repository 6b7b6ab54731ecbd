"""JSON text becomes a VARIANT where the table's column is one, as Spark reads it; elsewhere it stays text."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from common.clock import SystemClock
from delta_loader.spark.delta import SparkDeltaTables
from tests.fakes.loading import loader_for
from tests.fakes.staging import Staging

pytestmark = pytest.mark.spark

COLUMNS = "id BIGINT, name VARIANT, _kafka_topic STRING, _kafka_partition INT, _kafka_offset BIGINT, day STRING"
DEEP = "[" * 1500 + "]" * 1500
TEXTS = (
    '{"a": 1, "b": [1.10, "x", null, true], "c": {"é": "ü"}}',
    "12345678901234567890.123456789",
    '"text"',
    "null",
    None,
    '{"twice": 1, "twice": 2}',
    DEEP,
    "no JSON",
)


def load(staging: Staging, spark: SparkSession) -> None:
    (report,) = loader_for(staging, SparkDeltaTables(spark, SystemClock(), staging.stage_url)).run_pass()
    assert (report.failure, report.held) == (None, {})


def test_text_becomes_a_variant_and_nothing_is_lost(tmp_path: Path, spark: SparkSession) -> None:
    staging = Staging.below(tmp_path)
    staging.name_of = lambda offset: TEXTS[offset % len(TEXTS)]
    spark.sql(f"CREATE TABLE delta.`{staging.table}` ({COLUMNS}) USING delta PARTITIONED BY (day)")
    staging.flush(0, 0, len(TEXTS), days=["2026-01-01", "2026-01-02"])
    staging.flush(1, 0, 3, mixed=True)
    load(staging, spark)
    frame = spark.read.format("delta").load(staging.table)
    assert dict(frame.dtypes)["name"] == "variant"
    kinds = ("_kafka_partition", "_kafka_offset", "schema_of_variant(name)", "to_json(name)", "name IS NULL")
    values = {(row[0], row[1]): tuple(row)[2:] for row in frame.selectExpr(*kinds).collect()}
    assert len(values) == len(TEXTS) + 3
    kind, text, _ = values[0, 0]
    assert kind == "OBJECT<a: BIGINT, b: ARRAY<VARIANT>, c: OBJECT<`é`: STRING>>"
    assert json.loads(text) == json.loads(TEXTS[0] or "")
    assert values[0, 1][:2] == ("DECIMAL(29,9)", TEXTS[1])
    assert values[0, 2][:2] == ("STRING", '"text"')
    assert (values[0, 3][2], values[0, 4][2]) == (False, True)
    for place in (5, 6, 7):
        assert values[0, place][0] == "STRING"
        assert json.loads(values[0, place][1]) == TEXTS[place]
    assert [values[1, place] for place in range(3)] == [values[0, place] for place in range(3)]
    parts = frame.where("_kafka_offset = 0").selectExpr("variant_get(name, '$.b[0]', 'decimal(3,2)') AS b").collect()
    assert [str(row["b"]) for row in parts] == ["1.10", "1.10"]


def test_text_stays_text_where_the_column_is_a_string(tmp_path: Path, spark: SparkSession) -> None:
    staging = Staging.below(tmp_path)
    staging.name_of = lambda offset: TEXTS[offset % len(TEXTS)]
    columns = COLUMNS.replace("VARIANT", "STRING")
    spark.sql(f"CREATE TABLE delta.`{staging.table}` ({columns}) USING delta PARTITIONED BY (day)")
    staging.flush(0, 0, len(TEXTS))
    load(staging, spark)
    rows = spark.read.format("delta").load(staging.table).orderBy("_kafka_offset").collect()
    assert [row["name"] for row in rows] == list(TEXTS)
