"""Messages with the frame of Confluent's serializers: a zero byte, a schema's id in four bytes, then the record.

Rules:

1. The frames are read all at once; only their distinct ids, which are few, are looked up.
2. A message without a frame is refused, and so is one whose schema is missing, is not of the stream's format, or cannot
   be read. JSON is read without its schema, unless the stream validates it: the columns define what a record has to be.
3. While the registry has not returned a schema, its messages are not decoded: they wait (`FramedDecoder.waits`).
4. A schema's reader is made once; which one a message gets is decided by the id in it alone.
5. Or the id, or a GUID, is in a header, and the message is the record alone (`HeaderFramedDecoder`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from common.errors import RegistryError, SchemaError
from stage_writer.decode.batch import Mask, MessageBatch, Messages, in_place
from stage_writer.decode.binary.texts import MakeRecordReader, RecordReader, uuid_of
from stage_writer.decode.decode import Decoded, MessageDecoder
from stage_writer.decode.dependency import Dependency
from stage_writer.decode.rejects import ErrorClass, Reject

SchemaKey = int | str
"""A schema's id, or its GUID."""
Numbers = NDArray[np.int64]

_FRAME_BYTES = 5
_NO_SCHEMA = -1
JSON = "JSON"
SCHEMA_HEADER, KEY_SCHEMA_HEADER = b"__value_schema_id", b"__key_schema_id"
"""Of Confluent's serializers that leave the message as it is: one and the schema's GUID, or zero and its id."""
_GUID_BYTES = 16


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    type: str
    """``JSON``, ``AVRO`` or ``PROTOBUF``."""
    text: str
    references: tuple[tuple[str, str], ...] = ()
    """The names and texts of those that it refers to, each after those that it refers to itself."""


class SchemaTypes(Protocol):
    """The schema registry, as it is used here."""

    def knows(self, ids: Sequence[SchemaKey]) -> bool:
        """Whether the type of each of these, or that it does not exist, is known; returns nearly immediately.

        Unknown ones are requested in the background, and again as long as this is called.
        """

    def missing(self, ids: Sequence[SchemaKey]) -> RegistryError:
        """Why the types of these are unknown."""

    def types_of(self, ids: Sequence[SchemaKey]) -> Mapping[SchemaKey, str | None]:
        """The type of each schema (``JSON``, ``AVRO``, ``PROTOBUF``); None for a missing schema.

        Waits for unknown ones. Raises RegistryError when the registry does not answer.
        """

    def schema_of(self, schema: SchemaKey) -> RegisteredSchema: ...


class SchemaCoverage(Protocol):
    """The columns of a stream that follow the schemas of its records."""

    def waits(self, ids: Collection[SchemaKey]) -> Dependency | None:
        """What must be over before records of these schemas are decoded; None where the columns have their fields."""


@dataclass(frozen=True, slots=True)
class SchemaWait(Dependency):
    ids: tuple[SchemaKey, ...]
    schemas: SchemaTypes

    @property
    def error(self) -> RegistryError:
        return self.schemas.missing(self.ids)

    def is_over(self) -> bool:
        return self.schemas.knows(self.ids)


class OpeningDecoder:
    """Passes the messages' content to a JSON decoder."""

    def __init__(self, inner: MessageDecoder) -> None:
        self.columns = inner.columns
        self._inner = inner

    def decode(self, messages: Messages) -> Decoded:
        bodies, rejects = self._opened(messages.values, messages.headers)
        decoded = self._inner.decode(replace(messages, values=bodies))
        nulls = messages.values.is_null().to_numpy(zero_copy_only=False)
        return replace(decoded, rejects=tuple(sorted([*rejects, *decoded.rejects])), tombstones=np.flatnonzero(nulls))

    def bodies_of(self, messages: Messages) -> pa.LargeBinaryArray:
        """The JSON in the messages; null for tombstones and refused ones."""
        return self._opened(messages.values, messages.headers)[0]

    def body_of(self, message: bytes) -> bytes | None:
        body: bytes | None = self._opened(pa.array([message], pa.large_binary()), None)[0][0].as_py()
        return body

    def _opened(
        self, messages: pa.BinaryArray | pa.LargeBinaryArray, headers: pa.ListArray | None
    ) -> tuple[pa.LargeBinaryArray, list[Reject]]:
        """The JSON in the messages, null for tombstones and refused ones; and the refused ones."""
        raise NotImplementedError


class FramedDecoder(OpeningDecoder):
    """Removes the frames and passes the rest to a decoder: unchanged, or as JSON from a schema's reader."""

    def __init__(
        self,
        inner: MessageDecoder,
        schemas: SchemaTypes,
        kind: str = JSON,
        make: MakeRecordReader | None = None,
        covers: SchemaCoverage | None = None,
    ) -> None:
        """``kind`` is the type that schemas must have; ``make`` makes their readers. ``covers`` are the columns."""
        super().__init__(inner)
        self._schemas = schemas
        self._kind = kind
        self._make = make
        self._covers = covers
        self._readers: dict[SchemaKey, RecordReader | SchemaError] = {}

    def waits(
        self, messages: pa.BinaryArray | pa.LargeBinaryArray, headers: pa.ListArray | None = None
    ) -> Dependency | None:
        """The dependencies of decoding these: the registry's answers, and the fields' columns (rule 3)."""
        wanted = tuple(self.frames_of(messages, headers).schemas().values())
        if wanted and not self._schemas.knows(wanted):
            return SchemaWait(wanted, self._schemas)
        if self._covers is None or not wanted:
            return None
        types = self._schemas.types_of(wanted)
        return self._covers.waits([schema for schema in wanted if types[schema] == self._kind])

    @classmethod
    def frames_of(
        cls,
        messages: pa.BinaryArray | pa.LargeBinaryArray,
        headers: pa.ListArray | None,  # noqa: ARG003
    ) -> _Frames:
        values, offsets = _with_offsets(messages)
        return _Frames(values, offsets, *_frames(values, offsets))

    def _opened(
        self, messages: pa.BinaryArray | pa.LargeBinaryArray, headers: pa.ListArray | None
    ) -> tuple[pa.LargeBinaryArray, list[Reject]]:
        frames = self.frames_of(messages, headers)
        nulls = frames.values.is_null().to_numpy(zero_copy_only=False)
        framed, codes = frames.is_framed, frames.codes
        named = frames.schemas()
        types = self._schemas.types_of(tuple(named.values())) if named else {}
        known = [code for code, schema in named.items() if types.get(schema) == self._kind]
        readable = framed & ~nulls & np.isin(codes, known)
        rejects = [
            Reject(
                index,
                *(
                    self._why(frames.schema_of(int(codes[index])), types)
                    if framed[index]
                    else self._not_framed(frames.values[index].as_py())
                ),
            )
            for index in np.flatnonzero(~(readable | nulls)).tolist()
        ]
        bodies = frames.bodies(readable)
        if self._make is not None:
            bodies, refused = self._read(bodies, np.where(readable, codes, _NO_SCHEMA), frames, self._make)
            rejects += refused
        return bodies, rejects

    def keys_of(self, keys: pa.BinaryArray, headers: pa.ListArray | None) -> pa.LargeBinaryArray:
        """Message keys as JSON; those without a frame as they are, and null for those that are refused.

        A null in a frame is refused: as JSON it would be the text of a STRING key.
        """
        bodies, rejects = self._opened(keys, headers)
        bodies = pc.if_else(pc.equal(bodies, pa.scalar(b"null", pa.large_binary())), None, bodies)
        plain = np.zeros(len(keys), np.bool_)
        plain[[reject.index for reject in rejects if reject.error_class is ErrorClass.NOT_FRAMED]] = True
        return pc.if_else(pa.array(plain), keys.cast(pa.large_binary()), bodies)

    def _not_framed(self, message: bytes) -> tuple[ErrorClass, str]:
        return _not_framed(message)

    def _read(
        self, bodies: pa.LargeBinaryArray, codes: Numbers, frames: _Frames, make: MakeRecordReader
    ) -> tuple[pa.LargeBinaryArray, list[Reject]]:
        """The bodies as JSON, by the readers of their schemas; null for refused ones."""
        parts = [pa.array([], pa.large_binary())]
        index_parts = [np.zeros(0, np.int64)]
        rejects: list[Reject] = []
        for code in np.unique(codes[codes != _NO_SCHEMA]).tolist():
            index, schema = np.flatnonzero(codes == code), frames.schema_of(code)
            reader = self._reader(schema, make)
            if isinstance(reader, SchemaError):
                error = f"the schema {schema} cannot be read: {reader.problem}"
                rejects += (Reject(each, ErrorClass.WRONG_SCHEMA, error) for each in index.tolist())
                continue
            texts, refused = _texts(
                reader, bodies if len(index) == len(bodies) else bodies.take(pa.array(index)), index
            )
            rejects += refused
            index_parts.append(index)
            parts.append(texts)
        return in_place(parts, index_parts, len(codes)), rejects

    def _reader(self, schema: SchemaKey, make: MakeRecordReader) -> RecordReader | SchemaError:
        if schema not in self._readers:
            registered = self._schemas.schema_of(schema)
            try:
                self._readers[schema] = make(registered.text, registered.references)
            except SchemaError as error:
                self._readers[schema] = error
        return self._readers[schema]

    def _why(self, schema: SchemaKey, types: Mapping[SchemaKey, str | None]) -> tuple[ErrorClass, str]:
        kind = types.get(schema)
        if kind is None:
            return ErrorClass.UNKNOWN_SCHEMA, f"the registry has no schema {schema}"
        return ErrorClass.WRONG_SCHEMA, f"the schema {schema} is {kind}, but only {self._kind} is supported"


class HeaderFramedDecoder(FramedDecoder):
    """Decodes messages whose schema is named by a header: the message is the record alone."""

    header = SCHEMA_HEADER

    @classmethod
    def frames_of(cls, messages: pa.BinaryArray | pa.LargeBinaryArray, headers: pa.ListArray | None) -> _Frames:
        values, offsets = _with_offsets(messages)
        named = _named_by(cls.header, headers, len(values))
        codes = pc.fill_null(named.indices, _NO_SCHEMA).to_numpy(zero_copy_only=False).astype(np.int64)
        schemas = [_schema_in(header) for header in named.dictionary.to_pylist()]
        keys, prefixes = tuple(key for key, _ in schemas), tuple(prefix for _, prefix in schemas)
        readable = np.array([*(key != "" for key in keys), False])  # the last is of those without a header
        return _Frames(values, offsets, readable[codes], codes, keys, prefixes)

    def _not_framed(self, message: bytes) -> tuple[ErrorClass, str]:  # noqa: ARG002 - the header is at fault
        return ErrorClass.NOT_FRAMED, f"the message has no header {self.header.decode()} with a schema's ID"


class KeyHeaderFramedDecoder(HeaderFramedDecoder):
    """Decodes message keys whose schema is named by a header."""

    header = KEY_SCHEMA_HEADER


def schema_keys(batch: MessageBatch, *, in_headers: bool) -> tuple[SchemaKey, ...]:
    reader = HeaderFramedDecoder if in_headers else FramedDecoder
    return tuple(reader.frames_of(batch.values, batch.headers).schemas().values())


@dataclass(frozen=True, slots=True)
class _Frames:
    values: pa.LargeBinaryArray
    offsets: Numbers
    is_framed: Mask
    codes: Numbers
    """For each message its schema's id; or the index of what its header names."""
    keys: tuple[SchemaKey, ...] | None = None
    """The schemas named by headers; None where the frames are in the messages."""
    prefixes: tuple[bytes, ...] = ()
    """The indexes of a Protobuf message, from these headers."""

    def schema_of(self, code: int) -> SchemaKey:
        return code if self.keys is None else self.keys[code]

    def schemas(self) -> dict[int, SchemaKey]:
        return {code: self.schema_of(code) for code in np.unique(self.codes[self.is_framed]).tolist()}

    def bodies(self, wanted_frames: Mask) -> pa.LargeBinaryArray:
        """The messages without their frames; null for those that do not fit."""
        if self.keys is None:
            return _bodies(self.values, self.offsets, wanted_frames)
        bodies = pc.if_else(pa.array(wanted_frames), self.values, pa.scalar(None, pa.large_binary()))
        if not any(self.prefixes):
            return bodies
        known = pa.array(self.prefixes, pa.large_binary())
        prefixes = known.take(pa.array(self.codes, mask=self.codes == _NO_SCHEMA))
        return pc.binary_join_element_wise(prefixes, bodies, pa.scalar(b"", pa.large_binary()))


def _named_by(header: bytes, headers: pa.ListArray | None, count: int) -> pa.DictionaryArray:
    """The value of each message's first schema header; null without one."""
    if headers is None:
        return pa.nulls(count, pa.binary()).dictionary_encode()
    pairs = headers.flatten()
    named = np.flatnonzero(pc.equal(pairs.field("key"), header).to_numpy(zero_copy_only=False))
    messages, first = np.unique(pc.list_parent_indices(headers).to_numpy()[named], return_index=True)
    return in_place([pairs.field("value").take(pa.array(named[first]))], [messages], count).dictionary_encode()


def _schema_in(header: bytes) -> tuple[SchemaKey, bytes]:
    """The schema that a header names, and what follows; an empty one where it names none."""
    if len(header) > _GUID_BYTES and header[0] == 1:
        return uuid_of(header[1 : 1 + _GUID_BYTES]), header[1 + _GUID_BYTES :]
    if len(header) >= _FRAME_BYTES and header[0] == 0:
        return int.from_bytes(header[1:_FRAME_BYTES]), header[_FRAME_BYTES:]
    return "", b""


class UnframedDecoder(OpeningDecoder):
    """Passes the messages on as JSON, by the reader of one schema."""

    def __init__(self, inner: MessageDecoder, reader: RecordReader) -> None:
        super().__init__(inner)
        self._reader = reader

    def _opened(
        self, messages: pa.BinaryArray | pa.LargeBinaryArray, headers: pa.ListArray | None
    ) -> tuple[pa.LargeBinaryArray, list[Reject]]:
        del headers
        values = messages.cast(pa.large_binary())
        nulls = values.is_null().to_numpy(zero_copy_only=False)
        present = np.flatnonzero(~nulls)
        texts, rejects = _texts(self._reader, values.drop_null() if nulls.any() else values, present)
        return in_place([texts], [present], len(values)), rejects


def _texts(
    reader: RecordReader, bodies: pa.LargeBinaryArray, index: Numbers
) -> tuple[pa.LargeBinaryArray, list[Reject]]:
    """The bodies of some messages as JSON, by a reader, and the refused ones."""
    texts = reader.read(bodies)
    return texts.values, [why.at(int(index[message])) for message, why in texts.refused]


def _with_offsets(messages: pa.BinaryArray | pa.LargeBinaryArray) -> tuple[pa.LargeBinaryArray, Numbers]:
    values = messages.cast(pa.large_binary())
    return values, np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + len(values) + 1]


def _frames(values: pa.LargeBinaryArray, offsets: Numbers) -> tuple[Mask, Numbers]:
    data = values.buffers()[2]
    long_enough = np.diff(offsets) >= _FRAME_BYTES
    if data is None or not long_enough.any():
        return np.zeros(len(values), np.bool_), np.zeros(len(values), np.int64)
    text = np.frombuffer(data, np.uint8)
    starts = np.where(long_enough, offsets[:-1], offsets[:-1][long_enough][0])
    signs = text[starts[:, None] + np.arange(_FRAME_BYTES)].astype(np.int64)
    ids = signs[:, 1:] @ np.array([1 << 24, 1 << 16, 1 << 8, 1])
    return long_enough & (signs[:, 0] == 0), ids


def without_frames(messages: pa.BinaryArray | pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Messages without their frames; those without one as they are."""
    values, offsets = _with_offsets(messages)
    framed = _frames(values, offsets)[0] & values.is_valid().to_numpy(zero_copy_only=False)
    return pc.if_else(pa.array(framed), _bodies(values, offsets, framed), values)


def body_of(message: bytes) -> bytes | None:
    """The message without its frame; None if it has no frame."""
    return message[_FRAME_BYTES:] if len(message) >= _FRAME_BYTES and message[0] == 0 else None


def _bodies(values: pa.LargeBinaryArray, offsets: Numbers, wanted_frames: Mask) -> pa.LargeBinaryArray:
    """The messages without their frames; null for those without one."""
    bounds = np.empty(2 * len(values) + 1, np.int64)
    bounds[::2] = offsets
    bounds[1::2] = np.where(wanted_frames, offsets[:-1] + _FRAME_BYTES, offsets[:-1])
    parts = pa.Array.from_buffers(pa.large_binary(), 2 * len(values), [None, pa.py_buffer(bounds), values.buffers()[2]])
    return parts.take(pa.array(np.arange(len(values)) * 2 + 1, mask=~wanted_frames))


def _not_framed(message: bytes) -> tuple[ErrorClass, str]:
    begin = f"it begins with 0x{message[:1].hex()}" if len(message) >= _FRAME_BYTES else f"it has {len(message)} bytes"
    return ErrorClass.NOT_FRAMED, f"the message has no frame (a zero byte and a schema ID): {begin}"
