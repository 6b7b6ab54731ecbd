"""Column lists as people write them in SQL: ``"method STRING NOT NULL, meta STRUCT<producer: STRING>"``.

Rules:

1. The grammar is Spark's for a column list: any case, backticks around unusual names (doubled inside), ``NOT NULL`` and
   ``COMMENT '…'`` on columns and struct fields, an optional colon between name and type, SQL comments.
2. A declaration that a writer could not enforce is refused, not ignored: VARCHAR(n), CHAR(n), DEFAULT, GENERATED,
   INTERVAL, VOID.
3. Every error gives the place in the text, and what to write instead.
4. ``parse_ddl(to_ddl(schema)) == schema`` for each schema whose metadata is at most a comment and whose arrays and maps
   may hold nulls: DDL cannot express more.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NoReturn

from common.errors import SchemaError
from common.schema.types import ArrayType, DataType, DecimalType, Field, MapType, Primitive, StructType

_PRIMITIVES = {
    "BYTE": Primitive.BYTE,
    "TINYINT": Primitive.BYTE,
    "SHORT": Primitive.SHORT,
    "SMALLINT": Primitive.SHORT,
    "INT": Primitive.INTEGER,
    "INTEGER": Primitive.INTEGER,
    "LONG": Primitive.LONG,
    "BIGINT": Primitive.LONG,
    "FLOAT": Primitive.FLOAT,
    "REAL": Primitive.FLOAT,
    "DOUBLE": Primitive.DOUBLE,
    "STRING": Primitive.STRING,
    "BINARY": Primitive.BINARY,
    "BOOLEAN": Primitive.BOOLEAN,
    "DATE": Primitive.DATE,
    "TIMESTAMP": Primitive.TIMESTAMP,
    "TIMESTAMP_LTZ": Primitive.TIMESTAMP,
    "TIMESTAMP_NTZ": Primitive.TIMESTAMP_NTZ,
    "VARIANT": Primitive.VARIANT,
}
_DECIMALS = ("DECIMAL", "DEC", "NUMERIC")
_NESTED = ("ARRAY", "MAP", "STRUCT")
_REFUSED = {
    "VARCHAR": "write STRING: only Spark enforces the length of a VARCHAR",
    "CHAR": "write STRING: only Spark pads a CHAR",
    "CHARACTER": "write STRING: only Spark pads a CHARACTER",
    "TEXT": "write STRING",
    "JSON": "write STRING, or the STRUCT, MAP or ARRAY that it is",
    "BOOL": "write BOOLEAN",
    "DATETIME": "write TIMESTAMP, or TIMESTAMP_NTZ for a time without a zone",
    "BLOB": "write BINARY",
    "INT8": "write TINYINT",
    "INT16": "write SMALLINT",
    "INT32": "write INT",
    "INT64": "write BIGINT",
    "FLOAT32": "write FLOAT",
    "FLOAT64": "write DOUBLE",
    "UUID": "write STRING",
    "TIME": "Delta has no time of day: write STRING",
    "TIMESTAMPTZ": "write TIMESTAMP",
    "INTERVAL": "Delta has no intervals: write the number of seconds as a BIGINT, or the text as a STRING",
    "VOID": "give the column the type that its values will have",
}
_SQL_NAMES = {
    Primitive.BYTE: "TINYINT",
    Primitive.SHORT: "SMALLINT",
    Primitive.INTEGER: "INT",
    Primitive.LONG: "BIGINT",
}
_TOKEN = re.compile(
    r"""(?P<space>(?:\s+|--[^\n]*|/\*.*?\*/)+)
    |(?P<quoted>`(?:[^`]|``)*`)
    |(?P<word>[A-Za-z0-9_]+)
    |(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<sign>[<>(),:])
    """,
    re.VERBOSE | re.DOTALL,
)
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_]*[A-Za-z_][A-Za-z0-9_]*")
_UNQUOTED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # Spark would read 1d as a number
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_UNESCAPE = re.compile(r"(?:\\(?P<escape>u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)|(?P<doubled>''|\"\"))", re.DOTALL)


def parse_ddl(text: str) -> StructType:
    """The schema that a column list declares. Raises SchemaError with the place and the remedy."""
    reader = _Reader(text)
    fields = reader.fields()
    if reader.token.text:
        reader.fail("a comma or the end", "separate columns by commas")
    if not fields:
        raise SchemaError("the column list is empty", "declare at least one column, as in: id BIGINT, name STRING")
    return StructType(fields)


def to_ddl(schema: StructType) -> str:
    """The column list that declares ``schema``; see rule 4 for its limits."""
    return ", ".join(_field_ddl(field, " ") for field in schema)


def type_to_ddl(data_type: DataType) -> str:
    match data_type:
        case Primitive():
            return _SQL_NAMES.get(data_type, data_type.value.upper())
        case DecimalType(precision, scale):
            return f"DECIMAL({precision},{scale})"
        case ArrayType(element):
            return f"ARRAY<{type_to_ddl(element)}>"
        case MapType(key, value):
            return f"MAP<{type_to_ddl(key)}, {type_to_ddl(value)}>"
        case StructType(fields):
            return f"STRUCT<{', '.join(_field_ddl(field, ': ') for field in fields)}>"


def quote_name(name: str) -> str:
    """A column's name as SQL requires it: in backticks unless it is a plain word."""
    return name if _UNQUOTED.fullmatch(name) else backticks(name)


def quote_path(path: Iterable[str]) -> str:
    """The path of a field in SQL."""
    return ".".join(map(quote_name, path))


def backticks(name: str) -> str:
    """A name in Spark's quotes, always."""
    return f"`{name.replace('`', '``')}`"


def _field_ddl(field: Field, separator: str) -> str:
    not_null = "" if field.nullable else " NOT NULL"
    comment = "" if field.comment is None else f" COMMENT {quote_text(field.comment)}"
    return f"{quote_name(field.name)}{separator}{type_to_ddl(field.type)}{not_null}{comment}"


def quote_text(text: str) -> str:
    """A text as a literal of Spark's SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _unquote_text(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        if match["doubled"] is not None:
            return text[0] if match["doubled"][0] == text[0] else match[0]
        escape = match["escape"]
        if len(escape) > 1:
            code = int(escape[1:], 16)
            return chr(code) if code <= 0x10FFFF else match[0]  # noqa: PLR2004 - the last code point
        return _ESCAPES.get(escape, escape)

    return _UNESCAPE.sub(character, text[1:-1])


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int


class _Reader:
    """A recursive descent over the text, one token ahead."""

    def __init__(self, text: str) -> None:
        self._source = text
        self.token = self._next(0)

    def fail(self, wanted: str, remedy: str) -> NoReturn:
        shown = f"`{self.token.text}`" if self.token.text else "the end of the text"
        self._error(f"expected {wanted}, not {shown}", remedy)

    def _error(self, problem: str, remedy: str) -> NoReturn:
        start = self.token.start
        before = self._source[:start]
        line = before.count("\n") + 1
        column = start - (before.rfind("\n") + 1) + 1
        context = self._source[max(0, start - 20) : start + 20].replace("\n", " ")
        location = f"line {line}, character {column}" if "\n" in self._source else f"character {column}"
        raise SchemaError(f"the column list, at {location} (near “{context}”): {problem}", remedy)

    def _next(self, start: int) -> _Token:
        while start < len(self._source):
            match = _TOKEN.match(self._source, start)
            if match is None:
                self.token = _Token("odd", self._source[start], start)
                if self._source[start] in "`'\"":
                    self._error("a quotation mark is not closed", "close it")
                self._error(
                    f"the character {self._source[start]!r} is not allowed here",
                    "put a name with other characters than letters, digits and _ in `backticks`",
                )
            if match.lastgroup != "space":
                return _Token(match.lastgroup or "", match[0], start)
            start = match.end()
        return _Token("end", "", start)

    def _advance(self) -> _Token:
        token = self.token
        self.token = self._next(token.start + len(token.text))
        return token

    def _accept(self, text: str) -> bool:
        if self.token.kind in ("word", "sign") and self.token.text.upper() == text:
            self._advance()
            return True
        return False

    def _expect(self, text: str, remedy: str) -> None:
        if not self._accept(text):
            self.fail(f"`{text}`", remedy)

    def fields(self) -> tuple[Field, ...]:
        fields: list[Field] = []
        if self.token.kind == "end" or self.token.text == ">":
            return ()
        while True:
            fields.append(self._field())
            if not self._accept(","):
                return tuple(fields)

    def _field(self) -> Field:
        name = self._name()
        self._accept(":")
        data_type = self._type()
        nullable, comment = True, None
        while self.token.kind == "word":
            word = self.token.text.upper()
            if word == "NOT" and nullable:
                self._advance()
                self._expect("NULL", "write NOT NULL")
                nullable = False
            elif word == "COMMENT" and comment is None:
                self._advance()
                comment = self._text()
            elif word in ("DEFAULT", "GENERATED", "PRIMARY", "CONSTRAINT", "CHECK", "COLLATE"):
                self._error(f"{word} cannot be declared here", "create the table in Spark, with all that it needs")
            else:
                self.fail("NOT NULL, COMMENT, a comma or the end", "separate columns by commas")
        metadata = (
            "{}" if comment is None else json.dumps({"comment": comment}, separators=(",", ":"), ensure_ascii=False)
        )
        return Field(name, data_type, nullable, metadata)

    def _name(self) -> str:
        token = self.token
        quoted = token.kind == "quoted" and len(token.text) > len("``")
        if quoted or (token.kind == "word" and _PLAIN_NAME.fullmatch(token.text)):
            self._advance()
            return token.text[1:-1].replace("``", "`") if quoted else token.text
        return self.fail(
            "a column's name", "begin with a name, in `backticks` if it is not a plain word; then its type"
        )

    def _text(self) -> str:
        if self.token.kind != "text":
            self.fail("a text in quotes", "write COMMENT 'the comment'")
        return _unquote_text(self._advance().text)

    def _type(self) -> DataType:
        token = self.token
        word = token.text.upper()
        if token.kind != "word":
            self.fail("a type", "write the column's type after its name, as in: id BIGINT")
        if word in _REFUSED:
            self._error(f"{word} cannot be the type of a column here", _REFUSED[word])
        if word not in (*_PRIMITIVES, *_DECIMALS, *_NESTED):
            close_matches = difflib.get_close_matches(word, [*_PRIMITIVES, *_DECIMALS, *_NESTED], 1)
            known = (
                f"write {close_matches[0]}?"
                if close_matches
                else f"use one of {', '.join((*_PRIMITIVES, 'DECIMAL', *_NESTED))}"
            )
            self._error(f"`{token.text}` is not a type", known)
        self._advance()
        if word in _PRIMITIVES:
            return _PRIMITIVES[word]
        readers: dict[str, Callable[[], DataType]] = {"ARRAY": self._array, "MAP": self._map, "STRUCT": self._struct}
        return readers.get(word, self._decimal)()

    def _decimal(self) -> DecimalType:
        precision, scale = 10, 0
        if self._accept("("):
            precision = self._digits()
            if self._accept(","):
                scale = self._digits()
            self._expect(")", "write DECIMAL(precision, scale)")
        return DecimalType(precision, scale)

    def _digits(self) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", self.token.text):
            self.fail("a number", "write DECIMAL(precision, scale)")
        return int(self._advance().text)

    def _array(self) -> ArrayType:
        self._expect("<", "write ARRAY<type>")
        element = self._type()
        self._expect(">", "write ARRAY<type>")
        return ArrayType(element)

    def _map(self) -> MapType:
        self._expect("<", "write MAP<STRING, type>")
        key = self._type()
        self._expect(",", "write MAP<STRING, type>")
        value = self._type()
        self._expect(">", "write MAP<STRING, type>")
        return MapType(key, value)

    def _struct(self) -> StructType:
        self._expect("<", "write STRUCT<name: type, …>")
        fields = self.fields()
        self._expect(">", "close the STRUCT<…>")
        return StructType(fields)
