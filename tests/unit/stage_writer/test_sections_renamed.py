"""Merged sections that rename or explode fields: their rows are those of a stream of its own."""

import json
import uuid
from typing import Any

import pytest

from common.storage.store import FsspecStore
from stage_writer.convert_by_table import converter_of
from stage_writer.parquet.buffer import StagedRows
from tests.fakes.streams import batch_of, stream_of
from tests.unit.stage_writer.test_sections import Writer, errors

COLUMNS = "ID BIGINT, Val STRING"
ITEMS = f"{COLUMNS}, items ARRAY<STRUCT<Sku: STRING>>"
RENAMED: dict[str, dict[str, Any]] = {
    "rename": {"columns": COLUMNS, "rename": {"ID": "id"}},
    "field_names": {"columns": COLUMNS, "field_names": "snake_case"},
    "rename and explode": {"columns": ITEMS, "explode": "items", "rename": {"ID": "id", "items.Sku": "sku"}},
    "field_names and explode": {"columns": ITEMS, "explode": "items", "field_names": "snake_case"},
}
ROWS: list[tuple[str, dict[str, object], dict[str, object] | None]] = [
    ("c", {"ID": 1, "Val": "a", "more": "x", "items": [{"Sku": "p"}, {"Sku": "q"}]}, None),
    ("u", {"ID": 1, "Val": "b", "more": "y", "items": [{"Sku": "q"}]}, {"Val": "a"}),
    ("u", {"ID": 2, "Val": "b", "items": [{"Sku": "q"}]}, {"ID": 1}),
    ("d", {"ID": 2, "Val": "b", "items": [{"Sku": "z"}]}, None),
]
KEYS = [b'{"ID":1}', b'{"ID":1}', b'{"ID":2}', b'{"ID":2}', b'{"ID":5}']


def message(envelope: str, op: str, row: dict[str, object], old: dict[str, object] | None) -> bytes:
    if envelope == "debezium":
        images = {"before": row, "after": None} if op == "d" else {"before": None, "after": row}
        return json.dumps({"op": op, "source": {"db": "s", "table": "t"}, "ts_ms": 1, **images}).encode()
    kind = {"c": "insert", "u": "update", "d": "delete"}[op]
    return json.dumps({"type": kind, "database": "s", "table": "t", "ts": 1, "data": row, "old": old}).encode()


def rows_in(staged: StagedRows, url: str) -> list[dict[str, object]]:
    named = {table.url: routed for table, routed in staged.routed}
    rows = named[url] if url in named else staged.rows[0]
    return [{name: value for name, value in row.items() if name != "more"} for row in rows.to_pylist()]


@pytest.mark.parametrize("unknown_fields", ["ignore", "evolve"])
@pytest.mark.parametrize(
    ("envelope", "shape"),
    [*(("debezium", name) for name in RENAMED), ("maxwell", "rename"), ("maxwell", "field_names")],
)
def test_section_has_the_rows_of_a_stream_of_its_own(envelope: str, shape: str, unknown_fields: str) -> None:
    section = RENAMED[shape]
    keys = ["id", "items.sku"] if "explode" in section else ["id"]
    usual: dict[str, Any] = {"load": "merge", "envelope": envelope, "unknown_fields": unknown_fields}
    absent = () if "explode" in section else ("items",)
    rows = [(op, {name: row[name] for name in row if name not in absent}, old) for op, row, old in ROWS]
    values = [*(message(envelope, *each) for each in rows), None]
    stream = stream_of(**usual, **section, merge={"keys": keys})
    ((_, single),) = next(converter_of(stream).slices([batch_of(values, keys=KEYS)]))
    store = FsspecStore(f"memory://{uuid.uuid4().hex}", {})
    merge = {"keys": ["id"], "route_keys": {"orders": keys}}
    routed: dict[str, Any] = {"route": "kafka.topic", "routes": {"orders": {"table": "/tables/renamed", **section}}}
    writer = Writer(store, **usual, **routed, columns="id BIGINT", merge=merge)
    staged = writer.convert([None if value is None else json.loads(value) for value in values], KEYS)
    made = rows_in(staged, "/tables/renamed")
    assert [row | {"_rescued": None} for row in made] == [row | {"_rescued": None} for row in rows_in(single, "")]
    assert {row["id"] for row in made if not row["_merge_delete"]} == {1, 2}
    moved = {(102, 1)} if envelope == "maxwell" else set()
    assert {(row["_kafka_offset"], row["id"]) for row in made if row["_merge_delete"]} == {(103, 2), (104, 5)} | moved
    assert errors(staged) == []
