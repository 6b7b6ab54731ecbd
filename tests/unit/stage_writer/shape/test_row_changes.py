"""Change events of Maxwell, Canal and AWS DMS become rows and `_cdc`; other events are filtered or refused."""

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from common.settings import Stream
from stage_writer.convert import StreamConverter
from stage_writer.convert_by_table import converter_of
from stage_writer.decode.decode_options import MakeNativeDecoder, no_native_decoder
from stage_writer.decode.envelopes.debezium import open_strictly
from stage_writer.decode.rejects import ErrorClass, Refusal
from stage_writer.layers import RecordInputs
from stage_writer.parquet.buffer import StagedRows
from stage_writer.shape.opening import opener_of
from tests.fakes.native import native_decoders
from tests.fakes.streams import batch_of, staged_batches, stream_of

COLUMNS = "id BIGINT, name STRING"
AT = dt.datetime(2026, 3, 31, 3, 17, 37, tzinfo=dt.UTC)
AT_MS = 1774927057000


def staged_of(
    stream: Stream, messages: Sequence[object], native_decoder: MakeNativeDecoder = no_native_decoder
) -> StagedRows:
    values = [message if isinstance(message, bytes | None) else json.dumps(message).encode() for message in messages]
    (staged,) = staged_batches(StreamConverter(stream, RecordInputs(native_decoder=native_decoder)), [batch_of(values)])
    assert staged.records == len(messages)
    return staged


def rows_of(staged: StagedRows, *names: str) -> list[tuple[object, ...]]:
    return list(zip(*(staged.rows[0][name].to_pylist() for name in names), strict=True))


def errors_of(staged: StagedRows) -> list[tuple[int, str, str]]:
    dead = staged.rows[1]
    return list(zip(*(dead[name].to_pylist() for name in ("_kafka_offset", "error_class", "error")), strict=True))


def streaming(envelope: str, **more: object) -> Stream:
    return stream_of(**{"columns": COLUMNS, "envelope": envelope, **more})


ROW = {"id": 1, "name": "x"}


def maxwell(kind: str, data: object = ROW, **more: object) -> dict[str, object]:
    about = {"database": "shop", "table": "orders", "ts": AT_MS // 1000, "xid": 1, "commit": True}
    return {**about, "type": kind, "data": data, **more}


def canal(kind: str, *rows: object, **more: object) -> dict[str, object]:
    about = {"database": "shop", "table": "orders", "es": AT_MS, "ts": AT_MS + 7, "id": 3, "isDdl": False, "sql": ""}
    return {**about, "type": kind, "data": list(rows) or None, "old": None, "pkNames": ["id"], **more}


def dms(operation: str, data: object = ROW, **more: object) -> dict[str, object]:
    times = {"timestamp": "2026-03-31T03:17:37.000007Z", "commit-timestamp": "2026-03-31T03:17:37Z"}
    about = {"record-type": "data", "operation": operation, "schema-name": "shop", "table-name": "orders"}
    metadata: dict[str, object] = {**about, **times}
    return {"data": data, "metadata": metadata | more}


ABOUT: dict[str, dict[str, object]] = {
    "maxwell": {"ts": None, "source": "shop.orders", "source_ts": AT},
    "canal": {"ts": AT + dt.timedelta(milliseconds=7), "source": "shop.orders", "source_ts": AT},
    "dms": {"ts": AT + dt.timedelta(microseconds=7), "source": "shop.orders", "source_ts": AT},
}
CHANGES: Mapping[str, Mapping[str, object]] = {
    "maxwell": {kind: maxwell(kind) for kind in ("insert", "update", "delete", "bootstrap-insert")},
    "canal": {kind: canal(kind, {"id": "1", "name": "x"}) for kind in ("INSERT", "UPDATE", "DELETE")},
    "dms": {operation: dms(operation) for operation in ("load", "insert", "update", "delete")},
}


@pytest.mark.parametrize("envelope", sorted(CHANGES))
def test_each_operation_becomes_a_row_with_cdc_metadata(envelope: str) -> None:
    messages = [*CHANGES[envelope].values(), None]
    for native_decoder in native_decoders():
        staged = staged_of(streaming(envelope), messages, native_decoder=native_decoder)
        assert errors_of(staged) == []
        assert (staged.tombstones, staged.filtered) == (1, 0)
        wanted = [(1, "x", {"op": operation, **ABOUT[envelope]}) for operation in CHANGES[envelope]]
        assert rows_of(staged, "id", "name", "_cdc") == wanted


FILTERED: list[tuple[str, object]] = [
    ("maxwell", maxwell("bootstrap-start", {})),
    ("maxwell", maxwell("bootstrap-complete", {})),
    ("maxwell", {"type": "table-alter", "database": "shop", "table": "orders", "old": {}, "def": {}, "sql": "ALTER"}),
    ("maxwell", {"type": "database-create", "database": "shop"}),
    ("canal", canal("ALTER", isDdl=True, sql="ALTER TABLE orders ADD x INT")),
    ("canal", canal("INSERT", isDdl=True, sql="CREATE TABLE copy AS SELECT 1", data=[{"id": "1"}])),
    ("canal", canal("QUERY", sql="UPDATE orders SET x = 1")),
    ("canal", canal("QUERY", isDdl=True, sql="CREATE TABLE truncated (id INT)")),
    ("canal", canal("TIDB_WATERMARK", _tidb={"watermarkTs": 5})),
    (
        "dms",
        {"metadata": {"record-type": "control", "operation": "create-table", "schema-name": "", "table-name": "x"}},
    ),
    ("dms", {"metadata": {"record-type": "control", "operation": "column-type-change"}}),
    ("debezium", {"status": "BEGIN", "id": "571:53195829", "event_count": None, "ts_ms": 1}),
    ("debezium", {"schema": {}, "payload": {"status": "END", "id": "571", "event_count": 2, "data_collections": []}}),
    ("debezium", {"source": {"db": "shop"}, "databaseName": "shop", "ddl": "CREATE TABLE x", "tableChanges": []}),
    ("debezium", {"schema": {}, "payload": {"source": {}, "databaseName": "a", "schemaName": "b", "tableChanges": []}}),
    ("debezium", {"ts_ms": 1774927057260}),
]


@pytest.mark.parametrize(("envelope", "message"), FILTERED)
def test_event_that_changes_no_row_is_filtered(envelope: str, message: object) -> None:
    change = {"op": "c", "after": ROW} if envelope == "debezium" else next(iter(CHANGES[envelope].values()))
    staged = staged_of(streaming(envelope, where="id < 5"), [None, message, change, message])
    assert errors_of(staged) == []
    assert staged.filtered_offsets.tolist() == [101, 103]
    assert rows_of(staged, "_kafka_offset") == [(102,)]


def test_event_that_changes_no_row_is_filtered_for_tables_with_separate_columns() -> None:
    routes = {"a": {"table": "/a", "columns": "id BIGINT"}, "b": {"table": "/b", "columns": "name STRING"}}
    stream = streaming("debezium", route="['a', 'b']", routes=routes)
    control = {"status": "BEGIN", "id": "571:53195829", "event_count": None, "ts_ms": 1}
    change = {"op": "c", "after": ROW}
    ((_, staged),) = next(
        iter(converter_of(stream).slices([batch_of([json.dumps(event).encode() for event in (control, change)])]))
    )
    assert staged.filtered_offsets.tolist() == [100]
    assert {table.url: len(rows) for table, rows in staged.routed} == {"/a": 1, "/b": 1}


REFUSED: list[tuple[str, object, str, str]] = [
    ("maxwell", maxwell("upsert"), "not_an_event", "its type is 'upsert', not one of insert, update, delete, boot"),
    ("maxwell", {"data": ROW}, "not_an_event", "it has no type, not one of insert"),
    ("maxwell", maxwell("insert", None), "not_an_event", "the event of type insert has no object in `data`"),
    ("maxwell", maxwell("insert", [1]), "not_an_event", "the event of type insert has no object in `data`"),
    ("maxwell", maxwell("insert", {"id": "1"}), "wrong_type", "id: "),
    ("maxwell", maxwell("insert", ts="soon"), "malformed", "ts: "),
    ("maxwell", maxwell("insert", type=5), "wrong_type", "type: "),
    ("maxwell", b'{"type":"insert","type":"delete","data":{}}', "duplicate_field", "type"),
    ("maxwell", b'{"type":"insert"', "invalid_json", ""),
    ("maxwell", b"[1]", "not_an_object", ""),
    ("debezium", {"source": {}, "ddl": "CREATE TABLE x", "tableChanges": []}, "not_an_event", ""),
    ("canal", canal("insert", {"id": "1"}), "not_an_event", "its type is 'insert', not one of INSERT, UPDATE, DELETE"),
    ("canal", canal("INSERT"), "not_an_event", "the event of type INSERT has no rows in `data`"),
    ("canal", canal("INSERT", data=[]), "not_an_event", "the event of type INSERT has no rows in `data`"),
    ("canal", canal("INSERT", {"id": "1"}, None), "not_an_event", "row 2 of 2 in the `data` of type INSERT is no"),
    ("canal", canal("INSERT", {"id": "1"}, {"id": "x"}), "wrong_type", "row 2 of 2: id: "),
    ("canal", canal("INSERT", data={"id": 1}), "wrong_type", "data: "),
    ("canal", canal("DELETE", None, sql="truncate table orders"), "not_an_event", "row 1 of 1"),
    ("canal", canal("TRUNCATE", isDdl=True, sql="TRUNCATE TABLE orders"), "truncated", "was truncated"),
    ("canal", canal("QUERY", isDdl=True, sql=" truncate table orders"), "truncated", "was truncated"),
    ("dms", dms("upsert"), "not_an_event", "its metadata.operation is 'upsert', not one of load, insert"),
    ("dms", dms("insert", **{"record-type": "note"}), "not_an_event", "its metadata.record-type is 'note', not one of"),
    ("dms", {"data": ROW}, "not_an_event", "it has no metadata.record-type"),
    ("dms", dms("insert", None), "not_an_event", "the event of operation insert has no object in `data`"),
    ("dms", dms("TRUNCATE-table", None, **{"record-type": "control"}), "truncated", "was truncated"),
    ("debezium", {"op": "t", "before": None, "after": None, "source": {}, "ts_ms": 1}, "truncated", "was truncated"),
    ("debezium", {"schema": {}, "payload": {"op": "t", "source": {}}}, "truncated", "was truncated"),
    ("debezium", {"op": "m", "message": {"prefix": "p"}}, "not_an_event", 'its op is "m"'),
    ("debezium", {"status": "BEGIN", "id": "1", "after": ROW}, "not_an_event", "it has no op"),
    ("debezium", {"ts_ms": 1, "x": 2}, "not_an_event", "it has no op"),
]


@pytest.mark.parametrize(("envelope", "message", "error_class", "text"), REFUSED)
def test_malformed_event_is_a_dead_letter_with_its_reason(
    envelope: str, message: object, error_class: str, text: str
) -> None:
    change = {"op": "c", "after": ROW} if envelope == "debezium" else next(iter(CHANGES[envelope].values()))
    staged = staged_of(streaming(envelope), [None, change, message, change])
    ((offset, actual_class, error),) = errors_of(staged)
    assert (offset, actual_class) == (102, error_class)
    assert text in error
    assert [offset for (offset,) in rows_of(staged, "_kafka_offset")] == [101, 103]


def test_rows_of_one_message_are_staged_together_or_refused() -> None:
    several = [
        canal("INSERT", *({"id": str(n), "name": name} for n in ids)) for ids, name in (((1, 2), "a"), ((3,), "b"))
    ]
    bad = canal("UPDATE", {"id": "4"}, {"id": "?"}, {"id": "5"})
    staged = staged_of(streaming("canal"), [several[0], bad, several[1]])
    assert rows_of(staged, "id", "name", "_kafka_offset") == [(1, "a", 100), (2, "a", 100), (3, "b", 102)]
    assert [offset for offset, _, _ in errors_of(staged)] == [101]
    assert staged.exploded == 1


def test_filter_applies_per_row_but_a_failing_expression_refuses_the_message() -> None:
    messages = [
        canal("INSERT", *({"id": str(number)} for number in numbers)) for numbers in ((1, 2), (3, 4), (5,), (7, 8))
    ]
    staged = staged_of(streaming("canal", where="id % 2 = 0"), messages)
    assert rows_of(staged, "id", "_kafka_offset") == [(2, 100), (4, 101), (8, 103)]
    assert (staged.filtered_offsets.tolist(), staged.exploded) == ([102], 0)
    derive = {"checked": "CAST(CASE WHEN id IN (2, 5) THEN 'no' ELSE CAST(id AS VARCHAR) END AS BIGINT)"}
    staged = staged_of(streaming("canal", derive=derive), messages)
    assert rows_of(staged, "id", "checked") == [(3, 3), (4, 4), (7, 7), (8, 8)]
    assert [(offset, kind) for offset, kind, _ in errors_of(staged)] == [
        (100, "expression_failed"),
        (102, "expression_failed"),
    ]


def test_rows_of_one_message_go_to_the_same_tables() -> None:
    def routed(names: Sequence[str], **more: object) -> tuple[dict[str, list[int]], list[int]]:
        stream = streaming("canal", **{"route": "name", "routes": {"a": "/a", "b": "/b"}, **more})
        messages = [canal("INSERT", *({"id": "1", "name": name} for name in each)) for each in names]
        staged = staged_of(stream, messages)
        tables = {table.url: rows["_kafka_offset"].to_pylist() for table, rows in staged.routed}
        assert {kind for _, kind, _ in errors_of(staged)} <= {"unrouted"}
        own = staged.rows[0]["_kafka_offset"].to_pylist()
        return {**tables, **({"own": own} if own else {})}, [offset for offset, _, _ in errors_of(staged)]

    assert routed(["aa", "ab", "b", "ac"]) == ({"/a": [100, 100], "/b": [102]}, [101, 103])
    assert routed(["cc", "a", "cd", "bc"], unrouted="dead_letters") == ({"/a": [101]}, [100, 102, 103])
    assert routed(["cc", "a", "cd"]) == ({"own": [100, 100, 102, 102], "/a": [101]}, [])
    both = {"route": "CASE WHEN name = 'c' THEN ['a', 'b', 'a'] ELSE [name] END"}
    expected = ({"/a": [100, 100, 101, 101], "/b": [101, 101]}, [102])
    assert routed(["aa", "cc", "ac"], **both) == expected


@pytest.mark.parametrize(("envelope", "delete"), [("maxwell", "delete"), ("canal", "DELETE"), ("dms", "delete")])
def test_merge_recognizes_deletes(envelope: str, delete: str) -> None:
    stream = streaming(envelope, load="merge", merge={"keys": ["id"]})
    staged = staged_of(stream, list(CHANGES[envelope].values()))
    assert rows_of(staged, "_merge_delete") == [(operation == delete,) for operation in CHANGES[envelope]]


def test_canal_values_are_parsed_from_text_in_strict_streams() -> None:
    columns = "id BIGINT, price DECIMAL(10,2), at TIMESTAMP_NTZ, note STRING, ratio DOUBLE"
    row = {"id": "27", "price": "1.50", "at": "2026-03-31 03:17:37", "note": None, "ratio": "0.5"}
    staged = staged_of(streaming("canal", columns=columns), [canal("INSERT", row)])
    ((actual),) = rows_of(staged, "id", "at", "note", "ratio")
    assert actual == (27, dt.datetime(2026, 3, 31, 3, 17, 37), None, 0.5)  # noqa: DTZ001 - without a zone
    assert staged.rows[0]["price"].cast(pa.string()).to_pylist() == ["1.50"]


@pytest.mark.parametrize("envelope", sorted(CHANGES))
def test_opener_extracts_the_record_of_an_event(envelope: str) -> None:
    opened = opener_of(streaming(envelope))
    for message in CHANGES[envelope].values():
        opened_record = opened(json.dumps(message).encode())
        assert opened_record is not None
        assert set(json.loads(opened_record)) == {"id", "name"}
    assert opened(b"{}") is None
    assert opened(b"{") is None


DOCUMENTED: list[tuple[str, str, bytes, dict[str, object]]] = [
    (
        "maxwell",
        "id BIGINT, daemon STRING",
        (
            b'{"database": "test", "table": "maxwell", "type": "update", "ts": 1449786341, "xid": 940786, '
            b'"commit": true, "data": {"id": 1, "daemon": "Firebus!  Firebus!"}, "old": {"daemon": "Stanislaw Lem"}}'
        ),
        {"id": 1, "daemon": "Firebus!  Firebus!", "op": "update", "source": "test.maxwell"},
    ),
    (
        "maxwell",
        "id BIGINT, txt STRING",
        (
            b'{"database": "fooDB", "table": "barTable", "type": "bootstrap-insert", "ts": 1450557744, '
            b'"data": {"id": 1, "txt": "hello"}}'
        ),
        {"id": 1, "txt": "hello", "op": "bootstrap-insert", "source": "fooDB.barTable"},
    ),
    (
        "canal",
        "id INT, name STRING, description STRING, weight DECIMAL(10,2)",
        (
            b'{"data": [{"id": "111", "name": "scooter", "description": "Big 2-wheel scooter", "weight": "5.18"}], '
            b'"database": "inventory", "es": 1589373560000, "id": 9, "isDdl": false, "mysqlType": {"id": "INTEGER", '
            b'"name": "VARCHAR(255)", "description": "VARCHAR(512)", "weight": "FLOAT"}, "old": [{"weight": "5.15"}], '
            b'"pkNames": ["id"], "sql": "", "sqlType": {"id": 4, "name": 12, "description": 12, "weight": 7}, '
            b'"table": "products", "ts": 1589373560798, "type": "UPDATE"}'
        ),
        {"id": 111, "name": "scooter", "op": "UPDATE", "source": "inventory.products"},
    ),
    (
        "dms",
        "CustomerId BIGINT, FirstName STRING",
        (
            b'{"data": {"CustomerId": 3, "FirstName": "Bob"}, "metadata": {"timestamp": "2019-10-31T22:53:59.721201Z", '
            b'"record-type": "data", "operation": "insert", "partition-key-type": "primary-key", '
            b'"schema-name": "sample", "table-name": "customers"}}'
        ),
        {"CustomerId": 3, "FirstName": "Bob", "op": "insert", "source": "sample.customers"},
    ),
]


@pytest.mark.parametrize(("envelope", "columns", "message", "expected"), DOCUMENTED)
def test_documented_example_messages_become_rows(
    envelope: str, columns: str, message: bytes, expected: dict[str, object]
) -> None:
    for native_decoder in native_decoders():
        staged = staged_of(streaming(envelope, columns=columns), [message], native_decoder=native_decoder)
        (row,) = staged.rows[0].to_pylist()
        assert expected.items() <= {**row, **row["_cdc"]}.items()


def merging(envelope: str, **more: object) -> Stream:
    return streaming(envelope, **{"load": "merge", "merge": {"keys": ["id"]}, **more})


UPDATES: list[tuple[str, str, dict[str, object]]] = [
    ("maxwell", "delete", maxwell("update", {"id": 2, "name": "new"}, old={"id": 1})),
    ("canal", "DELETE", canal("UPDATE", {"id": "2", "name": "new"}, old=[{"id": "1"}])),
    ("dms", "delete", {**dms("update", {"id": 2, "name": "new"}), "before-image": {"id": 1, "name": "old"}}),
]


@pytest.mark.parametrize(("envelope", "op", "message"), UPDATES)
def test_key_update_deletes_the_old_row_first(envelope: str, op: str, message: dict[str, object]) -> None:
    staged = staged_of(merging(envelope), [message, message])
    gone, new = (1, "new", True, 0), (2, "new", False, 1)
    assert rows_of(staged, "id", "name", "_merge_delete", "_merge_row") == [gone, new, gone, new]
    assert staged.rows[0]["_cdc"][0]["op"].as_py() == op
    assert staged.exploded == 2
    assert len(staged_of(streaming(envelope), [message]).rows[0]) == 1, "one row without a merge"


@pytest.mark.parametrize(
    "message",
    [
        maxwell("update", {"id": 2, "name": "new"}, old={"name": "id"}),
        maxwell("update", {"id": 2, "name": "new"}, old={"id": 2}),
        maxwell("update", {"id": 2, "name": "new"}, old={"id": None}),
        maxwell("update", {"id": 2, "name": "new"}, old=None),
        maxwell("update", {"id": 2, "name": "new"}, old=[1]),
        maxwell("insert", {"id": 2, "name": "new"}, old={"id": 1}),
    ],
)
def test_event_without_a_key_change_is_one_row(message: dict[str, object]) -> None:
    staged = staged_of(merging("maxwell"), [message])
    assert rows_of(staged, "id", "_merge_delete", "_merge_row") == [(2, False, 0)]


def test_old_key_is_found_with_an_escaped_name() -> None:
    message = json.dumps(maxwell("update", {"id": 2}, old={"id": 1})).replace('{"id": 1}', r'{"\u0069d": 1}').encode()
    assert rows_of(staged_of(merging("maxwell"), [message]), "id", "_merge_delete") == [(1, True), (2, False)]


def test_delete_of_an_old_key_has_the_sequence_of_the_update() -> None:
    stream = merging("maxwell", columns="id BIGINT, at BIGINT", merge={"keys": ["id"], "sequence": "at"})
    staged = staged_of(stream, [maxwell("update", {"id": 2, "at": 9}, old={"id": 1, "at": 4})])
    assert rows_of(staged, "id", "at", "_merge_delete") == [(1, 9, True), (2, 9, False)]


def test_derived_key_is_computed_from_the_old_image() -> None:
    stream = merging("canal", derive={"code": "name || id"}, merge={"keys": ["code"]})
    staged = staged_of(
        stream, [canal("UPDATE", {"id": "2", "name": "b"}, {"id": "3", "name": "c"}, old=[{"name": "a"}])]
    )
    assert rows_of(staged, "code", "_merge_delete", "_merge_row") == [
        ("a2", True, 0),
        ("b2", False, 1),
        ("c3", False, 2),
    ]


def test_renamed_key_is_read_from_the_old_image() -> None:
    stream = merging("maxwell", rename={"id": "number"}, merge={"keys": ["number"]})
    staged = staged_of(stream, [maxwell("update", {"id": 2}, old={"id": 1})])
    assert rows_of(staged, "number", "_merge_delete") == [(1, True), (2, False)]


def test_key_update_is_refused_if_its_delete_is() -> None:
    staged = staged_of(merging("maxwell"), [maxwell("update", {"id": 2}, old={"id": "x"})])
    ((_, error_class, error),) = errors_of(staged)
    assert (error_class, error[:14]) == ("wrong_type", "row 1 of 2: id")
    assert len(staged.rows[0]) == 0


def test_expect_rules_check_each_row_and_count_the_message_once() -> None:
    stream = merging("canal", expect={"small": "id < 5"}, on_fail="dead_letter")
    messages = [canal("INSERT", *({"id": str(number)} for number in numbers)) for numbers in ((1, 2), (6, 7, 3), (4,))]
    staged = staged_of(stream, messages)
    assert rows_of(staged, "id") == [(1,), (2,), (4,)]
    assert [offset for offset, _, _ in errors_of(staged)] == [101]
    assert staged.violations == {"small": 1}
    failing = merging("canal", expect={"small": "CAST(name AS INT) < 5"})
    several = [{"id": "1", "name": "1"}, {"id": "2", "name": "x"}, {"id": "3", "name": "9"}]
    staged = staged_of(failing, [canal("INSERT", *several), messages[0]])
    assert staged.violations == {"small": 1}
    assert rows_of(staged, "id") == [(1,), (2,)]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"envelope": "maxwell", "format": "avro", "framing": "confluent"}, "envelope is maxwell, which is JSON"),
        ({"envelope": "canal", "columns": "id BIGINT, a ARRAY<INT>", "explode": "a"}, "may have several rows already"),
        (
            {
                "envelope": "maxwell",
                "columns": "id BIGINT",
                "where": "ID < 100",
                "unknown_fields": "evolve",
                "route": "kafka.topic",
                "route_table": "/by/{route}",
                "route_columns": "own",
                "unrouted": "dead_letters",
                "load": "merge",
                "merge": {"tombstones": "ignore"},
            },
            "where decides by id about both rows at once",
        ),
    ],
)
def test_settings_that_contradict_an_envelope_are_refused(more: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        streaming(**more)


TRUNCATIONS: list[tuple[str, object, object]] = [
    ("debezium", {"op": "c", "after": ROW}, {"op": "t", "before": None, "after": None, "source": {}, "ts_ms": 1}),
    ("canal", CHANGES["canal"]["INSERT"], canal("TRUNCATE", isDdl=True, sql="TRUNCATE TABLE orders")),
    ("dms", CHANGES["dms"]["insert"], dms("truncate-table", None, **{"record-type": "control"})),
]


@pytest.mark.parametrize(("envelope", "change", "truncation"), TRUNCATIONS)
@pytest.mark.parametrize("soft", [None, "gone"])
def test_truncation_is_a_row_without_a_key_in_order(
    envelope: str, change: object, truncation: object, soft: str | None
) -> None:
    merge = {"keys": ["id"], "truncates": "apply", "soft_delete": soft}
    staged = staged_of(merging(envelope, merge=merge), [change, truncation, None, change, truncation])
    expected = [(1, False, False, 100), (None, True, True, 101), (1, False, False, 103), (None, True, True, 104)]
    names = ("id", "_merge_truncate", "_merge_delete", "_kafka_offset")
    assert rows_of(staged, *names) == expected
    assert [(offset, kind) for offset, kind, _ in errors_of(staged)] == [(102, "unreadable_key")]
    if soft is not None:
        assert rows_of(staged, soft) == [(False,), (True,), (False,), (True,)]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"envelope": "maxwell"}, "only the envelopes debezium, canal, dms"),
        ({"envelope": "debezium", "where": "id > 1"}, "with where the stream may have the rows of several"),
        ({"envelope": "debezium", "route": "id::VARCHAR", "routes": {"1": "/a"}}, "with route the stream"),
        ({"envelope": "debezium", "topics": ["a", "b"]}, "with topics the stream"),
        ({"envelope": "debezium", "topics": ["^shop"]}, "with topics the stream"),
    ],
)
def test_truncates_cannot_be_applied_to_streams_of_several_tables(more: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        merging(**{"merge": {"keys": ["id"], "truncates": "apply"}, **more})


def test_source_without_schemas_is_named_by_its_table() -> None:
    for native_decoder in native_decoders():
        message = dms("insert", **{"schema-name": None})
        staged = staged_of(streaming("dms"), [message], native_decoder=native_decoder)
        ((cdc,),) = rows_of(staged, "_cdc")
        assert isinstance(cdc, dict)
        assert cdc["source"] == "orders"


@pytest.mark.parametrize("twice", ["payload", "after"])
def test_debezium_event_with_a_part_twice_is_refused(twice: str) -> None:
    parts = '"op":"c","after":{"id":1}'
    event = f'{{"payload":{{{parts}}},"payload":{{{parts}}}}}' if twice == "payload" else f'{{{parts},"after":{{}}}}'
    refused = open_strictly(event.encode())
    assert isinstance(refused, Refusal)
    assert (refused.error_class, refused.error) == (ErrorClass.DUPLICATE_FIELD, f"{twice}: the field occurs twice")
