"""Tables that appear by `route_table`, as values of `route` appear."""

import json
import threading
import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from common.errors import ExpressionError, StoreError
from common.settings import Stream
from common.stage.appeared_routes import agree_on, appeared
from common.storage.store import FsspecStore
from stage_writer.convert_by_table import RecordConverter, converter_of
from stage_writer.parquet.buffer import StagedRows
from tests.fakes.answering import route_registry
from tests.fakes.stores import TrappedStore, failing
from tests.fakes.streams import batch_of, stream_of


@pytest.fixture
def store() -> TrappedStore:
    return TrappedStore(f"memory://{uuid.uuid4().hex}")


def templated(**settings: object) -> Stream:
    return stream_of(
        **{"columns": "id INT, kind STRING", "route": "kind", "route_table": "/tables/by/{route}", **settings}
    )


def writer(store: FsspecStore, *, preview: bool = False, **settings: object) -> RecordConverter:
    stream = templated(**settings)
    book = route_registry(stream, lambda: store, preview=preview)
    return converter_of(stream, appearing=book)


def convert(converter: RecordConverter, kinds: Sequence[object]) -> StagedRows:
    batch = batch_of([json.dumps({"id": number, "kind": kind}).encode() for number, kind in enumerate(kinds)])
    ((_, staged),) = (rows for part in converter.slices([batch]) for rows in part)
    return staged


def ids(staged: StagedRows) -> dict[str, list[int]]:
    named = {"own": staged.rows[0], **{table.url: rows for table, rows in staged.routed}}
    return {url: rows.column("id").to_pylist() for url, rows in named.items() if len(rows)}


def errors(staged: StagedRows) -> list[str]:
    assert set(staged.dead_letters) <= {"unrouted"}
    return staged.rows[1].column("error").to_pylist()  # type: ignore[no-any-return]


def test_table_appears_with_its_first_value_for_all_writers(store: TrappedStore) -> None:
    first, other = writer(store), writer(store)
    assert ids(convert(first, ["click", None, "view", "click"])) == {
        "own": [1],
        "/tables/by/click": [0, 3],
        "/tables/by/view": [2],
    }
    assert appeared(store, "orders").routes == ("click", "view")
    assert ids(convert(other, ["view"])) == {"/tables/by/view": [0]}
    assert appeared(store, "orders").version == 1
    asked = store.counts["list"]
    assert ids(convert(first, ["view", "click"])) == {"/tables/by/view": [0], "/tables/by/click": [1]}
    assert store.counts["list"] == asked, "known routes need no stage access"


def test_values_past_the_route_limit_are_dead_letters_for_all_writers(store: TrappedStore) -> None:
    first_writer, other = writer(store, route_limit=2), writer(store, route_limit=2)
    agree_on(store, "orders", ["a"], 2)
    first = convert(first_writer, ["b", "c", "a"])
    assert ids(first) == {"/tables/by/b": [0], "/tables/by/a": [2]}
    assert errors(first) == ["its route is 'c', and there are already 2 tables (route_limit)"]
    assert errors(convert(other, ["c", "b"])) == errors(first)
    asked = store.counts["list"]
    assert len(errors(convert(other, ["d", "e"]))) == 2
    assert store.counts["list"] == asked
    assert ids(convert(writer(store, route_limit=3), ["c"])) == {"/tables/by/c": [0]}


def test_first_records_get_the_tables_and_a_lower_limit_removes_none(store: TrappedStore) -> None:
    first = convert(writer(store, route_limit=2), ["b", "B", "a", "A", "c"])
    assert ids(first) == {"/tables/by/b": [0], "/tables/by/a": [2]}
    assert ids(convert(writer(store, preview=True, route_limit=3), ["z", "d"])) == {"/tables/by/z": [0]}
    lowered = convert(writer(store, route_limit=1), ["a", "b", "d"])
    assert ids(lowered) == {"/tables/by/a": [0], "/tables/by/b": [1]}
    assert errors(lowered) == ["its route is 'd', and there are already 2 tables (route_limit)"]


def test_values_that_cannot_name_a_table_are_dead_letters(store: TrappedStore) -> None:
    settings: dict[str, Any] = {"dead_letters": "/tables/by/dead", "table": "/tables/by/main"}
    staged = convert(writer(store, **settings), ["../x", "", "dead", "OK", "ok", "main", None])
    assert ids(staged) == {"own": [5, 6], "/tables/by/OK": [3]}
    why = "which cannot name a table: up to 100 letters, digits, '.', '_' and '-', beginning with a letter or digit are"
    assert errors(staged) == [
        f"its route is '../x', {why} allowed",
        f"its route is '', {why} allowed",
        "its route is 'dead', which would lead to the stream's dead_letters",
        "its route is 'ok', which differs from the route 'OK' only in case",
    ]
    refusing = writer(store, unrouted="dead_letters", **settings)
    assert errors(convert(refusing, [None])) == ["its route is null, which is not in routes"]


def test_route_arrays_and_configured_routes_combine_with_route_table(store: TrappedStore) -> None:
    converter = writer(store, route="[kind, 'all']", routes={"all": "/tables/all"})
    staged = convert(converter, ["a", "../b", "all"])
    assert ids(staged) == {"/tables/all": [0, 2], "/tables/by/a": [0]}
    assert errors(staged)[0].startswith("its route is '../b', which cannot")
    assert appeared(store, "orders").routes == ("a",)


def test_filtered_records_create_no_table(store: TrappedStore) -> None:
    converter = writer(store, where="id > 0", derive={"what": "kind || '!'"}, route="rtrim(what, '!')")
    batch = batch_of([b'{"id":0,"kind":"a"}', b'{"id":1,"kind":"b"}'])
    assert converter.waits(batch) is None
    assert appeared(store, "orders").routes == ("b",)
    assert ids(convert(converter, ["a", "b"])) == {"/tables/by/b": [1]}


def test_only_messages_with_undecided_routes_wait_for_an_unavailable_stage(store: TrappedStore) -> None:
    converter = writer(store)
    known, new = batch_of([b'{"kind":"a"}']), batch_of([b'{"kind":"a"}', b'{"kind":"b"}'])
    assert converter.waits(known) is None
    working, store.before = store.before, failing("list", StoreError("unavailable", "wait"))
    assert converter.waits(known) is None
    wait = converter.waits(new)
    assert wait is not None
    assert wait.error.problem == "unavailable"
    store.before = working
    again = threading.Event()
    for _ in range(1200):
        if wait.is_over():
            break
        again.wait(0.1)
    assert wait.is_over()
    assert converter.waits(new) is None
    assert appeared(store, "orders").routes == ("a", "b")


def test_preview_shows_tables_and_adds_none(store: TrappedStore) -> None:
    agree_on(store, "orders", ["late", "other"], 4)
    converter = writer(store, preview=True, route_limit=4)
    assert converter.waits(batch_of([b'{"kind":"a"}'])) is None
    shown = convert(converter, ["a", "b", "late", "c"])
    assert ids(shown) == {"/tables/by/a": [0], "/tables/by/b": [1], "/tables/by/late": [2]}
    assert len(errors(shown)) == 1
    assert appeared(store, "orders").routes == ("late", "other")


MERGE: dict[str, Any] = {"load": "merge", "merge": {"keys": ["kind", "id"], "operation": "op", "deletes": ["d"]}}


def test_events_and_tombstones_of_a_key_go_to_the_table_of_its_value(store: TrappedStore) -> None:
    converter = writer(store, **MERGE, columns="id INT, kind STRING, op STRING")
    values = [b'{"id":1,"kind":"a","op":"u"}', None, b'{"id":1,"kind":"a","op":"d"}', None, b'{"id":2,"op":"u"}']
    keys = [None, b'{"kind":"b","id":3}', None, b'{"kind":"../c","id":4}', None]
    batch = batch_of(values, keys=keys)
    assert converter.waits(batch) is None
    assert appeared(store, "orders").routes == ("a", "b"), "a tombstone has its table before it is converted"
    asked = store.counts["list"]
    ((_, staged),) = (each for part in converter.slices([batch]) for each in part)
    assert store.counts["list"] == asked, "conversion does not access the stage"
    assert {table.url: rows["_merge_delete"].to_pylist() for table, rows in staged.routed} == {
        "/tables/by/a": [False, True],
        "/tables/by/b": [True],
    }
    (table, other) = (table for table, _ in staged.routed)
    assert table.merge is not None
    assert table.merge == other.merge
    assert dict(staged.dead_letters) == {"unrouted": 1, "null_key": 1}


@pytest.mark.parametrize("names", [(), ("gone",)])
def test_changes_of_many_source_tables_are_merged_into_one_table_each(
    store: TrappedStore, names: Sequence[str]
) -> None:
    merge = {"keys": ["id"], "tombstones": "ignore"}
    settings: dict[str, Any] = {"envelope": "debezium", "load": "merge", "merge": merge}
    route = "regexp_extract(_cdc.source, '[^.]+$')"
    where: dict[str, Any] = {"where": "id > 0"} if names else {}
    converter = writer(store, **settings, columns="id INT, kind STRING", route=route, **where)

    def change(table: str, number: int) -> bytes:
        row = {"id": number, "kind": "k"}
        return json.dumps({"before": None, "after": row, "op": "c", "source": {"db": "shop", "table": table}}).encode()

    values = [change("customers", 1), None, change("orders", 1), change("customers", 2), b"{}"]
    values += [change(name, 0) for name in names]
    batch = batch_of(values)
    assert converter.waits(batch) is None
    assert appeared(store, "orders").routes == ("customers", "orders")
    ((_, staged),) = (each for part in converter.slices([batch]) for each in part)
    assert ids(staged) == {"/tables/by/customers": [1, 2], "/tables/by/orders": [1]}
    assert (staged.tombstones, dict(staged.dead_letters)) == (1, {"not_an_event": 1})


def test_route_that_may_move_a_key_is_refused(store: TrappedStore) -> None:
    for route in ("kind", "kafka.offset::VARCHAR"):
        with pytest.raises(ExpressionError, match="might go to several tables"):
            writer(store, route=route, load="merge", merge={"keys": ["id"]})
