"""`load: merge` in a config: each refusal names the key and the remedy."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from common.schema import Field, Primitive, schema_to_json
from common.settings.merging import columns_of_rows, merge_by_of, operation_of
from common.tables.changes import MergeBy, staged_columns, table_columns
from common.tables.stream_columns import record_columns
from tests.builders import required
from tests.fakes.streams import stream_of

KEYS = {"keys": ["id"]}
HISTORY = {**KEYS, "history": True}
OF_ROWS = {"keys": ["id", "rows.sku"]}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"merge": None}, "load is merge, and merge.keys is missing; add merge: {keys: [columns]}"),
        ({"load": "auto", "merge": KEYS}, "merge is set, but load is auto; write load: merge"),
        ({"merge": {"keys": []}}, "at least 1 item"),
        (
            {"merge": {"keys": ["idd"]}},
            "merge.keys names 'idd', which is not a column of the table; did you mean 'id'?",
        ),
        ({"merge": {"keys": ["id", "id"]}}, "merge.keys names a column twice"),
        ({"merge": {"keys": ["half"]}}, "merge.keys names 'half', whose type DOUBLE cannot tell rows apart"),
        ({"merge": {**KEYS, "sequence": "inside"}}, "merge.sequence names 'inside', whose type STRUCT<a: INT>"),
        ({"merge": {**KEYS, "sequence": "at"}}, "merge.sequence names 'at', which is not a column of the table"),
        ({"merge": {**KEYS, "operation": "op"}}, "merge.operation is set without merge.deletes"),
        ({"merge": {**KEYS, "deletes": ["d"]}}, "merge.deletes is set without merge.operation"),
        ({"merge": {**KEYS, "soft_delete": "NAME"}}, "merge.soft_delete makes the column 'NAME', but that name"),
        ({"merge": {**KEYS, "soft_delete": "_kafka_offset"}}, "that name is taken"),
        ({"merge": {**KEYS, "tombstones": "drop"}}, "tombstones"),
        ({"columns": "id INT, _merge_x INT", "merge": KEYS}, "the column '_merge_x' begins with _merge_"),
        (
            {"columns": "id INT, Valid_To INT", "merge": HISTORY},
            "merge.history makes the column 'valid_to', which columns has",
        ),
        ({"merge": {**HISTORY, "soft_delete": "is_current"}}, "merge.soft_delete makes the column 'is_current'"),
        ({"merge": {**HISTORY, "ignore_nulls": True}}, "merge.history keeps whole rows, and with merge.ignore_nulls"),
        ({"merge": {**HISTORY, "sequence": "id"}}, "a tombstone has none; write merge.tombstones: ignore"),
        (
            {
                "envelope": "debezium",
                "merge": {**HISTORY, "sequence": "id", "tombstones": "ignore", "truncates": "apply"},
            },
            "a truncation has none; leave merge.truncates or merge.sequence out",
        ),
        (
            {"topics": ["a", "b"], "envelope": "debezium", "merge": {**KEYS, "truncates": "apply"}},
            "merge.truncates is apply, and with topics the stream may have the rows of several source tables",
        ),
        ({"merge": KEYS, "partition_by": ["is_current"]}, "partition_by names 'is_current', which is not a column"),
        ({"merge": HISTORY, "cluster_by": ["is_current"]}, "cluster_by names 'is_current', which has the type BOOLEAN"),
        ({"merge": KEYS, "explode": "many"}, "all rows of a record would have one key; add one, such as many"),
        ({"merge": KEYS, "explode": "rows"}, "all rows of a record would have one key; add one, such as rows.sku"),
        ({"merge": KEYS, "explode": "many", "drop": ["many"]}, "take many out of drop, and add it, or a field of it"),
        (
            {"merge": {"keys": ["id", "rows.skuu"]}, "explode": "rows"},
            "not a field of the element; did you mean 'sku'?",
        ),
        ({"merge": {"keys": ["id", "rows.half"]}, "explode": "rows"}, "whose type DOUBLE cannot tell rows apart"),
        ({"merge": {"keys": ["id", "rows"]}, "explode": "rows"}, "cannot tell rows apart"),
        ({"merge": {"keys": ["id", "rows.sku"]}}, "merge.keys names 'rows.sku', which is not a column of the table"),
        ({"merge": {**OF_ROWS, "history": True}, "explode": "rows"}, "merge.history is set together with explode"),
        ({"merge": {**OF_ROWS, "ignore_nulls": True}, "explode": "rows"}, "merge.ignore_nulls is set together with"),
        ({"merge": {"keys": ["rows.sku"]}, "explode": "rows"}, "a tombstone names a record; write merge.tombstones:"),
        ({"merge": {"keys": ["rows.sku"], "soft_delete": "gone"}, "explode": "rows"}, "has no column of the record"),
        ({"merge": {"keys": ["id", "many"], "sequence": "many"}, "explode": "many"}, "name a column of the record"),
    ],
)
def test_contradictory_merge_settings_are_refused_by_key(settings: dict[str, object], problem: str) -> None:
    columns = (
        "id BIGINT, name STRING, half DOUBLE, inside STRUCT<a: INT>, many ARRAY<INT>, "
        "rows ARRAY<STRUCT<sku: STRING, half: DOUBLE>>"
    )
    with pytest.raises(ValidationError) as caught:
        stream_of(**{"columns": columns, "load": "merge", **settings})
    assert problem in str(caught.value)


def test_keys_and_sequence_are_table_names_and_may_be_derived() -> None:
    merge = {"keys": ["user"], "sequence": "seconds", "soft_delete": "gone"}
    stream = stream_of(
        columns="userID BIGINT", load="merge", merge=merge, rename={"userID": "user"}, derive={"seconds": "1"}
    )
    place = ("_kafka_topic", "_kafka_partition", "_kafka_offset")
    by = required(merge_by_of(stream))
    assert by == MergeBy(("user",), place, "seconds", "gone")
    assert (by.order, replace(by, row="_merge_row").order) == (place, (*place, "_merge_row"))
    assert merge_by_of(stream_of(columns="id INT")) is None


def test_element_keys_are_known_before_the_columns() -> None:
    merge = {"keys": ["items.sku", "order_id"]}
    by = required(merge_by_of(stream_of(load="merge", columns="from_records", merge=merge, explode="items")))
    assert (by.keys, by.element) == (("order_id", "items.sku"), (("items", "sku"),))


def test_element_keys_follow_the_record_s_keys() -> None:
    columns = "orderID BIGINT, items ARRAY<STRUCT<SKU: STRING>>, tags ARRAY<STRING>"
    of = {"columns": columns, "load": "merge", "field_names": "snake_case"}
    by = required(
        merge_by_of(
            stream_of(
                **of, merge={"keys": ["line.sku", "order_id"]}, explode="items", rename={"items": "line"}, drop=["tags"]
            )
        )
    )
    assert (by.record, by.element, by.sql_keys) == (("order_id",), (("line", "sku"),), ("`order_id`", "`line`.`sku`"))
    assert by.replaces_records
    by = required(merge_by_of(stream_of(**of, merge={"keys": ["order_id", "tags"]}, explode="tags")))
    assert (by.record, by.element) == (("order_id",), (("tags",),))
    alone = {"keys": ["tags"], "tombstones": "ignore"}
    by = required(merge_by_of(stream_of(**of, merge=alone, explode="tags")))
    assert (by.record, by.replaces_records) == ((), False)
    derived = {"derive": {"a.b": "tags"}, "explode": "a.b"}
    by = required(merge_by_of(stream_of(**of, **derived, merge={"keys": ["order_id", "`a.b`.c"]})))
    assert by.element == (("a.b", "c"),)
    by = required(merge_by_of(stream_of(**of, **derived, merge={"keys": ["order_id", "a.b"]})))
    assert by.element == (("a.b",),)


def test_debezium_operation_is_the_default_and_settings_override_it() -> None:
    def operation_with(**merge: object) -> object:
        stream = stream_of(columns="id INT", load="merge", envelope="debezium", merge={**KEYS, **merge})
        return operation_of(stream)

    assert operation_with() == ("_cdc.op", ("d",))
    assert operation_with(deletes=["d", "r"]) == ("_cdc.op", ("d", "r"))
    assert operation_with(operation="_cdc.source", deletes=["x"]) == ("_cdc.source", ("x",))


def test_staged_columns_are_the_table_s_and_those_only_merging_needs() -> None:
    for kafka_columns in (True, False):
        stream = stream_of(columns="id INT", load="merge", merge=KEYS, kafka_columns=kafka_columns)
        by = required(merge_by_of(stream))
        table = stream.record.schema_of_columns
        staged = staged_columns(table, by)
        assert {*by.place, "_merge_delete", "id"} == set(staged.names)
        assert table_columns(staged).names == tuple(name for name in staged.names if not name.startswith("_merge"))


def test_null_is_a_value_in_columns_that_describe_the_event() -> None:
    more = {"columns": "id BIGINT, name STRING", "derive": {"upper": "upper(name)"}, "include": ["headers"]}
    stream = stream_of(
        **more, envelope="debezium", unknown_fields="rescue", load="merge", merge={"keys": ["id"], "ignore_nulls": True}
    )
    by = merge_by_of(stream)
    assert by is not None
    kafka = ("_kafka_topic", "_kafka_partition", "_kafka_offset", "_kafka_timestamp")
    assert by.event_columns == (*kafka, "_kafka_headers", "_rescued", "_cdc")
    plain = merge_by_of(stream_of(**more, load="merge", merge={"keys": ["id"]}))
    assert plain is not None
    assert plain.event_columns is None


def test_history_may_be_clustered_by_its_times() -> None:
    for column in ("valid_from", "valid_to"):
        stream = stream_of(columns="id INT", load="merge", merge=HISTORY, cluster_by=[column])
        assert stream.layout.cluster_by == (column,)


def test_columns_added_by_merging_are_not_the_record_s() -> None:
    stream = stream_of(
        columns="id INT", load="merge", merge={**HISTORY, "soft_delete": "gone"}, partition_by=["is_current"]
    )
    added = ("gone", "valid_from", "valid_to", "is_current")
    assert columns_of_rows(stream)[-4:] == added
    table = stream.record.schema_of_columns.with_fields(Field(name, Primitive.BOOLEAN) for name in added)
    assert record_columns(stream, schema_to_json(table)).names == ("id",)
    assert record_columns(stream_of(columns="id INT"), schema_to_json(table)).names == ("id", *added)
    without = stream_of(columns="id INT", load="merge", merge=KEYS)
    assert record_columns(without, schema_to_json(table)).names == ("id", "gone"), (
        "a stream without history is refused the versions"
    )
