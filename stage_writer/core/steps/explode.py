"""Several rows of one record: the `explode` column of a stream, each element of which becomes a row.

Rules:

1. The rows of one record follow one another, in the order of the elements, and share the record's other columns.
2. A record whose array is null or empty has one row, with null there: as in Spark's ``explode_outer``, no record goes
   without a trace. So the column may be null, whatever its elements are declared to be.
3. Rows are made in blocks, so that no block's columns pass what Arrow's 32-bit offsets hold.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.schema import to_arrow_field
from common.settings.columns import exploded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from common.schema import StructType
    from stage_writer.core.batch import Messages
    from stage_writer.core.steps.rows import Rows

    Index = NDArray[np.int64]

_BLOCK_BYTES = 256 << 20


class Exploder:
    """Makes a row of each element of a column: a `Step`. Raises SchemaError for what is no ARRAY column."""

    needs_headers = False

    def __init__(self, columns: StructType, name: str, *, block_bytes: int = _BLOCK_BYTES) -> None:
        self.columns = exploded(columns, name)
        self._place = columns.names.index(name)
        self._field = to_arrow_field(self.columns.fields[self._place])
        self._block_bytes = block_bytes

    def apply(self, rows: Rows, messages: Messages) -> Rows:  # noqa: ARG002 - a step is given both
        """The rows of all elements."""
        if not len(rows):
            return rows.with_table(self._with(rows.table, pa.chunked_array([], self._field.type)))
        column = rows.table.column(self._place).combine_chunks()
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
        elements = column.flatten()  # without those behind null lists
        others = rows.table.remove_column(self._place)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        parts = [
            self._exploded(others.slice(first, last - first), elements, starts[first : last + 1])
            for first, last in self._blocks(others, lengths)
        ]
        index = np.repeat(rows.index, np.maximum(lengths, 1))
        return replace(rows, table=pa.concat_tables(parts), index=index)

    def _blocks(self, others: pa.Table, lengths: Index) -> Iterator[tuple[int, int]]:
        """Runs of rows that become no more than about a block each; one row may be more (rule 3)."""
        row_bytes = max(1, others.nbytes // max(1, len(others)))
        ends = np.cumsum(np.maximum(lengths, 1) * row_bytes)
        first = 0
        while first < len(lengths):
            before = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, before + self._block_bytes, side="right")))
            yield first, last
            first = last

    def _exploded(self, others: pa.Table, elements: pa.Array, starts: Index) -> pa.Table:
        """The rows of some records; ``starts`` says where the elements of each begin, and where the last ones end."""
        lengths = np.diff(starts)
        counts = np.maximum(lengths, 1)
        ends = np.cumsum(counts)
        within = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
        places = np.repeat(starts[:-1], counts) + within
        nothing = np.repeat(lengths == 0, counts)
        column = elements.take(pa.array(places, mask=nothing))
        repeated = others.take(pa.array(np.repeat(np.arange(len(lengths)), counts)))
        return self._with(repeated, column, removed=True)

    def _with(self, table: pa.Table, column: pa.Array | pa.ChunkedArray, *, removed: bool = False) -> pa.Table:
        others = table if removed else table.remove_column(self._place)
        return others.add_column(self._place, self._field, column)
