"""From partition columns to groups of rows with Delta's text for each value.

Rules:

1. Values are serialized as Delta's protocol says: null and an empty string are null, a timestamp is ISO 8601 in UTC.
2. Rows keep their order inside a group.
3. Types without an exact text (floating point, binary, nested) partition no table (`can_partition`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Index = NDArray[np.intp]

Values = tuple[str | None, ...]


class Groups:
    __slots__ = ("_columns", "_group_of_row", "_values")

    def __init__(self, columns: Sequence[str], values: list[Values], group_of_row: Index | None) -> None:
        """``values`` by group; ``group_of_row`` is absent when there is one group."""
        self._columns = columns
        self._values = values
        self._group_of_row = group_of_row

    @classmethod
    def from_rows(cls, rows: pa.Table, columns: Sequence[str]) -> Groups:
        """The groups of rows, by the columns of their table's partitioning."""
        if not columns or not rows.num_rows:
            return cls(columns, [()], None)
        codes = np.zeros(rows.num_rows, dtype=np.int64)
        texts: list[list[str | None]] = []
        for name in columns:
            inner, column_texts = _encode(rows.column(name).combine_chunks())
            codes = codes * len(column_texts) + inner
            texts.append(column_texts)
        distinct, group_of_row = np.unique(codes, return_inverse=True)
        values = [_values(int(code), texts) for code in distinct]
        return cls(columns, values, None if len(values) == 1 else group_of_row)

    @property
    def values(self) -> set[Values]:
        return set(self._values)

    def split(self, rows: pa.Table) -> Iterator[tuple[Values, pa.Table]]:
        """The rows by group, without the partition columns; groups in order of their values' text.

        One group is copied at a time, so a caller can release one before the next.
        """
        data = rows.drop_columns(list(self._columns)) if self._columns else rows
        if self._group_of_row is None:
            yield self._values[0], data
            return
        data = data.combine_chunks()  # once; each `take` would do this again
        order = np.argsort(self._group_of_row, kind="stable")
        ends = np.cumsum(np.bincount(self._group_of_row))
        for values, index in sorted(((values, index) for index, values in enumerate(self._values)), key=_null_first):
            start = ends[index - 1] if index else 0
            yield values, data.take(pa.array(order[start : ends[index]]))


def _encode(column: pa.Array) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], list[str | None]]:
    """Codes of the rows and the text of each code. Values with the same text (null and empty) share a code."""
    encoded = column.dictionary_encode(null_encoding="encode")
    texts = [_text(value) for value in encoded.dictionary.to_pylist()]
    distinct = list(dict.fromkeys(texts))
    where = {text: code for code, text in enumerate(distinct)}
    remap = np.array([where[text] for text in texts], dtype=np.int64)
    return remap[encoded.indices.to_numpy(zero_copy_only=False)], distinct


def _null_first(group: tuple[Values, int]) -> list[tuple[bool, str]]:
    return [(value is not None, value or "") for value in group[0]]


def _values(code: int, texts: Sequence[Sequence[str | None]]) -> Values:
    values: list[str | None] = []
    for column_texts in reversed(texts):
        code, index = divmod(code, len(column_texts))
        values.append(column_texts[index])
    return tuple(reversed(values))


def _text(value: object) -> str | None:
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        zone = "" if value.tzinfo is None else "Z"
        return value.replace(tzinfo=None).isoformat(timespec="microseconds") + zone
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return format(value, "f")  # never in scientific notation
    return str(value)
