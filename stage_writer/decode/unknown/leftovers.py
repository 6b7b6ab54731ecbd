"""The undeclared fields of one message, as JSON text: the content of a rescue column.

Rules:

1. Nothing is lost and nothing is rewritten: names and values are the message's own text, escapes, digits and spaces
   included. A name that occurs twice is kept twice.
2. The text is an object that has each unknown field under its own path: ``{"extra":1,"meta":{"new":2}}``. Unknown
   fields inside an array's elements are in an array of the same length, with null for elements without any:
   ``{"items":[null,{"new":2}]}``. A message without unknown fields has no text.
3. The message is one that the strict decoder accepts; its grammar is not checked again.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Protocol

from common.schema import ArrayType, DataType, MapType, StructType

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SPACE = re.compile(r"[ \t\n\r]*")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')
# Numbers are not parsed: Python would refuse integers of more than 4,300 digits.
_SCAN = json.JSONDecoder(parse_int=len, parse_float=len).scan_once  # type: ignore[attr-defined]


class Leftovers:
    """Extracts the unknown fields of messages."""

    def __init__(self, columns: StructType) -> None:
        self._message = _Struct(_fields(columns))

    def of(self, text: str) -> str | None:
        """The unknown fields of a message, which is one object; None when it has none."""
        return self._message.of(text, _space(text, 0))[0]


class _Part(Protocol):
    """A value that may contain unknown fields."""

    def of(self, text: str, at: int) -> tuple[str | None, int]:
        """The unknown part of the value that starts at ``at``, and where the value ends."""


@dataclass(frozen=True, slots=True)
class _Struct:
    fields: Mapping[str, _Part | None]
    """None for a field that is declared with all its content."""

    def of(self, text: str, at: int) -> tuple[str | None, int]:
        if text[at] != "{":
            return None, _end(text, at)
        left: list[str] = []
        for name, shown, begin in (members := _Members(text, at)):
            if name not in self.fields:
                members.at = _end(text, begin)
                left.append(f"{shown}:{text[begin : members.at]}")
                continue
            part = self.fields[name]
            inner, members.at = (None, _end(text, begin)) if part is None else part.of(text, begin)
            if inner is not None:
                left.append(f"{shown}:{inner}")
        return f"{{{','.join(left)}}}" if left else None, members.at


@dataclass(frozen=True, slots=True)
class _Map:
    value: _Part

    def of(self, text: str, at: int) -> tuple[str | None, int]:
        if text[at] != "{":
            return None, _end(text, at)
        left: list[str] = []
        for _, shown, begin in (members := _Members(text, at)):
            inner, members.at = self.value.of(text, begin)
            if inner is not None:
                left.append(f"{shown}:{inner}")
        return f"{{{','.join(left)}}}" if left else None, members.at


@dataclass(frozen=True, slots=True)
class _Array:
    element: _Part

    def of(self, text: str, at: int) -> tuple[str | None, int]:
        if text[at] != "[":
            return None, _end(text, at)
        left: list[str | None] = []
        at = _space(text, at + 1)
        while text[at] != "]":
            inner, at = self.element.of(text, at)
            left.append(inner)
            at = _space(text, at)
            if text[at] == ",":
                at = _space(text, at + 1)
        if all(inner is None for inner in left):
            return None, at + 1
        return f"[{','.join(inner or 'null' for inner in left)}]", at + 1


class _Members:
    """Iterates over the members of an object; the caller sets ``at`` to each value's end. Ends at the object's."""

    def __init__(self, text: str, at: int) -> None:
        self._text = text
        self.at = at

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        """Name, the name as it is written, and where the value starts."""
        text = self._text
        self.at = _space(text, self.at + 1)
        while text[self.at] != "}":
            name, end = scanstring(text, self.at + 1, True)  # noqa: FBT003 - it takes no keywords
            begin = _space(text, _space(text, end) + 1)
            yield name, text[self.at : end], begin
            self.at = _space(text, self.at)
            if text[self.at] == ",":
                self.at = _space(text, self.at + 1)
        self.at += 1


def _fields(columns: StructType) -> dict[str, _Part | None]:
    return {field.name: _part(field.type) for field in columns}


def _part(data_type: DataType) -> _Part | None:
    match data_type:
        case StructType():
            return _Struct(_fields(data_type))
        case ArrayType(element):
            inner = _part(element)
            return None if inner is None else _Array(inner)
        case MapType(_, value):
            inner = _part(value)
            return None if inner is None else _Map(inner)
        case _:
            return None


def _space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _end(text: str, at: int) -> int:
    """Where the value that starts at ``at`` ends."""
    try:
        end: int = _SCAN(text, at)[1]
    except RecursionError:
        return _end_of_deep(text, at)
    return end


def _end_of_deep(text: str, at: int) -> int:
    depth = 0
    for token in _TOKEN.finditer(text, at):
        sign = text[token.start()]
        depth += (sign in "[{") - (sign in "]}")
        if depth == 0:
            return token.end()
    return len(text)
