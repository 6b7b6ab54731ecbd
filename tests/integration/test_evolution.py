"""`evolution: add` and `widen`: the table grows until it takes what is staged, and what it cannot take is told."""

from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from common.clock import SystemClock
from common.schema import Primitive, schema_from_json
from common.settings.values import Evolution
from common.spans import Offset, TopicPartition
from delta_loader.load.ports import RawRecord, RefusalPorts
from delta_loader.load.report import StreamReport
from delta_loader.spark.constraint_check import ConstraintChecker
from delta_loader.spark.delta import SparkDeltaTables
from delta_loader.tables.load_modes.casting import Cast
from tests.fakes.loading import loader_for, settings_for
from tests.fakes.staging import ORDERS, Staging
from tests.reading import rows_of
from tests.verifier import spark_reader

pytestmark = pytest.mark.spark


def columns(**types: pa.DataType) -> pa.Schema:
    kept = [field for field in ORDERS if field.name not in types]
    return pa.schema([*kept, *(pa.field(name, data_type) for name, data_type in types.items())])


def load(staging: Staging, spark: SparkSession, evolution: str) -> StreamReport:
    def raw_records(_source: TopicPartition, offsets: Collection[Offset], _id: str | None) -> dict[Offset, RawRecord]:
        return {offset: RawRecord(1, None, b"sent %d" % offset) for offset in offsets}

    tables = SparkDeltaTables(spark, SystemClock(), staging.stage_url)
    settings = settings_for(staging)
    streams = tuple(stream.model_copy(update={"evolution": Evolution(evolution)}) for stream in settings.streams)
    refusing = RefusalPorts(ConstraintChecker(spark, staging.stage_url), raw_records)
    (report,) = loader_for(
        staging, tables, settings.model_copy(update={"streams": streams}), refusing=refusing
    ).run_pass()
    return report


def test_columns_are_added_and_types_are_widened_and_two_writers_converge(tmp_path: Path, spark: SparkSession) -> None:
    small = columns(id=pa.int32(), place=pa.struct([("x", pa.int32())]), since=pa.date32())
    wide = {"id": pa.int64(), "place": pa.struct([("x", pa.int64()), ("y", pa.string())])}
    large = columns(**wide, extra=pa.string(), seen=pa.list_(pa.timestamp("us")))
    staging = Staging(str(tmp_path), columns=small)
    staging.flush(0, 0, 5)
    assert load(staging, spark, "strict").failure is None
    staging.columns = large
    staging.flush(0, 5, 10)
    failure = load(staging, spark, "strict").failure
    assert failure is not None
    assert "the column id is INT, staged as BIGINT" in failure.problem

    report = load(staging, spark, "add")
    assert (report.failure, report.held) == (None, {})
    state = SparkDeltaTables(spark, SystemClock()).state(staging.table)
    assert state is not None
    assert "extra" in state.schema
    kept = schema_from_json(state.schema).field("id")
    assert kept is not None
    assert kept.type is Primitive.INTEGER, "values were cast"

    # A value that is too large for the column is a dead letter while nothing is widened.
    staging.columns = large
    staging.flush(1, 300_000_000, 300_000_003)
    report = load(staging, spark, "add")
    assert (report.failure, report.held) == (None, {})
    letters = rows_of(staging.dead_letters)
    assert [row["value"] for row in letters] == [b"sent 300000000", b"sent 300000001", b"sent 300000002"]
    assert "staged as BIGINT, is out of range for the column's type INT" in str(letters[0]["error"])

    # Widened, the column takes them; and the other writer's narrow files still come.
    staging.columns = columns(**wide, since=pa.timestamp("us"))
    staging.flush(1, 300_000_003, 300_000_005)
    assert load(staging, spark, "widen").failure is None
    staging.columns = small
    staging.flush(0, 10, 15)
    report = load(staging, spark, "widen")
    assert (report.failure, report.held) == (None, {})
    rows = spark_reader(spark)(staging.table)
    assert sorted(int(str(row["id"])) for row in rows) == [
        *(offset * 10 for offset in range(15)),
        3_000_000_030,
        3_000_000_040,
    ]
    state = SparkDeltaTables(spark, SystemClock()).state(staging.table)
    assert state is not None
    assert state.properties["delta.enableTypeWidening"] == "true"
    since = schema_from_json(state.schema).field("since")
    assert since is not None
    assert since.type is Primitive.TIMESTAMP_NTZ
    assert DeltaTable(staging.table).version() == state.version


def test_cast_that_loses_a_value_is_recognized(spark: SparkSession) -> None:
    cases = [
        ("BIGINT", "2147483648L", "INT", True),
        ("BIGINT", "-2147483648L", "INT", False),
        ("INT", "NULL", "BIGINT", False),
        ("DOUBLE", "1.5D", "INT", True),
        ("DOUBLE", "2.0D", "INT", False),
        ("DOUBLE", "double('NaN')", "INT", True),
        ("DOUBLE", "double('NaN')", "FLOAT", False),
        ("DOUBLE", "0.1D", "FLOAT", True),
        ("DOUBLE", "1e300D", "FLOAT", True),
        ("BIGINT", "9007199254740993L", "DOUBLE", True),
        ("BIGINT", "9007199254740992L", "DOUBLE", False),
        ("DECIMAL(5,2)", "1.25", "DECIMAL(5,1)", True),
        ("DECIMAL(5,2)", "1.20", "DECIMAL(5,1)", False),
        ("DECIMAL(20,0)", "12345678901234567890", "BIGINT", True),
        ("ARRAY<BIGINT>", "array(1L, 3000000000L)", "ARRAY<INT>", True),
        ("ARRAY<BIGINT>", "array(1L, NULL)", "ARRAY<INT>", False),
        ("STRUCT<a: BIGINT>", "named_struct('a', 3000000000L)", "STRUCT<a: INT>", True),
        ("STRUCT<a: BIGINT>", "NULL", "STRUCT<a: INT>", False),
        ("DATE", "DATE'2026-01-01'", "TIMESTAMP_NTZ", False),
    ]
    casts = [Cast(f"v{number}", staged, wanted) for number, (staged, _, wanted, _) in enumerate(cases)]
    values = ", ".join(f"CAST({value} AS {staged}) AS v{number}" for number, (staged, value, _, _) in enumerate(cases))
    (row,) = spark.sql(f"SELECT {values}").selectExpr(*(cast.loses for cast in casts)).collect()
    for (staged, value, wanted, loses), outcome in zip(cases, row, strict=True):
        assert outcome is loses, f"{value} as {staged} to {wanted}"
