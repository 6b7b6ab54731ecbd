"""The columns that a table has for records of an Avro or Protobuf schema."""

import base64
import json
from collections.abc import Sequence

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from common.errors import SchemaError
from common.protoc import compile_protobuf
from common.schema import to_ddl
from common.schema.avro import avro_columns, parse_avro
from common.schema.protobuf import find_message, protobuf_columns

NESTED = {"type": "record", "name": "x.In", "fields": [{"name": "q", "type": "int"}]}
AVRO_TYPES: dict[str, tuple[object, str]] = {
    "boolean": ("boolean", "BOOLEAN"),
    "int": ("int", "INT"),
    "long": ("long", "BIGINT"),
    "float": ("float", "FLOAT"),
    "double": ("double", "DOUBLE"),
    "string": ("string", "STRING"),
    "bytes": ("bytes", "BINARY"),
    "fixed": ({"type": "fixed", "name": "F", "size": 3}, "BINARY"),
    "enum": ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "STRING"),
    "decimal": ({"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}, "DECIMAL(10,2)"),
    "fixed decimal": (
        {"type": "fixed", "name": "D", "size": 4, "logicalType": "decimal", "precision": 9},
        "DECIMAL(9,0)",
    ),
    "date": ({"type": "int", "logicalType": "date"}, "DATE"),
    "time-millis": ({"type": "int", "logicalType": "time-millis"}, "INT"),
    "time-micros": ({"type": "long", "logicalType": "time-micros"}, "BIGINT"),
    "timestamp-millis": ({"type": "long", "logicalType": "timestamp-millis"}, "TIMESTAMP"),
    "timestamp-micros": ({"type": "long", "logicalType": "timestamp-micros"}, "TIMESTAMP"),
    "timestamp-nanos": ({"type": "long", "logicalType": "timestamp-nanos"}, "BIGINT"),
    "local-timestamp-millis": ({"type": "long", "logicalType": "local-timestamp-millis"}, "TIMESTAMP_NTZ"),
    "local-timestamp-micros": ({"type": "long", "logicalType": "local-timestamp-micros"}, "TIMESTAMP_NTZ"),
    "uuid": ({"type": "string", "logicalType": "uuid"}, "STRING"),
    "fixed uuid": ({"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}, "STRING"),
    "a logical type that is not Avro's": ({"type": "string", "logicalType": "mood"}, "STRING"),
    "array": ({"type": "array", "items": ["null", "long"]}, "ARRAY<BIGINT>"),
    "map": ({"type": "map", "values": "string"}, "MAP<STRING, STRING>"),
    "record": (NESTED, "STRUCT<q: INT>"),
    "nullable": (["null", "string"], "STRING"),
    "int or long": (["null", "int", "long"], "BIGINT"),
    "float or double": (["float", "double"], "DOUBLE"),
    "a choice": (["null", "string", NESTED], "STRUCT<string: STRING, In: STRUCT<q: INT>>"),
    "a choice of logical types": (
        ["int", {"type": "long", "logicalType": "timestamp-millis"}],
        "STRUCT<int: INT, long: TIMESTAMP>",
    ),
    "a choice of two records of one name": (
        [NESTED, {"type": "record", "name": "y.In", "fields": [{"name": "w", "type": "int"}]}],
        "STRUCT<`x.In`: STRUCT<q: INT>, `y.In`: STRUCT<w: INT>>",
    ),
}


def record(*fields: tuple[str, object], name: str = "shop.Order") -> str:
    return json.dumps(
        {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}
    )


@pytest.mark.parametrize(("kind", "ddl"), AVRO_TYPES.values(), ids=AVRO_TYPES)
def test_each_avro_type_has_its_column(kind: object, ddl: str) -> None:
    assert to_ddl(avro_columns(parse_avro(record(("v", kind))))) == f"v {ddl}"


def test_fields_without_values_have_no_column() -> None:
    empty = {"type": "record", "name": "Empty", "fields": []}
    schema = record(("a", "null"), ("b", empty), ("c", {"type": "array", "items": "Empty"}), ("d", "int"), name="R")
    assert to_ddl(avro_columns(parse_avro(schema))) == "d INT"


def test_nullable_record_is_a_record() -> None:
    schema = json.dumps(["null", json.loads(record(("a", "int")))])
    assert to_ddl(avro_columns(parse_avro(schema))) == "a INT"


def test_avro_schema_uses_the_types_of_its_references() -> None:
    references = [json.dumps(NESTED), record(("in", "x.In"), name="x.Outer")]
    columns = avro_columns(parse_avro(record(("a", "x.Outer"), ("b", ["null", "x.In"])), references))
    assert to_ddl(columns) == "a STRUCT<in: STRUCT<q: INT>>, b STRUCT<q: INT>"


LOOP = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
AVRO_REFUSED: dict[str, tuple[str, str]] = {
    "a type that contains itself": (record(("a", {"type": "array", "items": LOOP})), "`a.element.next`.*Node"),
    "a duration": (
        record(("a", {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"})),
        "`a` is an Avro duration",
    ),
    "too many digits": (
        record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 2})),
        "`a` is an Avro decimal of 40 digits",
    ),
    "not a record": ('"string"', "of type string"),
    "a choice of records": (json.dumps([NESTED, LOOP]), "of type union"),
    "no fields": (record(), "no fields"),
    "an unknown name": (record(("a", "Nope")), "invalid.*Nope"),
    "no schema": ("{", "invalid"),
    "a number": ("7", "invalid"),
    "names that differ only in case": (record(("a", "int"), ("A", "int")), "declared twice"),
}


@pytest.mark.parametrize(("schema", "problem"), AVRO_REFUSED.values(), ids=AVRO_REFUSED)
def test_avro_schema_without_columns_is_refused_by_name(schema: str, problem: str) -> None:
    with pytest.raises(SchemaError, match=problem):
        avro_columns(parse_avro(schema))


PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
import "parts/line.proto";
message Order {
  enum Kind { NEW = 0; OLD = 1; }
  message Note { string text = 1; }
  int32 i32 = 1; sint64 s64 = 2; uint32 u32 = 3; fixed64 u64 = 4; double d = 5; float f = 6; bool b = 7;
  bytes raw = 8; Kind kind = 9; repeated Note notes = 10; map<int32, Note> by_number = 11;
  google.protobuf.Timestamp at = 12; google.protobuf.Int64Value wrapped = 13; google.protobuf.Struct any = 14;
  oneof choice { string text = 15; Note note = 16; }
  parts.Line line = 17;
}
message Tree { string name = 1; repeated Tree branches = 2; }
message Nothing {}
"""
LINE = 'syntax = "proto3"; package parts; message Line { repeated int64 amounts = 1; }'
COLUMNS = (
    "i32 INT, s64 BIGINT, u32 BIGINT, u64 DECIMAL(20,0), d DOUBLE, f FLOAT, b BOOLEAN, raw BINARY, kind STRING, "
    "notes ARRAY<STRUCT<text: STRING>>, by_number MAP<STRING, STRUCT<text: STRING>>, at TIMESTAMP, wrapped BIGINT, "
    "any STRING, text STRING, note STRUCT<text: STRING>, line STRUCT<amounts: ARRAY<BIGINT>>"
)


@pytest.fixture(scope="module")
def compiled() -> bytes:
    return compile_protobuf(PROTO, {"parts/line.proto": LINE})


def test_each_protobuf_type_has_its_column(compiled: bytes) -> None:
    assert to_ddl(protobuf_columns(find_message(compiled, [0]))) == COLUMNS


def test_descriptors_need_no_compiler(compiled: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.run", None)
    files = {each.name: each.SerializeToString() for each in FileDescriptorSet.FromString(compiled).file}
    line = base64.b64encode(files["parts/line.proto"]).decode()
    main = base64.b64encode(files["schema.proto"]).decode()
    descriptors = compile_protobuf(main, {"parts/line.proto": line})
    assert to_ddl(protobuf_columns(find_message(descriptors, [0]))) == COLUMNS
    assert find_message(compile_protobuf(compiled), "shop.Order").full_name == "shop.Order"
    with pytest.raises(SchemaError, match=r"imports parts/line.proto, and has no reference"):
        compile_protobuf(main)


@pytest.mark.parametrize("message", ["Note", "shop.Order.Note", [0, 0]])
def test_message_is_found_by_name_or_indexes(compiled: bytes, message: str | Sequence[int]) -> None:
    assert find_message(compiled, message).full_name == "shop.Order.Note"


@pytest.mark.parametrize("message", ["Missing", "Line", "ByNumberEntry", [9], [0, 7], [0, 0, 0], [-1], []])
def test_missing_message_is_refused(compiled: bytes, message: str | Sequence[int]) -> None:
    with pytest.raises(SchemaError, match="message"):
        find_message(compiled, message)


def test_protobuf_message_without_columns_is_refused_by_name(compiled: bytes) -> None:
    with pytest.raises(SchemaError, match=r"`branches.element` is of the Protobuf message shop.Tree"):
        protobuf_columns(find_message(compiled, "Tree"))
    with pytest.raises(SchemaError, match="no fields"):
        protobuf_columns(find_message(compiled, "Nothing"))


@pytest.mark.parametrize(
    ("text", "references", "problem"),
    [
        ("hello", {}, "invalid: .*Expected"),
        (PROTO, {}, r"parts/line.proto: File not found"),
        ('syntax = "proto3";', {"../line.proto": LINE}, "not a valid file path"),
        ("", {}, "no message"),
    ],
)
def test_protobuf_schema_that_does_not_compile_is_refused(text: str, references: dict[str, str], problem: str) -> None:
    with pytest.raises(SchemaError, match=problem):
        find_message(compile_protobuf(text, references), [0])


def test_schema_file_that_is_neither_text_nor_descriptors_is_refused() -> None:
    with pytest.raises(SchemaError, match="neither"):
        compile_protobuf(b"\xff\xff\xff")
