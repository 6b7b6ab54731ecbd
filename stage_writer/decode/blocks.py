"""Messages in blocks of bounded size, as texts; and spans of texts, as texts.

Only messages that are not UTF-8 are handled one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Places = NDArray[np.int64]
    Mask = NDArray[np.bool_]

BLOCK_BYTES = 16 << 20
_BLOCK_MESSAGES = 65_536
_PIECE_BYTES = 1 << 20


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


def texts_of(block: pa.BinaryArray) -> pa.StringArray:
    """The messages as strings; those that are not UTF-8 as empty ones."""
    try:
        return block.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_text_or_nothing(message) for message in block.to_pylist()], pa.string())


def _text_or_nothing(message: bytes) -> bytes:
    try:
        message.decode()
    except UnicodeDecodeError:
        return b""
    return message


def begin_as_objects(texts: pa.StringArray) -> Mask:
    """Which messages start with ``{``, after optional white space."""
    _, offsets_buffer, data = texts.buffers()
    if data is None or data.size == 0:
        return np.zeros(len(texts), np.bool_)
    signs = np.frombuffer(data, np.uint8)
    offsets = np.frombuffer(offsets_buffer, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    first = signs[np.minimum(offsets[:-1], len(signs) - 1)]
    begins: Mask = (first == ord("{")) & (offsets[1:] > offsets[:-1])
    spaced = np.flatnonzero(np.isin(first, (0x20, 0x09, 0x0A, 0x0D)))
    if len(spaced):
        objects = pc.match_substring_regex(texts.take(pa.array(spaced)), r"^[ \t\r\n]+\{")
        begins[spaced] = objects.to_numpy(zero_copy_only=False)
    return begins


def small_pieces(texts: pa.StringArray) -> Iterator[pa.StringArray]:
    """The texts in pieces that stay in the processor's cache, if single texts allow it."""
    offsets = offsets_of(texts)
    start = 0
    while start < len(texts):
        fitting = int(np.searchsorted(offsets, offsets[start] + _PIECE_BYTES, side="right")) - 1
        end = max(fitting, start + 1)
        yield texts.slice(start, end - start)
        start = end


def offsets_of(texts: pa.StringArray) -> Places:
    """Where the texts start in their buffer, and where the last one ends."""
    return np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)


def spans(data: pa.Buffer, starts: Places, ends: Places) -> pa.StringArray:
    """The texts of rising spans."""
    return cut(data, starts, ends).take(pa.array(np.arange(len(starts)) * 2 + 1))


def cut(data: pa.Buffer, starts: Places, ends: Places) -> pa.StringArray:
    """The whole text in pieces: the part before each span, the span, and finally the rest."""
    bounds = np.empty(2 * len(starts) + 2, np.int32)
    bounds[0], bounds[-1] = 0, data.size
    bounds[1:-1:2], bounds[2:-1:2] = starts, ends
    return pa.Array.from_buffers(pa.string(), len(bounds) - 1, [None, pa.py_buffer(bounds), data])
