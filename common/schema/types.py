"""The types of a Delta table, as frozen values.

Rules:

1. A schema here is what Delta stores: names, types, nullability and field metadata, independent of Spark's session.
2. Two field names of one struct never differ only in case, because Spark could not distinguish them. SchemaError
   otherwise.
3. Metadata is kept as the JSON text of its object, so that a schema is hashable and round-trips unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from common.errors import SchemaError

MAX_DECIMAL_PRECISION = 38
CHAR_VARCHAR_KEY = "__CHAR_VARCHAR_TYPE_STRING"


class Primitive(StrEnum):
    """A type without parameters. The value is its name in Delta's schema JSON."""

    BYTE = "byte"
    SHORT = "short"
    INTEGER = "integer"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    STRING = "string"
    BINARY = "binary"
    BOOLEAN = "boolean"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMP_NTZ = "timestamp_ntz"
    VARIANT = "variant"


INTEGER_BITS: dict[Primitive, int] = {Primitive.BYTE: 8, Primitive.SHORT: 16, Primitive.INTEGER: 32, Primitive.LONG: 64}


@dataclass(frozen=True, slots=True)
class DecimalType:
    """An exact number of ``precision`` digits, ``scale`` of them after the point."""

    precision: int
    scale: int

    def __post_init__(self) -> None:
        if not (1 <= self.precision <= MAX_DECIMAL_PRECISION and 0 <= self.scale <= self.precision):
            msg = f"DECIMAL({self.precision},{self.scale}) is not a decimal type of Delta"
            raise SchemaError(msg, f"use a precision of 1 to {MAX_DECIMAL_PRECISION} and a scale of 0 to the precision")


@dataclass(frozen=True, slots=True)
class ArrayType:
    element: DataType
    contains_null: bool = True


@dataclass(frozen=True, slots=True)
class MapType:
    """Keys to values. A key is never null."""

    key: DataType
    value: DataType
    value_contains_null: bool = True


@dataclass(frozen=True, slots=True)
class Field:
    """A named column, or a named part of a struct. ``metadata_json`` is the text of a JSON object."""

    name: str
    type: DataType
    nullable: bool = True
    metadata_json: str = "{}"

    @property
    def comment(self) -> str | None:
        comment = json.loads(self.metadata_json).get("comment")
        return comment if isinstance(comment, str) else None


@dataclass(frozen=True, slots=True)
class StructType:
    """Fields in order: a table's columns, or a nested record. Raises SchemaError for a duplicate name."""

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        seen: dict[str, str] = {}
        for field in self.fields:
            earlier = seen.get(field.name.casefold())
            if earlier is not None:
                also = f" (also as `{earlier}`; case does not count)" if earlier != field.name else ""
                msg = f"the column `{field.name}` is declared twice{also}"
                raise SchemaError(msg, "give each column of a struct its own name")
            seen[field.name.casefold()] = field.name

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    def field(self, name: str) -> Field | None:
        return next((field for field in self.fields if field.name == name), None)

    def at(self, steps: Sequence[str]) -> Field | None:
        """The field at these steps into structs, or None."""
        field_at: Field | None = None
        inside: DataType = self
        for step in steps:
            field_at = inside.field(step) if isinstance(inside, StructType) else None
            if field_at is None:
                return None
            inside = field_at.type
        return field_at

    def with_fields(self, added: Iterable[Field]) -> StructType:
        """The struct with more fields at its end. Raises SchemaError for a duplicate name."""
        return StructType((*self.fields, *added))


DataType = Primitive | DecimalType | ArrayType | MapType | StructType


def struct_of(parts: Iterable[tuple[str, DataType | None]]) -> StructType | None:
    """The struct of nullable fields with these names and types, without those that have no type; None without any."""
    fields = tuple(Field(name, data_type) for name, data_type in parts if data_type is not None)
    return StructType(fields) if fields else None


def nullable_columns(columns: StructType) -> StructType:
    return StructType(tuple(replace(field, type=_nullable(field.type), nullable=True) for field in columns))


def _nullable(data_type: DataType) -> DataType:
    match data_type:
        case StructType():
            return nullable_columns(data_type)
        case ArrayType(element):
            return ArrayType(_nullable(element))
        case MapType(key, value):
            return MapType(_nullable(key), _nullable(value))
        case Primitive() | DecimalType():
            return data_type


def uses(data_type: DataType, wanted: Primitive) -> bool:
    """Whether a type is another one, or contains it."""
    match data_type:
        case StructType(fields):
            return any(uses(field.type, wanted) for field in fields)
        case ArrayType(element):
            return uses(element, wanted)
        case MapType(key, value):
            return uses(key, wanted) or uses(value, wanted)
        case _:
            return data_type == wanted
