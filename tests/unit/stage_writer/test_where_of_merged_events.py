"""`where` and updates that delete a row by its old key, to tables with columns of their own."""

import json
import uuid
from typing import Any

import pytest

from common.storage.store import FsspecStore
from stage_writer.convert_by_table import converter_of
from stage_writer.parquet.buffer import StagedRows
from tests.fakes.streams import batch_of, stream_of
from tests.unit.stage_writer import test_own_columns as own_columns
from tests.unit.stage_writer.test_sections import Writer, errors

ABOUT: dict[str, Any] = {"database": "shop", "isDdl": False, "es": 1, "ts": 1, "pkNames": ["id"]}
VIEWS, CLICKS = "views", "clicks"


def merged(**settings: object) -> dict[str, Any]:
    """A stream whose sections lack a field that `where` sees, or have another type for one."""
    routes = {
        "shop.views": {"table": "/tables/views", "columns": "page STRING, id STRING"},
        "shop.clicks": {"table": "/tables/clicks", "columns": "id BIGINT"},
    }
    return {
        "columns": "id BIGINT, v INT",
        "where": "v > 1 AND id < 100",
        "route": "_cdc.source",
        "routes": routes,
        "envelope": "canal",
        "load": "merge",
        "merge": {"keys": ["id"], "tombstones": "ignore"},
        **settings,
    }


def canal(table: str, kind: str, *rows: tuple[int, int], old: list[dict[str, int]] | None = None) -> dict[str, object]:
    """An event with rows of ``id`` and ``v``."""
    data = [{"id": str(number), "v": str(v), "page": f"p{number}"} for number, v in rows]
    texts = None if old is None else [{name: str(value) for name, value in image.items()} for image in old]
    return {**ABOUT, "table": table, "type": kind, "data": data, "old": texts}


def single(envelope: str, table: str, kind: str, row: tuple[int, int], old: dict[str, int] | None) -> dict[str, object]:
    """The same with one row in another envelope."""
    data = {"id": row[0], "v": row[1], "page": "p"}
    if envelope == "maxwell":
        return {"database": "shop", "table": table, "type": kind, "ts": 1, "data": data, "old": old}
    metadata = {"record-type": "data", "operation": kind, "schema-name": "shop", "table-name": table}
    return {"data": data, "before-image": None if old is None else {**data, **old}, "metadata": metadata}


def changes(staged: StagedRows) -> list[tuple[int, str, bool]]:
    """The offset and the key of each row, and whether it deletes."""
    parts = [staged.rows[0], *(rows for _, rows in staged.routed)]
    read = [row for part in parts for row in part.to_pylist()]
    return sorted((row["_kafka_offset"], str(row["id"]), row["_merge_delete"]) for row in read)


def of_one_table(settings: dict[str, Any], values: list[object]) -> StagedRows:
    """The outcome for a table with all columns and every record."""
    apart = ("route", "routes", "tables")
    stream = stream_of(**{name: value for name, value in settings.items() if name not in apart})
    sent = [None if value is None else json.dumps(value).encode() for value in values]
    ((_, staged),) = next(converter_of(stream).slices([batch_of(sent, keys=[b'{"id": 7}'] * len(sent))]))
    return staged


UPDATES: list[object] = [
    canal(VIEWS, "INSERT", (1, 5), (2, 0)),
    canal(VIEWS, "UPDATE", (1, 7), old=[{"v": 5}]),
    canal(VIEWS, "UPDATE", (3, 7), old=[{"id": 1}]),
    canal(VIEWS, "UPDATE", (4, 7), (500, 7), (9, 0), (6, 7), old=[{"id": 3}, {"id": 8}, {"id": 10}, {"v": 2}]),
    canal(CLICKS, "UPDATE", (200, 7), old=[{"id": 4}]),
    canal(CLICKS, "UPDATE", (20, 0), old=[{"id": 21}]),
    canal(CLICKS, "DELETE", (20, 7), (300, 7)),
    canal("others", "UPDATE", (30, 9), (31, 9), old=[{"id": 31}, {"id": 30}]),
]


def test_sections_have_the_rows_that_one_table_would_have(store: FsspecStore) -> None:
    staged = Writer(store, **merged()).convert(UPDATES)
    assert changes(staged) == changes(of_one_table(merged(), UPDATES))
    assert changes(staged) == [
        (100, "1", False),
        (101, "1", False),
        (102, "1", True),
        (102, "3", False),
        (103, "3", True),
        (103, "4", False),
        (103, "6", False),
        (103, "8", True),
        (104, "4", True),
        (106, "20", True),
        (107, "30", False),
        (107, "30", True),
        (107, "31", False),
        (107, "31", True),
    ]
    assert staged.filtered_offsets.tolist() == [105]
    assert {row["_kafka_offset"] for table, rows in staged.routed for row in rows.to_pylist()} == {*range(100, 107)} - {
        105
    }


@pytest.mark.parametrize(("envelope", "kind"), [("maxwell", "update"), ("dms", "update")])
def test_events_with_one_row_are_filtered_row_by_row(store: FsspecStore, envelope: str, kind: str) -> None:
    settings = merged(envelope=envelope, coerce="lenient")
    values: list[object] = [
        single(envelope, VIEWS, kind, (3, 7), {"id": 1}),
        single(envelope, VIEWS, kind, (300, 7), {"id": 3}),
        single(envelope, CLICKS, kind, (4, 7), {"id": 400}),
        single(envelope, CLICKS, kind, (5, 0), {"v": 7}),
    ]
    staged = Writer(store, **settings).convert(values)
    assert changes(staged) == changes(of_one_table(settings, values))
    assert changes(staged) == [(100, "1", True), (100, "3", False), (101, "3", True), (102, "4", False)]


def test_tombstones_next_to_rows_that_where_leaves_out_delete(store: FsspecStore) -> None:
    section = {"table": "/tables/views", "columns": "page STRING, id BIGINT"}
    settings = merged(tables=[section], merge={"keys": ["id"]})
    settings = {name: value for name, value in settings.items() if name not in ("route", "routes")}
    values: list[object] = [None, canal(VIEWS, "UPDATE", (500, 7), (4, 7), old=[{"v": 8}, {"id": 3}]), None]
    staged = Writer(store, **settings).convert(values, [b'{"id": 7}'] * 3)
    each = changes(of_one_table(settings, values))
    assert each == [(100, "7", True), (101, "3", True), (101, "4", False), (102, "7", True)]
    assert changes(staged) == sorted(2 * each)


def test_rules_see_no_old_value_of_a_row_that_stays(store: FsspecStore) -> None:
    for where in (None, "id < 100"):
        writer = Writer(store, **merged(where=where, expect={"positive": "v > 0"}))
        staged = writer.convert([canal(VIEWS, "UPDATE", (4, 7), old=[{"v": -1}])])
        assert (errors(staged), changes(staged)) == ([], [(100, "4", False)])


@pytest.mark.parametrize("keys", [{}, {"keys": ["id"]}])
@pytest.mark.parametrize(
    ("where", "deletes"), [("_cdc.source <> 'x'", True), ("_cdc.op <> 'DELETE'", False), ("kafka.offset > 1", True)]
)
def test_keys_that_change_keep_their_new_rows_in_tables_that_appear(
    store: FsspecStore, keys: dict[str, list[str]], where: str, *, deletes: bool
) -> None:
    merge = {"tombstones": "ignore", **keys}
    writer = own_columns.Writer(store, envelope="canal", merge=merge, where=where)
    values = [
        canal(VIEWS, "INSERT", (1, 5)),
        canal(VIEWS, "UPDATE", (1, 7), old=[{"v": 5}]),
        canal(VIEWS, "UPDATE", (2, 7), (3, 7), old=[{"id": 1}, {"v": 6}]),
    ]
    staged = writer.convert([json.dumps(value).encode() for value in values], [b"k"] * 3)
    rows = [(100, "1", False), (101, "1", False), (102, "1", True), (102, "2", False), (102, "3", False)]
    assert changes(staged) == [row for row in rows if deletes or not row[2]]
    assert staged.filtered_offsets.tolist() == []


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        ({"route_keys": {"shop.views": ["page"]}}, "those of /tables/views are other fields than those of /tables/own"),
        ({"route_keys": {"shop.late": ["v"]}}, "those of the route shop.late are other fields"),
    ],
)
def test_where_needs_the_same_keys_in_all_tables(edit: dict[str, object], problem: str) -> None:
    settings = merged(merge={"keys": ["id"], "tombstones": "ignore", **edit}, table="/tables/own")
    with pytest.raises(ValueError, match=f"where decides about each row .*{problem}.*: give both the same keys"):
        stream_of(**settings, route_table="/tables/by/{route}")
    assert stream_of(**{**settings, "where": None}, route_table="/tables/by/{route}").merge is not None
    assert stream_of(**{**settings, "envelope": "debezium"}, route_table="/tables/by/{route}").merge is not None


@pytest.mark.parametrize(
    "more", [{"columns": "key STRING", "rename": {"key": "id"}}, {"columns": "x INT", "derive": {"id": "x"}}]
)
def test_keys_with_one_name_may_be_other_fields(more: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="those of /tables/views are other fields"):
        stream_of(**merged(routes={"shop.views": {"table": "/tables/views", **more}}))


@pytest.fixture
def store() -> FsspecStore:
    return FsspecStore(f"memory://{uuid.uuid4().hex}", {})
