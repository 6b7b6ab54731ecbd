"""Rows are split into one file for each partition value, up to a limit; beyond it, one file has all rows."""

import io
import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.schema import parse_ddl, schema_to_json, to_arrow_schema
from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.data_files import DataFileName
from common.stage.markers import Manifest, MarkerName, Origin, StagedFile, StagedTable, TableKind
from common.stage.stored import beyond_bounds
from stage_writer.parquet.buffer import (
    MOST_FILES,
    Buffer,
    EncodedFile,
    FileBudget,
    FilePolicy,
    StagedRows,
    TableFormat,
    TableRows,
)
from stage_writer.stage.staging import sealed

SCHEMA = parse_ddl("id BIGINT, day STRING, customer STRING, text STRING")
ARROW = to_arrow_schema(SCHEMA)
TABLE = TableFormat("memory://t", TableKind.ROWS, schema_to_json(SCHEMA), ARROW, ("day", "customer"))
MOST = 3


def rows_of(places: list[tuple[str | None, str | None]], first: int) -> pa.Table:
    return pa.table(
        {
            "id": range(first, first + len(places)),
            "day": [day for day, _ in places],
            "customer": [customer for _, customer in places],
            "text": ["lorem ipsum"] * len(places),
        },
        schema=ARROW,
    )


def read(file: EncodedFile) -> list[dict[str, object]]:
    return list(pq.read_table(io.BytesIO(file.data.to_bytes())).to_pylist())


_places = st.tuples(st.sampled_from([None, "", "a", "b"]), st.sampled_from([None, "x", "y"]))


@settings(deadline=None)
@given(st.lists(st.tuples(st.lists(_places, max_size=5), st.booleans()), max_size=6))
def test_each_row_is_in_one_file_and_files_keep_order(
    batches: list[tuple[list[tuple[str | None, str | None]], bool]],
) -> None:
    table, expected = TableRows(TABLE, FilePolicy(max_values=MOST)), dict[int, tuple[str | None, str | None]]()
    for places, full in batches:
        table.add(rows_of(places, len(expected)))
        expected |= {len(expected) + number: place for number, place in enumerate(places)}
        if full:
            table.encode()
    actual: dict[int, tuple[str | None, str | None]] = {}
    files = table.finish()
    for file in files:
        rows = read(file)
        ids = [int(str(row["id"])) for row in rows]
        assert ids == sorted(ids)
        assert file.rows == len(rows)
        assert json.loads(file.statistics)["minValues"]["id"] == min(ids)
        assert not actual.keys() & set(ids)
        for number, row in zip(ids, rows, strict=True):
            if file.values is None:
                assert (row["day"], row["customer"]) == expected[number]
            else:
                assert file.values == tuple(part or None for part in expected[number])
            actual[number] = expected[number]
    assert actual == expected
    assert sum(file.values is not None for file in files) <= MOST
    assert sum(file.values is None for file in files) <= 1


def test_tables_of_a_flush_share_the_file_budget_of_one_marker() -> None:
    budget = FileBudget(files=5)
    tables = [TableRows(TABLE, FilePolicy(max_values=4), budget=budget) for _ in range(3)]
    for table in tables:
        table.add(rows_of([("a", "x"), ("b", "x"), ("c", "x")], 0))
        table.encode()
        table.add(rows_of([("a", "x")], 3))  # an open file does not count again
    files = [table.finish() for table in tables]
    assert [sum(file.values is not None for file in of_table) for of_table in files] == [3, 0, 0]
    assert [sum(file.rows for file in of_table) for of_table in files] == [4, 4, 4]


def test_partition_values_too_long_for_a_marker_go_to_one_file() -> None:
    table = TableRows(TABLE, budget=FileBudget(value_bytes=1000))
    table.add(rows_of([("a", "x"), ("b" * 1000, "x")], 0))
    (file,) = table.finish()
    assert (file.values, file.rows) == (None, 2)


def test_flush_with_the_maximum_number_of_files_has_a_readable_marker() -> None:
    """With partition column names, values and statistics of the maximum length."""
    budget, columns = FileBudget(), tuple(f"column_{number}" for number in range(4))
    length = budget.value_bytes // budget.files // len(columns)
    assert not budget.has_room([("\x00" * (budget.value_bytes + 1),)])
    assert budget.has_room([("\x00" * length,) * len(columns)] * budget.files)
    values = dict.fromkeys(columns, "\x00" * length)
    start, partition = Position(0), TopicPartition(Topic("orders"), Partition(0))
    path = DataFileName(partition, start, "0" * 36, tuple(values.items())).path
    file = StagedFile(path, values, 1, 1, json.dumps({"minValues": {"a": "b" * 8000}}))
    table = StagedTable("s3://lake/orders", TableKind.ROWS, "{}", columns, (file,) * MOST_FILES)
    manifest = Manifest(Span(start, Position(1)), None, "orders", Origin.FLUSH, "me", 1, tables=(table,))
    _, data = sealed(MarkerName(partition, start), manifest)
    assert beyond_bounds(data) is None


def test_too_many_partition_values_make_one_file() -> None:
    """databricks/iceberg-kafka-connect, issue 227: a writer for each of 20,000 values exhausts the process."""
    table = TableRows(TABLE, FilePolicy(row_group_bytes=2**20))
    most = 0
    for first in range(0, 60_000, 1000):
        table.add(rows_of([(f"day {n % 4018}", f"customer {n % 5}") for n in range(first, first + 1000)], first))
        most = max(most, table.memory_bytes)
    (file,) = table.finish()
    assert (file.values, file.rows) == (None, 60_000)
    assert most < 2 * 2**20


def test_rows_that_wait_for_spark_are_one_file_with_partition_columns() -> None:
    table = TableRows(replace(TABLE, waits=True))
    table.add(rows_of([("a", "x"), ("b", "y")], 0))
    table.encode()
    table.add(rows_of([("a", "x")], 2))
    (file,) = table.finish()
    assert (file.values, file.rows) == (None, 3)
    assert [row["day"] for row in read(file)] == ["a", "b", "a"]


def test_late_records_do_not_split_files() -> None:
    """confluentinc/kafka-connect-storage-cloud, issue 529: there, each late record closes a file."""
    table = TableRows(TABLE)
    for first in range(0, 20_000, 100):
        table.add(rows_of([("yesterday" if n % 2 else "today", "c") for n in range(first, first + 100)], first))
    assert [(file.values, file.rows) for file in table.finish()] == [
        (("today", "c"), 10_000),
        (("yesterday", "c"), 10_000),
    ]


@pytest.mark.parametrize(("column", "zone"), [("TIMESTAMP", "Z"), ("TIMESTAMP_NTZ", "")])
def test_last_millisecond_of_year_9999_has_bounds(column: str, zone: str) -> None:
    schema = parse_ddl(f"at {column}")
    arrow = to_arrow_schema(schema)
    rows = TableRows(
        TableFormat("memory://t", TableKind.ROWS, schema_to_json(schema), arrow, ()), FilePolicy(max_values=1)
    )
    end_us = 253_402_300_800 * 10**6
    rows.add(pa.table({"at": pa.array([end_us - 500, end_us - 2], arrow.field("at").type)}, schema=arrow))
    (file,) = rows.finish()
    bounds = json.loads(file.statistics)
    assert bounds["minValues"] == {"at": f"9999-12-31T23:59:59.999{zone}"}
    assert bounds["maxValues"] == {"at": f"9999-12-31T23:59:59.999998{zone}"}


def test_timestamp_after_year_9999_is_written_without_bounds() -> None:
    """User code may make one, in a topology's batches."""
    schema = parse_ddl("id BIGINT, at TIMESTAMP")
    arrow = to_arrow_schema(schema)
    rows = TableRows(
        TableFormat("memory://t", TableKind.ROWS, schema_to_json(schema), arrow, ()), FilePolicy(max_values=1)
    )
    rows.add(pa.table({"id": [1], "at": pa.array([10**18], arrow.field("at").type)}, schema=arrow))
    (file,) = rows.finish()
    assert json.loads(file.statistics) == {
        "numRecords": 1,
        "minValues": {"id": 1},
        "maxValues": {"id": 1},
        "nullCount": {"id": 0, "at": 0},
    }


def test_buffer_sums_up_its_batches() -> None:
    buffer = Buffer.begin(Position(10), ())
    for end, bounds_ms in ((12, (5, 9)), (15, (3, 12)), (16, None), (20, (4, 8))):
        batch = StagedRows(
            Position(end),
            records=4,
            tombstones=1,
            dead_letters={"invalid_json": 1},
            timestamp_bounds_ms=bounds_ms,
            rows=(),
            filtered_offsets=np.array([end - 1]),
            exploded=2,
            outgoing=pa.table({"n": [end]}),
            violations={"positive": 1},
        )
        buffer.add(batch, now_s=float(end))
    assert (buffer.start, buffer.end, buffer.first_record_at_s) == (10, 20, 12.0)
    assert (buffer.records, buffer.tombstones, buffer.exploded, buffer.filtered) == (16, 4, 8, 4)
    assert (buffer.dead_letters, buffer.violations) == ({"invalid_json": 4}, {"positive": 4})
    assert (buffer.lowest_timestamp_ms, buffer.highest_timestamp_ms) == (3, 12)
    assert [sent["n"].to_pylist() for sent in buffer.outgoing] == [[12], [15], [16], [20]]


def test_many_small_batches_stay_in_order() -> None:
    """They are joined meanwhile, level by level."""
    table = TableRows(TABLE)
    for number in range(75):
        table.add(rows_of([("a", "x")], number))
    (file,) = table.finish()
    assert [row["id"] for row in read(file)] == list(range(75))


def test_all_tables_of_a_buffer_share_one_file_budget() -> None:
    formats = [replace(TABLE, url=url) for url in ("/one", "/two", "/routed")]
    buffer = Buffer.begin(Position(0), formats[:2], FilePolicy(max_values=4))
    buffer._budget.files = 5
    rows = rows_of([("a", "x"), ("b", "x"), ("c", "x")], 0)
    batch = StagedRows(Position(3), 3, 0, {}, None, (rows, rows), routed=((formats[2], rows),))
    buffer.add(batch, now_s=0.0)
    files = [table.finish() for table in buffer.tables]
    assert [sum(file.values is not None for file in of_table) for of_table in files] == [3, 0, 0]


def test_column_with_a_nan_has_no_bounds_in_its_file() -> None:
    """NaN is above all numbers in Spark, and in no bounds of Parquet. At any depth; in one row group of several."""
    columns = parse_ddl("v DOUBLE, w FLOAT, s STRUCT<v: DOUBLE, w: DOUBLE>")
    arrow = to_arrow_schema(columns)
    table = TableRows(TableFormat("memory://t", TableKind.ROWS, schema_to_json(columns), arrow, ()))
    for group in ((1.0,), (2.0, float("nan")), (3.0,)):
        rows = [{"v": value, "w": 2.0, "s": {"v": 2.0, "w": value}} for value in group]
        table.add(pa.Table.from_pylist(rows, arrow))
        table.encode()
    (file,) = table.finish()
    statistics = json.loads(file.statistics)
    assert statistics["minValues"] == statistics["maxValues"] == {"w": 2.0, "s": {"v": 2.0}}
    assert statistics["nullCount"] == {"v": 0, "w": 0, "s": {"v": 0, "w": 0}}
