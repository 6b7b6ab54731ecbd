"""The memory of each row of a table, computed without reading any value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Sizes = NDArray[np.int64]

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
        parts = [value_bytes(array.field(place)) for place in range(kind.num_fields)]
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
