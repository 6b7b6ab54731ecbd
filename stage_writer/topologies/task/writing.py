"""Converts dicts from processors to rows of a table, column by column.

Rules:

1. A row's dict has the table's columns and no others; a column that it lacks is null. Nothing is rounded, truncated or
   left out: an incompatible value is refused, with the column, the value and the reason.
2. All rows are converted together, and one by one only when that fails.
3. A time without a zone is UTC's.
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from stage_writer.topologies.task.checks import check_values

Row = dict[str, Any]


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
    check_values(values, field.type)
    column = pa.array(values, field.type)
    if not field.nullable and column.null_count:
        raise ValueError("it is NOT NULL, but null was given")
    return column
