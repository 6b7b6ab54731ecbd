"""Tables that the loader makes: with properties, clustered, and after the model of another one."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from common.clock import SystemClock
from common.settings.values import Evolution
from common.tables.state import TableState
from delta_loader.load.report import StreamReport
from delta_loader.spark.delta import SparkDeltaTables
from tests.fakes.loading import loader_for, settings_for
from tests.fakes.staging import Staging
from tests.reading import rows_of
from tests.verifier import spark_reader

pytestmark = pytest.mark.spark

ORDERS = "id BIGINT, name STRING, _kafka_topic STRING, _kafka_partition INT, _kafka_offset BIGINT, day STRING"


def load(staging: Staging, spark: SparkSession, **options: object) -> StreamReport:
    tables = SparkDeltaTables(spark, SystemClock(), staging.stage_url)
    settings = settings_for(staging)
    streams = tuple(stream.model_copy(update=options) for stream in settings.streams)
    loader = loader_for(staging, tables, settings.model_copy(update={"streams": streams}))
    (report,) = loader.run_pass()
    return report


def state_of(staging: Staging, spark: SparkSession) -> TableState:
    state = SparkDeltaTables(spark, SystemClock()).state(staging.table)
    assert state is not None
    return state


def test_properties_and_clustering(tmp_path: Path, spark: SparkSession) -> None:
    staging = Staging.below(tmp_path)
    staging.partition_by = ()
    staging.flush(0, 0, 10, dead=[3])
    properties = {"delta.enableChangeDataFeed": "true", "delta.enableRowTracking": "true", "keeper": "shop"}
    report = load(staging, spark, table_properties=properties, cluster_by=("name", "id"))
    assert (report.failure, report.rows) == (None, 10)
    state = state_of(staging, spark)
    assert properties.items() <= state.properties.items()
    assert {"clustering", "rowTracking", "changeDataFeed"} <= state.features
    (detail,) = spark.sql(f"DESCRIBE DETAIL delta.`{staging.table}`").collect()
    assert detail["clusteringColumns"] == ["name", "id"]
    spark.sql(f"OPTIMIZE delta.`{staging.table}`")
    assert len(rows_of(staging.table)) == 9
    letters = SparkDeltaTables(spark, SystemClock()).state(staging.dead_letters)
    assert letters is not None
    assert not properties.items() <= letters.properties.items()


def test_table_is_clustered_by_a_column_that_is_not_among_its_first(tmp_path: Path, spark: SparkSession) -> None:
    """Delta refuses a column without statistics, which it has of the first 32 by default."""
    staging, model = Staging.below(tmp_path), f"{tmp_path}/tables/model"
    columns = ", ".join(f"c{number} INT" for number in range(40))
    spark.sql(f"CREATE TABLE delta.`{model}` ({columns}, {ORDERS}) USING delta")
    staging.partition_by = ()
    staging.flush(0, 0, 10)
    report = load(staging, spark, template=model, cluster_by=("day",))
    assert (report.failure, report.held, report.rows) == (None, {}, 10)
    spark.sql(f"OPTIMIZE delta.`{staging.table}`")
    other = Staging.below(tmp_path / "other")
    other.flush(0, 0, 10)
    spark.sql(f"CREATE TABLE delta.`{model}_flags` ({ORDERS.replace('day STRING', 'day BOOLEAN')}) USING delta")
    report = load(other, spark, template=f"{model}_flags", evolution=Evolution.ADD, cluster_by=("day",))
    assert "cluster_by names 'day', which has the type BOOLEAN" in str(report.failure)


def test_table_like_another_one_is_loaded_as_that_one_would_be(tmp_path: Path, spark: SparkSession) -> None:
    staging, model = Staging.below(tmp_path), f"{tmp_path}/tables/model"
    spark.sql(
        f"CREATE TABLE delta.`{model}` (day STRING NOT NULL, number BIGINT GENERATED ALWAYS AS IDENTITY, "
        f"{ORDERS.removesuffix(', day STRING')}, month STRING GENERATED ALWAYS AS (substr(day, 1, 7))) USING delta "
        "PARTITIONED BY (month) TBLPROPERTIES ('delta.columnMapping.mode' = 'name', "
        "'delta.constraints.known' = 'id < 1000', 'delta.enableRowTracking' = 'true', 'keeper' = 'model')"
    )
    names = "day, id, name, _kafka_topic, _kafka_partition, _kafka_offset"
    values = "VALUES ('2026-01-01', 1, 'x', 't', 0, 1L)"
    spark.sql(f"INSERT INTO delta.`{model}` ({names}) {values}")
    staging.flush(0, 0, 10)
    report = load(staging, spark, template=model, table_properties={"keeper": "me"})
    assert (report.failure, report.held, report.rows) == (None, {}, 10)
    ours, theirs = state_of(staging, spark), SparkDeltaTables(spark, SystemClock()).state(model)
    assert theirs is not None
    assert ours.partition_by == theirs.partition_by == ("month",)
    assert (ours.properties["keeper"], ours.properties["delta.constraints.known"]) == ("me", "id < 1000")
    rows = spark_reader(spark)(staging.table)
    assert list(rows[0]) == [
        *("day", "number", "id", "name", "_kafka_topic", "_kafka_partition", "_kafka_offset", "month")
    ]
    assert sorted(int(str(row["number"])) for row in rows) == list(range(1, 11)), "numbers begin again"
    assert {row["month"] for row in rows} == {"2026-01"}
    materialized = "delta.rowTracking.materializedRowIdColumnName"
    assert ours.properties[materialized] != theirs.properties[materialized]


def test_incompatible_table_is_not_created(tmp_path: Path, spark: SparkSession) -> None:
    staging, model = Staging.below(tmp_path), f"{tmp_path}/tables/model"
    staging.flush(0, 0, 10)
    failure = load(staging, spark, template=model).failure
    assert failure is not None
    assert "does not exist" in failure.problem
    spark.sql(f"CREATE TABLE delta.`{model}` (id BIGINT) USING delta")
    failure = load(staging, spark, template=model).failure
    assert failure is not None
    assert "the column name is not in it" in failure.problem
    assert SparkDeltaTables(spark, SystemClock()).state(staging.table) is None
