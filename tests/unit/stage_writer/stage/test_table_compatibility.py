"""Rows that the table can never take are not staged: the partition is held until the table or config changes."""

import json
from pathlib import Path
from typing import Any

import pytest

from common.errors import StoreError
from common.schema import parse_ddl, schema_from_json, schema_to_json
from common.storage.store import FsspecStore
from common.tables.changes import DELETE_COLUMN
from common.tables.state import TableState
from stage_writer.assignment import CHECK_HELD_EVERY_S
from stage_writer.convert import StreamConverter
from stage_writer.partitions.partition import HeldPartition
from stage_writer.stage.table_compatibility import CHECK_AGAIN_S, Incompatibility, incompatibility
from tests.fakes.stores import TrappedStore, failing
from tests.fakes.streams import stream_of
from tests.unit.stage_writer.test_service import FIRST, SECOND, World

KAFKA = ", _kafka_topic STRING, _kafka_partition INT, _kafka_offset BIGINT, _kafka_timestamp TIMESTAMP"


def write_log(store: FsspecStore, columns: str, version: int = 0) -> None:
    metadata = {
        "id": "t",
        "schemaString": schema_to_json(parse_ddl(columns)),
        "partitionColumns": [],
        "configuration": {},
    }
    actions = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]
    data = "\n".join(json.dumps(action) for action in actions).encode()
    store.write(f"_delta_log/{version:020d}.json", data)


def state_of(columns: str, partition_by: tuple[str, ...] = (), **properties: str) -> TableState:
    return TableState(0, "t", schema_to_json(parse_ddl(columns)), partition_by, properties, 1, 2, frozenset())


def refusal(stream: dict[str, object], state: TableState) -> Incompatibility | None:
    return incompatibility(StreamConverter(stream_of(**stream)).formats[0], state)


@pytest.mark.parametrize(
    ("table", "staged"),
    [
        ("qty BIGINT", "qty STRING"),
        ("qty STRING", "qty BIGINT"),
        ("qty BOOLEAN", "qty INT"),
        ("qty BINARY", "qty STRING"),
        ("qty TIMESTAMP", "qty TIMESTAMP_NTZ"),
        ("qty STRUCT<a: INT>", "qty STRING"),
        ("qty ARRAY<STRUCT<a: INT>>", "qty ARRAY<STRUCT<a: STRING>>"),
        ("qty MAP<STRING, INT>", "qty STRUCT<a: INT>"),
    ],
)
def test_column_type_that_the_table_cannot_take_is_refused_by_name(table: str, staged: str) -> None:
    refused = refusal({"columns": staged}, state_of(table + KAFKA))
    assert refused is not None
    assert "the column qty" in refused.problem
    assert refused.remedy.startswith(f"write {table} in columns (with coerce")
    assert "ALTER TABLE" not in refused.remedy


@pytest.mark.parametrize(
    ("stream", "table", "remedy"),
    [
        ({"derive": {"day": "id + 1"}}, "id INT, day STRING", "an expression of type STRING in derive.day (CAST(… AS "),
        ({"unknown_fields": "rescue"}, "id INT, _rescued INT", "another column in rescue_column"),
        ({"merge": {"soft_delete": "gone"}}, "id INT, gone STRING", "another column in merge.soft_delete"),
        (
            {"merge": {"history": True, "sequence": "id"}},
            "id INT, valid_from TIMESTAMP, valid_to TIMESTAMP, is_current BOOLEAN",
            "the merge.sequence of the table's versions (none, or a column of type TIMESTAMP)",
        ),
        (
            {"merge": {"history": True}},
            "id INT, valid_from STRING, valid_to STRING, is_current BOOLEAN",
            "the merge.sequence of the table's versions (a column of type STRING)",
        ),
        (
            {"columns": "id INT, qty BIGINT", "derive": {"day": "id"}},
            "id INT, qty STRING, day STRING",
            "qty STRING in columns (with coerce: lenient, where records have another type) and an expression of type ",
        ),
        ({"columns": "items ARRAY<INT>", "explode": "items"}, "items ARRAY<INT>", "explode: null in the stream"),
        ({"columns": "items ARRAY<INT>"}, "items INT", "explode: items in the stream"),
        (
            {"columns": "lines ARRAY<INT>", "rename": {"lines": "items"}, "explode": "lines"},
            "items ARRAY<INT>",
            "explode: null in the stream",
        ),
    ],
)
def test_remedy_names_the_setting_that_makes_the_column(stream: dict[str, Any], table: str, remedy: str) -> None:
    merge: dict[str, object] = stream.get("merge", {})
    of_merge = {"load": "merge", "merge": {"keys": ["id"], "tombstones": "ignore", **merge}} if merge else {}
    refused = refusal({"columns": "id INT", **stream, **of_merge}, state_of(table + KAFKA))
    assert refused is not None
    assert refused.remedy.startswith(f"write {remedy}")


@pytest.mark.parametrize(
    ("table", "staged"),
    [
        ("qty BIGINT", "qty BIGINT"),
        ("qty INT", "qty BIGINT"),
        ("qty DOUBLE", "qty INT"),
        ("qty DECIMAL(10,2)", "qty BIGINT"),
        ("qty DATE", "qty TIMESTAMP_NTZ"),
        ("other INT", "qty STRING"),
        ("qty STRUCT<a: INT>", "qty STRUCT<b: STRING>"),
    ],
)
def test_difference_that_the_table_can_absorb_is_staged(table: str, staged: str) -> None:
    assert refusal({"columns": staged}, state_of(table + KAFKA)) is None


def test_other_partitioning_is_refused_with_the_tables_partitioning() -> None:
    stream: dict[str, object] = {"columns": "day STRING, sku STRING", "partition_by": ["sku"]}
    refused = refusal(stream, state_of(f"day STRING, sku STRING{KAFKA}", ("day",)))
    assert refused is not None
    assert "it is partitioned by day, staged by sku" in refused.problem
    assert "partition_by: [day]" in refused.remedy
    refused = refusal(
        {**stream, "columns": "date STRING, sku STRING"}, state_of(f"day STRING, sku STRING{KAFKA}", ("day",))
    )
    assert refused is not None
    assert "partition_by: [day] with day among the stream's columns" in refused.remedy


@pytest.mark.parametrize("case", ["load is append", "a constraint"])
def test_other_partitioning_is_accepted_where_spark_writes_the_rows(case: str) -> None:
    stream: dict[str, object] = {"columns": "day STRING, sku STRING", "partition_by": ["sku"]}
    properties = {} if case == "load is append" else {"delta.constraints.c": "day > ''"}
    load = {"load": "append"} if case == "load is append" else {}
    assert refusal(stream | load, state_of(f"day STRING, sku STRING{KAFKA}", ("day",), **properties)) is None


def held(world: World) -> list[HeldPartition]:
    return list(world.writer.snapshot().held.values())


def data_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts]


def test_partition_is_held_until_the_table_takes_its_rows(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 5, SECOND: 5}, looks_at_tables=True)
    write_log(world.table, f"id STRING{KAFKA}")
    world.steps()
    assert [partition.reason for partition in held(world)] == ["table_incompatible"] * 2
    assert "the column id is STRING, staged as INT" in world.problems()
    assert "write id STRING in columns (with coerce: lenient" in world.problems(), "without coerce, numbers are refused"
    assert not data_files(tmp_path)
    assert not world.chain()

    before = held(world)
    world.clock.now_s += CHECK_HELD_EVERY_S + 1
    world.steps()
    assert [id(partition) for partition in held(world)] == list(map(id, before)), "held without reading them again"

    write_log(world.table, f"id INT{KAFKA}", version=1)
    world.clock.now_s += CHECK_HELD_EVERY_S + 1
    world.steps(40)
    assert not held(world)
    assert world.spans(FIRST) == [(0, 5)]
    assert world.spans(SECOND) == [(0, 5)]


@pytest.mark.parametrize("case", ["no table", "unreadable", "not a log"])
def test_unreadable_or_missing_table_holds_nothing_and_is_checked_again(tmp_path: Path, case: str) -> None:
    world = World(tmp_path, {FIRST: 5}, looks_at_tables=True)
    if case == "unreadable":
        world.table = TrappedStore(f"{tmp_path}/table", before=failing("list", StoreError("may not list")))
    if case == "not a log":
        world.table.write(f"_delta_log/{0:020d}.json", b'{"metaData":{}}\n{"protocol":')
    world.writer = world.new_writer()
    world.steps()
    assert not held(world)
    assert world.spans() == [(0, 5)]
    world.table = FsspecStore(f"{tmp_path}/table")
    write_log(world.table, f"id STRING{KAFKA}")
    world.group.ends[FIRST] = 9
    world.steps()
    assert not held(world)  # the table is not read at each flush
    world.clock.now_s += CHECK_AGAIN_S
    world.group.ends[FIRST] = 12
    world.steps(40)
    assert len(held(world)) == 1


def test_compatible_table_is_read_only_once(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 5}, looks_at_tables=True)
    write_log(world.table, f"id INT{KAFKA}")
    world.steps()
    world.table.delete([f"_delta_log/{0:020d}.json"])
    write_log(world.table, f"id STRING{KAFKA}")
    world.clock.now_s += 10 * CHECK_AGAIN_S
    world.group.ends[FIRST] = 9
    world.steps(40)
    assert world.spans() == [(0, 5), (5, 9)]


def test_compared_schema_has_no_staging_columns() -> None:
    merge = {"load": "merge", "merge": {"keys": ["id"]}, "columns": "id INT, op STRING"}
    table = StreamConverter(stream_of(**merge)).formats[0]
    assert DELETE_COLUMN in table.arrow_schema.names
    assert schema_from_json(table.schema).names == parse_ddl(f"id INT, op STRING{KAFKA}").names
