"""Converts dicts from processors to rows of a table, column by column.

Rules:

1. A row's dict has the table's columns and no others; a column that it lacks is null. Nothing is rounded, truncated or
   left out: an incompatible value is refused, with the column, the value and the reason.
2. All rows are converted together, and one by one only when that fails.
3. A time without a zone is UTC's.
4. A whole number is an int (a float, even a whole one, may have been rounded; True is not a number), text is a str, a
   time a datetime (not a number: it could count seconds or microseconds).
5. A STRUCT is a dict without fields that it does not have, an ARRAY a list or tuple, a MAP a dict.
6. Arrow itself refuses whole numbers out of range and decimals with too many digits. It would turn a number beyond the
   range of FLOAT into infinity.
7. Types are checked for a whole column at once: a check per value costs some 20 nanoseconds.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import chain
from operator import itemgetter
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa

Row = dict[str, Any]
_SHOWN_CHARACTERS = 100

Problems = dict[int, str]
"""Why rows are incompatible, by their indices."""


class RowWriter:
    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self.names = frozenset(schema.names)

    def fitted(self, rows: pa.Table) -> tuple[pa.Table, Problems]:
        """Rows with the table's columns (`check_tables`), but nullable: those that are compatible, as above."""
        for field in self._schema:
            if field.name not in rows.column_names:
                rows = rows.append_column(field, pa.nulls(len(rows), field.type))
        rows = rows.select(self._schema.names)
        problems: Problems = {}
        for field in self._schema:
            if not field.nullable and rows[field.name].null_count:
                nulls = rows[field.name].is_null().combine_chunks().to_numpy(zero_copy_only=False)
                why = f"the column `{field.name}` is NOT NULL, but null was given"
                problems.update(dict.fromkeys(np.flatnonzero(nulls).tolist(), why))
        if problems:
            kept = np.ones(len(rows), np.bool_)
            kept[list(problems)] = False
            rows = rows.filter(pa.array(kept))
        return rows.cast(self._schema), problems

    def unknown(self, row: Row) -> set[str]:
        return set(row) - self.names

    def rows_of(self, values: Sequence[Row]) -> tuple[pa.Table, Problems]:
        """The rows of the compatible dicts, and why the others are not."""
        if not values:
            return self._schema.empty_table(), {}
        rows = self._together(values)
        if isinstance(rows, pa.Table):
            return rows, {}
        problems = {index: why for index, value in enumerate(values) if (why := self._problem(value)) is not None}
        fitting = [value for index, value in enumerate(values) if index not in problems]
        again = self._together(fitting) if fitting else self._schema.empty_table()
        if isinstance(again, str):
            raise RuntimeError(again)  # noqa: TRY004 - rows that fit one by one fit together
        return again, problems

    def _together(self, values: Sequence[Row]) -> pa.Table | str:
        shapes = set(map(tuple, values))
        unknown = {name for shape in shapes for name in shape} - self.names
        if unknown:
            return f"it has no column {min(map(repr, unknown))}"
        everywhere = frozenset[Any].intersection(*map(frozenset, shapes))
        columns = []
        for field in self._schema:
            if field.name in everywhere:
                listed = list(map(itemgetter(field.name), values))
            else:
                listed = [value.get(field.name) for value in values]
            try:
                columns.append(_column(listed, field))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                return f"the column `{field.name}`: {error}"
        return pa.table(columns, schema=self._schema)

    def _problem(self, value: Row) -> str | None:
        problem = self._together([value])
        return problem if isinstance(problem, str) else None


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    _check_values(values, field.type)
    column = pa.array(values, field.type)
    if not field.nullable and column.null_count:
        raise ValueError("it is NOT NULL, but null was given")
    return column


def _check_values(values: Sequence[Any], kind: pa.DataType) -> None:
    """Raises TypeError for a value of another type; ValueError and OverflowError for a number beyond FLOAT's range."""
    types = set(map(type, values))
    wanted = _python_types(kind)
    for value_type in types:
        if value_type is not NoneType and not _fits(value_type, wanted):
            shown = repr(next(value for value in values if type(value) is value_type))[:_SHOWN_CHARACTERS]
            raise TypeError(f"{shown} is of type {value_type.__name__}, but {kind} needs {wanted[0].__name__}")
    if pa.types.is_float32(kind):
        _check_range(values)
    if not pa.types.is_nested(kind):
        return
    given = [value for value in values if value is not None] if NoneType in types else values
    if pa.types.is_struct(kind):
        _check_fields(given, kind)
    elif pa.types.is_map(kind):
        _check_values([key for value in given for key in value], kind.key_type)
        _check_values([inner for value in given for inner in value.values()], kind.item_type)
    else:
        _check_values(list(chain.from_iterable(given)), kind.value_type)


def _check_range(values: Sequence[Any]) -> None:
    given = np.array([value for value in values if value is not None], np.float64)
    with np.errstate(over="ignore"):
        beyond = np.isfinite(given) & np.isinf(given.astype(np.float32))
    if beyond.any():
        raise ValueError(f"{given[beyond][0]} is out of range for FLOAT")


def _check_fields(values: Sequence[Mapping[str, Any]], kind: pa.StructType) -> None:
    names = [kind.field(number).name for number in range(kind.num_fields)]
    unknown = {name for shape in set(map(tuple, values)) for name in shape} - set(names)
    if unknown:
        raise TypeError(f"it has no field {min(map(repr, unknown))}")
    for number, name in enumerate(names):
        field = kind.field(number)
        inner = [value.get(name) for value in values]
        if not field.nullable and None in inner:
            raise TypeError(f"its field `{name}` is NOT NULL, but null was given")
        _check_values(inner, field.type)


def _fits(value_type: type, wanted: tuple[type, ...]) -> bool:
    return (
        issubclass(value_type, wanted)
        and (value_type is not bool or bool in wanted)
        and not _is_time_for_date(value_type, wanted)
    )


def _is_time_for_date(value_type: type, wanted: tuple[type, ...]) -> bool:
    """In Python a datetime is a date; as one it would lose its time of day."""
    return issubclass(value_type, datetime) and datetime not in wanted


_PYTHON_TYPES: tuple[tuple[tuple[Callable[[pa.DataType], bool], ...], tuple[type, ...]], ...] = (
    ((pa.types.is_integer,), (int, np.integer)),
    ((pa.types.is_floating,), (float, int, np.floating, np.integer)),
    ((pa.types.is_boolean,), (bool, np.bool_)),
    ((pa.types.is_string, pa.types.is_large_string), (str,)),
    ((pa.types.is_binary, pa.types.is_large_binary), (bytes,)),
    ((pa.types.is_decimal,), (Decimal, int)),
    ((pa.types.is_timestamp,), (datetime,)),
    ((pa.types.is_date,), (date,)),
    ((pa.types.is_struct, pa.types.is_map), (dict,)),
    ((pa.types.is_list, pa.types.is_large_list), (list, tuple)),
)


def _python_types(kind: pa.DataType) -> tuple[type, ...]:
    for questions, types in _PYTHON_TYPES:
        if any(question(kind) for question in questions):
            return types
    return (object,)
