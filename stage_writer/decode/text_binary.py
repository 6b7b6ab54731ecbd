"""Binary values from their base64 or hex, whole arrays at a time.

The forms are those of `strict`, rule 6: the standard alphabet, padded, canonical; or two hex digits a byte. Arrow has
neither, and DuckDB's functions raise for the whole array; so all values are concatenated into groups of four or two
characters, and decoded by table and arithmetic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]

_PADDING = 64
_NO_DIGIT = 255


def _base64_digits() -> NDArray[np.uint8]:
    digits = np.full(256, _NO_DIGIT, np.uint8)
    alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    digits[np.frombuffer(alphabet, np.uint8)] = np.arange(64, dtype=np.uint8)
    digits[ord("=")] = _PADDING
    return digits


def _hex_digits() -> NDArray[np.uint8]:
    digits = np.full(256, _NO_DIGIT, np.uint8)
    for alphabet in (b"0123456789abcdef", b"0123456789ABCDEF"):
        digits[np.frombuffer(alphabet, np.uint8)] = np.arange(16, dtype=np.uint8)
    return digits


_BASE64_DIGITS = _base64_digits()
_HEX_DIGITS = _hex_digits()


def from_hex(texts: pa.StringArray) -> tuple[pa.BinaryArray, Mask]:
    """The bytes of the texts, and which texts are not pairs of hex digits (their bytes are unspecified)."""
    even = pc.equal(pc.bit_wise_and(pc.binary_length(texts), 1), 0)
    uneven = ~pc.fill_null(even, fill_value=True).to_numpy(zero_copy_only=False)
    flat = pc.fill_null(pc.if_else(even, texts, None), "")
    ends = np.cumsum(pc.binary_length(flat).to_numpy(), dtype=np.int64) // 2
    pairs = _HEX_DIGITS[np.frombuffer(_joined(flat), np.uint8)].reshape(-1, 2)
    data = (pairs[:, 0] << 4) | (pairs[:, 1] & 15)
    broken = np.zeros(len(flat), np.bool_)
    wrong = np.flatnonzero((pairs == _NO_DIGIT).any(axis=1))
    broken[np.searchsorted(ends, wrong, side="right")] = True
    offsets = np.concatenate((np.zeros(1, np.int64), ends)).astype(np.int32)
    values = pa.Array.from_buffers(pa.binary(), len(flat), [None, pa.py_buffer(offsets), pa.py_buffer(data.tobytes())])
    return pc.if_else(texts.is_valid(), values, pa.scalar(None, pa.binary())), broken | uneven


def _joined(flat: pa.StringArray) -> pa.Buffer:
    """All of the texts, concatenated."""
    return pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(flat)], pa.int32()), flat), "")[0].as_buffer()


def from_base64(texts: pa.StringArray) -> tuple[pa.BinaryArray, Mask]:
    """The bytes of the texts, and which texts are not such base64 (their bytes are unspecified)."""
    even = pc.equal(pc.bit_wise_and(pc.binary_length(texts), 3), 0)
    uneven = ~pc.fill_null(even, fill_value=True).to_numpy(zero_copy_only=False)
    flat = pc.fill_null(pc.if_else(even, texts, None), "")
    values, broken = _from_quads(flat)
    return pc.if_else(texts.is_valid(), values, pa.scalar(None, pa.binary())), broken | uneven


def _from_quads(flat: pa.StringArray) -> tuple[pa.BinaryArray, Mask]:
    """The same for texts without nulls whose lengths are multiples of four."""
    lengths = pc.binary_length(flat).to_numpy()
    ends = np.cumsum(lengths, dtype=np.int64) // 4
    quads = _BASE64_DIGITS[np.frombuffer(_joined(flat), np.uint8)].reshape(-1, 4)
    last = np.zeros(len(quads), np.bool_)
    last[ends[lengths > 0] - 1] = True
    pads = np.where(quads[:, 3] == _PADDING, 1 + (quads[:, 2] == _PADDING), 0)
    wrong = _wrong_quads(quads, pads, last)
    groups = (quads & 63).astype(np.uint32) @ np.array([1 << 18, 1 << 12, 1 << 6, 1], np.uint32)
    data = np.stack([groups >> 16, groups >> 8, groups], axis=1).astype(np.uint8)
    kept = np.arange(3) < (3 - pads)[:, None]
    owners = np.searchsorted(ends, np.arange(len(quads)), side="right")
    sizes = np.bincount(owners, weights=3 - pads, minlength=len(flat)).astype(np.int64)
    offsets = np.zeros(len(flat) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data[kept].tobytes())]
    broken = np.zeros(len(flat), np.bool_)
    broken[owners[wrong]] = True
    return pa.Array.from_buffers(pa.binary(), len(flat), buffers), broken


def _wrong_quads(quads: NDArray[np.uint8], pads: NDArray[np.int64], last: Mask) -> Mask:
    """Characters outside of the alphabet, padding before the end, and bits that would be lost."""
    two = 2  # padding characters
    wrong = (quads[:, :two] >= _PADDING).any(axis=1) | (quads[:, 3] > _PADDING)
    wrong |= ((quads[:, two] >= _PADDING) & (pads < two)) | ((pads > 0) & ~last)
    wrong |= (pads == 1) & ((quads[:, two] & 3) != 0)
    wrong |= (pads == two) & ((quads[:, 1] & 15) != 0)
    return wrong
