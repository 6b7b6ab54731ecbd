"""`explode`, `drop`, `rename` and `field_names`: from a record's fields to the table's columns and rows."""

import json
import re

import pytest

from common.errors import SchemaError
from common.schema import to_arrow_schema, to_ddl
from common.schema.naming import snake_case
from common.settings.columns import declared_columns_of_table
from stage_writer.convert import StreamConverter
from stage_writer.parquet.buffer import StagedRows
from tests.fakes.streams import batch_of, staged_batches, stream_of


def staged_of(*records: object, **settings: object) -> StagedRows:
    stream = stream_of(kafka_columns=False, **settings)
    (staged,) = staged_batches(StreamConverter(stream), [batch_of([json.dumps(record).encode() for record in records])])
    return staged


def rows_of(*records: object, **settings: object) -> list[object]:
    rows: list[object] = staged_of(*records, **settings).rows[0].to_pylist()
    return rows


def test_dropped_field_is_visible_to_expressions_only() -> None:
    settings = {"columns": "id INT, text STRING", "derive": {"n": "length(text)"}, "where": "text <> ''"}
    rows = rows_of({"id": 1, "text": "abc"}, {"id": 2, "text": ""}, drop=["text"], **settings)
    assert rows == [{"id": 1, "n": 3}]


def test_fields_are_renamed_in_place_and_may_swap_names() -> None:
    columns = "a INT, b STRUCT<c: INT, d: ARRAY<STRUCT<e: INT, f: INT>>>, g MAP<STRING, STRUCT<h: INT>>"
    rename = {"a": "b", "b": "a", "b.c": "x", "b.d.element.e": "y", "g.value.h": "z"}
    record = {"a": 1, "b": {"c": 2, "d": [{"e": 3, "f": 4}, None]}, "g": {"k": {"h": 5}, "l": None}}
    rows = rows_of(record, {}, {"b": {}, "g": {}}, columns=columns, rename=rename, drop=["b.d.element.f"])
    assert rows == [
        {"b": 1, "a": {"x": 2, "d": [{"y": 3}, None]}, "g": [("k", {"z": 5}), ("l", None)]},
        {"b": None, "a": None, "g": None},
        {"b": None, "a": {"x": None, "d": None}, "g": []},
    ]


def test_snake_case_applies_to_record_fields_at_any_depth_but_not_to_derived_ones() -> None:
    settings = {"field_names": "snake_case", "derive": {"myOwn": "userID"}, "rename": {"userID": "User"}}
    rows = rows_of(
        {"userID": "u", "at": {"HTTPCode": 1}}, columns="userID STRING, at STRUCT<HTTPCode: INT>", **settings
    )
    assert rows == [{"User": "u", "at": {"http_code": 1}, "myOwn": "u"}]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("userID", "user_id"),
        ("User-Id", "user_id"),
        ("HTTPServer", "http_server"),
        ("a2B", "a2_b"),
        ("already_so", "already_so"),
        ("_rescued", "_rescued"),
        ("größeXY", "größe_xy"),
    ],
)
def test_snake_case_of_a_name(name: str, meant: str) -> None:
    assert snake_case(name) == meant


def test_each_element_is_a_row_and_a_record_without_elements_keeps_one() -> None:
    records = [{"id": 1, "v": [7, None, 8]}, {"id": 2, "v": []}, {"id": 3}, {"id": 4, "v": [9]}]
    staged = staged_of(*records, columns="id INT, v ARRAY<INT>", explode="v")
    assert staged.rows[0].to_pydict() == {"id": [1, 1, 1, 2, 3, 4], "v": [7, None, 8, None, None, 9]}
    assert (staged.records, staged.exploded) == (4, 2)


def test_derived_array_can_be_exploded_and_its_fields_renamed() -> None:
    settings = {"columns": "o STRUCT<items: ARRAY<STRUCT<price: INT>>>", "derive": {"item": "o.items"}}
    rows = rows_of({"o": {"items": [{"price": 1}, {"price": 2}]}}, explode="item", drop=["o"], **settings)
    assert rows == [{"item": {"price": 1}}, {"item": {"price": 2}}]
    settings |= {"rename": {"item.price": "amount"}, "explode": "item", "drop": ["o"]}
    assert rows_of({"o": {"items": [{"price": 1}]}}, **settings) == [{"item": {"amount": 1}}]
    with pytest.raises(SchemaError, match=re.escape("rename names 'item.prize'")):
        rows_of(**settings | {"rename": {"item.prize": "amount"}})


def test_exploded_not_null_array_becomes_a_nullable_column() -> None:
    settings = {"columns": "id INT, v ARRAY<INT> NOT NULL", "explode": "v"}
    assert rows_of({"id": 1, "v": []}, **settings) == [{"id": 1, "v": None}]


def test_table_has_the_columns_of_the_settings() -> None:
    stream = stream_of(
        columns="id INT, userID STRING, v ARRAY<STRUCT<a: INT, b: INT>>",
        derive={"d": "id", "e": "id"},
        explode="v",
        drop=["e", "v.b"],
        rename={"id": "key", "d": "day"},
        field_names="snake_case",
        partition_by=["day"],
    )
    assert to_ddl(declared_columns_of_table(stream)) == "key INT, user_id STRING, v STRUCT<a: INT>"
    rows, _ = StreamConverter(stream).formats
    names = ["key", "user_id", "v", "day", "_kafka_topic", "_kafka_partition", "_kafka_offset", "_kafka_timestamp"]
    assert rows.arrow_schema.names == names
    assert rows.arrow_schema.field("v").type == to_arrow_schema(declared_columns_of_table(stream)).field("v").type


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"drop": ["idd"]}, "drop names 'idd', which is neither a field of the record"),
        ({"drop": ["idd"]}, "did you mean 'id'?"),
        ({"rename": {"s.x": "y"}}, "rename names 's.x'"),
        ({"rename": {"id": "n"}}, "`n` is declared twice"),
        ({"rename": {"id": "_kafka_offset"}}, "kafka_columns makes the column '_kafka_offset'"),
        ({"drop": ["s.a", "s.b"]}, "drop leaves nothing of the column `s`"),
        ({"drop": ["id", "s", "n", "v"]}, "drop leaves nothing of the record"),
        ({"drop": ["id"], "partition_by": ["id"]}, "partition_by names 'id'"),
        ({"rename": {"id": "key"}, "partition_by": ["id"]}, "partition_by names 'id'"),
        ({"explode": "w"}, "explode names 'w'"),
        ({"explode": "id"}, "which is not an ARRAY"),
        ({"field_names": "camelCase"}, "field_names"),
    ],
)
def test_unknown_column_in_a_setting_is_refused(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        stream_of(columns="id INT, s STRUCT<a: INT, b: INT>, n STRING, v ARRAY<INT>", **settings)


def test_name_with_a_dot_is_quoted_in_backticks() -> None:
    record = {"s.a": 1, "s": {"a": 2, "b": 3}}
    columns = "`s.a` INT, s STRUCT<a: INT, b: INT>"
    assert rows_of(record, columns=columns, drop=["s.a"]) == [{"s.a": 1, "s": {"b": 3}}]
    assert rows_of(record, columns=columns, drop=["`s.a`"]) == [{"s": {"a": 2, "b": 3}}]


def test_derived_column_that_is_not_an_array_cannot_be_exploded() -> None:
    with pytest.raises(SchemaError, match="not an ARRAY"):
        StreamConverter(stream_of(columns="id INT", derive={"d": "id"}, explode="d"))
