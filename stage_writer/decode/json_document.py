"""A lossless parser of one JSON document, used by the strict decoder.

Rules:

1. The grammar is exactly RFC 8259: no NaN, no trailing commas, no byte order mark, no control characters in strings, no
   unpaired surrogates, and exactly one document.
2. Numbers keep their text; objects keep their pairs in order, duplicate keys included.
3. There is no depth limit. Python's own parser recurses; documents too deep for it go to a loop of our own.
4. A caller that needs the exact text of a value requests a *sourced* document, whose strings, arrays and objects keep
   it.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import NoReturn


class Number(str):
    """A number, as its text."""

    __slots__ = ()


class Object(list[tuple[str, "Json"]]):
    """An object, as its pairs in order."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Source:
    document: str
    start: int
    end: int

    @property
    def text(self) -> str:
        """The value's text as written."""
        return self.document[self.start : self.end]


class SourcedText(str):  # noqa: SLOT000 - of few, and for a moment
    source: Source


class SourcedArray(list["Json"]):
    source: Source


class SourcedObject(Object):
    source: Source


Json = Number | str | bool | list["Json"] | Object | None

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')
# Numbers are not parsed: Python would refuse integers of more than 4,300 digits.
_SCAN = json.JSONDecoder(parse_int=len, parse_float=len).scan_once  # type: ignore[attr-defined]
_WORDS: tuple[tuple[str, bool | None], ...] = (("true", True), ("false", False), ("null", None))


class NotOneDocumentError(ValueError):
    """The text is not exactly one JSON document. The message gives the place."""


class UnsourcedError(TypeError):
    """The text of a value was wanted, and its document is not a sourced one."""


def _refuse_constant(text: str) -> NoReturn:
    raise NotOneDocumentError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=Object, parse_int=Number, parse_float=Number, parse_constant=_refuse_constant, strict=True
)


def parse_document(text: str, *, sourced: bool = False) -> Json:
    """Parse ``text`` as exactly one document. Raises NotOneDocumentError."""
    try:
        if not sourced and SURROGATE_ESCAPE.search(text) is None:
            document: Json = _DECODER.decode(text)
            return document
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            raise NotOneDocumentError(f"a second document, or other text, begins at character {error.pos}") from error
        raise NotOneDocumentError(f"{error.msg} at character {error.pos}") from error
    except RecursionError:
        pass
    return _Loop(text, sourced=sourced).document()


def json_text(value: Json) -> str:
    """A value's text in a sourced document. Raises UnsourcedError for a value without a source."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case Number():
            return str(value)
        case SourcedText() | SourcedArray() | SourcedObject():
            return value.source.text
        case _:
            raise UnsourcedError("only the values of a sourced document know their text")


class _Loop:
    """A parser of the same grammar without recursion; also checks every string for unpaired surrogates."""

    def __init__(self, text: str, *, sourced: bool) -> None:
        self._text = text
        self._sourced = sourced
        self._at = 0

    def document(self) -> Json:
        open_values: list[Object | list[Json]] = []
        names: list[str] = []
        while True:
            value = self._open_or_scalar()
            if isinstance(value, list):
                if not self._accept("}" if isinstance(value, Object) else "]"):
                    open_values.append(value)
                    if isinstance(value, Object):
                        names.append(self._name())
                    continue
                self._end_source(value)
            while open_values:
                holder = open_values[-1]
                if isinstance(holder, Object):
                    holder.append((names.pop(), value))
                else:
                    holder.append(value)
                if self._accept(","):
                    if isinstance(holder, Object):
                        names.append(self._name())
                    break
                self._expect("}" if isinstance(holder, Object) else "]")
                value = open_values.pop()
                self._end_source(value)
            else:
                self._end()
                return value

    def _space(self) -> str:
        match = _SPACE.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return self._text[self._at : self._at + 1]

    def _accept(self, sign: str) -> bool:
        if self._space() == sign:
            self._at += 1
            return True
        return False

    def _expect(self, sign: str) -> None:
        if not self._accept(sign):
            self._fail(f"wanted {sign}")

    def _end(self) -> None:
        if self._space():
            self._fail("a second document, or other text, begins")

    def _fail(self, problem: str) -> NoReturn:
        raise NotOneDocumentError(f"{problem} at character {self._at}")

    def _name(self) -> str:
        self._expect('"')
        name = self._string()
        self._expect(":")
        return name

    def _string(self) -> str:
        try:
            text: str
            text, self._at = scanstring(self._text, self._at, True)  # noqa: FBT003 - it takes no keywords
        except json.JSONDecodeError as error:
            self._fail(error.msg)
        if _SURROGATE.search(text):
            self._fail("half of a surrogate pair in the string that ends")
        return text

    def _opened(self, sign: str) -> Json:
        if not self._sourced:
            return Object() if sign == "{" else []
        opened = SourcedObject() if sign == "{" else SourcedArray()
        opened.source = Source(self._text, self._at - 1, self._at)
        return opened

    def _end_source(self, value: Json) -> None:
        if isinstance(value, SourcedObject | SourcedArray):
            value.source = Source(self._text, value.source.start, self._at)

    def _with_source(self, text: str, start: int) -> str:
        if not self._sourced:
            return text
        sourced = SourcedText(text)
        sourced.source = Source(self._text, start, self._at)
        return sourced

    def _open_or_scalar(self) -> Json:
        sign = self._space()
        if sign in ("{", "["):
            self._at += 1
            return self._opened(sign)
        if sign == '"':
            start = self._at
            self._at += 1
            return self._with_source(self._string(), start)
        for word, value in _WORDS:
            if self._text.startswith(word, self._at):
                self._at += len(word)
                return value
        match = _NUMBER.match(self._text, self._at)
        if match is None:
            self._fail("Expecting value")
        self._at = match.end()
        return Number(match[0])


class Members:
    """Iterates over the members of an object in a text that is JSON, without reading it again for its grammar.

    The caller sets ``at`` to each value's end, and the last one is the object's.
    """

    def __init__(self, text: str, offset: int) -> None:
        self._text = text
        self.at = offset

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        """Name, the name as it is written, and where the value starts."""
        text = self._text
        self.at = space_end(text, self.at + 1)
        while text[self.at] != "}":
            name, end = scanstring(text, self.at + 1, True)  # noqa: FBT003 - it takes no keywords
            begin = space_end(text, space_end(text, end) + 1)
            yield name, text[self.at : end], begin
            self.at = space_end(text, self.at)
            if text[self.at] == ",":
                self.at = space_end(text, self.at + 1)
        self.at += 1


def space_end(text: str, offset: int) -> int:
    """Where the white space that may start at ``offset`` ends."""
    match = _SPACE.match(text, offset)
    return match.end() if match else offset


def end_of(text: str, offset: int) -> int:
    """Where the value that starts at ``offset`` ends."""
    try:
        end: int = _SCAN(text, offset)[1]
    except RecursionError:
        return _end_of_deep(text, offset)
    return end


def _end_of_deep(text: str, offset: int) -> int:
    depth = 0
    for token in _TOKEN.finditer(text, offset):
        sign = text[token.start()]
        depth += (sign in "[{") - (sign in "]}")
        if depth == 0:
            return token.end()
    return len(text)
