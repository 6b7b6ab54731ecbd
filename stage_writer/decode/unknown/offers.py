"""The columns that a stream's table could gain: the types of the fields in its rescue column.

Rules:

1. A type comes from the value itself, and nothing is inferred from a text's form: whole numbers of 64 bits are LONG,
   numbers with point or exponent DOUBLE, and so on. Null, an empty object, an empty array and a whole number of more
   than 64 bits have no type. Types of several values are joined (common/schema/evolution.py).
2. Nothing is offered for a known field: its value is in the rescue column because it is incompatible with the type.
3. A name that Delta or Parquet refuse, or that differs from a known one in case only, stays in the rescue column; so do
   fields whose column would have another one's name (`ColumnNames`), and fields in the values of a map.
4. An offer has at most as many fields as the limit, in the order of their names, and its depth is limited for readers.
5. What `jmespath` reads has its column already: nothing is offered for fields that an expression names.
"""

import re
from collections.abc import Collection, Iterable
from typing import cast

from common.schema import ArrayType, DataType, Field, Primitive, StructType
from common.schema.evolution import MOST_OFFERED, NO_COLUMNS, joined, joined_within
from stage_writer.decode.json_document import Json, Number, Object, parse_document
from stage_writer.decode.unknown.column_names import ColumnNames

_REFUSED = re.compile(r"[ ,;{}()=`\x00-\x1f\x7f-\x9f]")
_LONGEST_NAME = 255
_DEEPEST = 10
_INTEGER = re.compile(r"-?[0-9]+")
_INTEGER_DIGITS = 20
_LONG_BITS = 63


class Offers:
    def __init__(
        self, columns: StructType, names: ColumnNames, room: int, *, consumed: Collection[str] = frozenset()
    ) -> None:
        """``columns`` are those that messages are decoded into; ``room`` is the maximum number of fields of an offer.

        ``consumed`` are names of fields that columns are filled from (rule 5).
        """
        self._columns = columns
        self._names = names
        self._room = min(room, MOST_OFFERED)
        self._consumed = consumed

    def of(self, texts: Iterable[str]) -> StructType:
        """The offer for rows with these texts in their rescue column; no fields if there is nothing to offer."""
        offer = NO_COLUMNS
        if self._room <= 0:
            return offer
        for text in texts:
            offered = _offered(parse_document(text), self._columns, 0)
            if self._consumed and offered is not None:
                offered = _without(offered, self._consumed)
            if isinstance(offered, StructType):
                offer = joined_within(offer, self._names.free(self._columns, offered), self._room)
        return offer


def _without(data_type: DataType, names: Collection[str]) -> DataType | None:
    """The type without fields of these names; None if nothing is left of it."""
    match data_type:
        case StructType(fields):
            inner = ((field, _without(field.type, names)) for field in fields if field.name not in names)
            return _struct({field.name: kept for field, kept in inner if kept is not None})
        case ArrayType(element):
            kept = _without(element, names)
            return None if kept is None else ArrayType(kept)
        case _:
            return data_type


def _offered(value: Json, known: DataType, depth: int) -> DataType | None:
    """The parts of a value that go beyond the known type, if they can be offered."""
    match value, known:
        case Object(), StructType():
            return _offered_fields(value, known, depth)
        case list(), ArrayType() if not isinstance(value, Object):
            inner = _joined_all(_offered(item, known.element, depth + 1) for item in value)
            return None if inner is None else ArrayType(inner)
        case _:
            return None


def _offered_fields(value: Object, known: StructType, depth: int) -> StructType | None:
    taken = {name.casefold() for name in known.names}
    types: dict[str, DataType] = {}
    for name, item in value:
        field = known.field(name)
        if field is not None:
            data_type = _offered(item, field.type, depth + 1)
        elif name.casefold() in taken or not _is_name(name):
            continue
        else:
            data_type = type_of(item, depth + 1)
        both = joined(types.get(name), data_type)
        if both is not None:
            types[name] = both
    return _struct(types)


def type_of(value: Json, depth: int = 0) -> DataType | None:  # noqa: PLR0911 - one for each kind of value
    """The type of a value by itself; None if it has none (rule 1)."""
    if depth > _DEEPEST:
        return None
    match value:
        case None:
            return None
        case bool():
            return Primitive.BOOLEAN
        case Number():
            return _type_of_number(value)
        case str():
            return Primitive.STRING
        case Object():
            return _offered_fields(value, NO_COLUMNS, depth)
        case list():
            return _type_of_array(cast("list[Json]", value), depth)


def _type_of_array(items: list[Json], depth: int) -> DataType | None:
    element = _joined_all(type_of(item, depth + 1) for item in items)
    return None if element is None else ArrayType(element)


def _type_of_number(text: Number) -> DataType | None:
    if _INTEGER.fullmatch(text) is None:
        return Primitive.DOUBLE
    if len(text) > _INTEGER_DIGITS:
        return None
    return Primitive.LONG if (-1 << _LONG_BITS) <= int(text) < (1 << _LONG_BITS) else None


def _joined_all(types: Iterable[DataType | None]) -> DataType | None:
    joined_type: DataType | None = None
    for data_type in types:
        joined_type = joined(joined_type, data_type)
    return joined_type


def _struct(types: dict[str, DataType]) -> StructType | None:
    """A struct of these fields, or None. Of two names that differ only in case one is kept."""
    fields: dict[str, Field] = {}
    for name in sorted(types):
        fields.setdefault(name.casefold(), Field(name, types[name]))
    return StructType(tuple(sorted(fields.values(), key=lambda field: field.name))) if fields else None


def _is_name(name: str) -> bool:
    return 0 < len(name) <= _LONGEST_NAME and _REFUSED.search(name) is None
