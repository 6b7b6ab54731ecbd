"""Protobuf messages as JSON text, by Google's library.

Rules:

1. Fields have the names of the .proto file. A field without presence that is not sent has its default, as Protobuf
   defines it; one with presence (a message, a oneof, `optional`) is absent, and so null.
2. An enum is the name of its value; a number without a name is that number, which no STRING column takes. Of a closed
   enum (proto2), Google's library puts it among the unknown fields, from which it is taken. A map's keys are strings.
   A Timestamp is a time, a wrapper its value, and Struct, Value and ListValue are JSON: for a STRING column its text.
3. In Confluent's frame, the indexes of the message's type come before the message.
4. Fields that the schema does not have carry no name: they cannot be kept. A field of the schema that is sent as
   another type is no default: the library puts it among the unknown fields, too, and its message is refused.
5. A message without a field that is `required` (proto2) is no record of its type, and text is UTF-8 also where the
   library lets other bytes through.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from common.errors import SchemaError
from common.schema import ArrayType, DataType, MapType, Primitive, StructType
from common.schema.protobuf import JSON_TYPES, TIMESTAMP, WRAPPERS, find_message, is_map
from common.settings.formats import ValueFormat
from stage_writer.decode.binary import texts
from stage_writer.decode.binary.texts import MakeRecordReader, RecordReader, RefusedBody, Texts, quoted
from stage_writer.decode.decode_options import DecodeOptions
from stage_writer.decode.rejects import ErrorClass, Refusal

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message
    from google.protobuf.unknown_fields import UnknownFieldSet

Text = Callable[[Any], str]
Compile = Callable[[str | bytes, Mapping[str, str]], bytes]
"""`common.protoc.compile_protobuf`."""

_FLOATS, _BOOLEAN, _STRING, _BYTES, _ENUM = (1, 2), 8, 9, 12, 14
_MOST_INDEXES = 100
_LONGEST_VARINT = 5
_NANOS = 9
_INT_MASK, _INT_SIGN = (1 << 32) - 1, 1 << 31


class ProtobufReader:
    """A `RecordReader` of one schema's messages. Raises SchemaError for one without its message."""

    def __init__(
        self,
        files: bytes,
        columns: StructType,
        reading: DecodeOptions,
        *,
        message: str | None = None,
        framed: bool = False,
    ) -> None:
        """``files`` is a descriptor set, whose last file has the message.

        ``message`` is the records' type, and empty for the file's first. Messages that name theirs (rule 3) may be of
        any type where it is None.
        """
        self._files = files
        self._columns = columns
        self._reading = reading
        self._types: dict[tuple[int, ...], Callable[[bytes], str]] = {}
        self._only = None if framed else self._type_of(find_message(files, message or (0,)))
        self._wanted = find_message(files, message or (0,)).full_name if framed and message is not None else None

    def read(self, bodies: pa.LargeBinaryArray) -> Texts:
        texts: list[bytes | None] = []
        refused: list[tuple[int, Refusal]] = []
        for index, body in enumerate(bodies.to_pylist()):
            try:
                texts.append(self._one(body).encode())
            except RefusedBody as why:
                texts.append(None)
                refused.append((index, why.refusal))
        return Texts(pa.array(texts, pa.large_binary()), refused)

    def _one(self, body: bytes) -> str:
        if self._only is not None:
            return self._only(body)
        indexes, start = _indexes(body)
        if indexes not in self._types:
            self._types[indexes] = self._named(indexes)
        return self._types[indexes](body[start:])

    def _named(self, indexes: tuple[int, ...]) -> Callable[[bytes], str]:
        try:
            descriptor = find_message(self._files, indexes)
        except SchemaError as error:
            raise RefusedBody(ErrorClass.WRONG_SCHEMA, error.problem) from None
        if self._wanted not in {None, descriptor.full_name}:
            problem = f"the record is a Protobuf {descriptor.full_name}, and the stream's message is {self._wanted}"
            raise RefusedBody(ErrorClass.WRONG_SCHEMA, problem)
        return self._type_of(descriptor)

    def _type_of(self, descriptor: Descriptor) -> Callable[[bytes], str]:
        from google.protobuf.message import DecodeError  # noqa: PLC0415 - only with Protobuf
        from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415 - only with Protobuf

        make = GetMessageClass(descriptor)
        text = _Texts().message(descriptor, "", self._columns, self._reading)

        def read(body: bytes) -> str:
            try:
                return text(_complete(make.FromString(body)))
            except (DecodeError, ValueError, RecursionError) as error:
                problem = f"the message is not a Protobuf {descriptor.full_name}: {error}"
                raise RefusedBody(ErrorClass.INVALID_RECORD, problem) from None

        return read


def make_protobuf_reader(
    columns: StructType, reading: DecodeOptions, compile_: Compile, message: str | None = None
) -> MakeRecordReader:
    def make(schema: str, references: Sequence[tuple[str, str]]) -> RecordReader:
        return ProtobufReader(compile_(schema, dict(references)), columns, reading, message=message, framed=True)

    return make


def _indexes(body: bytes) -> tuple[tuple[int, ...], int]:
    count, offset = _varint(body, 0)
    if count == 0:
        return (0,), offset
    if not 0 < count <= _MOST_INDEXES:
        raise RefusedBody(ErrorClass.NOT_FRAMED, f"the message has an invalid list of message indexes: {count} entries")
    indexes = []
    for _ in range(count):
        index, offset = _varint(body, offset)
        indexes.append(index)
    return tuple(indexes), offset


def _varint(body: bytes, offset: int) -> tuple[int, int]:
    """A number in zigzag form, and where it ends."""
    encoded = 0
    for index, byte in enumerate(body[offset : offset + _LONGEST_VARINT]):
        encoded |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:  # noqa: PLR2004 - the bit for more
            return (encoded >> 1) ^ -(encoded & 1), offset + index + 1
    raise RefusedBody(ErrorClass.NOT_FRAMED, "the message has no message indexes")


class _Texts:
    def __init__(self) -> None:
        self._natural: dict[str, Text] = {}
        """Of messages that no column is for, by name: each is planned once, so those that contain themselves end."""

    def message(self, message: Descriptor, path: str, column: DataType | None, reading: DecodeOptions) -> Text:
        """The JSON of a message for a column; without one for a field that is not declared."""
        from google.protobuf.unknown_fields import UnknownFieldSet  # noqa: PLC0415 - only with Protobuf

        name: str = message.full_name
        declared = column if isinstance(column, StructType) else None
        if declared is None and name in self._natural:
            return self._natural[name]
        parts: list[tuple[str, str, bool, Text]] = []
        fields = {field.number: field for field in message.fields}

        def text(value: Any) -> str:  # noqa: ANN401 - a message of any type
            members = [
                begin + part(getattr(value, name))
                for name, begin, has, part in parts
                if not has or value.HasField(name)
            ]
            unknown = UnknownFieldSet(value)
            if len(unknown):
                members += _unnamed(unknown, fields)
            return f"{{{','.join(members)}}}"

        if declared is None:
            self._natural[name] = text
        for field in message.fields:
            of_field = None if declared is None else declared.field(field.name)
            here = f"{path}.{field.name}" if path else field.name
            part = self._field(field, here, None if of_field is None else of_field.type, reading.at(field.name))
            parts.append((field.name, f"{quoted(field.name)}:", bool(field.has_presence), part))
        return text

    def _field(self, field: FieldDescriptor, path: str, column: DataType | None, reading: DecodeOptions) -> Text:
        if is_map(field):
            inner = column.value if isinstance(column, MapType) else None
            part = self._value(field.message_type.fields_by_name["value"], f"{path}[]", inner, reading.at("value"))
            return lambda value: f"{{{','.join([f'{_key(key)}:{part(each)}' for key, each in value.items()])}}}"
        if field.is_repeated:
            inner = column.element if isinstance(column, ArrayType) else None
            part = self._value(field, f"{path}[]", inner, reading.at("element"))
            return lambda value: f"[{','.join([part(each) for each in value])}]"
        return self._value(field, path, column, reading)

    def _value(self, field: FieldDescriptor, path: str, column: DataType | None, reading: DecodeOptions) -> Text:
        if field.message_type is None:
            return _leaf(field, path, column, reading)
        name = field.message_type.full_name
        if name == TIMESTAMP:
            time = texts.time_text(path, None if texts.is_number(column) else column, reading, _NANOS, "Z")
            return lambda value: time(_as_declared(value).seconds * 10**_NANOS + value.nanos)
        if name in JSON_TYPES:
            return _json(as_text=column is Primitive.STRING and reading.format is not ValueFormat.JSON)
        if name in WRAPPERS:
            wrapped = _leaf(field.message_type.fields_by_name["value"], path, column, reading)
            return lambda value: wrapped(_as_declared(value).value)
        return self.message(field.message_type, path, column, reading)


def _complete(record: Message) -> Message:
    """The record, if it has all that is required (rule 5)."""
    if not record.IsInitialized():
        raise ValueError(f"it lacks the required {', '.join(record.FindInitializationErrors())}")
    return record


def _leaf(field: FieldDescriptor, path: str, column: DataType | None, reading: DecodeOptions) -> Text:
    if field.type in _FLOATS:
        return texts.number
    if field.type == _BOOLEAN:
        return texts.boolean
    if field.type == _STRING:
        return _quoted
    if field.type == _BYTES:
        return texts.bytes_text(path, column, reading)
    if field.type == _ENUM and not texts.is_number(column):
        names = {value.number: quoted(value.name) for value in field.enum_type.values}
        return lambda value: names.get(value) or texts.integer(value)
    return texts.integer


def _json(*, as_text: bool) -> Text:
    from google.protobuf.json_format import MessageToDict  # noqa: PLC0415 - only with Protobuf

    def text(value: Message) -> str:
        document = json.dumps(MessageToDict(_as_declared(value)), ensure_ascii=False, allow_nan=False)
        return quoted(document) if as_text else document

    return text


def _as_declared(value: Message) -> Message:
    """A message of Google's own types, if all in it is sent as the types of its schema (rule 4)."""
    from google.protobuf.unknown_fields import UnknownFieldSet  # noqa: PLC0415 - only with Protobuf

    unknown = UnknownFieldSet(value)
    if len(unknown):
        tuple(_unnamed(unknown, value.DESCRIPTOR.fields_by_number))
    for field, content in value.ListFields():
        if field.message_type is not None:
            for each in content.values() if is_map(field) else content if field.is_repeated else (content,):
                _as_declared(each)
    return value


def _key(key: object) -> str:
    return quoted(key) if isinstance(key, str) else f'"{texts.boolean(key) if isinstance(key, bool) else key}"'


def _quoted(value: str | bytes) -> str:
    """Text; as bytes it is not UTF-8, and raises UnicodeDecodeError (rule 5)."""
    return quoted(value if isinstance(value, str) else value.decode())


def _is_closed(field: FieldDescriptor) -> bool:
    of = field.message_type.fields_by_name["value"] if is_map(field) else field
    return of.enum_type is not None and bool(of.enum_type.is_closed)


def _unnamed(unknown: UnknownFieldSet, fields: Mapping[int, FieldDescriptor]) -> Iterator[str]:
    """The numbers that closed enums do not name, as members of the message; those of a list have lost their place."""
    for each in unknown:
        field = fields.get(each.field_number)
        if field is None:
            continue
        if not _is_closed(field):
            raise RefusedBody(ErrorClass.INVALID_RECORD, f"{field.full_name} is not sent as the type of the schema")
        if field.is_repeated or not isinstance(each.data, int):
            raise RefusedBody(ErrorClass.INVALID_RECORD, f"{field.full_name} has a number that its enum does not name")
        number = each.data & _INT_MASK
        yield f"{quoted(field.name)}:{number - ((number & _INT_SIGN) << 1)}"
