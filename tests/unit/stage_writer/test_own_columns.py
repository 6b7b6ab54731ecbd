"""Tables that appear with columns and keys of their own (`route_columns: own`)."""

import gc
import io
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import fastavro
import pytest
import structlog
from google.protobuf.message_factory import GetMessageClass

from common.clock import SystemClock
from common.errors import ConfigError
from common.protoc import compile_protobuf
from common.schema import schema_from_json, to_ddl
from common.schema.evolution import NO_COLUMNS
from common.schema.protobuf import find_message
from common.settings import Stream
from common.settings.own_columns import columns_at
from common.stage.appeared_routes import agree_on, appeared, with_appeared_of
from common.stage.versions import latest
from common.storage.store import FsspecStore
from devservices.schema_registry import Registry, running_registry
from stage_writer.convert_by_table import TablesConverter
from stage_writer.decode.batch import headers_column
from stage_writer.decode.envelopes.framing import SchemaTypes, SchemaWait
from stage_writer.fetch.schema_registry import SchemaRegistry
from stage_writer.parquet.buffer import StagedRows
from stage_writer.sample import StreamSample
from stage_writer.schemas import Schemas
from stage_writer.stage.gaining import gain_columns
from stage_writer.stage.staging import ObjectStage
from stage_writer.table_group import TableGroup
from tests.fakes.answering import schema_registry
from tests.fakes.converting import ConvertingWriter
from tests.fakes.group import InTurn
from tests.fakes.streams import batch_of, stream_of

ROUTE = "regexp_extract(_cdc.source, '[^.]+$')"
MERGED: dict[str, Any] = {"load": "merge", "merge": {"tombstones": "ignore"}, "envelope": "debezium"}


def own(**settings: object) -> Stream:
    return stream_of(**{"route": ROUTE, "route_table": "/by/{route}", "route_columns": "own", **MERGED, **settings})


class Writer(ConvertingWriter):
    def __init__(
        self, store: FsspecStore, schemas: SchemaTypes | None = None, *, file: bytes | None = None, **settings: object
    ) -> None:
        super().__init__(store, own(**settings), schemas, file=file)


def tables(staged: StagedRows) -> dict[str, list[dict[str, object]]]:
    made = ("_cdc", "_kafka_topic", "_kafka_partition", "_kafka_timestamp")
    return {
        table.url.removeprefix("/by/"): [
            {name: value for name, value in row.items() if name not in made} for row in rows.to_pylist()
        ]
        for table, rows in staged.routed
    }


def letters(staged: StagedRows) -> dict[int, str]:
    dead = staged.rows[1].select(["_kafka_offset", "error"]).to_pylist()
    return {row["_kafka_offset"]: row["error"] for row in dead}


def change(table: str, after: dict[str, object] | None, op: str = "c", before: object = None) -> bytes:
    source = {"db": "shop", "table": table}
    return json.dumps({"before": before, "after": after, "op": op, "source": source, "ts_ms": 5}).encode()


def key(**names: object) -> bytes:
    return json.dumps(names).encode()


@pytest.fixture
def store() -> FsspecStore:
    return FsspecStore(f"memory://{uuid.uuid4().hex}", {})


def test_each_table_has_the_columns_and_keys_of_its_own_events(store: FsspecStore) -> None:
    writer = Writer(store)
    staged = writer.convert(
        [
            change("customers", {"id": 1, "name": "Ada"}),
            change("lines", {"order": "x", "line": 1, "id": "not a number"}),
            change("customers", None, "d", {"id": 1, "name": "Ada"}),
            change("customers", {"id": 2, "name": "Eve", "vip": True}),
        ],
        [key(id=1), key(order="x", line=1), key(id=1), key(id=2)],
    )
    assert not letters(staged)
    rest = {"_rescued": None, "_merge_delete": False}
    assert tables(staged) == {
        "customers": [
            {"_kafka_offset": 100, "id": 1, "name": "Ada", "vip": None, **rest},
            {"_kafka_offset": 102, "id": 1, "name": "Ada", "vip": None, **rest, "_merge_delete": True},
            {"_kafka_offset": 103, "id": 2, "name": "Eve", "vip": True, **rest},
        ],
        "lines": [{"_kafka_offset": 101, "order": "x", "line": 1, "id": "not a number", **rest}],
    }
    merges = {table.url: table.merge.keys for table, _ in staged.routed if table.merge is not None}
    assert merges == {"/by/customers": ("id",), "/by/lines": ("order", "line")}
    agreed = appeared(store, "orders")
    assert agreed.keys == {"customers": ("id",), "lines": ("order", "line")}
    stream = with_appeared_of(writer.stream, store)
    assert to_ddl(columns_at(stream, "/by/customers", writer.gained)) == "id BIGINT, name STRING, vip BOOLEAN"
    own_columns = [schema_from_json(table.schema).names for table, _ in staged.routed if table.url == "/by/lines"]
    assert own_columns[0][:4] == ("id", "line", "order", "_rescued")
    main = staged.rows[0]
    assert not len(main)
    assert main.column_names[:2] == ["_rescued", "_cdc"]


def test_tables_that_appear_later_gain_their_own_columns(store: FsspecStore) -> None:
    """As the loop does it."""
    clock = SystemClock()
    stage = SimpleNamespace(
        gain=lambda stream, offers: gain_columns(store, lambda _: store, clock, stream, offers),
        continued=lambda stream: latest(store, stream.app_id, by_route=stream.gains_by_table),
    )

    def converts(schemas: Schemas, first: TablesConverter, table: str, **row: object) -> list[dict[str, object]]:
        batch = batch_of([change(table, row)], keys=[key(id=1)])
        for _ in range(3):
            converter = cast("TablesConverter", schemas.newest(first))
            assert converter.waits(batch) is None
            ((_, staged),) = (each for part in converter.slices([batch]) for each in part)
            if staged.offered.fields and schemas.waits(converter, staged.offered, "marker") is not None:
                schemas.refresh()
                continue
            assert not letters(staged)
            return tables(staged)[table]
        pytest.fail("the fields are offered again")

    for names in ("ab", "cd"):  # the second writer reads the published columns at startup
        writer = Writer(store).converter
        schemas = Schemas([writer], cast("ObjectStage", stage), InTurn(), clock, structlog.get_logger(), columns={})
        schemas.refresh()
        for name in names:
            (row,) = converts(schemas, writer, name, id=1, **{f"of_{name}": True})
            assert (row["id"], row[f"of_{name}"], row["_rescued"]) == (1, True, None)
            (row,) = converts(schemas, writer, names[0], id=1)
            assert row.keys() == {"_kafka_offset", "_merge_delete", "_rescued", "id", f"of_{names[0]}"}


def test_second_writer_uses_the_published_columns(store: FsspecStore) -> None:
    Writer(store).convert([change("a", {"id": 1, "x": 1})], [key(id=1)])
    second = Writer(store)
    staged = second.convert([change("a", {"id": 2, "x": "text", "y": 1.5})], [key(id=2)])
    (row,) = tables(staged)["a"]
    assert (row["x"], row["y"], row["_rescued"]) == (None, 1.5, '{"x":"text"}')
    assert second.once(batch_of([change("a", {"id": 3})], keys=[key(id=3)])).offered == NO_COLUMNS


def test_event_with_another_key_is_a_dead_letter(store: FsspecStore) -> None:
    writer = Writer(store)
    connect = json.dumps({"schema": {"type": "struct"}, "payload": {"id": 2}}).encode()
    more = json.dumps({"schema": {"type": "struct"}, "payload": {"id": 2, "region": 3}}).encode()
    keys = [key(id=1), key(id=1, region=2), None, b"7", connect, more, key(id=None), key(region=1), b"\xff"]
    staged = writer.convert([change("a", {"id": number, "region": 1}) for number in range(1, 10)], keys)
    assert [row["id"] for row in tables(staged)["a"]] == [1, 5]
    why = "its message key does not have the names id, by which its table is merged (in routes.a)"
    assert letters(staged) == dict.fromkeys([101, 102, 103, 105, 106, 107, 108], why)
    assert dict(staged.dead_letters) == {"unreadable_key": 7}


def test_restarted_writer_compares_keys_with_the_published_ones(store: FsspecStore) -> None:
    Writer(store).convert([change("a", {"id": 1}), change("b", {"n": 1})], [key(id=1), key(n=1)])
    staged = Writer(store).convert([change("a", {"id": number}) for number in (2, 3, 4)], [key(id=2), None, key(n=4)])
    assert [row["id"] for row in tables(staged)["a"]] == [2]
    assert dict(staged.dead_letters) == {"unreadable_key": 2}
    given = {"tombstones": "ignore", "route_keys": {"a": ["id"]}}
    staged = Writer(store, merge=given).convert([change("a", {"id": 5}), change("b", {"n": 2})], [None, None])
    assert {url: len(rows) for url, rows in tables(staged).items()} == {"a": 1}
    assert letters(staged) == {
        101: "its message key does not have the names n, by which its table is merged (in routes.b)"
    }


def test_sample_tries_tables_with_the_columns_they_would_gain(store: FsspecStore) -> None:
    writer = Writer(store)
    sample = StreamSample(writer.stream, None)
    rows: list[tuple[str, dict[str, object]]] = [("a", {"id": 1}), ("b", {"n": 1}), ("a", {"id": 2}), ("a", {"n": 1})]
    values = [change(table, row) for table, row in rows]
    for start in (0, 2):
        batch = batch_of(values[start : start + 2], keys=[key(id=1), key(n=1) if start == 0 else key(id=2)])
        assert writer.converter.waits(batch) is None
        sample.add(writer.converter, [batch])
    assert (sample.records, dict(sample.dead_letters)) == (4, {"null_key": 1})
    assert latest(store, "orders", by_route=True) is None, "a check publishes nothing"


def test_events_without_a_key_create_no_table(store: FsspecStore) -> None:
    writer = Writer(store)
    staged = writer.convert([change("a", {"id": 1}), change("b", {"id": 1})], [None, b'"text"'])
    why = "and none of its events names the keys of a table"
    assert letters(staged) == {100: f"its route is 'a', {why}", 101: f"its route is 'b', {why}"}
    assert appeared(store, "orders").routes == ()
    staged = writer.convert([change("a", {"id": 1}), change("a", {"id": 2})], [None, key(id=2)])
    assert [row["id"] for row in tables(staged)["a"]] == [2]


def test_table_that_appeared_without_keys_gets_them_from_its_next_event(store: FsspecStore) -> None:
    agree_on(store, "orders", ["a", "b", "log"], 5)  # by a writer whose tables had the stream's keys
    writer = Writer(store, merge={"tombstones": "ignore", "route_keys": {"log": ["at"]}})
    staged = writer.convert([change("log", {"at": 2}), change("a", {"id": 1}), change("b", {"n": 1})], [None] * 3)
    why = "no event of the route '{0}' has named the keys of its table (in routes.{0})"
    assert letters(staged) == {101: why.format("a"), 102: why.format("b")}
    assert [row["at"] for row in tables(staged)["log"]] == [2]
    staged = writer.convert([change("a", {"id": number}) for number in (2, 3, 4)], [None, key(id=3), key(id=4)])
    assert [row["id"] for row in tables(staged)["a"]] == [3, 4]
    assert dict(staged.dead_letters) == {"unreadable_key": 1}
    agreed = appeared(store, "orders")
    assert (agreed.keys, agreed.version) == ({"a": ("id",)}, 2)
    staged = writer.convert([change("b", {"n": 1})], [key(n=1)])
    assert [row["n"] for row in tables(staged)["b"]] == [1]
    agree_on(store, "orders", ["c"], 5)  # while this writer runs
    staged = writer.convert([change("d", {"id": 1}), change("c", {"n": 1})], [key(id=1), key(n=1)])
    assert {url: len(rows) for url, rows in tables(staged).items()} == {"c": 1, "d": 1}
    assert appeared(store, "orders").keys == {"a": ("id",), "b": ("n",), "c": ("n",), "d": ("id",)}


def groups_alive() -> int:
    gc.collect()
    return sum(isinstance(each, TableGroup) for each in gc.get_objects())


def test_gaining_columns_frees_the_previous_converters(store: FsspecStore) -> None:
    before, writer = groups_alive(), Writer(store)
    for number in range(5):
        writer.convert([change("a", {"id": 1, f"x{number}": 1})], [key(id=1)])
    assert columns_at(writer.converter.stream, "/by/a", writer.gained).names == ("id", *(f"x{n}" for n in range(5)))
    assert groups_alive() - before == 2, "one for the main table, one for the other"


def test_merge_settings_may_give_keys(store: FsspecStore) -> None:
    merge = {"tombstones": "ignore", "route_keys": {"log": ["at", "by"]}}
    writer = Writer(store, merge=merge)
    staged = writer.convert([change("log", {"at": 1, "by": "x"}), change("log", {"at": None, "by": "y"})], [None, None])
    assert [(row["at"], row["by"]) for row in tables(staged)["log"]] == [(1, "x")]
    assert letters(staged) == {101: "its key column at is null (in routes.log)"}
    writer = Writer(store, app_id="others", merge={"tombstones": "ignore", "keys": ["id"]})
    staged = writer.convert([change("log", {"id": 1})], [key(other=1)])
    assert [row["id"] for row in tables(staged)["log"]] == [1]


def test_configured_keys_replace_published_ones_until_they_are_removed(store: FsspecStore) -> None:
    def merged_by(staged: StagedRows) -> tuple[str, ...]:
        ((table, _),) = staged.routed
        assert table.merge is not None
        return table.merge.keys

    row, message_key = change("a", {"id": 1, "n": 2, "m": 3}), key(id=1)
    assert merged_by(Writer(store).convert([row], [message_key])) == ("id",)
    edits: list[tuple[dict[str, object], tuple[str, ...]]] = [
        ({"keys": ["n"]}, ("n",)),
        ({"keys": ["m"]}, ("m",)),
        ({"keys": ["m"], "route_keys": {"a": ["n", "m"]}}, ("n", "m")),
        ({}, ("id",)),
    ]
    for keys, expected in edits:
        edited = Writer(store, merge={"tombstones": "ignore", **keys})
        assert merged_by(edited.convert([row], [message_key])) == expected


def test_tombstones_delete_in_the_table_of_their_topic(store: FsspecStore) -> None:
    writer = Writer(store, route="kafka.topic", merge={})
    staged = writer.convert([None, change("a", {"id": 1, "x": 1}), None, None], [key(id=7), key(id=1), None, key(id=1)])
    rows = [(row["id"], row["_merge_delete"]) for row in tables(staged)["orders"]]
    assert rows == [(7, True), (1, False), (1, True)]
    assert dict(staged.dead_letters) == {"unreadable_key": 1}
    alone = Writer(store, app_id="others", route="kafka.topic", merge={}).convert([None], [key(id=7)])
    assert [row["id"] for row in tables(alone)["orders"]] == [7]
    assert alone.tombstones == 0


def test_keys_that_no_event_has_make_dead_letters(store: FsspecStore) -> None:
    writer = Writer(store, evolve_limit=1)
    staged = writer.convert([change("a", {"id": 1, "region": 2})], [key(id=1, region=2)])
    assert letters(staged) == {100: "no event of the route 'a' had the key columns id, region (in routes.a)"}
    floats = Writer(store, app_id="others").convert([change("a", {"id": 1.5})], [key(id=1.5)])
    assert "whose type DOUBLE cannot tell rows apart" in letters(floats)[100]


def test_appended_tables_have_separate_columns_too(store: FsspecStore) -> None:
    writer = Writer(
        store,
        load="auto",
        merge=None,
        envelope="plain",
        route="kind",
        columns="kind STRING",
        unknown_fields="evolve",
        unrouted="dead_letters",
    )
    staged = writer.convert([b'{"kind":"a","x":1}', b'{"kind":"b","x":"y"}', b"{}", None], [None] * 4)
    assert {url: [row["x"] for row in rows] for url, rows in tables(staged).items()} == {"a": [1], "b": ["y"]}
    assert letters(staged) == {102: "its route is null, which is not in routes"}
    assert staged.tombstones == 1
    assert appeared(store, "orders").keys == {}


def test_keys_are_published_once(store: FsspecStore) -> None:
    agree_on(store, "orders", ["a"], 5)
    assert agree_on(store, "orders", ["a"], 5, {"a": ("id",)}).keys == {"a": ("id",)}
    again = agree_on(store, "orders", ["a", "b"], 5, {"a": ("other",), "b": ("x",), "c": ("y",)})
    assert (again.keys, again.version) == ({"a": ("id",), "b": ("x",)}, 3)
    assert b"keys" not in agree_on(store, "others", ["a"], 5).to_bytes()


def maxwell(table: str, kind: str, data: dict[str, object], **more: object) -> bytes:
    about = {"database": "shop", "table": table, "ts": 5, "xid": 1, "commit": True, "primary_key_columns": ["id"]}
    return json.dumps({**about, "type": kind, "data": data, **more}).encode()


def canal(table: str, kind: str, *rows: dict[str, str], **more: object) -> bytes:
    about = {"database": "shop", "table": table, "es": 5, "ts": 6, "isDdl": False, "sql": "", "pkNames": ["id"]}
    return json.dumps({**about, "type": kind, "data": list(rows) or None, "old": None, **more}).encode()


def dms(table: str, operation: str, data: dict[str, object], **more: object) -> bytes:
    about = {"record-type": "data", "operation": operation, "schema-name": "shop", "table-name": table}
    return json.dumps({"data": data, "metadata": about, **more}).encode()


def rows_at(staged: StagedRows, table: str, *names: str) -> list[tuple[object, ...]]:
    return [tuple(row[name] for name in (*names, "_merge_delete")) for row in tables(staged)[table]]


def test_maxwell_events_name_the_keys_of_their_tables(store: FsspecStore) -> None:
    writer = Writer(store, envelope="maxwell")
    of_maxwell = b'{"database":"shop","table":"a","pk.id":1}'
    staged = writer.convert(
        [
            maxwell("a", "insert", {"id": 1, "x": 1}),
            maxwell("b", "insert", {"n": "k", "id": 2.5}, primary_key_columns=["n"]),
            maxwell("a", "update", {"id": 3, "x": 1}, old={"id": 1}),
            maxwell("a", "update", {"id": 3, "x": 2}, old={"x": 1}),
            maxwell("a", "delete", {"id": 3, "x": 2}),
            maxwell("a", "insert", {"id": 4}, primary_key_columns=["id", "x"]),
            maxwell("a", "insert", {"id": 5}, primary_key_columns=None),
            maxwell("a", "table-alter", {}, primary_key_columns=None),
            maxwell("c", "insert", {"table": 5}, primary_key_columns=["table"]),
        ],
        [of_maxwell] * 9,
    )
    assert rows_at(staged, "c", "table") == [(5, False)], "the key is not taken from the message key"
    assert rows_at(staged, "a", "id", "x") == [
        (1, 1, False),
        (1, 1, True),
        (3, 1, False),
        (3, 2, False),
        (3, 2, True),
    ]
    assert rows_at(staged, "b", "n", "id") == [("k", 2.5, False)]
    why = "its primary_key_columns does not have the names id, by which its table is merged (in routes.a)"
    assert letters(staged) == {105: why, 106: why}
    assert (staged.filtered, staged.exploded) == (1, 1)
    assert appeared(store, "orders").keys == {"a": ("id",), "b": ("n",), "c": ("table",)}
    again = Writer(store, envelope="maxwell").convert([maxwell("a", "insert", {"id": 9})], [None])
    assert rows_at(again, "a", "id") == [(9, False)]


def test_canal_events_name_the_keys_and_may_have_several_rows(store: FsspecStore) -> None:
    writer = Writer(store, envelope="canal")
    staged = writer.convert(
        [
            canal("a", "INSERT", {"id": "1", "x": "u"}, {"id": "2", "x": "v"}),
            canal("b", "INSERT", {"n": "1", "m": "2"}, pkNames=["n", "m"]),
            canal("b", "INSERT", {"n": "3", "m": "2"}, pkNames=["m", "n"]),
            canal("a", "UPDATE", {"id": "3", "x": "u"}, {"id": "2", "x": "w"}, old=[{"id": "1"}, {"x": "v"}]),
            canal("a", "INSERT", {"id": "4"}, pkNames=None),
            canal("a", "ALTER", isDdl=True, pkNames=None, sql="ALTER TABLE a ADD y INT"),
        ],
        [None] * 6,
    )
    assert rows_at(staged, "a", "id", "x", "_merge_row") == [
        ("1", "u", 0, False),
        ("2", "v", 1, False),
        ("1", "u", 0, True),
        ("3", "u", 1, False),
        ("2", "w", 2, False),
    ]
    assert rows_at(staged, "b", "n", "m") == [("1", "2", False), ("3", "2", False)]
    assert letters(staged) == {
        104: "its pkNames does not have the names id, by which its table is merged (in routes.a)"
    }
    assert staged.filtered == 1


def test_message_that_is_not_an_event_adds_no_row(store: FsspecStore) -> None:
    """When the route is the topic, such messages reach the table too."""
    merge = {"tombstones": "ignore"}
    writer = Writer(store, envelope="canal", route="kafka.topic", merge=merge)
    staged = writer.convert([canal("a", "INSERT", {"id": "1"}), b"{", canal("a", "QUERY", pkNames=None)], [None] * 3)
    assert rows_at(staged, "orders", "id") == [("1", False)]
    assert (dict(staged.dead_letters), staged.filtered) == ({"invalid_json": 1}, 1)


def test_dms_keys_come_from_the_settings(store: FsspecStore) -> None:
    writer = Writer(store, envelope="dms", merge={"tombstones": "ignore", "route_keys": {"a": ["id"]}})
    staged = writer.convert(
        [
            dms("a", "insert", {"id": 1, "x": 1}),
            dms("a", "update", {"id": 2, "x": 1}, **{"before-image": {"id": 1}}),
            dms("b", "insert", {"id": 1}),
        ],
        [b"shop.a.1", b"shop.a.2", b"shop.b.1"],
    )
    assert rows_at(staged, "a", "id", "x") == [(1, 1, False), (1, 1, True), (2, 1, False)]
    assert letters(staged) == {102: "its route is 'b', and none of its events names the keys of a table"}


class UnknownSchemas:
    """A registry that has not responded."""

    def knows(self, _ids: Sequence[object]) -> bool:
        return False


class OnlySchema:
    """A registry that has responded for one schema."""

    def __init__(self, known: int) -> None:
        self.known = known

    def knows(self, ids: Sequence[object]) -> bool:
        return list(ids) == [self.known]


def test_avro_events_create_tables_with_the_configured_keys(store: FsspecStore) -> None:
    def event(table: str, op: str, after: dict[str, object]) -> bytes:
        row = [{"name": name, "type": "string" if isinstance(value, str) else "long"} for name, value in after.items()]
        image = {"type": "record", "name": f"{table}.Value", "fields": row}
        source = {
            "type": "record",
            "name": "Source",
            "fields": [{"name": name, "type": "string"} for name in ("db", "table")],
        }
        fields = [
            {"name": "before", "type": ["null", image]},
            {"name": "after", "type": ["null", f"{table}.Value"]},
            {"name": "source", "type": source},
            {"name": "op", "type": "string"},
        ]
        schema = {"type": "record", "name": f"{table}.Envelope", "fields": fields}
        file = io.BytesIO(b"\0" + registry.register(json.dumps(schema), "AVRO").to_bytes(4, "big"))
        file.seek(5)
        images = {"before": after if op == "d" else None, "after": None if op == "d" else after}
        fastavro.schemaless_writer(
            file, fastavro.parse_schema(schema), {**images, "source": {"db": "shop", "table": table}, "op": op}
        )
        return file.getvalue()

    with running_registry() as registry:
        schemas = schema_registry(registry.url, resolves={"AVRO"})
        merge = {"tombstones": "ignore", "route_keys": {"a": ["id"], "b": ["n", "m"]}}
        route = "regexp_extract(_cdc.source, '[^.]+$')"
        settings: dict[str, Any] = {"format": "avro", "framing": "confluent", "merge": merge, "route": route}
        writer = Writer(store, schemas, **settings)
        values = [
            event("a", "c", {"id": 1, "x": "u"}),
            event("b", "c", {"n": "k", "m": 2}),
            event("a", "d", {"id": 1, "x": "u"}),
            event("a", "c", {"id": 2, "x": "v", "y": 3}),
        ]
        keys = [b"\0\0\0\0\1\2"] * 4
        waiting = Writer(store, cast("SchemaRegistry", UnknownSchemas()), **settings).converter
        assert isinstance(waiting.waits(batch_of(values, keys=keys)), SchemaWait)
        schemas.types_of([int.from_bytes(value[1:5], "big") for value in values])
        staged = writer.convert(values, keys)
    assert not letters(staged)
    assert rows_at(staged, "a", "id", "x", "y") == [(1, "u", None, False), (1, "u", None, True), (2, "v", 3, False)]
    assert rows_at(staged, "b", "n", "m") == [("k", 2, False)]


def test_framed_json_creates_tables_with_their_own_columns(store: FsspecStore) -> None:
    rows: dict[str, Any] = {"load": "auto", "merge": None, "envelope": "plain", "columns": "kind STRING"}
    with running_registry() as registry:
        frame = b"\0" + registry.register('{"type": "object"}').to_bytes(4, "big")
        schemas = schema_registry(registry.url)
        schemas.types_of([int.from_bytes(frame[1:], "big")])
        framed: dict[str, Any] = {"framing": "confluent", "route": "kind", "unknown_fields": "evolve"}
        writer = Writer(store, schemas, unrouted="dead_letters", **rows, **framed)
        staged = writer.convert([frame + b'{"kind":"a","x":1}', b'{"kind":"a"}'], [None] * 2)
    assert [row["x"] for row in tables(staged)["a"]] == [1]
    assert dict(staged.dead_letters) == {"not_framed": 1}


class Framed:
    """Messages and their keys as Confluent writes them, with the id of the schema in front or in headers."""

    def __init__(self, registry: Registry, kind: str, framing: str) -> None:
        self.schemas = schema_registry(registry.url, resolves={kind})
        self.settings: dict[str, Any] = {"framing": framing, "format": kind.lower()}
        self._registry, self._kind = registry, kind
        self._in_headers = framing == "confluent_header"
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.headers: list[list[tuple[str, bytes | None]] | None] = []

    def add(self, value: tuple[str, bytes] | None, key: tuple[str, bytes] | None) -> None:
        """A message, given by its schema and its bytes."""
        headers: list[tuple[str, bytes | None]] = []
        bodies: list[bytes | None] = []
        for name, given in (("__value_schema_id", value), ("__key_schema_id", key)):
            frame, body = (b"", None) if given is None else (self._frame(given[0]), given[1])
            headers += [(name, frame)] if self._in_headers and frame else []
            bodies.append(body if self._in_headers or body is None else frame + body)
        self.values.append(bodies[0])
        self.keys.append(bodies[1])
        self.headers.append(headers)

    def _frame(self, schema: str) -> bytes:
        number = self._registry.register(schema, self._kind)
        self.schemas.types_of([number])
        return b"\0" + number.to_bytes(4)

    def convert(self, writer: Writer) -> StagedRows:
        return writer.convert(self.values, self.keys, self.headers if self._in_headers else None)


FRAMINGS = pytest.mark.parametrize("framing", ["confluent", "confluent_header"])
ANY = '{"type": "object"}'


@FRAMINGS
def test_framing_does_not_hide_the_key_names_of_json(store: FsspecStore, framing: str) -> None:
    with running_registry() as registry:
        framed = Framed(registry, "JSON", framing)
        framed.add((ANY, maxwell("a", "insert", {"id": 1, "x": 1})), None)
        framed.add((ANY, maxwell("a", "insert", {"id": 2}, primary_key_columns=["x"])), None)
        staged = framed.convert(Writer(store, framed.schemas, envelope="maxwell", **framed.settings))
        assert rows_at(staged, "a", "id", "x") == [(1, 1, False)]
        assert list(letters(staged)) == [101]
        events = Framed(registry, "JSON", framing)
        events.add((ANY, change("a", {"id": 1})), (ANY, key(id=1)))
        events.add(None, (ANY, key(id=2)))
        events.add((ANY, change("a", {"id": 1})), (ANY, key(n=1)))
        settings: dict[str, Any] = {"route": "kafka.topic", "merge": {}, **events.settings}
        staged = events.convert(Writer(store, events.schemas, **settings))
        assert rows_at(staged, "orders", "id") == [(1, False), (2, True)]
        assert list(letters(staged)) == [102]


def avro(schema: dict[str, Any], value: Mapping[str, object]) -> tuple[str, bytes]:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), value)
    return json.dumps(schema), file.getvalue()


@FRAMINGS
def test_avro_keys_name_the_keys_of_their_tables(store: FsspecStore, framing: str) -> None:
    """As Debezium sends them with Confluent's converter; their values have the forms of the record's."""
    timestamp = {"type": "long", "logicalType": "timestamp-millis"}
    of_key: dict[str, Any] = {
        "type": "record",
        "name": "Key",
        "fields": [{"name": "id", "type": "bytes"}, {"name": "at", "type": timestamp}],
    }
    image = {"type": "record", "name": "Value", "fields": [*of_key["fields"], {"name": "x", "type": "string"}]}
    fields = [{"name": "before", "type": ["null", image]}, {"name": "after", "type": ["null", "Value"]}]
    envelope = {"type": "record", "name": "Envelope", "fields": [*fields, {"name": "op", "type": "string"}]}
    with running_registry() as registry:
        framed = Framed(registry, "AVRO", framing)
        for number in (1, 2):
            row = {"id": b"\xff%d" % number, "at": 1_000 * number, "x": "u"}
            names = {name: row[name] for name in ("id", "at")}
            framed.add(avro(envelope, {"before": None, "after": row, "op": "c"}), avro(of_key, names))
        framed.add(None, avro(of_key, {"id": b"\xff1", "at": 1_000}))
        other = {"type": "record", "name": "Key", "fields": of_key["fields"][:1]}
        framed.add(avro(envelope, {"before": None, "after": row, "op": "c"}), avro(other, {"id": b"\xff2"}))
        settings: dict[str, Any] = {"route": "kafka.topic", "merge": {}, **framed.settings}
        waiting = Writer(store, cast("SchemaRegistry", OnlySchema(1)), **settings).converter
        batch = replace(batch_of(framed.values, keys=framed.keys), headers=headers_column(framed.headers))
        assert isinstance(waiting.waits(batch), SchemaWait), "waits for the schemas of event keys"
        for tombstones, waits in (("delete", True), ("ignore", False)):
            given = {**settings, "merge": {"keys": ["id", "at"], "tombstones": tombstones}}
            waiting = Writer(store, cast("SchemaRegistry", OnlySchema(1)), app_id=tombstones, **given).converter
            assert isinstance(waiting.waits(batch.part(0, 1)), SchemaWait) == waits, (
                "keys offer the columns that they name"
            )
        staged = framed.convert(Writer(store, framed.schemas, **settings))
    first, second = "1970-01-01T00:00:01.000Z", "1970-01-01T00:00:02.000Z"
    assert rows_at(staged, "orders", "id", "at", "x") == [
        ("/zE=", first, "u", False),
        ("/zI=", second, "u", False),
        ("/zE=", first, None, True),
    ]
    assert list(letters(staged)) == [103]
    assert appeared(store, "orders").keys == {"orders": ("id", "at")}


PROTO = """
syntax = "proto3";
message A { string kind = 1; int64 id = 2; repeated string tags = 3; optional int32 later = 4; }
message B { string kind = 1; string name = 2; }
message Key { int64 id = 1; }
"""


@FRAMINGS
def test_protobuf_creates_tables_with_their_own_columns_and_keys(store: FsspecStore, framing: str) -> None:
    files = compile_protobuf(PROTO)

    def sent(of: str, **fields: object) -> tuple[str, bytes]:
        made = GetMessageClass(find_message(files, of))(**fields)
        index = ["A", "B", "Key"].index(of)
        return PROTO, bytes([2, 2 * index]) + made.SerializeToString()

    rows: dict[str, Any] = {"envelope": "plain", "columns": "kind STRING", "unknown_fields": "evolve"}
    with running_registry() as registry:
        framed = Framed(registry, "PROTOBUF", framing)
        framed.add(sent("A", kind="a", id=1), sent("Key", id=1))
        framed.add(sent("B", kind="b", name="x"), sent("Key", id=1))
        framed.add(sent("A", kind="a", id=2, tags=["t"], later=3), sent("Key", id=2))
        settings = {**rows, **framed.settings, "unrouted": "dead_letters", "route": "kind"}
        staged = framed.convert(Writer(store, framed.schemas, **{"load": "auto", "merge": None, **settings}))
        assert [(row["id"], row["tags"], row["later"]) for row in tables(staged)["a"]] == [(1, [], None), (2, ["t"], 3)]
        assert [row["name"] for row in tables(staged)["b"]] == ["x"]
        framed = Framed(registry, "PROTOBUF", framing)
        framed.add(sent("A", kind="a", id=1), sent("Key", id=1))
        framed.add(None, sent("Key", id=0))
        settings |= {"route": "kafka.topic", "merge": {}}
        staged = framed.convert(Writer(store, framed.schemas, **settings))
        assert rows_at(staged, "orders", "id", "kind") == [(1, "a", False), (0, None, True)]


def test_schema_file_works_with_route_columns_own(store: FsspecStore) -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "kind", "type": "string"}, {"name": "n", "type": "int"}],
    }
    rows: dict[str, Any] = {"load": "auto", "merge": None, "envelope": "plain", "columns": "kind STRING"}
    rows |= {"route": "kind", "unknown_fields": "evolve", "unrouted": "dead_letters", "schema_file": "x"}
    writer = Writer(store, file=json.dumps(schema).encode(), format="avro", **rows)
    _, value = avro(schema, {"kind": "a", "n": 1})
    assert [row["n"] for row in tables(writer.convert([value], [None]))["a"]] == [1]
    file = b'{"properties": {"n": {"type": "integer"}}}'
    writer = Writer(store, file=file, app_id="other", validate=True, **rows)
    staged = writer.convert([b'{"kind":"b","n":2}', b'{"kind":"b","n":"x"}'], [None] * 2)
    assert [row["n"] for row in tables(staged)["b"]] == [2]
    assert dict(staged.dead_letters) == {"against_schema": 1}


@pytest.mark.parametrize("tombstones", ["delete", "ignore"])
def test_debezium_key_change_moves_the_row(store: FsspecStore, tombstones: str) -> None:
    """A delete of the old key, its tombstone, and an insert of the new one."""
    writer = Writer(store, route="kafka.topic", merge={"tombstones": tombstones})
    old: dict[str, object] = {"id": 1, "x": 1}
    new = old | {"id": 2}
    staged = writer.convert(
        [change("a", old), change("a", None, "d", old), None, change("a", new)], [key(id=1)] * 3 + [key(id=2)]
    )
    assert not letters(staged)
    rows = rows_at(staged, "orders", "id")
    assert rows == [(1, False), (1, True), *([(1, True)] if tombstones == "delete" else []), (2, False)]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"route_table": None, "routes": {"a": "/a"}}, "does not go with no route_table"),
        ({"columns": "from_table"}, "does not go with columns: from_table"),
        ({"explode": "a"}, "explode gives columns other names or places than message keys have"),
        ({"unknown_fields": "rescue"}, "does not go with unknown_fields: rescue"),
        ({"unrouted": "table"}, "does not go with unrouted: table"),
        (
            {"columns": "from_registry", "framing": "confluent"},
            "with route_columns: own tables have their records' fields; remove columns",
        ),
        ({"envelope": "dms"}, "events of dms do not name the key columns; add merge.keys or merge.route_keys"),
        ({"routes": {"a": "/a"}}, "add merge.route_keys.a, or merge.keys"),
        ({"route_columns": "shared", "columns": "id INT"}, "merge.keys is missing"),
        (
            {"route_columns": "shared", "columns": "id INT", "merge": {"keys": ["id"], "route_keys": {"a": ["id"]}}},
            "merge.route_keys is set, but all tables have the same columns",
        ),
    ],
)
def test_settings_that_contradict_route_columns_own_are_refused(settings: dict[str, object], problem: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=problem):
        own(**settings)
