"""The columns that a table has for records of a JSON Schema."""

import json

import pytest

from common.errors import SchemaError
from common.schema import to_ddl
from common.schema.json_schema import json_schema_columns

NULL, TEXT = {"type": "null"}, {"type": "string"}
OBJECT = {"type": "object", "properties": {"q": {"type": "integer"}}}
JSON = "STRING json"
TYPES: dict[str, tuple[object, str]] = {
    "boolean": ({"type": "boolean"}, "BOOLEAN"),
    "integer": ({"type": "integer", "minimum": 0, "maximum": 2**63 - 1}, "BIGINT"),
    "large integer": ({"type": "integer", "maximum": 2**64 - 1}, "DECIMAL(38,0)"),
    "number": ({"type": "number"}, "DOUBLE"),
    "string": (TEXT, "STRING"),
    "date-time": ({"type": "string", "format": "date-time"}, "TIMESTAMP"),
    "date": ({"type": "string", "format": "date"}, "DATE"),
    "time of day": ({"type": "string", "format": "time"}, "STRING"),
    "nullable": ({"type": ["null", "string"]}, "STRING"),
    "nullable by choice": ({"oneOf": [NULL, OBJECT]}, "STRUCT<q: BIGINT>"),
    "integer or number": ({"anyOf": [{"type": "integer"}, {"type": "number"}]}, "DOUBLE"),
    "integers of two sizes": (
        {"anyOf": [{"type": "integer"}, {"type": "integer", "minimum": -(2**70)}]},
        "DECIMAL(38,0)",
    ),
    "strings of two formats": ({"anyOf": [TEXT, {"type": "string", "format": "date"}]}, "STRING"),
    "string or number": ({"type": ["string", "number"]}, JSON),
    "array": ({"type": "array", "items": {"type": ["integer", "null"]}}, "ARRAY<BIGINT>"),
    "tuple": ({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "number"}}, "ARRAY<DOUBLE>"),
    "older tuple": ({"items": [{"type": "integer"}, TEXT]}, "ARRAY<STRING> json"),
    "array of anything": ({"type": "array"}, "ARRAY<STRING> json"),
    "array of nulls": ({"type": "array", "items": NULL}, "ARRAY<STRING> json"),
    "object": (OBJECT, "STRUCT<q: BIGINT>"),
    "object without a type": ({"properties": {"a": OBJECT}}, "STRUCT<a: STRUCT<q: BIGINT>>"),
    "map": ({"type": "object", "additionalProperties": {"type": "number"}}, "MAP<STRING, DOUBLE>"),
    "map by pattern": ({"type": "object", "patternProperties": {"^x": OBJECT}}, "MAP<STRING, STRUCT<q: BIGINT>>"),
    "open object": ({"type": "object"}, JSON),
    "object without a usable name": ({"properties": {"a b": TEXT}}, JSON),
    "anything": (True, JSON),
    "no type": ({"title": "x"}, JSON),
    "enum": ({"enum": ["a", "b", None]}, "STRING"),
    "mixed enum": ({"enum": ["a", 1]}, JSON),
    "const": ({"const": 7}, "BIGINT"),
    "all of several": (
        {"allOf": [OBJECT, {"properties": {"r": TEXT}}, {"required": ["q"]}]},
        "STRUCT<q: BIGINT, r: STRING>",
    ),
    "a choice of objects": (
        {"oneOf": [OBJECT, {"properties": {"q": {"type": "number"}, "r": TEXT}}]},
        "STRUCT<q: DOUBLE, r: STRING>",
    ),
    "a choice of required fields": (
        {**OBJECT, "oneOf": [{"required": ["q"]}, {"required": ["r"]}]},
        "STRUCT<q: BIGINT>",
    ),
}


def schema(properties: object, **more: object) -> str:
    return json.dumps({"type": "object", "properties": properties, **more})


def columns(text: str, *references: tuple[str, str]) -> str:
    parsed, formats = json_schema_columns(text, references)
    return " ".join([to_ddl(parsed), *formats.values()])


@pytest.mark.parametrize(("kind", "expected"), TYPES.values(), ids=TYPES)
def test_each_type_has_its_column(kind: object, expected: str) -> None:
    assert columns(schema({"v": kind})) == f"v {expected}"


def test_values_of_any_type_are_stored_as_json_by_path() -> None:
    listed = {"items": {"properties": {"c": True}}}
    _, formats = json_schema_columns(schema({"a.b": listed, "m": {"additionalProperties": {}}}))
    assert formats == {"`a.b`.element.c": "json", "m.value": "json"}


def test_null_fields_and_invalid_column_names_have_no_column() -> None:
    assert columns(schema({"a": NULL, "b c": TEXT, "d": TEXT, "D": TEXT, "e": False})) == "d STRING"


def test_references_resolve_within_the_schema_and_its_attachments() -> None:
    text = json.dumps(
        {
            "$ref": "#/definitions/Order",
            "definitions": {
                "Order": {"allOf": [{"$ref": "base.json"}, {"properties": {"line": {"$ref": "lines#/$defs/a~1b/0"}}}]}
            },
        }
    )
    base = ("base.json", schema({"id": {"type": "integer"}}))
    lines = ("x", json.dumps({"$id": "lines", "$defs": {"a/b": [{"$ref": "#/$defs/c"}], "c": OBJECT}}))
    assert columns(text, base, lines) == "id BIGINT, line STRUCT<q: BIGINT>"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("hello", "the JSON Schema is invalid"),
        ("true", "names no fields of an object"),
        (json.dumps(TEXT), "names no fields of an object"),
        (schema({}), "names no fields of an object"),
        (schema({"a": {"type": "mood"}}), "has the type 'mood'"),
        (schema({"a": {"$ref": "#/definitions/x"}}), "refers to #/definitions/x in `a`"),
        (schema({"a": {"$ref": "#anchor"}}), "refers to #anchor in `a`"),
        (schema({"a": {"$ref": "other"}}), "refers to other in `a`"),
        (schema({"a": {"items": {"$ref": "#"}}}), "`a.element` is of the JSON Schema's type #, which contains itself"),
        (
            schema({"a": {"$ref": "#/$defs/t"}}, **{"$defs": {"t": {"properties": {"b": {"$ref": "#/$defs/t"}}}}}),
            "`a.b` is of the JSON Schema's type #/$defs/t, which contains itself",
        ),
    ],
)
def test_schema_that_yields_no_columns_is_refused(text: str, problem: str) -> None:
    with pytest.raises(SchemaError) as caught:
        json_schema_columns(text)
    assert problem in caught.value.problem
    assert caught.value.remedy
