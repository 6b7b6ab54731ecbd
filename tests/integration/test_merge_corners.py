"""Merges where something is unlike elsewhere: on S3, without Kafka's columns, into NOT NULL columns."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from common.clock import SystemClock
from delta_loader.check_result import Level
from delta_loader.checks.requirements import table_checks
from delta_loader.spark.delta import SparkDeltaTables
from delta_loader.spark.merging.validation import RepeatedKeys
from tests.conftest import Lake
from tests.fakes.changes import ChangeStream
from tests.reading import rows_of

pytestmark = pytest.mark.spark


def tables_of(stream: ChangeStream, spark: SparkSession) -> SparkDeltaTables:
    return SparkDeltaTables(spark, SystemClock(), stream.settings.stage.url)


@pytest.mark.s3
@pytest.mark.parametrize("lake", ["versitygw"], indirect=True)
def test_table_on_s3_without_kafkas_columns(lake: Lake, spark: SparkSession) -> None:
    stream = ChangeStream(lake.url, more={"kafka_columns": False}, storage_options=dict(lake.storage_options))
    tables = tables_of(stream, spark)
    stream.flush(0, [(1, "a", 1), (2, "a", 1), (1, "b", 1)])
    stream.flush(1, [(3, "a", 1), (4, None, 1)])
    stream.load(tables)
    stream.flush(0, [(2, None, None), (1, "c", 1), (5, "a", 1)])
    stream.flush(1, [(3, "old", 1), (3, "new", 1)])
    stream.load(tables)
    rows = stream.rows()
    assert {key[0]: row.value for key, row in rows.items()} == {1: "c", 3: "new", 5: "a"}
    assert rows.keys() == stream.expected.keys()
    state = tables.state(stream.table)
    assert state is not None
    assert "_kafka_offset" not in state.schema, "order within a load needs it, and the table does not"
    (report,) = stream.loader(tables).run_pass()
    assert (report.commits, report.failure) == (0, None)


def test_soft_delete_of_a_key_that_a_table_of_not_null_columns_has_not(tmp_path: Path, spark: SparkSession) -> None:
    stream = ChangeStream(tmp_path, soft=True, label="na.me")
    spark.sql(
        f"CREATE TABLE delta.`{stream.table}` (id INT NOT NULL, `na.me` STRING NOT NULL, value STRING NOT NULL, "
        "at INT, op STRING, _kafka_topic STRING, _kafka_partition INT, _kafka_offset BIGINT, "
        "_kafka_timestamp TIMESTAMP, gone BOOLEAN) USING delta"
    )
    tables = tables_of(stream, spark)
    state = tables.state(stream.table)
    problems = [check for check in table_checks(stream.settings.streams[0], state) if check.level is not Level.OK]
    assert [(check.level, "NOT NULL columns value, and" in check.message) for check in problems] == [
        (Level.WARNING, True)
    ]
    stream.forbids = lambda row: row.value is None
    stream.flush(0, [(1, "a", 1), (1, None, 1)])
    stream.flush(1, [(2, None, 1), (3, "a", 1)])
    stream.load(tables, spark)
    assert stream.rows() == stream.expected
    assert stream.letters().keys() == stream.refused == {("orders", 1, 0)}
    (_, _, problem) = stream.letters()["orders", 1, 0]
    assert problem == "value is null, and the column is NOT NULL"
    # Its row is there by now, and a delete of it is no longer one of the key alone.
    stream.flush(1, [(2, "b", 1), (2, None, 1), (3, None, 1), (4, None, None), (4, "c", 1)])
    stream.load(tables, spark)
    assert stream.rows() == stream.expected
    assert stream.letters().keys() == stream.refused


def test_table_with_several_rows_for_a_key_is_merged_into_after_the_statement_that_is_named(
    tmp_path: Path, spark: SparkSession
) -> None:
    added = ChangeStream(tmp_path, more={"load": "auto", "merge": None})
    added.flush(0, [(1, "old", 9), (1, "new", 2), (2, "other", 5)])
    tables = tables_of(added, spark)
    assert [report.failure for report in added.loader(tables).run_pass()] == [None]
    spark.sql(f"INSERT INTO delta.`{added.table}` (value) VALUES ('no key'), ('no key')")  # noqa: S608 - our own path
    stream = ChangeStream(tmp_path)
    stream.flush(0, [(2, "changed", 6)])
    loader = stream.loader(tables, keys=RepeatedKeys(spark))
    (failure,) = [report.failure for report in loader.run_pass()]
    assert failure is not None
    assert '({"id":1,"name":"k"})' in failure.problem
    statement = failure.remedy.removeprefix("keep the newest row of each key: ").partition(";")[0]
    spark.sql(statement)
    assert [report.failure for report in loader.run_pass()] == [None]
    merged_rows = sorted((row["id"] or 0, row["value"]) for row in rows_of(stream.table))
    assert merged_rows == [(0, "no key"), (0, "no key"), (1, "new"), (2, "changed")]
