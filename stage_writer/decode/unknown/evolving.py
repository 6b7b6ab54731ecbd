"""Decoding into the declared columns and those that the stream has gained.

    all columns ─► rows                                        (nearly all messages)
        └─ incompatible ─► without the gained columns at fault ─► rows, and the incompatible values in the rescue column
                └─ refused by the declared columns too ─► rejects

Rules:

1. A declared column refuses a record with an incompatible value; a gained one never does. Its type was inferred, so the
   record keeps its row, and the value goes to the rescue column as it was sent.
2. A whole number that a DOUBLE would round is incompatible with a gained DOUBLE: a field that was first seen with small
   numbers keeps its large ones too. Numbers with a fraction are the nearest double, as in declared columns.
3. Incompatible messages are decoded together again without the columns at fault, and never one message at a time: so a
   field that changes its type costs further passes over the messages with the changed type. The columns at fault are
   found from one message, for all that are compatible without them. After `_MOST_WAYS` such passes the rest keeps no
   gained column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.errors import SchemaError
from common.schema import ArrayType, DataType, Field, MapType, Primitive, StructType, to_arrow_schema
from common.schema.evolution import Addition, additions, with_additions
from stage_writer.decode.batch import Index, Mask, in_order
from stage_writer.decode.decode import Decoded
from stage_writer.decode.rejects import Refusal, moved
from stage_writer.decode.strict import StrictDecoder, check_decodable
from stage_writer.decode.unknown.column_names import ColumnNames

Additions = tuple[Addition, ...]
"""Sets of gained columns, in addition to the declared ones, that some messages are decoded into."""
EXACT_BELOW = float(1 << 53)
"""From here on a double cannot represent each whole number."""
_MOST_WAYS = 8


def usable(declared: StructType, gained: StructType, names: ColumnNames) -> Additions:
    """The gained columns of a stream that can be decoded in addition to the declared ones.

    The settings win: a name that they have given to another column since is not used. Nor is a type that cannot hold a
    value exactly, or one that another writer gave to the table and JSON lacks.
    """
    free = names.free(declared, gained)
    return tuple(addition for addition in additions(declared, free) if _is_usable(declared, addition))


def _is_usable(declared: StructType, addition: Addition) -> bool:
    try:
        chain = only(declared, addition.path, addition.type)
        check_decodable(chain)
    except SchemaError:
        return False
    has_map = any(isinstance(part, MapType) for part in _parts(chain))
    return not has_map and Primitive.FLOAT not in _parts(addition.type)


def only(known: StructType, path: tuple[str, ...], data_type: DataType) -> StructType:
    """The schema with only one field, and the structs that lead to it."""
    name, rest = path[0], path[1:]
    if not rest:
        return StructType((Field(name, data_type),))
    field = known.field(name)
    if field is None:
        raise ValueError(f"there is no {name} that leads to {rest}")
    return StructType((Field(name, _chain(field.type, rest, data_type)),))


def _chain(known: DataType, path: tuple[str, ...], data_type: DataType) -> DataType:
    match known:
        case StructType():
            return only(known, path, data_type)
        case ArrayType(element):
            return ArrayType(_chain(element, path[1:], data_type))
        case _:  # a map, which is never used
            return known


def _parts(data_type: DataType) -> Iterator[DataType]:
    """The type, and the types of all that is in it."""
    yield data_type
    match data_type:
        case ArrayType(inner) | MapType(_, inner):
            yield from _parts(inner)
        case StructType(fields):
            for field in fields:
                yield from _parts(field.type)
        case _:
            pass


class ColumnDecoder(Protocol):
    """Decodes messages into given columns; the last one is the rescue column."""

    @property
    def columns(self) -> StructType: ...

    def decode(self, values: pa.BinaryArray) -> Decoded: ...


_Part = tuple[Index, pa.Table]
"""Rows, and before them their messages among all."""


class EvolvingDecoder:
    """A `ColumnDecoder` of all columns, that keeps rule 1. Not thread-safe."""

    def __init__(self, declared: StructType, gained: Additions, make: Callable[[StructType], ColumnDecoder]) -> None:
        """``make`` makes a decoder, with a rescue column, for any columns."""
        self._declared = declared
        self._gained = gained
        self._make = make
        self._decoders: dict[Additions, ColumnDecoder] = {}
        self._ways: list[Additions] = []
        self.columns = self._decoder(gained).columns
        self._schema = to_arrow_schema(self.columns)
        self._may_round = tuple(addition for addition in gained if Primitive.DOUBLE in _parts(addition.type))

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """The result for messages with these values; null is a tombstone."""
        decoded = self._decoder(self._gained).decode(values)
        rounded = self._rounded(decoded.rows, self._gained)
        if not decoded.rejects and rounded is None:
            return decoded
        parts, left = _split(decoded, np.arange(len(values)), rounded)
        plain = self._decoder(()).decode(values.take(pa.array(left)))
        rejects = moved(plain.rejects, left)
        without = left[plain.row_index]
        fitting, left = self._by_additions(values, without)
        parts = [*parts, *fitting, (left, plain.rows.take(pa.array(np.searchsorted(without, left))))]
        index, rows = in_order([(index, self._widened(rows)) for index, rows in parts])
        return replace(decoded, rows=rows.combine_chunks(), row_index=index, rejects=rejects)

    def _by_additions(self, values: pa.BinaryArray, left: Index) -> tuple[list[_Part], Index]:
        """The rows of messages that are compatible with some of the gained columns, and the remaining messages."""
        parts: list[_Part] = []
        tried: set[Additions] = set()
        while len(left) and len(tried) < _MOST_WAYS:
            additions = next((known for known in self._ways if known not in tried), None)
            if additions is None:
                additions = self._fitting(values[int(left[0])].as_py())
                if additions in tried:
                    break
                self._remember(additions)
            tried.add(additions)
            decoded = self._decoder(additions).decode(values.take(pa.array(left)))
            parts_read, left = _split(decoded, left, self._rounded(decoded.rows, additions))
            parts += parts_read
        return parts, left

    def _remember(self, additions: Additions) -> None:
        """Sets that keep more columns come first; beyond a few, those that keep least are forgotten."""
        self._ways = sorted([*self._ways, additions], key=len, reverse=True)[:_MOST_WAYS]
        kept = {(), self._gained, additions, *self._ways}
        self._decoders = {known: decoder for known, decoder in self._decoders.items() if known in kept}

    def _fitting(self, message: bytes) -> Additions:
        """The gained columns that are compatible with one message, each tested by itself."""
        return tuple(addition for addition in self._gained if self._fits(message, addition))

    def _fits(self, message: bytes, addition: Addition) -> bool:
        columns = only(self._declared, addition.path, addition.type)
        row = StrictDecoder(columns).decode(message)
        return not isinstance(row, Refusal) and not rounds(row)

    def _rounded(self, rows: pa.Table, additions: Additions) -> Mask | None:
        """Which rows have a number in a gained column that may be rounded (rule 2), or None."""
        lost: Mask | None = None
        for addition in self._may_round:
            if addition in additions:
                column = rows[addition.path[0]].combine_chunks()
                mask = _beyond(column, addition.path[1:])
                if mask is not None:
                    lost = mask if lost is None else lost | mask
        return lost

    def _decoder(self, additions: Additions) -> ColumnDecoder:
        if additions not in self._decoders:
            self._decoders[additions] = self._make(with_additions(self._declared, additions))
        return self._decoders[additions]

    def _widened(self, rows: pa.Table) -> pa.Table:
        """The rows with null in the gained columns that they lack, at any depth."""
        columns = [
            rows[field.name].cast(field.type) if field.name in rows.schema.names else pa.nulls(len(rows), field.type)
            for field in self._schema
        ]
        return pa.table(columns, schema=self._schema)


def _split(decoded: Decoded, among: Index, incompatible: Mask | None) -> tuple[list[_Part], Index]:
    """The compatible rows, and the messages of the others, with the refused ones; ``among`` lists the messages."""
    refused = np.fromiter((reject.index for reject in decoded.rejects), np.int64, len(decoded.rejects))
    if incompatible is None:
        return [(among[decoded.row_index], decoded.rows)], among[refused]
    left = np.sort(np.concatenate((refused, decoded.row_index[incompatible])))
    return [(among[decoded.row_index[~incompatible]], decoded.rows.filter(pa.array(~incompatible)))], among[left]


def _beyond(array: pa.Array, path: tuple[str, ...]) -> Mask | None:
    """Which entries hold a number, below ``path``, that a double may have rounded; None if none does."""
    if pa.types.is_floating(array.type) and not path:
        beyond = pc.fill_null(pc.greater_equal(pc.abs(array), EXACT_BELOW), fill_value=False)
        mask: Mask = beyond.to_numpy(zero_copy_only=False)
        return mask if mask.any() else None
    if pa.types.is_list(array.type):
        inner = _beyond(array.flatten(), path[1:])
        if inner is None:
            return None
        above = np.zeros(len(array), np.bool_)
        above[pc.list_parent_indices(array).to_numpy()[inner]] = True
        return above
    if pa.types.is_struct(array.type):
        parts = dict(zip((part.name for part in array.type), array.flatten(), strict=True))
        names, rest = (path[:1], path[1:]) if path else (tuple(parts), ())
        masks = [outside for name in names if (outside := _beyond(parts[name], rest)) is not None]
        return np.logical_or.reduce(masks) if masks else None
    return None


def rounds(value: object) -> bool:
    """Whether a value from the strict decoder holds such a number."""
    match value:
        case float():
            return abs(value) >= EXACT_BELOW
        case dict():
            return any(rounds(item) for item in value.values())
        case list():
            return any(rounds(item) for item in value)
        case _:
            return False
