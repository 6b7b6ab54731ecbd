"""The structure of sampled records, field by field. Pure.

Rules:

1. Types are inferred from nearly all records: one value in a hundred may be odd. Those would be dead letters, which is
   reported with their number and with a type that accepts them too. Where more differ, the type accepts every record of
   the sample: values of several kinds are STRING with the format ``json``, which accepts anything as it was sent.
2. A type covers only the values seen: whole numbers are BIGINT, or DECIMAL(38,0) beyond it; texts that are all
   timestamps or dates, in the forms that the writer reads, are TIMESTAMP, TIMESTAMP_NTZ or DATE. Numbers that look like
   epochs stay numbers: that they are times is a guess, and reported as one.
3. An object whose keys look like data, and whose values are of one kind, is a MAP.
4. No value of a record is kept, because configs go into version control.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from enum import StrEnum

from common.errors import SchemaError
from common.schema import parse_ddl, quote_name, quote_path
from common.schema.types import ArrayType, DataType, DecimalType, Field, MapType, Primitive, StructType

_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?[0-5]\d)?", re.ASCII)
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_ID = re.compile(r"\d+|[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,})*", re.ASCII)
# Delta supports them with column mapping only.
_ODD_NAME = re.compile(r"[ ,;{}()\n\t=]|^$")
_LARGEST = 2**63 - 1
_MOST_DIGITS = 38
_MANY_KEYS = 30
_ONE_ODD_IN = 100
_YEARS_FROM, _YEARS_TO = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
_EPOCHS = {"epoch_s": 1, "epoch_ms": 10**3, "epoch_us": 10**6}


class JsonKind(StrEnum):
    """The kind of a JSON value; texts by their form."""

    BOOLEAN = "true or false"
    WHOLE = "whole number"
    FRACTION = "number"
    ZONED = "timestamp with a time zone"
    PLAIN = "timestamp without a time zone"
    DAY = "day"
    TEXT = "text"
    OBJECT = "object"
    ARRAY = "array"


_TIMES = frozenset({JsonKind.ZONED, JsonKind.PLAIN})
_TEXTS = frozenset({JsonKind.ZONED, JsonKind.PLAIN, JsonKind.DAY, JsonKind.TEXT})
_NUMBERS = frozenset({JsonKind.WHOLE, JsonKind.FRACTION})


@dataclass(slots=True)
class JsonShape:
    seen: int = 0
    """The number of values, including nulls."""
    nulls: int = 0
    kinds: Counter[JsonKind] = field(default_factory=Counter)
    lowest: int = 0
    highest: int = 0
    fields: dict[str, JsonShape] = field(default_factory=dict)
    element: JsonShape | None = None

    def add(self, value: object) -> None:
        self.seen += 1
        if value is None:
            self.nulls += 1
            return
        kind = _kind(value)
        self.kinds[kind] += 1
        if isinstance(value, dict):
            for name, inner in value.items():
                self.fields.setdefault(str(name), JsonShape()).add(inner)
        elif isinstance(value, list):
            self.element = self.element or JsonShape()
            for inner in value:
                self.element.add(inner)
        elif kind is JsonKind.WHOLE and isinstance(value, int):
            first = self.kinds[kind] == 1
            self.lowest = value if first else min(self.lowest, value)
            self.highest = value if first else max(self.highest, value)

    def join(self, other: JsonShape) -> None:
        if other.kinds[JsonKind.WHOLE]:
            first = not self.kinds[JsonKind.WHOLE]
            self.lowest = other.lowest if first else min(self.lowest, other.lowest)
            self.highest = other.highest if first else max(self.highest, other.highest)
        self.seen += other.seen
        self.nulls += other.nulls
        self.kinds.update(other.kinds)
        for name, inner in other.fields.items():
            self.fields.setdefault(name, JsonShape()).join(inner)
        if other.element is not None:
            self.element = self.element or JsonShape()
            self.element.join(other.element)

    @property
    def is_map(self) -> bool:
        """Whether an object's keys look like data (rule 3)."""
        objects, names = self.kinds[JsonKind.OBJECT], len(self.fields)
        if not names:
            return objects > 0
        ids = sum(_ID.fullmatch(name) is not None for name in self.fields)
        rare = names >= _MANY_KEYS and sum(inner.seen for inner in self.fields.values()) < objects * names / 4
        return (ids > names / 2 or rare) and _is_of_one_kind(self.value)

    @property
    def value(self) -> JsonShape:
        """The combined shape of the values of all fields of an object."""
        every = JsonShape()
        for inner in self.fields.values():
            every.join(inner)
        return every

    @property
    def epoch(self) -> str | None:
        """The format of a number that may be a time between 2000 and 2100 (rule 2)."""
        if set(self.kinds) != {JsonKind.WHOLE} or self.lowest <= 0:
            return None
        for name, unit in _EPOCHS.items():
            low, high = (int(year.timestamp()) * unit for year in (_YEARS_FROM, _YEARS_TO))
            if low <= self.lowest and self.highest < high:
                return name
        return None


def _is_of_one_kind(shape: JsonShape) -> bool:
    kinds = set(shape.kinds)
    return len(kinds) <= 1 or kinds <= _TEXTS or kinds <= _NUMBERS


def _usual(kinds: Counter[JsonKind]) -> set[JsonKind]:
    """The kinds that nearly all values have; all kinds where too many differ (rule 1)."""
    room = sum(kinds.values()) // _ONE_ODD_IN
    usual = set(kinds)
    families = [_NUMBERS, _TEXTS, {JsonKind.BOOLEAN}, {JsonKind.OBJECT}, {JsonKind.ARRAY}]
    # The narrower ones of numbers and texts come later.
    for family in (*families, {JsonKind.WHOLE}, _TIMES, {JsonKind.DAY}):
        within = usual & family
        odd = sum(kinds[kind] for kind in usual - within)
        if within and odd <= room:
            usual, room = within, room - odd
    return usual


def _kind(value: object) -> JsonKind:
    match value:
        case bool():
            return JsonKind.BOOLEAN
        case int():
            return JsonKind.WHOLE
        case float():
            return JsonKind.FRACTION
        case dict():
            return JsonKind.OBJECT
        case list():
            return JsonKind.ARRAY
        case str():
            return _text_kind(value)
        case _:
            raise TypeError(f"{type(value)} is not a JSON value")


def _text_kind(text: str) -> JsonKind:
    try:
        if _DAY.fullmatch(text):
            date.fromisoformat(text)
            return JsonKind.DAY
        match = _MOMENT.fullmatch(text)
        if match is None or (match[3] or "")[6:].strip("0"):
            return JsonKind.TEXT
        datetime.fromisoformat(f"{match[1]}T{match[2]}{'' if match[4] is None else match[4]}")
    except ValueError:
        return JsonKind.TEXT
    return JsonKind.PLAIN if match[4] is None else JsonKind.ZONED


@dataclass(frozen=True, slots=True)
class Alternative:
    """The type that also accepts the few odd values of a place."""

    path: str
    type: str
    format: str | None


@dataclass(frozen=True, slots=True)
class Inferred:
    columns: StructType
    formats: Mapping[str, str]
    notes: tuple[str, ...]
    """Notes for the user on single fields."""
    alternatives: tuple[Alternative, ...] = ()


def inferred(records: JsonShape) -> Inferred:
    """The columns of records with this shape."""
    inference = _Inference(records.kinds[JsonKind.OBJECT])
    columns = inference.struct(records, ())
    return Inferred(columns, inference.formats, tuple(inference.notes), tuple(inference.alternatives))


@dataclass(slots=True)
class _Inference:
    records: int
    formats: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    alternatives: list[Alternative] = field(default_factory=list)

    def struct(self, shape: JsonShape, path: tuple[str, ...]) -> StructType:
        taken: dict[str, str] = {}
        fields: list[Field] = []
        for name, inner in shape.fields.items():
            here = (*path, name)
            why = why_no_column(name, taken)
            if why:
                self.notes.append(f"{quote_path(here)} is left out: {why}")
                continue
            taken[name.casefold()] = name
            fields.append(Field(name, self.type_of(inner, here)))
            objects = shape.kinds[JsonKind.OBJECT]
            if inner.seen < objects and len(path) == 0:
                self.notes.append(f"{quote_path(here)} is in {inner.seen:,} of {objects:,} records")
        return StructType(tuple(fields))

    def type_of(self, shape: JsonShape, path: tuple[str, ...]) -> DataType:  # noqa: PLR0911 - one for each case
        """The type of a place (rules 1 to 3)."""
        kinds = _usual(shape.kinds)
        if kinds != set(shape.kinds):
            self._note_odd(shape, kinds, path)
        if not kinds:
            self.notes.append(f"{quote_path(path)} was always null; STRING accepts any value as JSON text")
            return self._any(path)
        if kinds == {JsonKind.OBJECT}:
            if shape.is_map:
                return MapType(Primitive.STRING, self.type_of(shape.value, (*path, "value")))
            struct = self.struct(shape, path)
            return struct if struct.fields else MapType(Primitive.STRING, self._any((*path, "value")))
        if kinds == {JsonKind.ARRAY}:
            return ArrayType(self.type_of(shape.element or JsonShape(), (*path, "element")))
        if kinds == {JsonKind.BOOLEAN}:
            return Primitive.BOOLEAN
        if kinds == {JsonKind.WHOLE}:
            return self._whole(shape, path)
        if kinds <= _NUMBERS:
            return Primitive.DOUBLE
        if kinds <= _TEXTS:
            return self._text(shape, kinds, path)
        words = ", ".join(sorted(kind.value for kind in kinds))
        self.notes.append(f"{quote_path(path)} holds values of several kinds ({words}): kept as their JSON text")
        return self._any(path)

    def _note_odd(self, shape: JsonShape, kinds: set[JsonKind], path: tuple[str, ...]) -> None:
        """Report the few odd values (rule 1), and the type that accepts all."""
        odd = {kind: count for kind, count in shape.kinds.items() if kind not in kinds}
        words = ", ".join(f"{count:,} × {kind.value}" for kind, count in sorted(odd.items()))
        usual = ", ".join(f"{shape.kinds[kind]:,} × {kind.value}" for kind in sorted(kinds))
        self.notes.append(f"{quote_path(path)} holds {usual}; these would be dead letters: {words}")
        every = set(shape.kinds)
        if every <= _NUMBERS:
            self.alternatives.append(Alternative(quote_path(path), "DOUBLE", None))
        elif every <= _TEXTS:
            self.alternatives.append(Alternative(quote_path(path), "STRING", None))
        else:
            self.alternatives.append(Alternative(quote_path(path), "STRING", "json"))

    def _any(self, path: tuple[str, ...]) -> DataType:
        self.formats[quote_path(path)] = "json"
        return Primitive.STRING

    def _whole(self, shape: JsonShape, path: tuple[str, ...]) -> DataType:
        if shape.lowest >= -_LARGEST - 1 and shape.highest <= _LARGEST:
            if shape.epoch is not None:
                name = quote_path(path)
                note = f"{name} looks like an epoch: TIMESTAMP with formats: {{{name}: {shape.epoch}}}"
                self.notes.append(f"{note} would read it as timestamps")
            return Primitive.LONG
        if max(len(str(abs(edge))) for edge in (shape.lowest, shape.highest)) <= _MOST_DIGITS:
            self.notes.append(f"{quote_path(path)} has numbers beyond BIGINT")
            return DecimalType(_MOST_DIGITS, 0)
        self.notes.append(f"{quote_path(path)} has numbers beyond any type: kept as their JSON text")
        return self._any(path)

    def _text(self, shape: JsonShape, kinds: set[JsonKind], path: tuple[str, ...]) -> DataType:
        if kinds == {JsonKind.DAY}:
            inferred_type, what = Primitive.DATE, "a date"
        elif kinds <= _TIMES and JsonKind.ZONED in kinds:
            inferred_type, what = Primitive.TIMESTAMP, "a timestamp"
        elif kinds <= _TIMES:
            inferred_type, what = Primitive.TIMESTAMP_NTZ, "a timestamp without a time zone"
        else:
            return Primitive.STRING
        if kinds == set(shape.kinds):  # the odd values are in a note of their own
            self.notes.append(f"{quote_path(path)} was always {what} as text; STRING would accept any text")
        return inferred_type


def why_no_column(name: str, taken: Mapping[str, str]) -> str | None:
    """Why a field cannot be a column of that name; None if it can. ``taken`` are the other ones, by their casefold."""
    if name.casefold() in taken:
        return f"it differs from {taken[name.casefold()]} only in case"
    if _ODD_NAME.search(name) or not name.isprintable():
        return "Delta refuses such a name without column mapping"
    try:
        parse_ddl(f"{quote_name(name)} STRING")
    except SchemaError:
        return "it cannot be a column's name"
    return None


def moments(
    columns: StructType, shape: JsonShape, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], DataType]]:
    """Fields, at any depth of STRUCTs, that held a date or time in every sampled record: path and type."""
    for column in columns:
        inner = shape.fields[column.name]
        if inner.seen - inner.nulls < shape.kinds[JsonKind.OBJECT]:
            continue
        here = (*path, column.name)
        if isinstance(column.type, StructType):
            yield from moments(column.type, inner, here)
        elif column.type in (Primitive.DATE, Primitive.TIMESTAMP, Primitive.TIMESTAMP_NTZ):
            yield here, column.type
