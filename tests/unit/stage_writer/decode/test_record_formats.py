"""Streams of Avro, Protobuf and validated JSON, from the output of real serializers to rows and rejects."""

import datetime as dt
import io
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.message_factory import GetMessageClass

from common.errors import ConfigError, RegistryError, SchemaError
from common.protoc import compile_protobuf
from common.schema import parse_ddl, to_ddl
from common.schema.avro import parse_avro
from common.schema.protobuf import find_message
from common.settings import Stream
from devservices.schema_registry import Registry, running_registry
from stage_writer.convert import StreamConverter
from stage_writer.converters import PYTHON_PASSES, record_inputs
from stage_writer.decode.batch import Headers, headers_column
from stage_writer.decode.binary.avro import AvroReader
from stage_writer.decode.decode import Decoded
from stage_writer.decode.decode_options import STRICT
from stage_writer.decode.dependency import Dependency
from stage_writer.decode.envelopes.framing import FramedDecoder, RegisteredSchema, SchemaWait
from stage_writer.decode.rejects import ErrorClass
from stage_writer.fetch.schema_registry import SchemaRegistry
from stage_writer.layers import RecordInputs, decoder_of
from stage_writer.shape.dropped import DroppedFields
from tests.builders import instance, required, settings_of
from tests.fakes.answering import schema_registry
from tests.fakes.native import required_avro_pass
from tests.fakes.streams import batch_of, staged_batches
from tests.unit.stage_writer.decode.test_debezium import messages_of

UTC = dt.UTC
CONTEXT = SerializationContext("orders", MessageField.VALUE)
Values = list[bytes | None]


@pytest.fixture
def registry() -> Iterator[Registry]:
    with running_registry() as server:
        yield server


def stream_of(columns: str, **keys: object) -> Stream:
    of = {"app_id": "orders", "topics": ["orders"], "table": "/orders", "columns": columns, **keys}
    return settings_of(of, schema_registry={"url": "http://localhost:1"}).streams[0]


def client_of(stream: Stream, registry: Registry) -> SchemaRegistry:
    return schema_registry(registry.url, resolves={stream.record.format.upper()})


def decoded(stream: Stream, values: Values, registry: Registry | None = None, file: bytes | None = None) -> Decoded:
    schemas = None if registry is None else client_of(stream, registry)
    inputs = RecordInputs(schemas, schema_file=file, compile_protobuf=compile_protobuf)
    return decoder_of(stream, inputs).decode(messages_of(pa.array(values, pa.binary())))


def outcomes(result: Decoded) -> list[object]:
    """For each message its row, its error class, or None for a tombstone."""
    rows = dict(zip(result.row_index.tolist(), result.rows.to_pylist(), strict=True))
    refused = {reject.index: reject.error_class for reject in result.rejects}
    count = len(rows) + len(refused) + len(result.tombstones)
    return [rows.get(index, refused.get(index)) for index in range(count)]


def schema(*fields: tuple[str, object], name: str = "shop.Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}


def avro(of: dict[str, Any], record: object) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(of), record)
    return file.getvalue()


def one_value(kind: object, value: object, column: str, **keys: object) -> object:
    """An Avro value as decoded into a column, or its error class."""
    of = schema(("v", kind))
    stream = stream_of(f"v {column}", format="avro", schema_file="order.avsc", **keys)
    (outcome,) = outcomes(decoded(stream, [avro(of, {"v": value})], file=json.dumps(of).encode()))
    return outcome["v"] if isinstance(outcome, dict) else outcome


def logical(kind: str, name: str, **more: object) -> dict[str, object]:
    return {"type": kind, "logicalType": name, **more}


def decimal(precision: int, scale: int) -> dict[str, object]:
    return logical("bytes", "decimal", precision=precision, scale=scale)


DATE = logical("int", "date")
MILLIS, MICROS, NANOS = (logical("long", f"timestamp-{unit}") for unit in ("millis", "micros", "nanos"))
LOCAL_MILLIS, LOCAL_MICROS = (logical("long", f"local-timestamp-{unit}") for unit in ("millis", "micros"))
NOON = dt.datetime(2024, 2, 29, 12, 30, 45, 123000, tzinfo=UTC)
NOON_US = int(NOON.timestamp() * 1000) * 1000
IN = {"type": "record", "name": "In", "fields": [{"name": "q", "type": "int"}]}
CHOICE = ["null", "string", "long", IN]
FIXED_UUID = {**logical("fixed", "uuid"), "name": "U", "size": 16}
VALUES: dict[str, tuple[object, object, str, object]] = {
    "boolean": ("boolean", True, "BOOLEAN", True),
    "int": ("int", -(2**31), "INT", -(2**31)),
    "int to BIGINT": ("int", 7, "BIGINT", 7),
    "long": ("long", 2**63 - 1, "BIGINT", 2**63 - 1),
    "long to INT": ("long", 7, "INT", 7),
    "long beyond INT": ("long", 2**31, "INT", ErrorClass.OUT_OF_RANGE),
    "float": ("float", 1.5, "FLOAT", 1.5),
    "float to DOUBLE": ("float", 0.5, "DOUBLE", 0.5),
    "double": ("double", 0.1, "DOUBLE", 0.1),
    "infinity": ("double", float("-inf"), "DOUBLE", float("-inf")),
    "infinity as a float": ("float", float("inf"), "FLOAT", float("inf")),
    "double to BIGINT": ("double", 1.0, "BIGINT", ErrorClass.NOT_EXACT),
    "string": ("string", 'é"\\\n\u2028😀', "STRING", 'é"\\\n\u2028😀'),
    "string to INT": ("string", "7", "INT", ErrorClass.WRONG_TYPE),
    "bytes": ("bytes", b"\x00\xff", "BINARY", b"\x00\xff"),
    "bytes to STRING": ("bytes", b"text", "STRING", ErrorClass.WRONG_TYPE),
    "fixed": ({"type": "fixed", "name": "F", "size": 2}, b"\x00\xff", "BINARY", b"\x00\xff"),
    "enum": ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "STRING", "B"),
    "decimal": (decimal(10, 2), Decimal("-12.34"), "DECIMAL(10,2)", Decimal("-12.34")),
    "small decimal": (decimal(4, 4), Decimal("0.0001"), "DECIMAL(4,4)", Decimal("0.0001")),
    "decimal to fewer digits": (decimal(10, 2), Decimal("1.25"), "DECIMAL(10,1)", ErrorClass.NOT_EXACT),
    "fixed decimal": (
        {**logical("fixed", "decimal", precision=18, scale=3), "name": "D", "size": 8},
        Decimal("1.125"),
        "DECIMAL(18,3)",
        Decimal("1.125"),
    ),
    "date": (DATE, dt.date(2024, 2, 29), "DATE", dt.date(2024, 2, 29)),
    "date before 1970": (DATE, dt.date(1, 1, 1), "DATE", dt.date(1, 1, 1)),
    "date to INT": (DATE, dt.date(1970, 1, 2), "INT", 1),
    "date beyond any year": (DATE, 2**31 - 1, "DATE", ErrorClass.OUT_OF_RANGE),
    "time-millis": (logical("int", "time-millis"), dt.time(0, 0, 1, 5000), "INT", 1005),
    "time-micros": (logical("long", "time-micros"), dt.time(0, 0, 1, 5), "BIGINT", 1_000_005),
    "timestamp-millis": (MILLIS, NOON, "TIMESTAMP", NOON),
    "timestamp-micros": (MICROS, NOON, "TIMESTAMP", NOON),
    "timestamp-micros before 1970": (MICROS, -1, "TIMESTAMP", dt.datetime.fromtimestamp(-1e-6, UTC)),
    "timestamp-nanos": (NANOS, NOON_US * 1000, "TIMESTAMP", NOON),
    "timestamp-nanos below microseconds": (NANOS, NOON_US * 1000 + 1, "TIMESTAMP", ErrorClass.NOT_EXACT),
    "timestamp-nanos to BIGINT": (NANOS, NOON_US * 1000 + 1, "BIGINT", NOON_US * 1000 + 1),
    "timestamp-millis to BIGINT": (MILLIS, NOON, "BIGINT", NOON_US // 1000),
    "timestamp-millis beyond any year": (MILLIS, 2**62, "TIMESTAMP", ErrorClass.OUT_OF_RANGE),
    "timestamp-millis to TIMESTAMP_NTZ": (MILLIS, NOON, "TIMESTAMP_NTZ", ErrorClass.MALFORMED),
    "local-timestamp-millis": (LOCAL_MILLIS, NOON_US // 1000, "TIMESTAMP_NTZ", NOON.replace(tzinfo=None)),
    "local-timestamp-micros": (LOCAL_MICROS, NOON_US, "TIMESTAMP_NTZ", NOON.replace(tzinfo=None)),
    "uuid": (logical("string", "uuid"), UUID(int=7), "STRING", str(UUID(int=7))),
    "fixed uuid": (FIXED_UUID, UUID(int=2**100 + 7).bytes, "STRING", str(UUID(int=2**100 + 7))),
    "duration": ({**logical("fixed", "duration"), "name": "L", "size": 12}, b"123456789012", "BINARY", b"123456789012"),
    "null": ("null", None, "STRING", None),
    "nullable, null": (["null", "long"], None, "BIGINT", None),
    "nullable": (["null", "long"], 7, "BIGINT", 7),
    "null where NOT NULL is declared": (["null", "long"], None, "BIGINT NOT NULL", ErrorClass.MISSING_FIELD),
    "int or long": (["null", "int", "long"], 2**40, "BIGINT", 2**40),
    "float or double": (["float", "double"], 0.1, "DOUBLE", 0.1),
    "a choice": (CHOICE, "x", "STRUCT<string: STRING, long: BIGINT>", {"string": "x", "long": None}),
    "a choice of a record": (
        ["string", IN],
        ("shop.In", {"q": 7}),
        "STRUCT<string: STRING, `In`: STRUCT<q: INT>>",
        {"string": None, "In": {"q": 7}},
    ),
    "a choice of look-alikes": (
        ["string", {"type": "enum", "name": "E", "symbols": ["A"]}],
        ("shop.E", "A"),
        "STRUCT<string: STRING, E: STRING>",
        {"string": None, "E": "A"},
    ),
    "a choice that is null": (["null", "string", "long"], None, "STRUCT<string: STRING>", None),
    "array": ({"type": "array", "items": ["null", "int"]}, [1, None], "ARRAY<INT>", [1, None]),
    "array of times": ({"type": "array", "items": DATE}, [NOON.date()], "ARRAY<DATE>", [NOON.date()]),
    "map": ({"type": "map", "values": "double"}, {"a": 1.5, "": 2.5}, "MAP<STRING, DOUBLE>", [("a", 1.5), ("", 2.5)]),
    "record": (IN, {"q": 7}, "STRUCT<q: INT, other: STRING>", {"q": 7, "other": None}),
}


@pytest.mark.parametrize(("kind", "value", "column", "expected"), VALUES.values(), ids=VALUES)
def test_avro_value_is_decoded_exactly_or_refused(kind: object, value: object, column: str, expected: object) -> None:
    assert one_value(kind, value, column) == expected


@pytest.mark.parametrize("column", ["DOUBLE", "FLOAT"])
def test_nan_is_kept(column: str) -> None:
    assert str(one_value("double", float("nan"), column)) == "nan"


FORMATTED: dict[str, tuple[object, object, str, str, object]] = {
    "bytes in hex": ("bytes", b"\xff", "BINARY", "hex", b"\xff"),
    "milliseconds": (MILLIS, NOON, "TIMESTAMP", "epoch_ms", NOON),
    "milliseconds asked for as seconds": (MILLIS, NOON, "TIMESTAMP", "epoch_s", NOON),
    "microseconds asked for as milliseconds": (MICROS, NOON, "TIMESTAMP", "epoch_ms", NOON),
    "a plain number of milliseconds": ("long", NOON_US // 1000, "TIMESTAMP", "epoch_ms", NOON),
    "a record as JSON": (IN, {"q": 7}, "STRING", "json", '{"q":7}'),
    "bytes as JSON": ("bytes", b"\xff", "STRING", "json", '"/w=="'),
}


@pytest.mark.parametrize(("kind", "value", "column", "form", "expected"), FORMATTED.values(), ids=FORMATTED)
def test_formats_apply_to_avro(kind: object, value: object, column: str, form: str, expected: object) -> None:
    assert one_value(kind, value, column, formats={"v": form}) == expected


def test_lenient_decoding_applies_to_avro() -> None:
    assert one_value("string", "7", "INT", coerce="lenient") == 7
    assert one_value("double", 1.0, "BIGINT", coerce="lenient") == 1
    assert one_value("bytes", b"\xff", "STRING", coerce="lenient") == "/w=="


TREE = {
    "type": "record",
    "name": "Tree",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "left", "type": ["null", "Tree"], "default": None},
        {"name": "all", "type": {"type": "array", "items": "Tree"}},
    ],
}


def test_recursive_avro_type_is_decoded_to_the_declared_depth_or_as_json() -> None:
    leaf: dict[str, object] = {"name": "leaf", "left": None, "all": []}
    tree = {"name": "root", "left": {**leaf, "left": leaf}, "all": [leaf]}
    shallow = {"name": "root", "left": {"name": "leaf"}}
    assert one_value(TREE, tree, "STRUCT<name: STRING, left: STRUCT<name: STRING>>") == shallow
    assert json.loads(str(one_value(TREE, tree, "STRING", formats={"v": "json"}))) == tree


def test_recursive_avro_type_without_recursion_is_decoded_natively() -> None:
    avro_schema = parse_avro(json.dumps(schema(("v", TREE))))
    leaf: dict[str, object] = {"name": "leaf", "left": None, "all": []}
    bodies = [avro(schema(("v", TREE)), {"v": each}) for each in (leaf, {**leaf, "left": leaf})]
    array = pa.array(bodies, pa.large_binary())
    reader = AvroReader(avro_schema, parse_ddl("v STRING"), STRICT, make_pass=required_avro_pass())
    assert required(reader._pass).read(array)[1].tolist() == [True, False]
    assert reader.read(array).values.equals(AvroReader(avro_schema, parse_ddl("v STRING"), STRICT).read(array).values)


def test_records_are_resolved_to_a_readers_schema_without_the_pass_in_c() -> None:
    """It knows the writer's schema alone."""
    of = parse_avro(json.dumps(ORDER))
    AvroReader(of, parse_ddl(COLUMNS), STRICT, reader=of, make_pass=lambda _: pytest.fail("a pass is made"))


def test_more_items_than_bytes_are_refused_before_they_are_read() -> None:
    of = schema(("v", {"type": "array", "items": "float"}))
    stream = stream_of("v ARRAY<FLOAT>", format="avro", schema_file="x")
    nine = b"\x12" + b"\x00" * 8
    (reject,) = decoded(stream, [nine], file=json.dumps(of).encode()).rejects
    assert reject.error_class is ErrorClass.INVALID_RECORD
    assert reject.error.endswith("9 items are announced, but 8 bytes are left")


def test_record_nested_too_deeply_is_refused_alone() -> None:
    of = schema(("v", TREE))
    deep = b"\x02a\x02" * 200_000 + b"\x02a\x00" + b"\x00" * 200_001
    shallow = avro(of, {"v": {"name": "x", "left": None, "all": []}})
    stream = stream_of("v STRUCT<name: STRING>", format="avro", schema_file="x")
    actual = outcomes(decoded(stream, [deep, shallow], file=json.dumps(of).encode()))
    assert actual == [ErrorClass.INVALID_RECORD, {"v": {"name": "x"}}]


ORDER = schema(("id", "long"), ("city", ["null", "string"]))
ORDER_2 = schema(("city", ["null", "string"]), ("amount", decimal(8, 2)), ("id", "int"))
COLUMNS = "id BIGINT NOT NULL, city STRING, amount DECIMAL(10,2)"


def serialize(registry: Registry, of: object, record: object) -> bytes:
    client = SchemaRegistryClient({"url": registry.url})
    made: bytes = AvroSerializer(client, json.dumps(of))(record, CONTEXT)
    return made


def test_each_message_is_decoded_with_the_schema_it_names(registry: Registry) -> None:
    first = serialize(registry, ORDER, {"id": 1, "city": "Oslo"})
    second = serialize(registry, ORDER_2, {"id": 2, "city": None, "amount": Decimal("1.50")})
    registry.register('{"type": "object"}')
    registry.register(json.dumps(schema(("v", {"type": "array", "items": "null"}))), "AVRO")
    cases: list[tuple[bytes | None, object]] = [
        (first, {"id": 1, "city": "Oslo", "amount": None}),
        (second, {"id": 2, "city": None, "amount": Decimal("1.50")}),
        (None, None),
        (b"\0\0\0\0\x03{}", ErrorClass.WRONG_SCHEMA),
        (b"\0\0\0\0\x63" + first[5:], ErrorClass.UNKNOWN_SCHEMA),
        (b"\1" + first[1:], ErrorClass.NOT_FRAMED),
        (first[:-1], ErrorClass.INVALID_RECORD),
        (first + b"\0", ErrorClass.INVALID_RECORD),
        (b"\0\0\0\0\x04\0", ErrorClass.WRONG_SCHEMA),
        (first, {"id": 1, "city": "Oslo", "amount": None}),
        (second[:5], ErrorClass.INVALID_RECORD),
    ]
    stream = stream_of(COLUMNS, format="avro", framing="confluent")
    result = decoded(stream, [value for value, _ in cases], registry)
    assert outcomes(result) == [outcome for _, outcome in cases]
    errors = {reject.index: reject.error for reject in result.rejects}
    assert "the schema 3 is JSON, but only AVRO is supported" in errors[3]
    assert "1 bytes follow the record" in errors[7]
    assert "`v` is an array of empty values" in errors[8]
    assert registry.requests.count("GET /schemas/ids/1") == 1


def test_avro_references_are_fetched_once(registry: Registry) -> None:
    inner = registry.register(json.dumps({**IN, "name": "shop.In"}), "AVRO", "in")
    outer = json.dumps(schema(("in", "shop.In"), name="shop.Outer"))
    reference = {"name": "shop.In", "subject": "in", "version": 1}
    registry.register(outer, "AVRO", "outer", [reference])
    top = schema(("a", "shop.Outer"), ("b", "shop.In"))
    references = [{"name": "shop.Outer", "subject": "outer", "version": 1}, reference]
    number = registry.register(json.dumps(top), "AVRO", "top", references)
    body = b"\x02\x04"
    stream = stream_of("a STRUCT<in: STRUCT<q: INT>>, b STRUCT<q: INT>", format="avro", framing="confluent")
    result = decoded(stream, [b"\0" + number.to_bytes(4) + body] * 3, registry)
    assert outcomes(result) == [{"a": {"in": {"q": 1}}, "b": {"q": 2}}] * 3
    assert (inner, sorted(registry.requests)) == (
        1,
        ["GET /schemas/ids/3", "GET /subjects/in/versions/1", "GET /subjects/outer/versions/1"],
    )


def test_records_are_resolved_to_the_reader_schema(registry: Registry) -> None:
    reader = schema(("id", "long"))
    reader["fields"] += [
        {"name": "place", "aliases": ["city"], "type": ["null", "string"], "default": None},
        {"name": "amount", "type": "double", "default": 2.5},
    ]
    values: Values = [serialize(registry, ORDER, {"id": 1, "city": "Oslo"})]
    stream = stream_of(
        "id BIGINT, place STRING, amount DOUBLE", format="avro", framing="confluent", schema_file="reader.avsc"
    )
    result = decoded(stream, values, registry, json.dumps(reader).encode())
    assert outcomes(result) == [{"id": 1, "place": "Oslo", "amount": 2.5}]


def resolved(written: object, record: object, wanted: dict[str, Any], column: str) -> object:
    """The value `v` of a record after it is resolved to a `schema_file`, or its error class."""
    of = schema(("a", "int")) if written is None else schema(("v", written))
    body = avro(of, {"a": 1} if written is None else {"v": record})
    stream = stream_of(f"v {column}", format="avro", framing="confluent", schema_file="x")
    reader = {**schema(), "fields": [{"name": "v", **wanted}]}
    with running_registry() as registry:
        number = registry.register(json.dumps(of), "AVRO")
        inputs = RecordInputs(client_of(stream, registry), schema_file=json.dumps(reader).encode())
        decoder = decoder_of(stream, inputs)
        (outcome,) = outcomes(decoder.decode(messages_of(pa.array([b"\0" + number.to_bytes(4) + body], pa.binary()))))
    return outcome["v"] if isinstance(outcome, dict) else outcome


IN_BYTES = {"type": "record", "name": "B", "fields": [{"name": "b", "type": "bytes", "default": "\u00fe"}]}


@pytest.mark.parametrize(
    ("kind", "default", "column", "expected"),
    [
        ("bytes", "\u00ff", "BINARY", b"\xff"),
        (decimal(4, 2), "\u0001", "DECIMAL(4,2)", Decimal("0.01")),
        (FIXED_UUID, "\0" * 16, "STRING", str(UUID(int=0))),
        (["string", "long"], "x", "STRUCT<string: STRING, long: BIGINT>", {"string": "x", "long": None}),
        (["null", "bytes"], None, "BINARY", None),
        ("double", 1, "DOUBLE", 1.0),
        ({"type": "array", "items": "bytes"}, ["\u00ff"], "ARRAY<BINARY>", [b"\xff"]),
        ({"type": "map", "values": "float"}, {"k": 1}, "MAP<STRING, FLOAT>", [("k", 1.0)]),
        (IN_BYTES, {}, "STRUCT<b: BINARY>", {"b": b"\xfe"}),
    ],
)
def test_reader_default_has_the_value_of_its_type(kind: object, default: object, column: str, expected: object) -> None:
    assert resolved(None, None, {"type": kind, "default": default}, column) == expected


GROWN = {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}
KNOWN = {"type": "enum", "name": "E", "symbols": ["A", "B"]}


@pytest.mark.parametrize(
    ("written", "value", "wanted", "column", "expected"),
    [
        (GROWN, "C", KNOWN, "STRING", ErrorClass.WRONG_SCHEMA),
        (GROWN, "C", {**KNOWN, "default": "A"}, "STRING", "A"),
        (["null", "int"], None, "long", "BIGINT", ErrorClass.WRONG_SCHEMA),
        ("string", "7", "int", "INT", ErrorClass.WRONG_SCHEMA),
        (decimal(4, 2), Decimal("1.25"), decimal(6, 3), "DECIMAL(6,3)", ErrorClass.WRONG_SCHEMA),
        (decimal(4, 2), Decimal("1.25"), ["null", decimal(6, 2)], "DECIMAL(6,2)", Decimal("1.25")),
        (MILLIS, NOON, MICROS, "TIMESTAMP", ErrorClass.WRONG_SCHEMA),
        (DATE, dt.date(2024, 2, 29), ["null", MILLIS], "TIMESTAMP", ErrorClass.WRONG_SCHEMA),
        (
            {"type": "array", "items": MILLIS},
            [NOON],
            {"type": "array", "items": MICROS},
            "ARRAY<TIMESTAMP>",
            "wrong_schema",
        ),
        (["null", MILLIS], NOON, MICROS, "TIMESTAMP", ErrorClass.WRONG_SCHEMA),
        (LOCAL_MICROS, NOON.replace(tzinfo=None), MICROS, "TIMESTAMP", NOON),
        (MILLIS, NOON, "long", "BIGINT", NOON_US // 1000),
        ("long", NOON_US, MICROS, "TIMESTAMP", NOON),
    ],
)
def test_value_that_does_not_resolve_to_the_reader_schema_is_refused(
    written: object, value: object, wanted: object, column: str, expected: object
) -> None:
    assert resolved(written, value, {"type": wanted}, column) == expected


@pytest.mark.parametrize("default", [0, 1.5, "x", None])
def test_defaults_of_the_writer_schema_do_not_matter(default: object) -> None:
    of = {**schema(), "fields": [{"name": "v", "type": "double", "default": default}]}
    stream = stream_of("v DOUBLE", format="avro", schema_file="x")
    body = avro(schema(("v", "double")), {"v": 2.5})
    assert outcomes(decoded(stream, [body], file=json.dumps(of).encode())) == [{"v": 2.5}]


@pytest.mark.parametrize("kind", [["int", "int"], {"type": "fixed", "name": "F", "size": "x"}])
def test_records_of_an_unusable_avro_schema_are_refused(kind: object, registry: Registry) -> None:
    number = registry.register(json.dumps(schema(("v", kind))), "AVRO")
    stream = stream_of("v INT", format="avro", framing="confluent")
    assert outcomes(decoded(stream, [b"\0" + number.to_bytes(4) + b"\0\2"], registry)) == [ErrorClass.WRONG_SCHEMA]


def test_decimal_without_a_precision_is_bytes() -> None:
    assert one_value(logical("bytes", "decimal"), b"\1", "BINARY") == b"\1"


def test_unknown_avro_fields_are_rescued(registry: Registry) -> None:
    extra = schema(("id", "long"), ("when", MILLIS), ("raw", "bytes"), ("n", "double"))
    values: Values = [
        serialize(registry, extra, {"id": 1, "when": NOON, "raw": b"\xff", "n": float("nan")}),
        serialize(registry, ORDER, {"id": 2, "city": None}),
    ]
    stream = stream_of("id BIGINT, city STRING", format="avro", framing="confluent", unknown_fields="rescue")
    rescued = '{"when":"2024-02-29T12:30:45.123Z","raw":"/w==","n":"NaN"}'
    assert outcomes(decoded(stream, values, registry)) == [
        {"id": 1, "city": None, "_rescued": rescued},
        {"id": 2, "city": None, "_rescued": None},
    ]


def test_change_events_in_avro_are_decoded(registry: Registry) -> None:
    value = schema(("id", "long"), ("at", ["null", MICROS]), name="shop.Value")
    source = schema(("db", "string"), ("table", "string"), ("ts_ms", "long"), name="shop.Source")
    event = schema(
        ("before", ["null", value]),
        ("after", ["null", "shop.Value"]),
        ("source", source),
        ("op", "string"),
        ("ts_ms", ["null", "long"]),
        name="shop.Envelope",
    )
    row = {"id": 1, "at": NOON}
    about = {"source": {"db": "shop", "table": "orders", "ts_ms": NOON_US // 1000}, "ts_ms": NOON_US // 1000}
    values: Values = [
        serialize(registry, event, {"before": None, "after": row, "op": "c", **about}),
        serialize(registry, event, {"before": row, "after": None, "op": "d", **about}),
        None,
        serialize(registry, event, {"before": None, "after": None, "op": "t", **about}),
    ]
    stream = stream_of("id BIGINT NOT NULL, at TIMESTAMP", format="avro", framing="confluent", envelope="debezium")
    cdc = {"ts": NOON, "source": "shop.orders", "source_ts": NOON}
    assert outcomes(decoded(stream, values, registry)) == [
        {**row, "_cdc": {"op": "c", **cdc}},
        {**row, "_cdc": {"op": "d", **cdc}},
        None,
        ErrorClass.TRUNCATED,
    ]


def test_jmespath_applies_to_avro(registry: Registry) -> None:
    of = schema(("meta", schema(("day", "string"), name="Meta")), ("id", "long"))
    values: Values = [serialize(registry, of, {"meta": {"day": "2024-02-29"}, "id": 7})]
    stream = stream_of(
        "id BIGINT, year STRING", format="avro", framing="confluent", jmespath={"year": "substr(meta.day, `0`, `4`)"}
    )
    assert outcomes(decoded(stream, values, registry)) == [{"id": 7, "year": "2024"}]


def headed(stream: Stream, messages: list[tuple[bytes | None, Headers | None]], registry: Registry) -> Decoded:
    decoder = decoder_of(stream, RecordInputs(client_of(stream, registry), compile_protobuf=compile_protobuf))
    plain = messages_of(pa.array([value for value, _ in messages], pa.binary()))
    return decoder.decode(replace(plain, headers=headers_column([headers for _, headers in messages])))


def test_header_names_the_avro_schema(registry: Registry) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    by_header = {"schema.id.serializer": header_schema_id_serializer}
    serializer = AvroSerializer(client, json.dumps(ORDER), conf=by_header)
    context = SerializationContext("orders", MessageField.VALUE, [("other", b"x")])
    body = serializer({"id": 1, "city": "Oslo"}, context)
    headers = context.headers
    stream = stream_of("id BIGINT, city STRING", format="avro", framing="confluent_header")
    row, bad = {"id": 1, "city": "Oslo"}, ErrorClass.NOT_FRAMED
    cases: list[tuple[bytes | None, Headers | None, object]] = [
        (body, headers, row),
        (None, headers, None),
        (body, None, bad),
        (body, [("other", b"x")], bad),
        (body, [("__value_schema_id", b"\0\0\0\0\1")], row),
        (body, [("__value_schema_id", b"")], bad),
        (body, [("__value_schema_id", b"\1" + bytes(16))], ErrorClass.UNKNOWN_SCHEMA),
        (body[:-1], headers, ErrorClass.INVALID_RECORD),
        (body, [("__value_schema_id", None)], bad),
        (body, [*headers, ("__value_schema_id", b"\1" + bytes(16))], row),
        (None, None, None),
    ]
    result = headed(stream, [(value, headers) for value, headers, _ in cases], registry)
    assert outcomes(result) == [outcome for *_, outcome in cases]
    assert StreamConverter(stream, RecordInputs(Unasked())).needs_headers
    assert not StreamConverter(stream_of("id INT", framing="confluent"), RecordInputs(Unasked())).needs_headers


class Unasked:
    def knows(self, ids: Sequence[int | str]) -> bool:
        raise NotImplementedError

    def missing(self, ids: Sequence[int | str]) -> RegistryError:
        raise NotImplementedError

    def types_of(self, ids: Sequence[int | str]) -> Mapping[int | str, str | None]:
        raise NotImplementedError

    def schema_of(self, schema: int | str) -> RegisteredSchema:
        raise NotImplementedError


class Typed(Unasked):
    def knows(self, ids: Sequence[int | str]) -> bool:
        del ids
        return True

    def types_of(self, ids: Sequence[int | str]) -> Mapping[int | str, str | None]:
        del ids
        return {1: "AVRO", 2: "JSON"}


def test_columns_wait_for_no_schema_of_another_format() -> None:
    """Its records are dead letters, and no column will ever be for them."""
    asked: list[Collection[int | str]] = []

    class Columns:
        def waits(self, ids: Collection[int | str]) -> Dependency | None:
            asked.append(ids)
            return None

    decoder = FramedDecoder(decoder_of(stream_of("id INT")), Typed(), "AVRO", covers=Columns())
    frames = [bytes(1) + number.to_bytes(4) for number in (1, 2)]
    assert decoder.waits(pa.array(frames, pa.binary())) is None
    assert asked == [[1]]


def test_header_names_the_protobuf_schema_and_message(files: bytes, registry: Registry) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    by_header = {"schema.id.serializer": header_schema_id_serializer}
    messages: list[tuple[bytes | None, Headers | None]] = [(b"", None)]
    for value in (message(files, "Order", id=7), message(files, "Line", sku="x")):
        context = SerializationContext("orders", MessageField.VALUE, [])
        body = ProtobufSerializer(type(value), client, conf=by_header)(value, context)
        messages.append((body, context.headers))
    stream = stream_of("id INT, sku STRING", format="protobuf", framing="confluent_header")
    assert outcomes(headed(stream, messages, registry)) == [
        ErrorClass.NOT_FRAMED,
        {"id": 7, "sku": None},
        {"id": None, "sku": "x"},
    ]


def test_boolean_key_of_a_protobuf_map_is_its_name() -> None:
    files = compile_protobuf('syntax = "proto3"; message M { map<bool, int32> m = 1; }')
    value = GetMessageClass(find_message(files, "M"))(m={True: 1})
    stream = stream_of("m MAP<STRING, INT>", format="protobuf", schema_file="x")
    assert outcomes(decoded(stream, [value.SerializeToString()], file=files)) == [{"m": [("true", 1)]}]


def test_header_names_the_json_schema(registry: Registry) -> None:
    number = registry.register('{"type": "object"}')
    headers: Headers = [("__value_schema_id", b"\0" + number.to_bytes(4))]
    result = headed(stream_of("id INT", framing="confluent_header"), [(b'{"id": 1}', headers)], registry)
    assert outcomes(result) == [{"id": 1}]


KEY = schema(("id", "long"), name="shop.Key")


def deleted(
    stream: Stream, keys: Values, registry: Registry, headers: list[Headers | None] | None = None
) -> list[object]:
    """For each tombstone with such a key the deleted row's key, or its error class."""
    inputs = RecordInputs(client_of(stream, registry), compile_protobuf=compile_protobuf)
    converter = StreamConverter(stream, inputs)
    batch = batch_of([None] * len(keys), keys=keys)
    if headers is not None:
        batch = replace(batch, headers=headers_column(headers))
    (staged,) = staged_batches(converter, [batch])
    by_offset: dict[int, object] = {}
    for table in staged.rows:
        for row in table.to_pylist():
            by_offset[row["_kafka_offset"]] = row["error_class"] if "error_class" in row else row["id"]
    return [by_offset[offset] for offset in batch.offsets.tolist()]


def test_tombstone_deletes_by_its_avro_key(registry: Registry) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    context = SerializationContext("orders", MessageField.KEY)
    key = AvroSerializer(client, json.dumps(KEY))({"id": 7}, context)
    bare = AvroSerializer(client, '"long"')(8, context)
    other = registry.register('{"type": "object"}')
    unreadable: Values = [key[:-1], b"\0\0\0\0\x63\x0e", b"\0" + other.to_bytes(4) + b"11", None]
    merging = {"format": "avro", "framing": "confluent", "load": "merge", "merge": {"keys": ["id"]}}
    stream = stream_of("id BIGINT, city STRING", **merging)
    bad = ErrorClass.UNREADABLE_KEY
    assert deleted(stream, [key, bare, b'{"id": 9}', b"10", *unreadable], registry) == [7, 8, 9, 10, *[bad] * 4]
    text = stream_of("id STRING, city STRING", **merging)
    name = AvroSerializer(client, '"string"')("x", context)
    # A damaged key is not text: otherwise, another row would be deleted.
    null = b"\0" + registry.register('["null", "string"]', "AVRO").to_bytes(4) + b"\0"
    assert deleted(text, [name, b"y", name[:-1], null], registry) == ["x", "y", bad, bad]


def test_tombstone_waits_for_the_schema_of_its_key(registry: Registry) -> None:
    registry.register(json.dumps(KEY), "AVRO")
    registry.stop()
    schemas = schema_registry(registry.url, resolves={"AVRO"})
    stream = stream_of("id BIGINT", format="avro", framing="confluent", load="merge", merge={"keys": ["id"]})
    converter = StreamConverter(stream, RecordInputs(schemas))
    wait = instance(SchemaWait, converter.waits(batch_of([None], keys=[b"\0\0\0\0\1\x0e"])))
    assert (wait.ids, wait.is_over()) == ((1,), False)
    assert converter.waits(batch_of([None, b"no frame"], keys=[b"plain", b"\0\0\0\0\1\x0e"])) is None


def test_tombstone_deletes_by_its_protobuf_key_with_a_header(files: bytes, registry: Registry) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    context = SerializationContext("orders", MessageField.KEY, [])
    by_header = {"schema.id.serializer": header_schema_id_serializer}
    order = message(files, "Order", id=7)
    key = ProtobufSerializer(type(order), client, conf=by_header)(order, context)
    stream = stream_of("id INT", format="protobuf", framing="confluent_header", load="merge", merge={"keys": ["id"]})
    assert deleted(stream, [key, b"8"], registry, [context.headers, None]) == [7, 8]


def test_undeclared_avro_fields_are_counted() -> None:
    file = json.dumps(ORDER).encode()
    stream = stream_of("id BIGINT", format="avro", schema_file="x")
    converter = StreamConverter(stream, RecordInputs(schema_file=file))
    dropped = DroppedFields(stream, converter.json_of)
    values = pa.array([avro(ORDER, {"id": 1, "city": "Oslo"}), None, b"\xff"], pa.binary())
    census = required(dropped.sample(values))
    assert (census.records, dict(census.undeclared)) == (1, {"city": 1})


def test_new_avro_field_is_offered_as_a_column() -> None:
    of = schema(("id", "long"), ("n", "int"), ("in", IN))
    stream = stream_of("id BIGINT", format="avro", schema_file="x", unknown_fields="evolve")
    converter = StreamConverter(stream, RecordInputs(schema_file=json.dumps(of).encode()))
    values = [avro(of, {"id": 1, "n": 7, "in": {"q": 8}})]
    (staged,) = staged_batches(converter, [batch_of(values)])
    assert to_ddl(staged.offered) == "in STRUCT<q: BIGINT>, n BIGINT"
    (again,) = staged_batches(converter.at(parse_ddl("n BIGINT")), [batch_of(values)])
    (row,) = next(iter(again.rows)).to_pylist()
    assert (row["id"], row["n"], row["_rescued"]) == (1, 7, '{"in":{"q":8}}')


PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
message First { string nothing = 1; }
message Order {
  enum Kind { NEW = 0; OLD = 1; }
  message Line { string sku = 1; optional int32 count = 2; }
  int32 id = 1; uint64 big = 2; double price = 3; bytes raw = 4; Kind kind = 5; repeated Line lines = 6;
  map<int32, Line> by_number = 7; google.protobuf.Timestamp at = 8; google.protobuf.StringValue note = 9;
  google.protobuf.Struct extra = 10; oneof choice { string text = 11; Line line = 12; } optional bool flag = 13;
  repeated double many = 14; float small = 15; map<string, bool> flags = 16;
}
message Tree { string name = 1; Tree left = 2; }
"""
PROTO_COLUMNS = (
    "id INT, big DECIMAL(20,0), price DOUBLE, raw BINARY, kind STRING, lines ARRAY<STRUCT<sku: STRING, count: INT>>, "
    "by_number MAP<STRING, STRUCT<sku: STRING>>, at TIMESTAMP, note STRING, extra STRING, text STRING, "
    "line STRUCT<sku: STRING>, flag BOOLEAN, many ARRAY<DOUBLE>, small FLOAT, flags MAP<STRING, BOOLEAN>"
)


@pytest.fixture(scope="module")
def files() -> bytes:
    return compile_protobuf(PROTO)


def message(files: bytes, of: str, **fields: object) -> Any:  # noqa: ANN401 - of Google's library
    return GetMessageClass(find_message(files, of))(**fields)


def full(files: bytes) -> Any:  # noqa: ANN401 - of Google's library
    order = message(files, "Order", id=-1, big=2**64 - 1, price=float("nan"), raw=b"\xff", kind=1, text="t", many=[1.5])
    order.lines.add(sku="a")
    order.lines.add(sku='"', count=0)
    order.by_number[-7].sku = "m"
    order.at.FromDatetime(NOON)
    order.note.value = "n"
    order.extra.update({"a": [1, None, "é"]})
    order.flags["f"] = True
    return order


FULL = {
    "id": -1,
    "big": Decimal(2**64 - 1),
    "raw": b"\xff",
    "kind": "OLD",
    "lines": [{"sku": "a", "count": None}, {"sku": '"', "count": 0}],
    "by_number": [("-7", {"sku": "m"})],
    "at": NOON,
    "note": "n",
    "text": "t",
    "line": None,
    "flag": None,
    "many": [1.5],
    "small": 0.0,
    "flags": [("f", True)],
}
EMPTY: dict[str, object] = {
    **dict.fromkeys(("at", "note", "extra", "text", "line", "flag")),
    **{name: [] for name in ("lines", "by_number", "many", "flags")},
}
EMPTY |= {"id": 0, "big": Decimal(0), "price": 0.0, "raw": b"", "kind": "NEW", "small": 0.0}


def test_protobuf_message_is_decoded_into_its_columns(files: bytes) -> None:
    stream = stream_of(PROTO_COLUMNS, format="protobuf", schema_file="order.proto", message="shop.Order")
    whole, seven = full(files).SerializeToString(), message(files, "Order", kind=7).SerializeToString()
    values: Values = [whole, b"", None, b"\xff\xff", seven]
    full_row, empty, tombstone, broken, unnamed = outcomes(decoded(stream, values, file=PROTO.encode()))
    assert isinstance(full_row, dict)
    assert str(full_row.pop("price")) == "nan"
    assert json.loads(str(full_row.pop("extra"))) == {"a": [1, None, "é"]}
    assert full_row == FULL
    assert (empty, tombstone, broken, unnamed) == (EMPTY, None, ErrorClass.INVALID_RECORD, ErrorClass.WRONG_TYPE)


def test_protobuf_value_of_another_type_than_the_schema_has_is_no_default() -> None:
    file = b"""syntax = "proto3";
    message Order { int64 id = 1; optional string name = 2; Part part = 3; message Part { int64 n = 1; } }"""
    stream = stream_of("id BIGINT, name STRING, part STRUCT<n: BIGINT>", format="protobuf", schema_file="order.proto")
    values: list[bytes | None] = [
        b"\x08\x05",
        b"\x08\x05\x4a\x01x",
        b"\x0a\x015",
        b"\x08\x05\x10\x07",
        b"\x08\x05\x1a\x03\x0a\x015",
    ]
    row = {"id": 5, "name": None, "part": None}  # also where a field is sent that the schema does not have
    assert outcomes(decoded(stream, values, file=file)) == [row, row, *[ErrorClass.INVALID_RECORD] * 3]


@pytest.mark.parametrize(
    ("field", "column", "usual", "other"),
    [
        ("google.protobuf.Timestamp", "TIMESTAMP", b"\x08\x00", b"\x0a\x01x"),
        ("google.protobuf.Int64Value", "BIGINT", b"\x08\x05", b"\x0a\x015"),
        ("google.protobuf.StringValue", "STRING", b"\x0a\x015", b"\x08\x05"),
        ("google.protobuf.Struct", "STRING", b"", b"\x08\x05"),
        ("google.protobuf.Struct", "STRING", b"", b"\x0a\x07\x0a\x01a\x12\x02\x18\x05"),
        ("google.protobuf.ListValue", "STRING", b"\x0a\x02\x20\x01", b"\x0a\x02\x18\x05"),
        ("google.protobuf.Value", "STRING", b"\x32\x04\x0a\x02\x20\x01", b"\x32\x04\x0a\x02\x18\x05"),
        ("map<string, int64>", "MAP<STRING, BIGINT>", b"\x0a\x01a\x10\x05", b"\x0a\x01a\x12\x015"),
        ("map<string, int64>", "MAP<STRING, BIGINT>", b"\x0a\x01a\x10\x05", b"\x08\x01\x10\x05"),
    ],
)  # fmt: skip
def test_google_s_types_and_maps_are_no_default_either(field: str, column: str, usual: bytes, other: bytes) -> None:
    file = f"""syntax = "proto3";
    import "google/protobuf/struct.proto"; import "google/protobuf/timestamp.proto";
    import "google/protobuf/wrappers.proto";
    message Order {{ {field} value = 1; }}"""
    stream = stream_of(f"value {column}", format="protobuf", schema_file="order.proto")
    values: list[bytes | None] = [b"\x0a" + len(each).to_bytes() + each for each in (usual, other)]
    row, refused = outcomes(decoded(stream, values, file=file.encode()))
    assert (isinstance(row, dict), refused) == (True, ErrorClass.INVALID_RECORD)


PROTO_2 = """
syntax = "proto2";
enum Kind { NEW = 1; OLD = 2; }
message Order {
  required int64 id = 1; optional Kind kind = 2; repeated Kind kinds = 3; optional string note = 4;
  map<string, string> notes = 5;
}
"""


def test_proto2_decoding_loses_no_value_silently() -> None:
    columns = "id BIGINT, kind {}, kinds ARRAY<STRING>, note STRING, notes MAP<STRING, STRING>"
    values: Values = [
        b"\x08\x01\x10\x02\x18\x01",
        b"\x08\x01\x10\x07",  # Kinds that the enum does not name.
        b"\x08\x01\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x08\x01\x18\x01\x18\x07",
        b"\x10\x02",  # No id.
        b"\x08\x01\x22\x01\xff",  # Notes that are not UTF-8.
        b"\x08\x01\x2a\x05\x0a\x01\xff\x12\x00",
    ]
    refused = [ErrorClass.INVALID_RECORD] * 4
    for kind, known, unknown in (("STRING", "OLD", [ErrorClass.WRONG_TYPE] * 2), ("INT", 2, [7, -1])):
        stream = stream_of(columns.format(kind), format="protobuf", schema_file="order.proto", message="Order")
        rows = outcomes(decoded(stream, values, file=PROTO_2.encode()))
        kinds = [each["kind"] if isinstance(each, dict) else each for each in rows]
        assert kinds == [known, *unknown, *refused]
        assert rows[0] == {"id": 1, "kind": known, "kinds": ["NEW"], "note": None, "notes": []}


@pytest.mark.parametrize(("name", "text"), [("\0", "x"), ("a", "\ud800"), ("schema.proto/b.proto", "x")])
def test_invalid_protobuf_reference_is_refused(name: str, text: str) -> None:
    with pytest.raises(SchemaError, match="not valid text under a valid file path"):
        compile_protobuf(PROTO_2, {"schema.proto": PROTO_2, name: text})


def test_protobuf_frame_names_the_message(files: bytes, registry: Registry) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    order, line = message(files, "Order", id=7), message(files, "Line", sku="x")

    def framed(value: Any) -> bytes:  # noqa: ANN401 - of Google's library
        made: bytes = ProtobufSerializer(type(value), client)(value, CONTEXT)
        return made

    cases: list[tuple[bytes, object]] = [
        (framed(order), {"id": 7, "sku": None}),
        (framed(line), {"id": None, "sku": "x"}),
        (framed(order)[:5], ErrorClass.NOT_FRAMED),
        (framed(order)[:5] + b"\x02\x0e", ErrorClass.WRONG_SCHEMA),
        (b"\0\0\0\0\x63\0", ErrorClass.UNKNOWN_SCHEMA),
    ]
    # A registry gives text, where a client has not registered descriptors.
    number = registry.register(PROTO, "PROTOBUF")
    cases.append((b"\0" + number.to_bytes(4) + framed(order)[5:], {"id": 7, "sku": None}))
    stream = stream_of("id INT, sku STRING", format="protobuf", framing="confluent")
    result = decoded(stream, [value for value, _ in cases], registry)
    assert outcomes(result) == [outcome for _, outcome in cases]


def test_protobuf_references_are_fetched(registry: Registry) -> None:
    registry.register('syntax = "proto3"; package p; message Line { int64 n = 1; }', "PROTOBUF", "line")
    text = 'syntax = "proto3"; import "line.proto"; message Order { p.Line line = 1; }'
    reference = {"name": "line.proto", "subject": "line", "version": 1}
    number = registry.register(text, "PROTOBUF", "order", [reference])
    values: Values = [b"\0" + number.to_bytes(4) + b"\0" + b"\x0a\x02\x08\x05"]
    stream = stream_of("line STRUCT<n: BIGINT>", format="protobuf", framing="confluent")
    assert outcomes(decoded(stream, values, registry)) == [{"line": {"n": 5}}]


def test_recursive_protobuf_message_is_decoded_to_a_limited_depth(files: bytes) -> None:
    tree = message(files, "Tree", name="a")
    tree.left.left.name = "c"
    stream = stream_of(
        "name STRING, left STRING", format="protobuf", schema_file="x", message="Tree", formats={"left": "json"}
    )
    deep = b""
    for _ in range(2_000):
        deep = b"\x12" + _varint(len(deep)) + deep
    actual = outcomes(decoded(stream, [tree.SerializeToString(), deep], file=PROTO.encode()))
    assert actual == [{"name": "a", "left": '{"name":"","left":{"name":"c"}}'}, ErrorClass.INVALID_RECORD]


def _varint(number: int) -> bytes:
    encoded = b""
    while number > 0x7F:
        encoded += bytes([number & 0x7F | 0x80])
        number >>= 7
    return encoded + bytes([number])


JSON_SCHEMA = {"type": "object", "properties": {"id": {"type": "integer", "minimum": 1}}, "required": ["id"]}


def test_json_that_violates_its_schema_is_refused(registry: Registry) -> None:
    number = registry.register(json.dumps(JSON_SCHEMA))
    line = registry.register(json.dumps({"type": "object", "required": ["n"]}), "JSON", "line")
    referring = json.dumps({"properties": {"line": {"$ref": "line.json"}}})
    other = registry.register(referring, "JSON", "order", [{"name": "line.json", "subject": "line", "version": 1}])
    broken = registry.register('{"type": "nonsense"}')
    frame, frame_2, frame_3 = (b"\0" + each.to_bytes(4) for each in (number, other, broken))
    cases: list[tuple[bytes | None, object]] = [
        (frame + b'{"id": 1}', {"id": 1}),
        (frame + b'{"id": 0}', ErrorClass.AGAINST_SCHEMA),
        (frame + b"{", ErrorClass.INVALID_JSON),
        (None, None),
        (frame_2 + b'{"line": {"n": 1}}', {"id": None}),
        (frame_2 + b'{"line": {}}', ErrorClass.AGAINST_SCHEMA),
        (frame_3 + b"{}", ErrorClass.WRONG_SCHEMA),
    ]
    values = [value for value, _ in cases]
    assert line == 2
    result = decoded(stream_of("id INT", framing="confluent", validate=True), values, registry)
    assert outcomes(result) == [outcome for _, outcome in cases]
    assert result.rejects[0].error == "$.id: 0 is less than the minimum of 1"
    plain = decoded(stream_of("id INT", framing="confluent"), values, registry)
    assert [reject.error_class for reject in plain.rejects] == [ErrorClass.INVALID_JSON]


@pytest.mark.parametrize("schema", ['{"$schema": 7}', '{"not":' * 5_000 + "{}" + "}" * 5_000])
def test_records_of_an_unusable_json_schema_are_refused(schema: str, registry: Registry) -> None:
    frame = b"\0" + registry.register(schema).to_bytes(4)
    result = decoded(stream_of("id INT", framing="confluent", validate=True), [frame + b"{}"], registry)
    assert outcomes(result) == [ErrorClass.WRONG_SCHEMA]


@pytest.mark.parametrize("value", [b"[" * 100_000 + b"]" * 100_000, b"9" * 5_000])
def test_json_that_cannot_be_validated_is_refused(value: bytes, registry: Registry) -> None:
    frame = b"\0" + registry.register('{"properties": {"v": {"type": "boolean"}}}').to_bytes(4)
    stream = stream_of("v STRING", framing="confluent", validate=True, formats={"v": "json"})
    result = decoded(stream, [frame + b'{"v": ' + value + b"}"], registry)
    assert outcomes(result) == [ErrorClass.AGAINST_SCHEMA]


def test_json_without_frames_is_validated_by_a_schema_file() -> None:
    stream = stream_of("id INT", validate=True, schema_file="order.json")
    actual = outcomes(decoded(stream, [b'{"id": 1}', b"{}", None], file=json.dumps(JSON_SCHEMA).encode()))
    assert actual == [{"id": 1}, ErrorClass.AGAINST_SCHEMA, None]


@pytest.mark.parametrize(
    ("keys", "file", "problem"),
    [
        ({"format": "avro"}, b"{", "Avro schema is invalid"),
        ({"format": "avro"}, b"\xff", "not UTF-8 text"),
        ({"format": "avro"}, b'"string"', "not record"),
        ({"format": "protobuf"}, b"hello", "Protobuf schema is invalid"),
        ({"format": "protobuf", "message": "Nope"}, PROTO.encode(), "no messages 'Nope'"),
        ({"validate": True}, b"[", "JSON Schema is invalid"),
    ],
)
def test_unusable_schema_file_is_refused_at_startup(keys: dict[str, object], file: bytes, problem: str) -> None:
    with pytest.raises(SchemaError, match=f"(?s)^schema_file /x: .*{problem}"):
        decoded(stream_of("id INT", schema_file="/x", **keys), [], file=file)


def test_unreadable_schema_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "order.avsc"
    stream = stream_of("id INT", format="avro", schema_file=str(path))
    with pytest.raises(ConfigError, match=f"schema_file {path} cannot be read"):
        record_inputs(stream, PYTHON_PASSES)
    path.write_bytes(b"content")
    assert record_inputs(stream, PYTHON_PASSES).schema_file == b"content"


DAMAGED: dict[str, tuple[object, bytes]] = {
    "a union's index below zero": (["null", "string"], b"\x01\x02a"),
    "a union's index beyond its members": (["null", "string"], b"\x04\x02a"),
    "an enum's index below zero": ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x01"),
    "an enum's index beyond its symbols": ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02"),
    "a boolean of another byte": ("boolean", b"\x02"),
    "an int of more than 32 bits": ("int", b"\x80\x80\x80\x80\x20"),
    "a long of more than 64 bits": ("long", b"\xff" * 9 + b"\x03"),
    "a long that does not end": ("long", b"\xff" * 12),
    "a string of a negative length": ("string", b"\x01a"),
    "a string that is too short": ("string", b"\x06a"),
    "a string that is not UTF-8": ("string", b"\x04\xc3\x28"),
    "an array of more items than bytes": ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\x0f\x02\x00"),
    "an array without an end": ({"type": "array", "items": "int"}, b"\x02\x02"),
    "a map's key of a negative length": ({"type": "map", "values": "int"}, b"\x02\x01\x02\x00"),
    "half a double": ("double", b"\0\0\0\0"),
    "nothing": ("int", b""),
}


@pytest.mark.parametrize(("kind", "body"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_avro_is_refused(kind: object, body: bytes) -> None:
    stream = stream_of("v STRING", format="avro", schema_file="x", formats={"v": "json"})
    (reject,) = decoded(stream, [body], file=json.dumps(schema(("v", kind))).encode()).rejects
    assert reject.error_class is ErrorClass.INVALID_RECORD
    assert "0x" not in reject.error  # no address, which would differ from run to run


def test_avro_array_in_several_blocks_is_one_array() -> None:
    stream = stream_of("v ARRAY<INT>", format="avro", schema_file="x")
    file = json.dumps(schema(("v", {"type": "array", "items": "int"}))).encode()
    assert outcomes(decoded(stream, [b"\x02\x02\x03\x04\x04\x06\x00"], file=file)) == [{"v": [1, 2, 3]}]


@pytest.mark.parametrize(
    ("keys", "package", "extra"),
    [
        ({"format": "avro", "schema_file": "x"}, "fastavro", "avro"),
        ({"format": "protobuf", "schema_file": "x"}, "google.protobuf", "protobuf"),
        ({"validate": True, "schema_file": "x"}, "jsonschema", "json-schema"),
    ],
)
def test_missing_package_is_named_at_startup(
    keys: dict[str, object], package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stage_writer.fetch.schema_file.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=package) as raised:
        record_inputs(stream_of("id INT", **keys), PYTHON_PASSES)
    assert f"[{extra}]" in raised.value.remedy
    assert record_inputs(stream_of("id INT"), PYTHON_PASSES).schema_file is None
