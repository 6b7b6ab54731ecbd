"""Several rows from one record: each element of the stream's `explode` column becomes a row.

Rules:

1. The rows of one record follow one another, in the order of the elements, and share the record's other columns.
2. A record whose array is null or empty has one row, with null there: as in Spark's ``explode_outer``, no record
   disappears. So the column may be null, even if its elements are NOT NULL.
3. Rows are made in blocks, so that no block's columns exceed Arrow's 32-bit offsets.
4. A record of a thousand bytes may become ten thousand rows of a thousand bytes each. The rows' size is known before
   they are made (`Exploder.sizes`), so a batch can be processed in slices (see `slicing`).
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from common.schema import StructType, to_arrow_field
from common.settings.columns import exploded
from stage_writer.decode.batch import Index, Messages
from stage_writer.shape.rows import Rows

Sizes = NDArray[np.int64]


_BLOCK_BYTES = 256 << 20


class Exploder:
    """Makes a row of each element of a column: a `Step`. Raises SchemaError if the column is not an ARRAY."""

    needs_headers = False

    def __init__(self, columns: StructType, name: str) -> None:
        self.columns = exploded(columns, name)
        self._place = columns.names.index(name)
        self._field = to_arrow_field(self.columns.fields[self._place])

    def apply(self, rows: Rows, messages: Messages) -> Rows:  # noqa: ARG002 - a step is given both
        if not len(rows):
            return rows.with_table(self._with(rows.table, pa.chunked_array([], self._field.type)))
        column = rows.table.column(self._place).combine_chunks()
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
        elements = column.flatten()  # without those of null lists
        others = rows.table.remove_column(self._place)
        sizes = self.sizes(rows)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        parts = [
            self._exploded(others.slice(first, last - first), elements, starts[first : last + 1])
            for first, last in runs(sizes, _BLOCK_BYTES)  # rule 3
        ]
        index = np.repeat(rows.index, np.maximum(lengths, 1))
        return replace(rows, table=pa.concat_tables(parts), index=index)

    def sizes(self, rows: Rows) -> Index:
        """The size of the rows that each row becomes, in bytes."""
        column = rows.table.column(self._place)
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
        others = row_bytes(rows.table.remove_column(self._place))
        own = [value_bytes(chunk) for chunk in column.chunks]
        return np.asarray(np.maximum(lengths, 1) * others + (np.concatenate(own) if own else 0), np.int64)

    def pieces(self, rows: Rows, size_bytes: int, most_bytes: int) -> Iterator[Rows]:
        """One row as several, each with some of its elements and at most ``most_bytes``."""
        column = rows.table.column(self._place).combine_chunks()
        elements = column.flatten()
        step = max(1, len(elements) * most_bytes // size_bytes)
        for first in range(0, max(1, len(elements)), step):
            part = elements.slice(first, step)
            array = pa.ListArray.from_arrays(pa.array([0, len(part)], pa.int32()), part, type=column.type)
            field = rows.table.schema.field(self._place)
            yield rows.with_table(rows.table.set_column(self._place, field, array))

    def _exploded(self, others: pa.Table, elements: pa.Array, starts: Index) -> pa.Table:
        """The rows of some records; ``starts`` gives where the elements of each start, and where the last ones end."""
        lengths = np.diff(starts)
        counts = np.maximum(lengths, 1)
        ends = np.cumsum(counts)
        within = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
        indexes = np.repeat(starts[:-1], counts) + within
        nothing = np.repeat(lengths == 0, counts)
        column = elements.take(pa.array(indexes, mask=nothing))
        repeated = others.take(pa.array(np.repeat(np.arange(len(lengths)), counts)))
        return self._with(repeated, column, removed=True)

    def _with(self, table: pa.Table, column: pa.Array | pa.ChunkedArray, *, removed: bool = False) -> pa.Table:
        others = table if removed else table.remove_column(self._place)
        if not others.num_columns:  # a table without columns does not keep its length
            return pa.table([column], schema=pa.schema([self._field]))
        return others.add_column(self._place, self._field, column)


def runs(sizes: Index, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Runs of at most the given size; a run of a single row may exceed it."""
    ends, first = np.cumsum(sizes), 0
    while first < len(sizes):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + most_bytes, side="right")))
        yield first, last
        first = last


_OFFSET_BYTES = 4
_BITS = 8


def row_bytes(table: pa.Table) -> Sizes:
    """The bytes of each row over all columns; validity is left out."""
    sizes = np.zeros(table.num_rows, np.int64)
    for column in table.columns:
        if column.length():
            sizes += np.concatenate([value_bytes(chunk) for chunk in column.chunks])
    return sizes


def value_bytes(array: pa.Array) -> Sizes:
    """The bytes of each value, including its content."""
    kind = array.type
    if isinstance(array, pa.StructArray):
        parts = [value_bytes(array.field(index)) for index in range(kind.num_fields)]
        return np.sum(parts, axis=0, dtype=np.int64) if parts else np.zeros(len(array), np.int64)
    if isinstance(array, pa.ListArray | pa.LargeListArray | pa.MapArray):
        offsets = array.offsets.to_numpy()
        offsets, first = offsets - offsets[0], int(offsets[0])
        ends = np.concatenate([[0], np.cumsum(value_bytes(array.values.slice(first, int(offsets[-1]))))])
        return np.asarray(ends[offsets[1:]] - ends[offsets[:-1]] + _OFFSET_BYTES, np.int64)
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        return np.full(len(array), max(1, kind.bit_width // _BITS), np.int64)
    if pa.types.is_null(kind):
        return np.zeros(len(array), np.int64)
    lengths = pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False)
    return np.asarray(lengths + _OFFSET_BYTES, np.int64)
