"""Sections of `routes` with columns of their own that gain more, are merged, or stand next to tables that appear."""

import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass

from common.protoc import compile_protobuf
from common.schema import schema_from_json, to_ddl
from common.schema.protobuf import find_message
from common.settings.own_columns import columns_at
from common.stage.versions import latest
from common.storage.store import FsspecStore
from stage_writer.parquet.buffer import StagedRows
from tests.fakes.converting import ConvertingWriter
from tests.fakes.streams import stream_of

CLICK = {"table": "/tables/clicks", "columns": "id STRING, at STRING"}
VIEW = {"table": "/tables/views", "columns": "page STRING"}
EVOLVING: dict[str, Any] = {
    "columns": "id BIGINT, kind STRING",
    "route": "kind",
    "routes": {"click": CLICK, "view": VIEW, "plain": "/tables/plain"},
    "unknown_fields": "evolve",
}
MERGED: dict[str, Any] = {
    **EVOLVING,
    "route": "kafka.key_text[1:1]",
    "routes": {"c": CLICK, "v": {**VIEW, "columns": "page STRING, user STRING"}, "p": "/tables/plain"},
    "load": "merge",
    "merge": {"keys": ["id"], "route_keys": {"v": ["page", "user"]}},
}


class Writer(ConvertingWriter):
    def __init__(self, store: FsspecStore, *, file: bytes | None = None, **settings: object) -> None:
        super().__init__(store, stream_of(**settings), file=file)


def rows(staged: StagedRows) -> dict[str, list[dict[str, object]]]:
    """Without null rescue columns and Kafka's."""
    named = {"own": staged.rows[0], **{table.url.removeprefix("/tables/"): some for table, some in staged.routed}}
    return {
        name: [
            {
                column: value
                for column, value in row.items()
                if not column.startswith(("_kafka", "_cdc")) and (column != "_rescued" or value is not None)
            }
            for row in some.to_pylist()
        ]
        for name, some in named.items()
        if len(some)
    }


def errors(staged: StagedRows) -> list[tuple[str, str]]:
    letters = staged.rows[1]
    return list(zip(letters["error_class"].to_pylist(), letters["error"].to_pylist(), strict=True))


def schemas(staged: StagedRows) -> Mapping[str, str]:
    return {
        table.url.removeprefix("/tables/"): to_ddl(schema_from_json(table.schema)).partition(", _rescued")[0]
        for table, _ in staged.routed
    }


@pytest.fixture
def store() -> FsspecStore:
    return FsspecStore(f"memory://{uuid.uuid4().hex}", {})


def test_each_section_gains_the_fields_of_its_own_records(store: FsspecStore) -> None:
    writer = Writer(store, **EVOLVING)
    staged = writer.convert(
        [
            {"id": "a", "kind": "click", "at": "1", "x": 1},
            {"kind": "view", "page": "p", "x": "text", "ms": 2},
            {"id": 7, "kind": "other", "more": True},
            {"id": 8, "kind": "plain", "x": 1.5},
            {"id": "b", "kind": "click", "at": "2"},
        ]
    )
    assert not errors(staged)
    assert rows(staged) == {
        "own": [{"id": 7, "kind": "other", "more": True, "x": None}],
        "clicks": [{"id": "a", "at": "1", "kind": "click", "x": 1}, {"id": "b", "at": "2", "kind": "click", "x": None}],
        "views": [{"page": "p", "kind": "view", "ms": 2, "x": "text"}],
        "plain": [{"id": 8, "kind": "plain", "more": None, "x": 1.5}],
    }
    stream = writer.converter.stream
    gained = {url: to_ddl(columns_at(stream, url, writer.gained)) for url in stream.row_tables}
    assert gained == {
        "/tables/orders": "more BOOLEAN, x DOUBLE",
        "/tables/clicks": "kind STRING, x BIGINT",
        "/tables/views": "kind STRING, ms BIGINT, x STRING",
        "/tables/plain": "more BOOLEAN, x DOUBLE",
    }
    assert writer.rounds == 2
    published = latest(store, "orders", by_route=True)
    assert published is not None
    assert {gain.column for gain in published.gained} == {
        "`/tables/orders` STRUCT<more: BOOLEAN, x: DOUBLE>",
        "click STRUCT<kind: STRING, x: BIGINT>",
        "view STRUCT<kind: STRING, ms: BIGINT, x: STRING>",
    }


def test_restarted_writer_knows_the_gained_columns_of_each_section(store: FsspecStore) -> None:
    Writer(store, **EVOLVING).convert([{"id": "a", "kind": "click", "x": 1}, {"kind": "view", "x": "text"}])
    again = Writer(store, **EVOLVING)
    staged = again.convert([{"id": "a", "kind": "click", "x": "text"}, {"kind": "view", "x": 1}])
    assert again.rounds == 1
    assert [row["_rescued"] for table in ("clicks", "views") for row in rows(staged)[table]] == [
        '{"x":"text"}',
        '{"x":1}',
    ]


def test_declared_section_column_still_refuses_a_wrong_value(store: FsspecStore) -> None:
    writer = Writer(store, **EVOLVING)
    staged = writer.convert([{"id": 1, "kind": "click", "x": 1}, {"id": "a", "kind": "click"}])
    ((error_class, error),) = errors(staged)
    assert error_class == "wrong_type"
    assert error.endswith("(in routes.click)")
    assert columns_at(writer.converter.stream, "/tables/clicks", writer.gained).names == ("kind",), (
        "the value is not offered as a column"
    )


def test_all_tables_without_routes_gain_the_fields_of_all_records(store: FsspecStore) -> None:
    settings: dict[str, Any] = {
        "columns": "id BIGINT",
        "tables": [CLICK | {"columns": "id STRING"}, "/tables/copy"],
        "coerce": "lenient",
        "unknown_fields": "evolve",
        "evolve_limit": 1,
    }
    staged = Writer(store, **settings).convert([{"id": "1", "x": 1, "y": 2}])
    both = {"id": 1, "x": 1, "_rescued": '{"y":2}'}
    assert rows(staged) == {"own": [both], "copy": [both], "clicks": [{**both, "id": "1"}]}


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (
            {"routes": {"click": {**CLICK, "columns": "id STRING, at STRING, x DOUBLE"}}},
            {"id": "a", "at": None, "x": 1.0},
        ),
        ({"routes": {"click": "/tables/clicks"}, "columns": "id STRING"}, {"id": "a", "x": 1}),
        ({"unknown_fields": "rescue"}, {"id": "a", "at": None, "_rescued": '{"kind":"click","x":1}'}),
        ({"unknown_fields": "ignore"}, {"id": "a", "at": None}),
    ],
)
def test_config_edit_takes_effect_at_once(
    store: FsspecStore, edit: dict[str, object], expected: dict[str, object]
) -> None:
    """Columns change, a section becomes a URL, and evolve is switched off, next to a writer of the old config."""
    record = {"id": "a", "kind": "click", "x": 1}
    before = Writer(store, **EVOLVING)
    before.convert([record])
    edited = {**EVOLVING, **edit}
    stream = stream_of(**edited)
    if stream.has_several_columns:
        (row,) = rows(Writer(store, **edited).convert([record]))["clicks"]
        assert {name: row[name] for name in expected} == expected
        assert row.keys() - expected.keys() <= {"kind"}
    else:
        assert not stream.gains_by_table
        assert latest(store, "orders", by_route=False) is None, "columns that all tables gain are published separately"
    assert rows(before.convert([record]))["clicks"] == [{"id": "a", "at": None, "kind": "click", "x": 1}]


def test_section_is_merged_by_its_own_keys(store: FsspecStore) -> None:
    writer = Writer(store, **MERGED)
    staged = writer.convert(
        [
            {"id": "a", "at": "1", "x": 1},
            {"page": "p", "user": "u", "ms": 5},
            {"id": 7, "kind": "plain"},
            {"id": 8},
            {"page": "p", "ms": 6},
            {"at": "3"},
        ],
        [b"c1", b"v1", b"p7", b"o8", b"v1", b"c9"],
    )
    assert rows(staged) == {
        "own": [{"id": 8, "kind": None, "_merge_delete": False}],
        "clicks": [{"id": "a", "at": "1", "x": 1, "_merge_delete": False}],
        "views": [{"page": "p", "user": "u", "ms": 5, "_merge_delete": False}],
        "plain": [{"id": 7, "kind": "plain", "_merge_delete": False}],
    }
    assert errors(staged) == [
        ("null_key", "its key column user is null (in routes.v)"),
        ("null_key", "its key column id is null (in routes.c)"),
    ]
    merges = {table.url: table.merge.keys for table, _ in staged.routed if table.merge is not None}
    assert merges == {"/tables/clicks": ("id",), "/tables/views": ("page", "user"), "/tables/plain": ("id",)}
    assert writer.converter.formats[0].merge is not None


def test_tombstones_delete_by_the_keys_of_their_section(store: FsspecStore) -> None:
    settings: dict[str, Any] = {**MERGED, "route": "substr(kafka.key_text, 1, 2)"}
    settings["routes"] = {'{"': settings["routes"]["v"], "cl": settings["routes"]["c"]}
    settings["merge"] = {"keys": ["id"], "route_keys": {'{"': ["page", "user"]}}
    key = b'{"page":"p","user":"u"}'
    staged = Writer(store, **settings).convert(
        [{"page": "p", "user": "u", "z": 1}, None, None, None, None], [key, key, b"click", b"7", b'{"page":"p"}']
    )
    assert rows(staged) == {
        "own": [{"id": 7, "kind": None, "_merge_delete": True}],
        "clicks": [{"id": "click", "at": None, "_merge_delete": True}],
        "views": [
            {"page": "p", "user": "u", "z": 1, "_merge_delete": False},
            {"page": "p", "user": "u", "z": None, "_merge_delete": True},
        ],
    }
    ((error_class, error),) = errors(staged)
    assert error_class == "unreadable_key"
    assert error.endswith('does not contain the key columns (in routes.{")')
    assert staged.tombstones == 0


def test_tombstones_go_to_all_tables_without_routes(store: FsspecStore) -> None:
    settings: dict[str, Any] = {
        "columns": "id BIGINT",
        "tables": [CLICK],
        "coerce": "lenient",
        "load": "merge",
        "merge": {"keys": ["id"]},
    }
    staged = Writer(store, **settings).convert([{"id": "1"}, None], [b"1", b"2"])
    deletes = [False, True]
    assert rows(staged) == {
        "own": [{"id": number, "_merge_delete": delete} for number, delete in zip((1, 2), deletes, strict=True)],
        "clicks": [
            {"id": number, "at": None, "_merge_delete": delete} for number, delete in zip("12", deletes, strict=True)
        ],
    }


@pytest.mark.parametrize("tables", [{}, {"route": None, "routes": {}, "tables": [CLICK]}])
def test_tombstone_that_deletes_nothing_is_counted_once(store: FsspecStore, tables: dict[str, object]) -> None:
    writer = Writer(store, **{name: value for name, value in (EVOLVING | tables).items() if value})
    staged = writer.convert([None, {"id": "1", "kind": "click"}, None, {"id": "2", "kind": "plain"}])
    assert staged.tombstones == 2


def test_route_may_use_fields_that_are_keys_of_all_sections(store: FsspecStore) -> None:
    settings: dict[str, Any] = {
        **MERGED,
        "columns": "id STRING, kind STRING",
        "routes": {"c": {**CLICK, "columns": "id STRING, kind STRING"}},
        "merge": {"keys": ["id"], "tombstones": "ignore"},
        "route": "substr(id, 1, 1)",
    }
    staged = Writer(store, **settings).convert([{"id": "c1"}, {"id": "d1"}])
    assert {name: [row["id"] for row in some] for name, some in rows(staged).items()} == {
        "own": ["d1"],
        "clicks": ["c1"],
    }
    for merge in (
        {"keys": ["id"], "tombstones": "delete"},
        {"keys": ["id"], "tombstones": "ignore", "route_keys": {"c": ["kind"]}},
    ):
        with pytest.raises(Exception, match="the events of one row might go to several tables"):
            Writer(store, **{**settings, "merge": merge})
    renamed = {"table": "/tables/clicks", "columns": "ident STRING", "rename": {"ident": "id"}}
    with pytest.raises(Exception, match="the events of one row might go to several tables"):
        Writer(store, **{**settings, "routes": {"c": renamed}, "unknown_fields": "rescue"})


def test_canal_rows_go_to_sections(store: FsspecStore) -> None:
    settings: dict[str, Any] = {
        **MERGED,
        "columns": "id BIGINT",
        "route": "_cdc.source",
        "envelope": "canal",
        "merge": {"keys": ["id"], "tombstones": "ignore", "route_keys": {"shop.views": ["page"]}},
        "routes": {"shop.views": {**VIEW, "columns": "page STRING, ms INT"}},
    }
    about = {"database": "shop", "type": "INSERT", "isDdl": False, "es": 1, "ts": 1, "old": None}
    views = {**about, "table": "views", "data": [{"page": "p", "ms": "5"}, {"page": "q", "ms": "6", "x": "y"}]}
    moved = {**about, "table": "views", "type": "UPDATE", "data": [{"page": "r"}], "old": [{"page": "p"}]}
    staged = Writer(store, **settings).convert([views, moved, {**about, "table": "others", "data": [{"id": "1"}]}])
    by_table = {
        name: [(row.get("page", row.get("id")), row["_merge_delete"], row.get("x")) for row in some]
        for name, some in rows(staged).items()
    }
    assert by_table == {
        "views": [("p", False, None), ("q", False, "y"), ("p", True, None), ("r", False, None)],
        "own": [(1, False, None)],
    }


def test_section_coexists_with_route_table_tables(store: FsspecStore) -> None:
    settings: dict[str, Any] = {**EVOLVING, "routes": {"click": CLICK}, "route_table": "/tables/by/{route}"}
    writer = Writer(store, **settings)
    staged = writer.convert([{"id": "a", "kind": "click", "x": 1}, {"id": 1, "kind": "new", "y": 1}, {"id": 2, "z": 1}])
    assert rows(staged) == {
        "own": [{"id": 2, "kind": None, "y": None, "z": 1}],
        "clicks": [{"id": "a", "at": None, "kind": "click", "x": 1}],
        "by/new": [{"id": 1, "kind": "new", "y": 1, "z": None}],
    }
    own = {**settings, "route_columns": "own", "unrouted": "dead_letters", "app_id": "others"}
    staged = Writer(store, **own).convert(
        [{"id": "a", "kind": "click", "x": 1}, {"id": 1, "kind": "new", "y": 1}, {"id": 2}]
    )
    assert rows(staged) == {
        "clicks": [{"id": "a", "at": None, "kind": "click", "x": 1}],
        "by/new": [{"id": 1, "kind": "new", "y": 1}],
    }
    assert dict(staged.dead_letters) == {"unrouted": 1}
    without_columns = stream_of(**{key: own[key] for key in ("route", "routes", "route_table", "route_columns")})
    assert (without_columns.record.evolves, without_columns.routing.unrouted) == (True, "dead_letters")


def test_route_may_lead_to_the_main_table_with_route_columns_own(store: FsspecStore) -> None:
    settings: dict[str, Any] = {
        "columns": "kind STRING",
        "route": "kind",
        "route_table": "/tables/by/{route}",
        "route_columns": "own",
        "routes": {"a": "/tables/orders"},
        "unknown_fields": "evolve",
        "unrouted": "dead_letters",
    }
    staged = Writer(store, **settings).convert([{"kind": "a", "x": 1}, {"kind": "b", "y": 1}])
    assert rows(staged) == {"own": [{"kind": "a", "x": 1}], "by/b": [{"kind": "b", "y": 1}]}
    merged = {**settings, "load": "merge", "merge": {"keys": ["x"], "tombstones": "ignore"}, "route": "kafka.topic"}
    staged = Writer(store, **merged, app_id="others").convert([{"x": 1}])
    assert dict(staged.dead_letters) == {}
    staged = Writer(store, **{**merged, "routes": {"orders": "/tables/orders"}}, app_id="third").convert([{"x": 1}])
    assert rows(staged) == {"own": [{"kind": None, "x": 1, "_merge_delete": False}]}


def test_where_filters_single_rows_of_a_message(store: FsspecStore) -> None:
    settings: dict[str, Any] = {
        "columns": "id BIGINT",
        "where": "id > 1",
        "route": "_cdc.source",
        "route_table": "/tables/by/{route}",
        "route_columns": "own",
        "envelope": "canal",
        "unknown_fields": "evolve",
        "unrouted": "dead_letters",
    }
    event = {"database": "shop", "table": "a", "type": "INSERT", "isDdl": False, "es": 1, "ts": 1, "old": None}
    staged = Writer(store, **settings).convert(
        [{**event, "data": [{"id": "1"}, {"id": "2"}]}, {**event, "data": [{"id": "0"}]}]
    )
    assert [row["id"] for row in rows(staged)["by/shop.a"]] == [2]
    assert len(staged.filtered_offsets) == 1


def test_where_leaves_out_rows_of_sections_that_lack_its_columns(store: FsspecStore) -> None:
    settings: dict[str, Any] = {
        "columns": "id BIGINT, kind STRING",
        "where": "id > 1",
        "route": "_cdc.source",
        "routes": {
            "shop.views": {**VIEW, "columns": "page STRING", "derive": {"size": "CAST(page AS INT)"}},
            "shop.both": {**CLICK, "columns": "id STRING"},
        },
        "envelope": "canal",
        "unknown_fields": "evolve",
    }
    about = {"database": "shop", "type": "INSERT", "isDdl": False, "es": 1, "ts": 1, "old": None}
    left_out = {"id": "1", "page": "no number", "y": "1"}

    def event(table: str, *data: dict[str, str]) -> dict[str, object]:
        return {**about, "table": table, "data": data}

    staged = Writer(store, **settings).convert(
        [
            event("views", left_out, {"id": "2", "page": "10"}, left_out, {"id": "3", "page": "11"}),
            event("both", {"id": "5"}, {"id": "0"}),
            event("views", left_out),
            event("others", {"id": "1"}, {"id": "7", "kind": "k"}),
            event("views", {"id": "x", "page": "1"}),
            event("views", {"id": "8", "page": "12"}),
        ]
    )
    assert [row["size"] for row in rows(staged)["views"]] == [10, 11, 12]
    assert [row["id"] for row in rows(staged)["clicks"]] == ["5"]
    assert [(row["id"], row["kind"]) for row in rows(staged)["own"]] == [(7, "k")]
    assert errors(staged)[0][0] == "wrong_type"
    assert [len(errors(staged)), staged.filtered_offsets.tolist(), staged.exploded] == [1, [102], 1]
    assert "y" not in schemas(staged)["views"]


@pytest.mark.parametrize(("offset", "kept"), [("> 100", ["q", "r"]), (">= 100", ["p", "q", "r"])])
def test_where_without_fields_keeps_or_drops_all_rows_of_a_message(
    store: FsspecStore, offset: str, kept: list[str]
) -> None:
    settings: dict[str, Any] = {
        "columns": "id BIGINT",
        "where": f"kafka.offset {offset}",
        "tables": [VIEW],
        "envelope": "canal",
    }
    about = {"database": "shop", "table": "a", "type": "INSERT", "isDdl": False, "es": 1, "ts": 1, "old": None}
    events = [{**about, "data": [{"page": page} for page in pages]} for pages in ("p", "qr")]
    staged = Writer(store, **settings).convert(events)
    assert [row["page"] for row in rows(staged)["views"]] == kept


PROTO = """
syntax = "proto3";
message Event {
  message Page { string name = 1; repeated int32 words = 2; }
  string kind = 1; int64 id = 2; bytes raw = 3; repeated string tags = 4; Page page = 5; double ms = 6;
}
"""


def test_protobuf_records_go_to_sections_that_gain_their_other_fields(store: FsspecStore) -> None:
    """Of one message, by the columns of each: a declared BINARY or list has its bytes and elements."""
    file = PROTO.encode()
    made = GetMessageClass(find_message(compile_protobuf(file, {}), "Event"))
    events = [
        {"kind": "click", "id": 1 << 60, "raw": b"\xff\0", "tags": ["x", "y"]},
        {"kind": "view", "id": 2, "page": {"name": "p", "words": [1, 2]}, "ms": 0.1},
    ]
    sections = {
        "click": {"table": "/tables/clicks", "columns": "id BIGINT, raw BINARY, tags ARRAY<STRING>"},
        "view": {"table": "/tables/views", "columns": "page STRUCT<name: STRING>, ms DOUBLE"},
    }
    settings: dict[str, Any] = {"columns": "kind STRING", "route": "kind", "routes": sections}
    settings |= {"format": "protobuf", "schema_file": "event.proto"}
    values = [*(made(**event).SerializeToString() for event in events), b"\xff"]
    staged = Writer(store, file=file, **settings).convert(values)
    click = {"id": 1 << 60, "raw": b"\xff\0", "tags": ["x", "y"]}
    assert rows(staged) == {"clicks": [click], "views": [{"page": {"name": "p"}, "ms": 0.1}]}
    assert dict(staged.dead_letters) == {"invalid_record": 1}
    staged = Writer(store, file=file, **settings, unknown_fields="evolve").convert(values)
    (gained,) = rows(staged)["views"]
    rest = {"kind": "view", "id": 2, "raw": "", "_rescued": '{"tags":[]}'}  # unset fields have their defaults
    assert gained == {"page": {"name": "p", "words": [1, 2]}, "ms": 0.1, **rest}
    assert rows(staged)["clicks"][0].items() >= click.items()
