"""Columns that a table gains under names other than the records': `rename`, `field_names` and `jmespath`."""

import json
from pathlib import Path
from typing import Any

import pytest

from common.errors import StoreError
from common.schema import parse_ddl, schema_from_json, schema_to_json, to_ddl
from common.schema.agreement import PublishedColumns
from common.schema.evolution import NO_COLUMNS
from common.schema.naming import Naming
from common.settings.columns import agree_in_table
from delta_loader.plan.plan import TableShape
from tests.fakes.stores import TrappedStore, acting, failing
from tests.fakes.streams import stream_of
from tests.unit.stage_writer.stage.test_table_compatibility import write_log
from tests.unit.test_evolving import SOURCES, World, columns_by_route, produce, refusing, settings_of

FIRST, SECOND = SOURCES
SNAKE: dict[str, Any] = {"field_names": "snake_case"}


def test_new_column_gets_the_name_from_the_settings(tmp_path: Path) -> None:
    columns = "orderId BIGINT, meta STRUCT<sentBy: STRING>, items ARRAY<STRUCT<n: BIGINT>>"
    rename = {"extra": "more", "meta.oldName": "label"}
    world = World(tmp_path, columns=columns, rename=rename, **SNAKE)
    writer = world.writer(FIRST)
    record = {
        "orderId": 1,
        "userID": 7,
        "extra": True,
        "meta": {"oldName": "n", "madeAt": 5},
        "items": [{"unitPrice": 1}],
    }
    produce(*writer, FIRST, record)
    staged = (
        "order_id BIGINT, meta STRUCT<sent_by: STRING, made_at: BIGINT, label: STRING>, "
        "items ARRAY<STRUCT<n: BIGINT, unit_price: BIGINT>>, more BOOLEAN, user_id BIGINT, _rescued STRING"
    )
    assert world.staged(FIRST) == [(staged, None)]
    assert world.rows(FIRST) == [
        {
            "order_id": 1,
            "meta": {"sent_by": None, "made_at": 5, "label": "n"},
            "items": [{"n": None, "unit_price": 1}],
            "more": True,
            "user_id": 7,
        }
    ]
    published = "meta STRUCT<madeAt: BIGINT, oldName: STRING>, items ARRAY<STRUCT<unitPrice: BIGINT>>, extra BOOLEAN"
    assert to_ddl(world.published.columns) == f"{published}, userID BIGINT"
    world.load()
    assert (world.columns, world.published.version) == (staged, 1)


def test_columns_added_from_offers_get_their_table_names(tmp_path: Path) -> None:
    world = World(tmp_path, columns="id BIGINT, meta STRUCT<a: BIGINT>", rename={"meta": "about"}, **SNAKE)
    writer = world.writer(FIRST, refusing(tmp_path))
    produce(*writer, FIRST, {"id": 1, "userID": 7, "user_id": "x", "meta": {"sentAt": "now"}})
    assert world.staged(FIRST)[-1][1] == "meta STRUCT<sentAt: STRING>, userID BIGINT"
    world.load()
    assert world.columns == "id BIGINT, about STRUCT<a: BIGINT, sent_at: STRING>, _rescued STRING, user_id BIGINT"
    assert to_ddl(world.published.columns) == "meta STRUCT<sentAt: STRING>, userID BIGINT"


def test_type_of_the_existing_table_column_wins(tmp_path: Path) -> None:
    """The column is found by its name in the table, not by the record's name."""
    world = World(tmp_path, **SNAKE)
    write_log(world.table, "id BIGINT, _rescued STRING, user_id STRING, userName DOUBLE")
    writer = world.writer(FIRST)
    produce(*writer, FIRST, {"id": 1, "userID": "a", "userName": "b"}, {"id": 2, "userID": 2})
    assert world.rows(FIRST) == [
        {"id": 1, "user_id": "a", "user_name": "b"},
        {"id": 2, "_rescued": '{"userID":2}'},
    ]


@pytest.mark.parametrize("is_nested", [False, True])
def test_first_of_fields_that_map_to_one_column_keeps_it(tmp_path: Path, *, is_nested: bool) -> None:
    """The field that all writers agreed on first has the column; the other stays in the rescue column."""

    def record(number: int, **fields: object) -> dict[str, object]:
        return {"id": number, **({"meta": fields} if is_nested else fields)}

    columns = "id BIGINT, meta STRUCT<a: BIGINT>" if is_nested else "id BIGINT"
    world = World(tmp_path, columns=columns, **SNAKE)
    quick = world.writer(FIRST)
    first = acting("create", lambda: produce(*quick, FIRST, record(1, userID=1)), below="schema/")
    slow = world.writer(SECOND, TrappedStore(f"{tmp_path}/stage", before=first))
    produce(*slow, SECOND, record(2, user_id="x"), record(3, userID=3), record(4, UserID=4, User_Id=4))
    produce(*quick, FIRST, record(5, user_id="y", userID=5))

    def values() -> list[list[Any]]:
        rows = world.rows(FIRST) + world.rows(SECOND)
        inner: list[Any] = [row.get("meta") or {} if is_nested else row for row in rows]
        return [[row["id"], part.get("user_id"), row.get("_rescued")] for row, part in zip(rows, inner, strict=True)]

    def rescued(text: str) -> str:
        return f'{{"meta":{text}}}' if is_nested else text

    assert values() == [
        [1, 1, None],
        [5, 5, rescued('{"user_id":"y"}')],
        [2, None, rescued('{"user_id":"x"}')],
        [3, 3, None],
        [4, None, rescued('{"UserID":4,"User_Id":4}')],
    ]
    world.load()
    assert world.columns == (
        "id BIGINT, meta STRUCT<a: BIGINT, user_id: BIGINT>, _rescued STRING"
        if is_nested
        else "id BIGINT, user_id BIGINT, _rescued STRING"
    )
    assert to_ddl(world.published.columns) == ("meta STRUCT<userID: BIGINT>" if is_nested else "userID BIGINT")


def test_new_column_never_takes_an_existing_column_s_name(tmp_path: Path) -> None:
    settings = {"columns": "id BIGINT, sent STRING", "rename": {"id": "number"}, "derive": {"day": "sent"}, **SNAKE}
    world = World(tmp_path, kafka_columns=True, **settings)
    writer = world.writer(FIRST)
    others = {"number": 2, "Day": "b", "_kafkaOffset": 3, "Sent": "c", "_changeType": 4, "day": "a"}
    produce(*writer, FIRST, {"id": 1, **others})
    (row,) = world.rows(FIRST)
    assert (row["number"], json.loads(str(row["_rescued"]))) == (1, others)
    assert world.staged(FIRST)[0][1] is None


def test_rescue_column_can_be_renamed(tmp_path: Path) -> None:
    world = World(tmp_path, rename={"_rescued": "rest"})
    produce(*world.writer(FIRST), FIRST, {"id": 1, "x": 1, "y": None, "rest": 2})
    assert world.rows(FIRST) == [{"id": 1, "x": 1, "rest": '{"y":null,"rest":2}'}]
    assert to_ddl(world.published.columns) == "x BIGINT"


def test_dropped_derived_column_s_name_stays_reserved(tmp_path: Path) -> None:
    world = World(tmp_path, columns="id BIGINT, sent STRING", derive={"day": "sent", "hour": "sent"}, drop=["day"])
    writer = world.writer(FIRST)
    produce(*writer, FIRST, {"id": 1, "day": "a"})
    assert world.rows(FIRST) == [{"id": 1, "_rescued": '{"day":"a"}'}]


def test_naming_setting_can_change_while_files_wait(tmp_path: Path) -> None:
    plain = World(tmp_path)
    produce(*plain.writer(FIRST), FIRST, {"id": 1, "userID": 1, "user_id": "a"})
    named = World(tmp_path, plain.tables, **SNAKE)
    produce(*named.writer(SECOND), SECOND, {"id": 2, "userID": 2, "newField": True}, {"id": 3, "user_id": "b"})
    assert named.staged(SECOND)[-1][0] == "id BIGINT, user_id BIGINT, new_field BOOLEAN, _rescued STRING"
    assert named.rows(SECOND) == [
        {"id": 2, "user_id": 2, "new_field": True},
        {"id": 3, "_rescued": '{"user_id":"b"}'},
    ]
    assert to_ddl(named.published.columns) == "userID BIGINT, user_id STRING, newField BOOLEAN"
    problem = (
        f"what is staged is not compatible with the Delta table {named.stream.table}: "
        "the column user_id is STRING, staged as BIGINT"
    )
    named.load(failure=problem)
    assert to_ddl(named.published.columns) == "userID STRING, user_id STRING, newField BOOLEAN"


def test_files_staged_under_both_names_are_loaded(tmp_path: Path) -> None:
    plain = World(tmp_path)
    produce(*plain.writer(FIRST), FIRST, {"id": 1, "userID": 1})
    named = World(tmp_path, plain.tables, **SNAKE)
    produce(*named.writer(SECOND), SECOND, {"id": 2, "userID": 2, "newField": True})
    named.load()
    columns = "id BIGINT, userID BIGINT, _rescued STRING, user_id BIGINT, new_field BOOLEAN"
    assert named.columns == columns
    again = World(tmp_path, plain.tables)
    produce(*again.writer(FIRST), FIRST, {"id": 1}, {"id": 3, "newField": False})
    again.load()
    assert again.columns == f"{columns}, newField BOOLEAN"
    assert to_ddl(again.published.columns) == "userID BIGINT, newField BOOLEAN"


def test_fields_of_a_killed_writer_are_agreed_on_again(tmp_path: Path) -> None:
    """The writer dies after the agreement and before its flush."""
    world = World(tmp_path, **SNAKE)
    store = TrappedStore(f"{tmp_path}/stage", before=failing("create", StoreError("no answer", ""), below="done/"))
    produce(*world.writer(FIRST, store), FIRST, {"id": 1, "userID": 1})
    assert (world.staged(FIRST), to_ddl(world.published.columns)) == ([], "userID BIGINT")
    produce(*world.writer(FIRST), FIRST, {"id": 1, "userID": 1})
    assert world.rows(FIRST) == [{"id": 1, "user_id": 1}]
    world.load()
    assert (world.columns, world.published.version) == ("id BIGINT, user_id BIGINT, _rescued STRING", 1)


def test_elements_gain_columns_under_their_names(tmp_path: Path) -> None:
    columns = "id BIGINT, theItems ARRAY<STRUCT<sku: STRING>>"
    world = World(tmp_path, columns=columns, explode="theItems", rename={"theItems.oldPrice": "price"}, **SNAKE)
    writer = world.writer(FIRST)
    produce(*writer, FIRST, {"id": 1, "theItems": [{"sku": "a", "unitCount": 2, "oldPrice": 1.5}]})
    staged = "id BIGINT, the_items STRUCT<sku: STRING, price: DOUBLE, unit_count: BIGINT>, _rescued STRING"
    assert world.staged(FIRST) == [(staged, None)]
    assert to_ddl(world.published.columns) == "theItems ARRAY<STRUCT<oldPrice: DOUBLE, unitCount: BIGINT>>"
    world.load()
    assert world.columns == staged


def test_fields_read_by_jmespath_do_not_become_columns(tmp_path: Path) -> None:
    """They stay in the rescue column, as with `rescue`."""
    jmespath = {"day": "substr(meta.time, `0`, `10`)", "place": "kafka.offset"}
    world = World(tmp_path, columns="id BIGINT, day STRING, place BIGINT", jmespath=jmespath)
    writer = world.writer(FIRST)
    produce(*writer, FIRST, {"id": 1, "meta": {"time": "2026-03-01T12"}})
    produce(*writer, FIRST, {"id": 2, "meta": {"time": "2026-03-02T12"}, "x": 1, "y": {"time": 1, "z": 2}})
    produce(*writer, FIRST, {"id": 3, "meta": {"time": "2026-03-03T12"}, "x": "text", "day": "no"}, {"id": 4})
    rows = [{**row, "_rescued": json.loads(str(row["_rescued"]))} for row in world.rows(FIRST)]
    assert rows == [
        {"id": 1, "day": "2026-03-01", "place": 0, "_rescued": {"meta": {"time": "2026-03-01T12"}}},
        {
            "id": 2,
            "day": "2026-03-02",
            "place": 1,
            "x": 1,
            "y": {"z": 2},
            "_rescued": {"meta": {"time": "2026-03-02T12"}, "y": {"time": 1}},
        },
        {"id": 3, "day": "2026-03-03", "place": 2, "_rescued": {"meta": {"time": "2026-03-03T12"}, "x": "text"}},
    ]
    world.load()
    assert world.columns == "id BIGINT, day STRING, place BIGINT, _rescued STRING, x BIGINT, y STRUCT<z: BIGINT>"


def test_field_that_is_a_column_stays_one_when_jmespath_is_added(tmp_path: Path) -> None:
    plain = World(tmp_path, columns="id BIGINT, day STRING")
    produce(*plain.writer(FIRST), FIRST, {"id": 1, "time": "2026-03-01T12"})
    world = World(tmp_path, plain.tables, columns="id BIGINT, day STRING", jmespath={"day": "substr(time, `0`, `10`)"})
    produce(*world.writer(SECOND), SECOND, {"id": 2, "time": "2026-03-02T12"})
    assert world.rows(SECOND) == [{"id": 2, "day": "2026-03-02", "time": "2026-03-02T12"}]
    world.load()


def test_tables_with_own_columns_gain_them_under_their_names(tmp_path: Path) -> None:
    world = World(
        tmp_path,
        columns="kind STRING",
        route="kind",
        route_table=f"{tmp_path}/by/{{route}}",
        route_columns="own",
        unrouted="dead_letters",
        rename={"x": "extra"},
        **SNAKE,
    )
    produce(*world.writer(FIRST), FIRST, {"kind": "a", "userID": 1, "x": 1}, {"kind": "b", "userID": "t", "user_id": 1})
    assert to_ddl(world.published.columns) == "a STRUCT<userID: BIGINT, x: BIGINT>, b STRUCT<userID: STRING>"
    world.load()
    assert columns_by_route(world) == {
        "a": "kind STRING, user_id BIGINT, extra BIGINT, _rescued STRING",
        "b": "kind STRING, user_id STRING, _rescued STRING",
    }


def test_each_section_has_its_own_names(tmp_path: Path) -> None:
    section = {"table": f"{tmp_path}/clicks", "columns": "kind STRING", "rename": {"userID": "who"}, **SNAKE}
    world = World(tmp_path, columns="kind STRING", route="kind", routes={"click": section})
    writer = world.writer(FIRST)
    produce(*writer, FIRST, {"kind": "click", "userID": 1, "pageUrl": "u"}, {"kind": "view", "userID": 2})
    world.load()
    schema = to_ddl(parse_ddl("kind STRING, page_url STRING, who BIGINT, _rescued STRING"))
    assert world.tables.tables[f"{tmp_path}/clicks"].schema == schema_to_json(parse_ddl(schema))
    assert world.columns == "kind STRING, userID BIGINT, _rescued STRING"


MERGED: dict[str, Any] = {
    "columns": "orderId BIGINT",
    "load": "merge",
    "merge": {"keys": ["order_id"]},
    "kafka_columns": True,
    **SNAKE,
}


def test_event_without_a_gained_field_makes_its_column_null(tmp_path: Path) -> None:
    """Also where its file was staged before the field was known: the loader finds the column by its table name."""
    world = World(tmp_path, **MERGED)
    writer = world.writer(FIRST)
    produce(*writer, FIRST, {"orderId": 1})
    produce(*writer, FIRST, {"orderId": 1, "userID": 7})
    columns = "order_id BIGINT, user_id BIGINT, _rescued STRING"
    kafka = "_kafka_topic STRING, _kafka_partition INT, _kafka_offset BIGINT, _kafka_timestamp TIMESTAMP"
    world.tables.create(world.stream.table, TableShape(schema_to_json(parse_ddl(f"{columns}, {kafka}")), ()))
    world.load()
    commits = world.tables.tables[world.stream.table].commits
    written = [schema_from_json(write.shape.schema).names for commit in commits for write in commit.written]
    assert [("user_id" in names, "userID" in names) for names in written] == [(True, False)] * 2


@pytest.mark.parametrize("key", [{"rename": {"a": "b"}}, SNAKE])
def test_message_keys_keep_their_names(key: dict[str, object]) -> None:
    settings: dict[str, Any] = {
        "route": "kafka.topic",
        "route_table": "/y/{route}",
        "route_columns": "own",
        "unrouted": "dead_letters",
        "load": "merge",
        "merge": {},
        "kafka_columns": True,
    }
    with pytest.raises(
        ValueError, match=f"{next(iter(key))} gives columns other names or places than message keys have"
    ):
        settings_of("/x", columns="id BIGINT", **settings, **key)
    assert settings_of("/x", columns="id BIGINT", **settings, drop=["id"])


def test_rename_of_an_undeclared_field_is_checked_as_far_as_possible() -> None:
    assert settings_of("/x", columns="id BIGINT", rename={"extra": "more"})
    with pytest.raises(ValueError, match="rename makes the column 'ID', which columns has too"):
        settings_of("/x", columns="id BIGINT", rename={"extra": "ID"})
    with pytest.raises(ValueError, match="rename names 'Id', which is neither a field"):
        settings_of("/x", columns="id BIGINT", rename={"Id": "more"})
    with pytest.raises(ValueError, match="rename names 'extra', which is neither"):
        settings_of("/x", columns="id BIGINT", rename={"extra": "more"}, unknown_fields="rescue")


def test_published_columns_stay_while_a_setting_hides_them() -> None:
    stream = stream_of(columns="id BIGINT", unknown_fields="evolve", **SNAKE)
    known = PublishedColumns(parse_ddl("id BIGINT"), parse_ddl("userID BIGINT, user_id STRING, s STRUCT<a: INT>"), 10)
    table = parse_ddl("id BIGINT, user_id DOUBLE")
    agreed = agree_in_table(stream, table, known, parse_ddl("UserId BIGINT, s STRUCT<bC: BIGINT>, x INT"), NO_COLUMNS)
    assert to_ddl(agreed.columns) == "userID DOUBLE, user_id STRING, s STRUCT<a: INT, bC: BIGINT>, x INT"
    assert [str(column) for column in agreed.added] == ["s STRUCT<a: INT, b_c: BIGINT>", "x INT"]


def test_names_within_maps_and_arrays_are_mapped() -> None:
    naming = Naming(rename={("m", "value", "x"): "y"}, snake_case=True)
    fields = parse_ddl("m MAP<STRING, STRUCT<x: INT, y: INT>>, a ARRAY<STRUCT<fooBar: INT, foo_bar: INT>>")
    assert to_ddl(naming.columns_of(fields)) == "m MAP<STRING, STRUCT<y: INT>>, a ARRAY<STRUCT<foo_bar: INT>>"
    assert to_ddl(naming.distinct(fields)) == "m MAP<STRING, STRUCT<x: INT>>, a ARRAY<STRUCT<fooBar: INT>>"
    table = parse_ddl("m MAP<STRING, STRUCT<y: BIGINT>>, a ARRAY<STRUCT<foo_bar: BIGINT>>, z INT")
    assert (
        to_ddl(naming.fields_in(table, fields)) == "m MAP<STRING, STRUCT<x: BIGINT>>, a ARRAY<STRUCT<fooBar: BIGINT>>"
    )
