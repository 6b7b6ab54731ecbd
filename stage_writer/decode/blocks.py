"""Messages in blocks of bounded size, and values back in the places of their messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

BLOCK_BYTES = 16 << 20
_BLOCK_MESSAGES = 65_536


def blocks(
    array: pa.BinaryArray | pa.LargeBinaryArray, block_bytes: int = BLOCK_BYTES
) -> Iterator[tuple[int, pa.BinaryArray]]:
    """The array's messages in blocks of bounded size, without copying: the first one's index, and the block."""
    width = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    _, offsets_buffer, data = array.buffers()
    offsets = np.frombuffer(offsets_buffer, width)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    start = 0
    while start < len(array):
        fitting = int(np.searchsorted(offsets, offsets[start] + block_bytes, side="right")) - 1
        end = min(max(fitting, start + 1), start + _BLOCK_MESSAGES, len(array))
        relative = (offsets[start : end + 1] - offsets[start]).astype(np.int32)
        piece = pa.py_buffer(b"") if data is None else data.slice(offsets[start], offsets[end] - offsets[start])
        yield start, pa.Array.from_buffers(pa.binary(), end - start, [None, pa.py_buffer(relative), piece])
        start = end


def in_place(parts: Sequence[pa.Array], places: Sequence[NDArray[np.int64]], count: int) -> pa.Array:
    """``count`` values: those of at least one part in the places given for it, and null in the others."""
    filled = [part for part in parts if len(part)] or parts[:1]
    values = filled[0] if len(filled) == 1 else pa.concat_arrays(filled)
    index = np.concatenate(places)
    if len(index) == count and (np.diff(index) > 0).all():
        return values
    place = np.full(count, -1)
    place[index] = np.arange(len(index))
    return values.take(pa.array(place, mask=place < 0))
