"""Messages with the frame of Confluent's serializers: a zero byte, a schema's id in four bytes, then the record.

Rules:

1. The frames are read all at once; only their distinct ids, which are few, are looked up.
2. A message without a frame is refused, and so is one whose schema is missing, is not of the stream's format, or cannot
   be read. JSON is read without its schema, unless the stream validates it: the columns define what a record has to be.
3. While the registry has not returned a schema, its messages are not decoded: they wait (`FramedDecoder.waits`).
4. A schema's reader is made once; which one a message gets is decided by the id in it alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from common.errors import SchemaError
from stage_writer.decode.rejects import ErrorClass, Reject

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from common.errors import RegistryError
    from common.schema import StructType
    from stage_writer.decode.batch import Messages
    from stage_writer.decode.binary.texts import MakeRecordReader, RecordReader
    from stage_writer.decode.decode import Decoded, Decodes

    Numbers = NDArray[np.int64]
    Mask = NDArray[np.bool_]

_FRAME_BYTES = 5
_NO_SCHEMA = -1
JSON = "JSON"


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema of the registry."""

    type: str
    """``JSON``, ``AVRO`` or ``PROTOBUF``."""
    text: str
    references: tuple[tuple[str, str], ...] = ()
    """The names and texts of those that it refers to, each after those that it refers to itself."""


class SchemaTypes(Protocol):
    """The schema registry, as it is used here."""

    def knows(self, ids: Sequence[int]) -> bool:
        """Whether the type of each of these, or that it does not exist, is known; returns nearly immediately.

        Unknown ones are requested in the background, and again as long as this is called.
        """

    def missing(self, ids: Sequence[int]) -> RegistryError:
        """Why the types of these are unknown."""

    def types_of(self, ids: Sequence[int]) -> Mapping[int, str | None]:
        """The type of each schema (``JSON``, ``AVRO``, ``PROTOBUF``); None for a missing schema.

        Waits for unknown ones. Raises RegistryError when the registry does not answer.
        """

    def schema_of(self, schema: int) -> RegisteredSchema:
        """A schema whose type is known."""


@dataclass(frozen=True, slots=True)
class SchemaWait:
    """A `stage_writer.ports.Wait` for the types of some schemas."""

    ids: tuple[int, ...]
    schemas: SchemaTypes

    @property
    def error(self) -> RegistryError:
        """What is missing."""
        return self.schemas.missing(self.ids)

    def is_over(self) -> bool:
        """Whether all are known."""
        return self.schemas.knows(self.ids)


class FramedDecoder:
    """Removes the frames and passes the rest to a decoder: as it is, or what a schema's reader makes of it."""

    def __init__(
        self, inner: Decodes, schemas: SchemaTypes, kind: str = JSON, make: MakeRecordReader | None = None
    ) -> None:
        """``kind`` is the type that schemas must have; ``make`` makes their readers."""
        self._inner = inner
        self._schemas = schemas
        self._kind = kind
        self._make = make
        self._readers: dict[int, RecordReader | SchemaError] = {}

    @property
    def columns(self) -> StructType:
        """The columns of the rows."""
        return self._inner.columns

    def waits(self, messages: pa.BinaryArray | pa.LargeBinaryArray) -> SchemaWait | None:
        """The registry's answers that are needed before these can be decoded (rule 3)."""
        values, offsets = _with_offsets(messages)
        framed, ids = _frames(values, offsets)
        wanted = np.unique(ids[framed]).tolist()
        return None if not wanted or self._schemas.knows(wanted) else SchemaWait(tuple(wanted), self._schemas)

    def decode(self, messages: Messages) -> Decoded:
        """The result for the messages."""
        values, offsets = _with_offsets(messages.values)
        nulls = values.is_null().to_numpy(zero_copy_only=False)
        framed, ids = _frames(values, offsets)
        types = self._schemas.types_of(np.unique(ids[framed]).tolist()) if framed.any() else {}
        fit = framed & np.isin(ids, [each for each, kind in types.items() if kind == self._kind])
        rejects = [
            Reject(index, *self._why(int(ids[index]), types) if framed[index] else _not_framed(values[index].as_py()))
            for index in np.flatnonzero(~(fit | nulls)).tolist()
        ]
        bodies = _bodies(values, offsets, fit)
        if self._make is not None:
            bodies, refused = self._read(bodies, np.where(fit, ids, _NO_SCHEMA), self._make)
            rejects += refused
        decoded = self._inner.decode(replace(messages, values=bodies))
        together = sorted((*rejects, *decoded.rejects), key=lambda reject: reject.index)
        return replace(decoded, rejects=tuple(together), tombstones=np.flatnonzero(nulls))

    def _read(
        self, bodies: pa.LargeBinaryArray, ids: Numbers, make: MakeRecordReader
    ) -> tuple[pa.LargeBinaryArray, list[Reject]]:
        """What the readers of the messages' schemas make of the bodies; null for the refused ones."""
        parts: list[pa.LargeBinaryArray] = []
        place = np.full(len(ids), -1)
        rejects: list[Reject] = []
        count = 0
        for schema in np.unique(ids[ids != _NO_SCHEMA]).tolist():
            index = np.flatnonzero(ids == schema)
            reader = self._reader(schema, make)
            if isinstance(reader, SchemaError):
                error = f"the schema {schema} cannot be read: {reader.problem}"
                rejects += (Reject(each, ErrorClass.WRONG_SCHEMA, error) for each in index.tolist())
                continue
            texts = reader.read(bodies if len(index) == len(bodies) else bodies.take(pa.array(index)))
            rejects += (Reject(int(index[at]), why.error_class, why.error) for at, why in texts.refused)
            place[index] = count + np.arange(len(index))
            count += len(index)
            parts.append(texts.values)
        if not parts:
            return pa.nulls(len(ids), pa.large_binary()), rejects
        if len(parts) == 1 and count == len(ids):
            return parts[0], rejects
        return pa.concat_arrays(parts).take(pa.array(place, mask=place < 0)), rejects

    def _reader(self, schema: int, make: MakeRecordReader) -> RecordReader | SchemaError:
        if schema not in self._readers:
            found = self._schemas.schema_of(schema)
            try:
                self._readers[schema] = make(found.text, found.references)
            except SchemaError as error:
                self._readers[schema] = error
        return self._readers[schema]

    def _why(self, schema: int, types: Mapping[int, str | None]) -> tuple[ErrorClass, str]:
        kind = types.get(schema)
        if kind is None:
            return ErrorClass.UNKNOWN_SCHEMA, f"the registry has no schema {schema}"
        return ErrorClass.WRONG_SCHEMA, f"the schema {schema} is {kind}, and only {self._kind} can be read"


class UnframedDecoder:
    """Passes on what the reader of one schema makes of the messages."""

    def __init__(self, inner: Decodes, reader: RecordReader) -> None:
        self._inner = inner
        self._reader = reader

    @property
    def columns(self) -> StructType:
        """The columns of the rows."""
        return self._inner.columns

    def decode(self, messages: Messages) -> Decoded:
        """The result for the messages."""
        values = messages.values.cast(pa.large_binary())
        nulls = values.is_null().to_numpy(zero_copy_only=False)
        present = np.flatnonzero(~nulls)
        texts = self._reader.read(values.drop_null() if nulls.any() else values)
        rejects = [Reject(int(present[at]), why.error_class, why.error) for at, why in texts.refused]
        place = np.full(len(values), -1)
        place[present] = np.arange(len(present))
        decoded = self._inner.decode(replace(messages, values=texts.values.take(pa.array(place, mask=nulls))))
        together = sorted((*rejects, *decoded.rejects), key=lambda reject: reject.index)
        return replace(decoded, rejects=tuple(together), tombstones=np.flatnonzero(nulls))


def _with_offsets(messages: pa.BinaryArray | pa.LargeBinaryArray) -> tuple[pa.LargeBinaryArray, Numbers]:
    values = messages.cast(pa.large_binary())
    return values, np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + len(values) + 1]


def _frames(values: pa.LargeBinaryArray, offsets: Numbers) -> tuple[Mask, Numbers]:
    """Which messages have a frame, and the ids in them."""
    data = values.buffers()[2]
    long_enough = np.diff(offsets) >= _FRAME_BYTES
    if data is None or not long_enough.any():
        return np.zeros(len(values), np.bool_), np.zeros(len(values), np.int64)
    text = np.frombuffer(data, np.uint8)
    places = np.where(long_enough, offsets[:-1], offsets[:-1][long_enough][0])
    signs = text[places[:, None] + np.arange(_FRAME_BYTES)].astype(np.int64)
    ids = signs[:, 1:] @ np.array([1 << 24, 1 << 16, 1 << 8, 1])
    return long_enough & (signs[:, 0] == 0), ids


def body_of(message: bytes) -> bytes | None:
    """The message without its frame; None if it has no frame."""
    return message[_FRAME_BYTES:] if len(message) >= _FRAME_BYTES and message[0] == 0 else None


def _bodies(values: pa.LargeBinaryArray, offsets: Numbers, fit: Mask) -> pa.LargeBinaryArray:
    """The messages without their frames; null for those without one."""
    bounds = np.empty(2 * len(values) + 1, np.int64)
    bounds[::2] = offsets
    bounds[1::2] = np.where(fit, offsets[:-1] + _FRAME_BYTES, offsets[:-1])
    parts = pa.Array.from_buffers(pa.large_binary(), 2 * len(values), [None, pa.py_buffer(bounds), values.buffers()[2]])
    return parts.take(pa.array(np.arange(len(values)) * 2 + 1, mask=~fit))


def _not_framed(message: bytes) -> tuple[ErrorClass, str]:
    begin = f"it begins with 0x{message[:1].hex()}" if len(message) >= _FRAME_BYTES else f"it has {len(message)} bytes"
    return ErrorClass.NOT_FRAMED, f"the message has no frame of a zero byte and a schema's id: {begin}"
