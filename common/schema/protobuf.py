"""Protobuf messages as the columns of a Delta table, from a descriptor of Google's library.

Rules:

1. Columns have the names that fields have in the .proto file, and every column is nullable.
2. Unsigned numbers are the next wider type: uint32 is BIGINT, uint64 DECIMAL(20,0). An enum is STRING, the name of its
   value. A map's keys are STRING, as in Protobuf's JSON. A oneof is one column per field.
3. `google.protobuf.Timestamp` is TIMESTAMP, a wrapper is the type that it wraps, and Struct, Value and ListValue are
   STRING with their JSON. Other messages are STRUCT.
4. A message that contains itself is refused by name. A message without fields has no column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from common.errors import SchemaError
from common.schema.types import ArrayType, DataType, DecimalType, MapType, Primitive, StructType, struct_of

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

_UINT64 = DecimalType(20, 0)
# google.protobuf.FieldDescriptorProto.Type
_TYPES: dict[int, DataType] = {
    1: Primitive.DOUBLE,
    2: Primitive.FLOAT,
    3: Primitive.LONG,
    4: _UINT64,
    5: Primitive.INTEGER,
    6: _UINT64,
    7: Primitive.LONG,
    8: Primitive.BOOLEAN,
    9: Primitive.STRING,
    12: Primitive.BINARY,
    13: Primitive.LONG,
    14: Primitive.STRING,
    15: Primitive.INTEGER,
    16: Primitive.LONG,
    17: Primitive.INTEGER,
    18: Primitive.LONG,
}
TIMESTAMP = "google.protobuf.Timestamp"
JSON_TYPES = frozenset({"google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue"})
WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


def find_message(files: bytes, message: str | Sequence[int]) -> Descriptor:
    """A message of a set of files, a serialized ``google.protobuf.FileDescriptorSet``.

    ``message`` is its name, with or without the package, or its indexes in the last file: which message, then which one
    nested in it. Raises SchemaError for a set that is not complete, and for a message that it does not have.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorSet  # noqa: PLC0415 - only with Protobuf
    from google.protobuf.descriptor_pool import DescriptorPool  # noqa: PLC0415 - only with Protobuf
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - only with Protobuf

    pool = DescriptorPool()
    try:
        file_set = FileDescriptorSet.FromString(files)
        for each in file_set.file:
            pool.AddSerializedFile(each.SerializeToString())
        last = pool.FindFileByName(file_set.file[-1].name)
    except (DecodeError, TypeError, KeyError, IndexError) as error:
        msg = f"the Protobuf schema is invalid: {error}"
        raise SchemaError(msg, "fix the schema, or use a valid one with all its references") from None
    top = list(last.message_types_by_name.values())
    if isinstance(message, str):
        named = [each for each in _all(top) if message in {each.full_name, each.full_name.rpartition(".")[2]}]
        if len(named) == 1:
            return named[0]
        names = ", ".join(each.full_name for each in _all(top))
        msg = f"the Protobuf file has {'no' if not named else 'several'} messages {message!r}, of {names or 'none'}"
        raise SchemaError(msg, "set streams[].message to the full name of one of them")
    level, indexes = top, list(message)
    while indexes and 0 <= indexes[0] < len(level):
        if len(indexes) == 1:
            return level[indexes[0]]
        level = list(level[indexes.pop(0)].nested_types)
    msg = f"the Protobuf schema has no message at the indexes {list(message)}"
    raise SchemaError(msg, "use the schema that the producers have")


def _all(messages: Sequence[Descriptor]) -> list[Descriptor]:
    own = [each for each in messages if not each.GetOptions().map_entry]
    return [*own, *(each for message in own for each in _all(list(message.nested_types)))]


def protobuf_columns(message: Descriptor) -> StructType:
    """The columns of a table for messages of a type. Raises SchemaError, naming the field (rule 4)."""
    struct_type = _struct(message, "", ())
    if struct_type is None:
        msg = f"the Protobuf message {message.full_name} has no fields"
        raise SchemaError(msg, "add fields to it, or declare the columns yourself")
    return struct_type


def is_map(field: FieldDescriptor) -> bool:
    """Whether a field is a map; its type is then a message of ``key`` and ``value``."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _struct(message: Descriptor, path: str, inside: tuple[str, ...]) -> StructType | None:
    if message.full_name in inside:
        msg = f"`{path}` is of the Protobuf message {message.full_name}, which contains itself"
        raise SchemaError(msg, "declare the columns yourself, without it or as a STRING with formats: {…: json}")
    return struct_of(
        (field.name, _field(field, f"{path}.{field.name}" if path else field.name, (*inside, message.full_name)))
        for field in message.fields
    )


def _field(field: FieldDescriptor, path: str, inside: tuple[str, ...]) -> DataType | None:
    if is_map(field):
        value = _type(field.message_type.fields_by_name["value"], f"{path}.value", inside)
        return None if value is None else MapType(Primitive.STRING, value)
    if not field.is_repeated:
        return _type(field, path, inside)
    element = _type(field, f"{path}.element", inside)
    return None if element is None else ArrayType(element)


def _type(field: FieldDescriptor, path: str, inside: tuple[str, ...]) -> DataType | None:
    """The type of one value; None for a message without fields."""
    if field.message_type is None:
        return _TYPES[field.type]
    name = field.message_type.full_name
    if name == TIMESTAMP:
        return Primitive.TIMESTAMP
    if name in JSON_TYPES:
        return Primitive.STRING
    if name in WRAPPERS:
        return _TYPES[field.message_type.fields_by_name["value"].type]
    return _struct(field.message_type, path, inside)
