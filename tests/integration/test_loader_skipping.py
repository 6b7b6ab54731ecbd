"""The writer's statistics, the loader's commit and Spark's data skipping together: few files, and the right rows."""

import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from common.clock import SystemClock
from common.schema import parse_ddl, schema_to_json, to_arrow_schema
from common.spans import Position, Span
from common.stage.data_files import DataFileName
from common.stage.markers import Manifest, MarkerName, Origin, StagedFile, StagedTable, TableKind, manifest_to_bytes
from delta_loader.spark.delta import SparkDeltaTables
from stage_writer.parquet.buffer import TableFormat, TableRows
from tests.fakes.loading import loader_for
from tests.fakes.spark_plans import scanned_files
from tests.fakes.staging import Staging

pytestmark = pytest.mark.spark

SCHEMA = parse_ddl(
    "tiny TINYINT, small SMALLINT, whole INT, large BIGINT, exact DECIMAL(20, 4), single FLOAT, double DOUBLE, "
    "name STRING, long_name STRING, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, nested STRUCT<a: STRUCT<i: INT>>, "
    "flag BOOLEAN, raw BINARY, list ARRAY<INT>, _kafka_partition INT, _kafka_offset BIGINT"
)
MOMENT = datetime(2026, 3, 1, 12, 0, 0, 999_999, tzinfo=UTC)
FILES, ROWS = 5, 10
PREFIX = "a prefix that is longer than what is kept of it: "
# Column to the literal for the row 23, which only the third file holds.
EXACT = {
    "tiny": "CAST(23 AS TINYINT)",
    "small": "CAST(23 AS SMALLINT)",
    "whole": "23",
    "large": "230000000000",
    "exact": "CAST('1234567890123456.0023' AS DECIMAL(20, 4))",
    "name": "'name 023'",
    "day": "DATE'2026-01-24'",
    "at": "TIMESTAMP'2026-03-01 12:00:23.999999Z'",
    "local": "TIMESTAMP_NTZ'2026-03-01 12:00:23.999999'",
    "nested.a.i": "23",
    "_kafka_offset": "23",
}
# No file can be skipped, or one more has to be read; the rows are right in any case.
INEXACT = {"single": "CAST(23.5 AS FLOAT)", "double": "23.5D", "long_name": f"'{PREFIX}023'", "raw": "X'17'"}


def row(number: int) -> dict[str, object]:
    moment = MOMENT + timedelta(seconds=number)
    return {
        "tiny": number,
        "small": number,
        "whole": number,
        "large": number * 10**10,
        "exact": Decimal(1234567890123456) + Decimal(number).scaleb(-4),
        "single": number + 0.5,
        "double": number + 0.5,
        "name": f"name {number:03d}",
        "long_name": f"{PREFIX}{number:03d}",
        "day": date(2026, 1, 1) + timedelta(days=number),
        "at": moment,
        "local": moment.replace(tzinfo=None),
        "nested": {"a": {"i": number}},
        "flag": number % 2 == 0,
        "raw": bytes([number]),
        "list": [number],
        "_kafka_partition": 0,
        "_kafka_offset": number,
    }


def stage(staging: Staging, start: int, rows: list[dict[str, object]]) -> None:
    """One flush, with the writer's own encoder and statistics."""
    arrow = to_arrow_schema(SCHEMA)
    table = TableFormat(staging.table, TableKind.ROWS, schema_to_json(SCHEMA), arrow, ())
    encoder = TableRows(table)
    encoder.add(pa.Table.from_pylist(rows, schema=arrow))
    (file,) = encoder.finish()
    partition, span = staging.source(0), Span(Position(start), Position(start + len(rows)))
    name = DataFileName(partition, span.start, str(uuid.uuid4()))
    staging.store(staging.table).write(name.path, file.data.to_bytes())
    staged = StagedTable(
        table.url,
        table.kind,
        table.schema,
        (),
        (StagedFile(name.path, {}, file.data.size_bytes, file.rows, file.statistics),),
    )
    previous = staging.previous.get(0)
    manifest = Manifest(
        span, previous, "orders", Origin.FLUSH, "test", created_ms=start, records=len(rows), tables=(staged,)
    )
    marker = MarkerName(partition, span.start)
    staging.store(staging.stage_url).create(marker.path, manifest_to_bytes(partition, manifest))
    staging.previous[0] = span.start


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Staging:
    staging = Staging.below(tmp_path_factory.mktemp("skipping"))
    for number in range(FILES):
        stage(staging, number * ROWS, [row(number * ROWS + index) for index in range(ROWS)])
    nothing: dict[str, object] = dict.fromkeys(SCHEMA.names)
    stage(staging, 50, [{**nothing, "_kafka_partition": 0, "_kafka_offset": 50}])
    not_a_number = {**nothing, "single": float("nan"), "double": float("nan")}
    stage(staging, 51, [{**not_a_number, "_kafka_partition": 0, "_kafka_offset": 51}])
    return staging


@pytest.fixture
def view(table: Staging, spark: SparkSession) -> str:
    if table.previous:  # the first test loads it
        (report,) = loader_for(table, SparkDeltaTables(spark, SystemClock())).run_pass()
        assert (report.failure, report.held) == (None, {})
        table.previous.clear()
    return f"delta.`{table.table}`"


@pytest.mark.parametrize("column", EXACT)
def test_spark_opens_the_one_file_that_can_hold_a_value(column: str, view: str, spark: SparkSession) -> None:
    query = spark.sql(f"SELECT _kafka_offset FROM {view} WHERE {column} = {EXACT[column]}")  # noqa: S608
    assert [row[0] for row in query.collect()] == [23]
    assert scanned_files(query) == 1
    above = spark.sql(f"SELECT _kafka_offset FROM {view} WHERE {column} > {EXACT[column]}")  # noqa: S608
    expected = range(24, 52) if column == "_kafka_offset" else range(24, 50)
    assert sorted(row[0] for row in above.collect()) == list(expected)


@pytest.mark.parametrize("column", INEXACT)
def test_rows_without_faithful_bounds_are_found(column: str, view: str, spark: SparkSession) -> None:
    query = spark.sql(f"SELECT _kafka_offset FROM {view} WHERE {column} = {INEXACT[column]}")  # noqa: S608
    assert [row[0] for row in query.collect()] == [23]


def test_not_a_number_is_the_greatest_as_in_spark(view: str, spark: SparkSession) -> None:
    query = spark.sql(f"SELECT _kafka_offset FROM {view} WHERE double > 1000")  # noqa: S608
    assert [row[0] for row in query.collect()] == [51]


@pytest.mark.parametrize("column", [*EXACT, "flag", "raw"])
def test_files_without_nulls_are_not_opened_for_nulls(column: str, view: str, spark: SparkSession) -> None:
    if column == "_kafka_offset":
        pytest.skip("it is never null")
    query = spark.sql(f"SELECT _kafka_offset FROM {view} WHERE {column} IS NULL")  # noqa: S608
    assert sorted(row[0] for row in query.collect()) == [50, 51]
    assert scanned_files(query) == 2
