"""From the dicts that processors give to rows of a table, column by column.

Rules:

1. A row's dict has the table's columns and no others; a column that it lacks is null. Nothing is rounded, cut off or
   left out: what does not fit its column is refused, with the column, the value and why.
2. All rows are tried together, and looked at one by one only when that fails.
3. A time without a zone is UTC's. A bare number is no time: nobody knows whether it counts seconds or microseconds.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

Row = dict[str, Any]
_SHOWN_CHARACTERS = 100


class RowWriter:
    """Makes rows of one table."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._names = frozenset(schema.names)
        self._temporal = [field.name for field in schema if _has_times(field.type)]

    def rows_of(self, values: Sequence[Row]) -> tuple[pa.Table, dict[int, str]]:
        """The rows of those dicts that fit, and why the others do not, by their places."""
        if not values:
            return self.schema.empty_table(), {}
        found = self._together(values)
        if isinstance(found, pa.Table):
            return found, {}
        problems = {place: why for place, value in enumerate(values) if (why := self._problem(value)) is not None}
        fitting = [value for place, value in enumerate(values) if place not in problems]
        again = self._together(fitting) if fitting else self.schema.empty_table()
        if isinstance(again, str):
            raise RuntimeError(again)  # noqa: TRY004 - rows that fit one by one fit together
        return again, problems

    def _together(self, values: Sequence[Row]) -> pa.Table | str:
        shapes = set(map(tuple, values))
        unknown = {name for shape in shapes for name in shape} - self._names
        if unknown:
            return f"it has no column {min(map(repr, unknown))}"
        everywhere = frozenset[Any].intersection(*map(frozenset, shapes))
        columns = []
        for field in self.schema:
            if field.name in everywhere:
                listed = list(map(itemgetter(field.name), values))
            else:
                listed = [value.get(field.name) for value in values]
            try:
                columns.append(_column(listed, field))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                return f"the column `{field.name}`: {error}"
        return pa.table(columns, schema=self.schema)

    def _problem(self, value: Row) -> str | None:
        found = self._together([value])
        return found if isinstance(found, str) else None


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    if _has_times(field.type) and any(type(value) is int or type(value) is float for value in values):
        msg = f"{_first_number(values)} is a number and no {field.type}: give a datetime or a date"
        raise TypeError(msg)
    column = pa.array(values, field.type)
    if not field.nullable and column.null_count:
        msg = "it is NOT NULL, and null was given"
        raise ValueError(msg)
    return column


def _first_number(values: list[Any]) -> str:
    return repr(next(value for value in values if type(value) is int or type(value) is float))[:_SHOWN_CHARACTERS]


def _has_times(kind: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(kind))
