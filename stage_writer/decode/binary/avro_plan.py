"""The plan of an Avro record's JSON: each value's form in the bytes, and its text for its column.

Rules:

1. Times, dates and decimals are read as the whole number or the bytes that they are underneath, so the text is exact.
2. A choice of several types is an object with the name of the member and its value, as in Avro's own JSON.
3. A record that no column is for is planned once inside itself, so a schema that contains itself has a finite plan; and
   a schema that uses its names often has not more than `_MOST_RECORDS` plans of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import cast

from common.errors import SchemaError
from common.schema import ArrayType, DataType, MapType, StructType
from common.schema.avro import (
    AvroSchema,
    Schema,
    decimal_of,
    fields_of,
    logical_type,
    member_names,
    part_of,
    promoted,
    type_name,
)
from stage_writer.decode.binary import texts
from stage_writer.decode.binary.texts import quoted
from stage_writer.decode.decode_options import DecodeOptions

_TIMES = {"millis": 3, "micros": 6, "nanos": 9}
_UUID_BYTES = 16
_MOST_RECORDS = 1000


def plain_name(member: str) -> str:
    """The name of a union's member as a field of the record around it."""
    return member.replace(".", "__")


class AvroKind(IntEnum):
    """The kind of a value in Avro's bytes and in the JSON; as in `avro_reader.c`, in the same order."""

    NULL = 0
    BOOLEAN = 1
    INTEGER = 2
    FLOAT = 3
    DOUBLE = 4
    STRING = 5
    ENUM = 6
    BYTES = 7
    DECIMAL = 8
    DATE = 9
    TIME = 10
    RECORD = 11
    ARRAY = 12
    MAP = 13
    UNION = 14
    OTHER = 15
    """One whose text only Python makes."""


@dataclass(slots=True)
class AvroNode:
    kind: AvroKind
    text: Callable[[object], str]
    """Its JSON, of the value that fastavro gives."""
    bits: int = 0
    """Of an INTEGER, or a type encoded as one: 32 or 64."""
    size: int = -1
    """Of a fixed one, in bytes; -1 for bytes that have a length."""
    digits: int = 0
    """The scale of a DECIMAL; the decimals of a TIME's unit."""
    zone: bool = False
    """Whether a TIME ends in ``Z``."""
    names: tuple[str, ...] = ()
    """The fields of a RECORD; the symbols of an ENUM."""
    parts: list[AvroNode] = field(default_factory=list)


class Planner:
    def __init__(self, avro: AvroSchema) -> None:
        self._avro = avro
        self._natural: dict[str, AvroNode] = {}
        """The records that no column is for, by name."""
        self._open: set[str] = set()
        """The names of those that are being planned."""
        self._count = 0

    def plan(self, schema: Schema, path: str, column: DataType | None, reading: DecodeOptions) -> AvroNode:
        """The plan of a value for a column; without one for a field that is not declared."""
        schema = self._avro.resolved(schema)
        match name := type_name(schema):
            case "union":
                return self._union(cast("list[Schema]", schema), path, column, reading)
            case "record" | "error":
                return self._record(schema, path, column, reading)
            case "array":
                items = part_of(schema, "items")
                if _least_bytes(self._avro, items, ()) == 0:
                    msg = f"`{path}` is an array of empty values, so a message could claim any length"
                    raise SchemaError(msg, "give the items at least one field")
                inner = column.element if isinstance(column, ArrayType) else None
                return _array(self.plan(items, f"{path}[]", inner, reading.at("element")))
            case "map":
                inner = column.value if isinstance(column, MapType) else None
                return _map(self.plan(part_of(schema, "values"), f"{path}[]", inner, reading.at("value")))
            case _:
                return _leaf(schema, name, path, column, reading)

    def _record(self, schema: Schema, path: str, column: DataType | None, reading: DecodeOptions) -> AvroNode:
        name = str(cast("dict[str, object]", schema)["name"])
        declared = column if isinstance(column, StructType) else None
        if declared is None and (name in self._open or (name in self._natural and self._count > _MOST_RECORDS)):
            same = self._natural[name]
            return AvroNode(AvroKind.OTHER, lambda value: same.text(value), parts=[same])  # noqa: PLW0108 - it is open
        node = AvroNode(AvroKind.RECORD, quoted)
        self._count += 1
        if declared is None:
            self._natural[name] = node
            self._open.add(name)
        for field_name, inner in fields_of(schema):
            of_field = None if declared is None else declared.field(field_name)
            here = f"{path}.{field_name}" if path else field_name
            node.parts.append(
                self.plan(inner, here, None if of_field is None else of_field.type, reading.at(field_name))
            )
            node.names = (*node.names, field_name)
        if declared is None:
            self._open.remove(name)
        node.text = _record_text(node)
        return node

    def _union(self, members: list[Schema], path: str, column: DataType | None, reading: DecodeOptions) -> AvroNode:
        if promoted(self._avro, members) is not None:
            parts = [self.plan(each, path, column, reading) for each in members]
            only = next(part for part in parts if part.kind is not AvroKind.NULL)
            # Of int with long, or float with double, all have the text of the same value.
            return AvroNode(AvroKind.UNION, lambda value: "null" if value is None else only.text(value), parts=parts)
        names = member_names(self._avro, members)
        parts = []
        for name, each in zip(names, members, strict=True):
            if name == "null":
                parts.append(_NULL)
                continue
            of_member = column.field(name) if isinstance(column, StructType) else None
            inner = self.plan(each, f"{path}.{name}", None if of_member is None else of_member.type, reading.at(name))
            member = AvroNode(AvroKind.RECORD, quoted, names=(name,), parts=[inner])
            parts.append(member)
        by_name = {
            plain_name(name): (f"{{{quoted(name)}:", part.parts[0])
            for name, part in zip(names, parts, strict=True)
            if part.kind is AvroKind.RECORD
        }

        def text(value: object) -> str:
            if value is None:
                return "null"
            ((name, inner),) = cast("dict[str, object]", value).items()
            begin, part = by_name[name]
            return f"{begin}{part.text(inner)}}}"

        return AvroNode(AvroKind.UNION, text, parts=parts)


_NULL = AvroNode(AvroKind.NULL, lambda _: "null")


def _record_text(node: AvroNode) -> Callable[[object], str]:
    parts = [(name, f"{quoted(name)}:", part) for name, part in zip(node.names, node.parts, strict=True)]

    def text(value: object) -> str:
        record = cast("dict[str, object]", value)
        return f"{{{','.join([begin + part.text(record[name]) for name, begin, part in parts])}}}"

    return text


def _array(element: AvroNode) -> AvroNode:
    def text(value: object) -> str:
        return f"[{','.join([element.text(each) for each in cast('list[object]', value)])}]"

    return AvroNode(AvroKind.ARRAY, text, parts=[element])


def _map(inner: AvroNode) -> AvroNode:
    def text(value: object) -> str:
        pairs = cast("dict[str, object]", value).items()
        return f"{{{','.join([f'{quoted(key)}:{inner.text(each)}' for key, each in pairs])}}}"

    return AvroNode(AvroKind.MAP, text, parts=[inner])


def _leaf(schema: Schema, name: str, path: str, column: DataType | None, reading: DecodeOptions) -> AvroNode:  # noqa: PLR0911
    match name:
        case "null":
            return _NULL
        case "boolean":
            return AvroNode(AvroKind.BOOLEAN, texts.boolean)
        case "int" | "long":
            return _integer(logical_type(schema) or "", 32 if name == "int" else 64, path, column, reading)
        case "float":
            return AvroNode(AvroKind.FLOAT, texts.number)
        case "double":
            return AvroNode(AvroKind.DOUBLE, texts.number)
        case "string":
            return AvroNode(AvroKind.STRING, quoted)
        case "enum":
            symbols = cast("dict[str, list[str]]", schema)["symbols"]
            return AvroNode(AvroKind.ENUM, quoted, names=tuple(symbols))
        case _:
            return _bytes(schema, name, path, column, reading)


def _integer(logical: str, bits: int, path: str, column: DataType | None, reading: DecodeOptions) -> AvroNode:
    plain = AvroNode(AvroKind.INTEGER, texts.integer, bits=bits)
    if logical == "date":
        text = texts.date_text(path, column)
        return plain if text is texts.integer else AvroNode(AvroKind.DATE, text, bits=bits)
    kind, _, unit = logical.rpartition("-")
    if kind in {"timestamp", "local-timestamp"} and unit in _TIMES:
        digits, zone = _TIMES[unit], kind == "timestamp"
        text = texts.time_text(path, column, reading, digits, "Z" if zone else "")
        if text is texts.integer:
            return plain
        kind_of_node = AvroKind.TIME if reading.epoch_decimals is None else AvroKind.OTHER
        return AvroNode(kind_of_node, text, bits=bits, digits=digits, zone=zone)
    return plain


def _bytes(schema: Schema, name: str, path: str, column: DataType | None, reading: DecodeOptions) -> AvroNode:
    size = int(str(cast("dict[str, object]", schema)["size"])) if name == "fixed" else -1
    precision_scale = decimal_of(schema)
    if precision_scale is not None:
        scale = precision_scale[1]
        decimal = texts.decimal
        return AvroNode(
            AvroKind.DECIMAL,
            lambda value: decimal(int.from_bytes(cast("bytes", value), signed=True), scale),
            size=size,
            digits=scale,
        )
    if logical_type(schema) == "uuid" and size == _UUID_BYTES:
        return AvroNode(AvroKind.OTHER, texts.uuid_text, size=size)
    text = texts.bytes_text(path, column, reading)
    return AvroNode(AvroKind.BYTES if text is texts.base64_text else AvroKind.OTHER, text, size=size)


def _least_bytes(avro: AvroSchema, schema: Schema, inside: tuple[str, ...]) -> int:
    """How many bytes a value has at least; one stands for more."""
    schema = avro.resolved(schema)
    match type_name(schema):
        case "null":
            return 0
        case "fixed":
            return min(1, int(str(cast("dict[str, object]", schema)["size"])))
        case "record" | "error":
            name = str(cast("dict[str, object]", schema)["name"])
            if name in inside:
                return 0
            return max((_least_bytes(avro, each, (*inside, name)) for _, each in fields_of(schema)), default=0)
        case _:
            return 1
