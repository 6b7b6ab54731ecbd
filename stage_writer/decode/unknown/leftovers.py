"""The undeclared fields of one message, as JSON text: the content of a rescue column.

Rules:

1. Nothing is lost and nothing is rewritten: names and values are the message's own text, escapes, digits and spaces
   included. A name that occurs twice is kept twice.
2. The text is an object that has each unknown field under its own path: ``{"extra":1,"meta":{"new":2}}``. Unknown
   fields inside an array's elements are in an array of the same length, with null for elements without any:
   ``{"items":[null,{"new":2}]}``. A message without unknown fields has no text.
3. The message is one that the strict decoder accepts; its grammar is not checked again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from common.schema import ArrayType, DataType, Field, MapType, Primitive, StructType
from stage_writer.decode.json_document import Members, end_of, space_end


class Leftovers:
    """Extracts the unknown fields of messages."""

    def __init__(self, columns: StructType) -> None:
        self._message = _part(columns)

    def of(self, text: str) -> str | None:
        """The unknown fields of a message, which is one object; None when it has none."""
        return self._message.of(text, space_end(text, 0))[0]


class _Part(Protocol):
    """A value that may contain unknown fields."""

    def of(self, text: str, offset: int) -> tuple[str | None, int]:
        """The unknown part of the value that starts at ``offset``, and where the value ends."""


class _Known:
    """A value that is declared with all its content."""

    def of(self, text: str, offset: int) -> tuple[str | None, int]:
        return None, end_of(text, offset)


class _Unknown:
    """A value that no column reads."""

    def of(self, text: str, offset: int) -> tuple[str | None, int]:
        end = end_of(text, offset)
        return text[offset:end], end


_KNOWN, _UNKNOWN = _Known(), _Unknown()


@dataclass(frozen=True, slots=True)
class _Object:
    fields: Mapping[str, _Part]
    others: _Part
    """Any other field."""

    def of(self, text: str, offset: int) -> tuple[str | None, int]:
        if text[offset] != "{":
            return None, end_of(text, offset)
        left: list[str] = []
        for name, shown, begin in (members := Members(text, offset)):
            inner, members.at = self.fields.get(name, self.others).of(text, begin)
            if inner is not None:
                left.append(f"{shown}:{inner}")
        return f"{{{','.join(left)}}}" if left else None, members.at


@dataclass(frozen=True, slots=True)
class _Array:
    element: _Part

    def of(self, text: str, offset: int) -> tuple[str | None, int]:
        if text[offset] != "[":
            return None, end_of(text, offset)
        left: list[str | None] = []
        offset = space_end(text, offset + 1)
        while text[offset] != "]":
            inner, offset = self.element.of(text, offset)
            left.append(inner)
            offset = space_end(text, offset)
            if text[offset] == ",":
                offset = space_end(text, offset + 1)
        if all(inner is None for inner in left):
            return None, offset + 1
        return f"[{','.join(inner or 'null' for inner in left)}]", offset + 1


def _part(data_type: DataType) -> _Part:
    match data_type:
        case StructType(fields):
            return _Object({field.name: _part(field.type) for field in fields}, _UNKNOWN)
        case ArrayType(element):
            inner = _part(element)
            return _KNOWN if inner is _KNOWN else _Array(inner)
        case MapType(_, value):
            inner = _part(value)
            return _KNOWN if inner is _KNOWN else _Object({}, inner)
        case _:
            return _KNOWN


class Rescuer:
    """Makes the rescue column, for `unknown_fields: rescue` and `evolve`: null for a record without undeclared fields.

    Records that the native decoder took and that have none cost no Python object each; the others are read singly.
    """

    def __init__(self, name: str, columns: StructType) -> None:
        self.field = Field(name, Primitive.STRING)
        self._leftovers = Leftovers(columns)

    def of_some(self, texts: pa.StringArray, has_unknown: NDArray[np.bool_]) -> pa.StringArray:
        """For messages where the ones that may have unknown fields are known; ``texts`` are these."""
        if len(texts) == 0:
            return pa.nulls(len(has_unknown), pa.string())
        indexes = np.cumsum(has_unknown, dtype=np.int64) - 1
        left = pa.array([self._leftovers.of(text) for text in texts.to_pylist()], pa.string())
        return left if len(left) == len(has_unknown) else left.take(pa.array(indexes, mask=~has_unknown))
