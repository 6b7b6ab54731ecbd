"""Messages with the frame of Confluent's serializers: a zero byte, a schema's id in four bytes, then the JSON.

Rules:

1. The frames are read all at once; only their distinct ids, which are few, are looked up.
2. A message without a frame is refused, and so is one whose schema is missing or is not a JSON Schema. The schema
   itself is not read: the stream's columns define what a record has to be.
3. While the registry has not returned a schema's type, its messages are not decoded: they wait (`FramedDecoder.waits`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from stage_writer.decode.rejects import ErrorClass, Reject

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from common.errors import RegistryError
    from common.schema import StructType
    from stage_writer.decode.batch import Messages
    from stage_writer.decode.decode import Decoded, Decodes

    Numbers = NDArray[np.int64]
    Mask = NDArray[np.bool_]

_FRAME_BYTES = 5
_JSON = "JSON"


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
    """Removes the frames and passes the rest to a decoder."""

    def __init__(self, inner: Decodes, schemas: SchemaTypes) -> None:
        self._inner = inner
        self._schemas = schemas

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
        fit = framed & np.isin(ids, [each for each, kind in types.items() if kind == _JSON])
        rejects = [
            Reject(index, *_why(int(ids[index]), types) if framed[index] else _not_framed(values[index].as_py()))
            for index in np.flatnonzero(~(fit | nulls)).tolist()
        ]
        decoded = self._inner.decode(replace(messages, values=_bodies(values, offsets, fit)))
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


def _why(schema: int, types: Mapping[int, str | None]) -> tuple[ErrorClass, str]:
    kind = types.get(schema)
    if kind is None:
        return ErrorClass.UNKNOWN_SCHEMA, f"the registry has no schema {schema}"
    return ErrorClass.WRONG_SCHEMA, f"the schema {schema} is {kind}, and only JSON can be read"
