"""Schemas as Delta stores them: the ``schemaString`` of a metaData action, which is Spark's schema JSON.

Rules:

1. `schema_to_json` writes the same bytes as Spark: compact, the keys in Spark's order, non-ASCII letters unescaped.
2. The two functions are exact inverses; metadata (comments, column mapping ids, generation expressions) is kept.
3. An unknown type is refused by name: a writer must never guess a column's type.
"""

import json
import re
from collections.abc import Mapping
from functools import lru_cache

from common.errors import SchemaError
from common.json_value import Json
from common.schema.types import ArrayType, DataType, DecimalType, Field, MapType, Primitive, StructType

_DECIMAL = re.compile(r"decimal(?:\((\d{1,9}),\s*(-?\d{1,9})\))?")
_REMEDY = "take the schema from the table's metaData action, or declare the columns in the settings"


def schema_to_json(schema: StructType) -> str:
    """The ``schemaString`` of a table with these columns."""
    return json.dumps(_encode(schema), separators=(",", ":"), ensure_ascii=False)


@lru_cache(maxsize=128)
def schema_from_json(text: str) -> StructType:
    """The columns of a table from its ``schemaString``. Raises SchemaError for an invalid one."""
    try:
        schema = _decode(json.loads(text), "the table")
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"a table's schema is not JSON: {error}", _REMEDY) from error
    if not isinstance(schema, StructType):
        raise SchemaError("a table's schema is not a struct", _REMEDY)
    return schema


def _encode(data_type: DataType) -> Json:
    match data_type:
        case Primitive():
            return data_type.value
        case DecimalType(precision, scale):
            return f"decimal({precision},{scale})"
        case ArrayType(element, contains_null):
            return {"type": "array", "elementType": _encode(element), "containsNull": contains_null}
        case MapType(key, value, contains_null):
            return {
                "type": "map",
                "keyType": _encode(key),
                "valueType": _encode(value),
                "valueContainsNull": contains_null,
            }
        case StructType(fields):
            return {"type": "struct", "fields": [_encode_field(field) for field in fields]}


def _encode_field(field: Field) -> Json:
    return {
        "name": field.name,
        "type": _encode(field.type),
        "nullable": field.nullable,
        "metadata": json.loads(field.metadata_json),
    }


def _decode(value: Json, path: str) -> DataType:
    match value:
        case str():
            return _decode_name(value, path)
        case {"type": "array", "elementType": element, "containsNull": bool(contains_null)}:
            return ArrayType(_decode(element, f"{path}.element"), contains_null)
        case {"type": "map", "keyType": key, "valueType": item, "valueContainsNull": bool(contains_null)}:
            return MapType(_decode(key, f"{path}.key"), _decode(item, f"{path}.value"), contains_null)
        case {"type": "struct", "fields": list(fields)}:
            return StructType(tuple(_decode_field(field, path) for field in fields))
        case {"type": dict() | str() as inner} if inner not in ("array", "map", "struct"):
            return _decode(inner, path)  # older writers wrap a plain type
        case _:
            raise SchemaError(f"the type of {path} is invalid: {json.dumps(value)[:200]}", _REMEDY)


def _decode_field(value: Json, path: str) -> Field:
    metadata = value.get("metadata", {}) if isinstance(value, dict) else None
    match value:
        case {"name": str(name), "type": data_type, "nullable": bool(nullable)} if isinstance(metadata, dict):
            inner = name if path == "the table" else f"{path}.{name}"
            return Field(name, _decode(data_type, inner), nullable, _canonical(metadata))
        case _:
            raise SchemaError(f"a field of {path} lacks its name, type or nullability", _REMEDY)


def _canonical(metadata: Mapping[str, Json]) -> str:
    return json.dumps(metadata, separators=(",", ":"), ensure_ascii=False)


def _decode_name(name: str, path: str) -> DataType:
    if match := _DECIMAL.fullmatch(name):
        return DecimalType(int(match[1] or 10), int(match[2] or 0))
    try:
        return Primitive(name)
    except ValueError:
        msg = f"{path} is of the type {name!r}, which is unknown"
        raise SchemaError(
            msg, "change the column's type in Spark, or leave the column out of what is written"
        ) from None
