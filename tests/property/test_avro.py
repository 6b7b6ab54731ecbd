"""Avro that fastavro writes is read back by Python and by the C reader; both refuse the same other bytes."""

import io
import json
import math
from typing import Any

import fastavro
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from common.schema import StructType, parse_ddl
from common.schema.avro import avro_columns, parse_avro
from stage_writer.decode.binary.avro import AvroReader
from stage_writer.decode.binary.avro_plan import Planner
from stage_writer.decode.binary.texts import Texts
from stage_writer.decode.decode import Decoder
from stage_writer.decode.decode_options import STRICT, DecodeOptions
from tests.builders import required
from tests.fakes.native import required_avro_pass

NAMES = ("a", "b", "c")
DOUBLES = st.floats(allow_nan=True, allow_infinity=True, width=64)
LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.one_of(DOUBLES, st.integers(-(10**6), 10**6).map(lambda n: n / 100)),
    "string": st.text(st.characters(codec="utf-8"), max_size=20),
    "bytes": st.binary(max_size=10),
}


@st.composite
def types(  # noqa: PLR0911 - one for each kind
    draw: st.DrawFn, depth: int = 2, prefix: str = "T"
) -> tuple[Any, st.SearchStrategy[Any]]:
    """A schema without logical types, and its values. Type names are made unique by their position."""
    kinds = ["leaf", "fixed", "enum", *(["array", "map", "record", "nullable", "choice"] if depth else [])]
    match draw(st.sampled_from(kinds)):
        case "leaf":
            name = draw(st.sampled_from(sorted(LEAVES)))
            return name, LEAVES[name]
        case "fixed":
            size = draw(st.integers(1, 5))
            return {"type": "fixed", "name": f"{prefix}F", "size": size}, st.binary(min_size=size, max_size=size)
        case "enum":
            return {"type": "enum", "name": f"{prefix}E", "symbols": ["X", "Y"]}, st.sampled_from(["X", "Y"])
        case "array":
            inner, values = draw(types(depth - 1, f"{prefix}a").filter(lambda member: member[0] != "null"))
            return {"type": "array", "items": inner}, st.lists(values, max_size=3)
        case "map":
            inner, values = draw(types(depth - 1, f"{prefix}m"))
            return {"type": "map", "values": inner}, st.dictionaries(LEAVES["string"], values, max_size=3)
        case "record":
            return draw(records(depth - 1, prefix))
        case "nullable":
            inner, values = draw(types(0, f"{prefix}n").filter(lambda member: member[0] != "null"))
            return ["null", inner], st.one_of(st.none(), values)
        case _:
            members = draw(st.lists(st.sampled_from(["null", "boolean", "string", "bytes"]), min_size=2, unique=True))
            return members, st.one_of([LEAVES[each] for each in members])


@st.composite
def records(draw: st.DrawFn, depth: int = 2, prefix: str = "R") -> tuple[Any, st.SearchStrategy[Any]]:
    count = draw(st.integers(1, 3))
    parts = [draw(types(depth, f"{prefix}{name}")) for name in NAMES[:count]]
    fields = [{"name": name, "type": kind} for name, (kind, _) in zip(NAMES, parts, strict=False)]
    values = {name: inner for name, (_, inner) in zip(NAMES, parts, strict=False)}
    return {"type": "record", "name": prefix, "fields": fields}, st.fixed_dictionaries(values)


SCHEMAS = records().flatmap(lambda drawn: st.tuples(st.just(drawn[0]), st.lists(drawn[1], min_size=1, max_size=4)))


def written(schema: Any, record: Any) -> bytes:  # noqa: ANN401 - any of Avro's
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), record)
    return file.getvalue()


def both(schema: Any, bodies: list[bytes], columns: StructType | None = None, reading: DecodeOptions = STRICT) -> Texts:  # noqa: ANN401
    """Read by Python alone, which has to equal the result of C and Python together."""
    avro = parse_avro(json.dumps(schema))
    known = parse_ddl("unknown INT") if columns is None else columns
    array = pa.array(bodies, pa.large_binary())
    read = AvroReader(avro, known, reading).read(array)
    other = AvroReader(avro, known, reading, make_pass=required_avro_pass()).read(array)
    assert other.values.to_pylist() == read.values.to_pylist()
    assert list(other.refused) == list(read.refused)
    return read


def as_read(schema: Any, value: Any) -> Any:  # noqa: ANN401 - one for each kind
    match schema:
        case ["null", _] | [_, "null"] if len(set(map(str, schema))) == 2:
            inner = next(each for each in schema if each != "null")
            return None if value is None else as_read(inner, value)
        case list():
            kind = {type(None): "null", bool: "boolean", str: "string", bytes: "bytes"}[type(value)]
            members = {name: value if name == kind else None for name in schema if name != "null"}
            return None if value is None else members
        case {"type": "record"}:
            parts = {each["name"]: as_read(each["type"], value[each["name"]]) for each in schema["fields"]}
            kinds = {each["name"]: each["type"] for each in schema["fields"]}
            return {name: part for name, part in parts.items() if has_column(kinds[name])}
        case {"type": "array", "items": items}:
            return [as_read(items, each) for each in value]
        case {"type": "map", "values": values}:
            return [(key, as_read(values, each)) for key, each in value.items()]
        case _:
            return "nan" if isinstance(value, float) and math.isnan(value) else value


def has_column(schema: Any) -> bool:  # noqa: ANN401 - any of Avro's
    match schema:
        case "null" | {"type": "array", "items": "null"} | {"type": "map", "values": "null"}:
            return False
        case {"type": "record", "fields": fields}:
            return any(has_column(each["type"]) for each in fields)
        case {"type": "array", "items": inner} | {"type": "map", "values": inner}:
            return has_column(inner)
        case _:
            return True


def without_nan(value: Any) -> Any:  # noqa: ANN401 - a row
    match value:
        case float() if math.isnan(value):
            return "nan"
        case dict():
            return {key: without_nan(each) for key, each in value.items()}
        case list():
            return [without_nan(each) for each in value]
        case (key, each):
            return key, without_nan(each)
        case _:
            return value


@given(SCHEMAS)
def test_records_of_fastavro_are_read_into_the_schema_s_columns(case: tuple[Any, list[Any]]) -> None:
    schema, values = case
    if not has_column(schema):
        return
    columns = avro_columns(parse_avro(json.dumps(schema)))
    texts = both(schema, [written(schema, value) for value in values], columns)
    decoded = Decoder(columns, DecodeOptions(non_finite=True)).decode(texts.values)
    assert (list(texts.refused), decoded.rejects) == ([], ())
    assert without_nan(decoded.rows.to_pylist()) == [as_read(schema, value) for value in values]


@given(SCHEMAS, st.data())
def test_corrupted_bytes_are_read_alike_in_python_and_c(case: tuple[Any, list[Any]], data: st.DataObject) -> None:
    schema, values = case
    bodies = []
    for value in values:
        body = bytearray(written(schema, value))
        for _ in range(data.draw(st.integers(0, 3))):
            if body:
                body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        bodies.append(bytes(body[: data.draw(st.integers(0, len(body)))] if data.draw(st.booleans()) else body))
    both(schema, bodies)


@example([81643845671314.95, -73949216912.49551])
@given(st.lists(st.one_of(DOUBLES, st.floats(-1e18, 1e18), st.integers(-1100, 1000).map(lambda n: 2.0**n)), min_size=1))
def test_doubles_have_the_same_text_and_most_are_read_in_c(values: list[float]) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "v", "type": "double"}]}
    bodies = [written(schema, {"v": value}) for value in values]
    both(schema, bodies)
    avro = parse_avro(json.dumps(schema))
    node = Planner(avro).plan(avro.schema, "", StructType(()), STRICT)
    taken = required(required_avro_pass()(node)).read(pa.array(bodies, pa.large_binary()))[1].tolist()
    ordinary = [1e-290 < abs(value) < 1e15 or 1e17 < abs(value) < 1e300 for value in values]
    is_power = [math.frexp(value)[0] in {0.5, -0.5} for value in values]
    assert all(took for took, is_one, power in zip(taken, ordinary, is_power, strict=True) if is_one and not power)


LOGICAL = {
    "type": "record",
    "name": "Logical",
    "fields": [
        {"name": "d", "type": {"type": "int", "logicalType": "date"}},
        {"name": "ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "us", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "ns", "type": {"type": "long", "logicalType": "timestamp-nanos"}},
        {"name": "m", "type": {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 5}},
        {"name": "f", "type": {"type": "fixed", "name": "F", "size": 3, "logicalType": "decimal", "precision": 6}},
    ],
}
PLAIN = {
    **LOGICAL,
    "fields": [
        {"name": each["name"], "type": {k: v for k, v in each["type"].items() if k != "logicalType"}}  # type: ignore[index]
        for each in LOGICAL["fields"]
    ],
}
LONGS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-(10**16), 10**16))
NUMBERS = st.fixed_dictionaries(
    {
        "d": st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(-800_000, 3_000_000)),
        "ms": LONGS,
        "us": LONGS,
        "ns": LONGS,
        "m": st.one_of(st.binary(max_size=9), st.binary(max_size=40)),
        "f": st.binary(min_size=3, max_size=3),
    }
)


@given(st.lists(NUMBERS, min_size=1, max_size=20))
def test_times_and_decimals_have_the_same_text_in_python_and_c(values: list[dict[str, object]]) -> None:
    both(LOGICAL, [written(PLAIN, value) for value in values])
    both(LOGICAL, [written(PLAIN, value) for value in values], avro_columns(parse_avro(json.dumps(LOGICAL))))
