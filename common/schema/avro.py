"""Avro schemas: parsed with their references, and as the columns of a Delta table.

Rules:

1. Every column is nullable: a field that a later version of the schema adds is missing in earlier records.
2. A union of null and one type is that type; so are int with long (BIGINT) and float with double (DOUBLE). Any other
   union is a STRUCT with one field per member, named by its type, of which one has a value, as in Avro's JSON.
3. Logical types: decimal, date, timestamps and local timestamps to microseconds, uuid (STRING). Delta has no type for a
   time of day and for nanoseconds: these are whole numbers as they were sent. A duration is refused by name.
4. A type that contains itself is refused by name. A field that is always null, and a record without fields, have no
   column.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from common.errors import SchemaError
from common.schema.types import (
    MAX_DECIMAL_PRECISION,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    Primitive,
    StructType,
    struct_of,
)

Schema = str | dict[str, object] | list[object]
"""A schema as `fastavro.parse_schema` returns it: names are full, and a named type is defined once."""

_PRIMITIVES = {
    "boolean": Primitive.BOOLEAN,
    "int": Primitive.INTEGER,
    "long": Primitive.LONG,
    "float": Primitive.FLOAT,
    "double": Primitive.DOUBLE,
    "bytes": Primitive.BINARY,
    "fixed": Primitive.BINARY,
    "string": Primitive.STRING,
    "enum": Primitive.STRING,
}
_LOGICAL = {
    ("int", "date"): Primitive.DATE,
    ("long", "timestamp-millis"): Primitive.TIMESTAMP,
    ("long", "timestamp-micros"): Primitive.TIMESTAMP,
    ("long", "local-timestamp-millis"): Primitive.TIMESTAMP_NTZ,
    ("long", "local-timestamp-micros"): Primitive.TIMESTAMP_NTZ,
    ("fixed", "uuid"): Primitive.STRING,
}
_PROMOTED = ((("int", "long"), "long"), (("double", "float"), "double"))
_DECLARE = "declare the columns yourself, without it or as a STRING with formats: {…: json}"


@dataclass(frozen=True, slots=True)
class AvroSchema:
    schema: Schema
    names: Mapping[str, Schema]

    def resolved(self, schema: Schema) -> Schema:
        """The definition that a name stands for, and everything else as it is."""
        return self.names.get(schema, schema) if isinstance(schema, str) else schema


def parse_avro(text: str, references: Sequence[str] = (), *, checks_defaults: bool = False) -> AvroSchema:
    """Parse a schema; its ``references`` come first, each after those that it refers to itself.

    Raises SchemaError for text that is not an Avro schema, and ImportError where fastavro is not installed. Defaults
    matter only in a schema that records are resolved to: registries have schemas with invalid ones.
    """
    from fastavro import parse_schema  # noqa: PLC0415 - only with Avro

    names: dict[str, Schema] = {}
    schema: Schema = "null"
    with refusing_schemas():
        for each in (*references, text):
            named = cast("dict[str, dict[str, object]]", names)
            schema = cast(
                "Schema", parse_schema(json.loads(each), named_schemas=named, _ignore_default_error=not checks_defaults)
            )
    return AvroSchema(schema, names)


@contextmanager
def refusing_schemas() -> Iterator[None]:
    """Turns the errors of parsing and using an invalid schema into SchemaError."""
    from fastavro.schema import SchemaParseException  # noqa: PLC0415 - only with Avro

    try:
        yield
    except (SchemaParseException, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        msg = f"the Avro schema is invalid: {type(error).__name__}: {error}"
        raise SchemaError(msg, "fix the schema, or use a valid one") from None


def type_name(schema: Schema) -> str:
    """The type of a schema: a primitive one's name, ``record``, ``enum``, ``array``, ``map``, ``fixed``, ``union``."""
    if isinstance(schema, list):
        return "union"
    resolved = schema if isinstance(schema, str) else schema["type"]
    return type_name(cast("Schema", resolved)) if isinstance(resolved, dict | list) else str(resolved)


def logical_type(schema: Schema) -> str | None:
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    return logical if isinstance(logical, str) else None


def fields_of(record: Schema) -> list[tuple[str, Schema]]:
    fields = cast("list[dict[str, object]]", cast("dict[str, object]", record)["fields"])
    return [(str(each["name"]), cast("Schema", each["type"])) for each in fields]


def part_of(schema: Schema, part: str) -> Schema:
    """The ``items`` of an array, or the ``values`` of a map."""
    return cast("Schema", cast("dict[str, object]", schema)[part])


def member_names(avro: AvroSchema, members: Iterable[Schema]) -> list[str]:
    """The name of each member of a union: its type's; without the namespace where that is unambiguous."""
    names = [
        str(each["name"]) if isinstance(each, dict) and "name" in each else type_name(each)
        for each in map(avro.resolved, members)
    ]
    short = [name.rpartition(".")[2] for name in names]
    folded = [name.casefold() for name in short]
    return [
        short_name if folded.count(short_name.casefold()) == 1 else name
        for short_name, name in zip(short, names, strict=True)
    ]


def promoted(avro: AvroSchema, members: Iterable[Schema]) -> Schema | None:
    """The type of a union without its nulls (rule 2); None for a choice of several."""
    typed = [each for each in members if type_name(avro.resolved(each)) != "null"]
    if len(typed) == 1:
        return typed[0]
    names = sorted(type_name(avro.resolved(each)) for each in typed)
    if any(logical_type(avro.resolved(each)) for each in typed):
        return None
    return next((result for pair, result in _PROMOTED if names == list(pair)), None)


def decimal_of(schema: Schema) -> tuple[int, int] | None:
    """Precision and scale of a decimal; None for another type, and for one without a precision, which is of bytes."""
    if logical_type(schema) != "decimal" or not isinstance(schema, dict) or type_name(schema) not in {"bytes", "fixed"}:
        return None
    if "precision" not in schema:
        return None
    return int(str(schema["precision"])), int(str(schema.get("scale", 0)))


def avro_columns(avro: AvroSchema) -> StructType:
    """The columns of a table for records of a schema. Raises SchemaError, naming the field (rules 3 and 4)."""
    top = avro.resolved(avro.schema)
    if isinstance(top, list) and (only := promoted(avro, cast("list[Schema]", top))) is not None:
        top = avro.resolved(only)
    if type_name(top) != "record":
        msg = f"the Avro schema is of type {type_name(top)}, and a table's rows are records"
        raise SchemaError(msg, "send records, or declare the columns yourself")
    struct_type = _struct(avro, top, "", ())
    if struct_type is None:
        raise SchemaError("the Avro schema's record has no fields", "add fields to it, or declare the columns yourself")
    return struct_type


def _struct(avro: AvroSchema, record: Schema, path: str, inside: tuple[str, ...]) -> StructType | None:
    name = str(cast("dict[str, object]", record)["name"])
    if name in inside:
        raise SchemaError(f"`{path}` is of the Avro type {name}, which contains itself", _DECLARE)
    return struct_of(
        (field, _type(avro, schema, f"{path}.{field}" if path else field, (*inside, name)))
        for field, schema in fields_of(record)
    )


def _type(avro: AvroSchema, schema: Schema, path: str, inside: tuple[str, ...]) -> DataType | None:
    """The type of a value; None for one that is always null."""
    schema = avro.resolved(schema)
    match name := type_name(schema):
        case "null":
            return None
        case "union":
            return _union(avro, cast("list[Schema]", schema), path, inside)
        case "record" | "error":
            return _struct(avro, schema, path, inside)
        case "array":
            element = _type(avro, part_of(schema, "items"), f"{path}.element", inside)
            return None if element is None else ArrayType(element)
        case "map":
            value = _type(avro, part_of(schema, "values"), f"{path}.value", inside)
            return None if value is None else MapType(Primitive.STRING, value)
        case _:
            return _leaf(schema, name, path)


def _leaf(schema: Schema, name: str, path: str) -> DataType:
    logical = logical_type(schema)
    if (name, logical) == ("fixed", "duration"):
        msg = f"`{path}` is an Avro duration, for which Delta has no type"
        raise SchemaError(msg, "declare the columns yourself, without it or as a BINARY")
    decimal = decimal_of(schema)
    if decimal is None:
        return _LOGICAL.get((name, logical or ""), _PRIMITIVES[name])
    precision, scale = decimal
    if precision > MAX_DECIMAL_PRECISION:
        msg = f"`{path}` is an Avro decimal of {precision} digits, and a DECIMAL has at most {MAX_DECIMAL_PRECISION}"
        raise SchemaError(
            msg,
            f"declare the columns yourself, with DECIMAL({MAX_DECIMAL_PRECISION},{min(scale, MAX_DECIMAL_PRECISION)})",
        )
    return DecimalType(precision, scale)


def _union(avro: AvroSchema, members: list[Schema], path: str, inside: tuple[str, ...]) -> DataType | None:
    only = promoted(avro, members)
    if only is not None:
        return _type(avro, only, path, inside)
    named = zip(member_names(avro, members), members, strict=True)
    return struct_of((name, _type(avro, schema, f"{path}.{name}", inside)) for name, schema in named)
