"""The `NativeDecoder` in C: passes it the schema and the messages' buffers, and makes Arrow arrays of the result.

Rules:

1. The GIL is released while C reads (by `ctypes`), so other threads continue.
2. The columns are copied once, from memory of the library's own into Arrow's, which accounts for it and frees it.
   Between two blocks C keeps only the schema.
3. The powers of five that reading a double needs are computed here, with arbitrary-precision integers, rather than
   hard-coded.
"""

from __future__ import annotations

import ctypes
import weakref
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from common.schema import StructType
from stage_writer.decode.decode_options import DecodedBlock, DecodeOptions
from stage_writer.native.plan import Node, Plan, plan_of

LEAST_POWER, MOST_POWER = -342, 308
_LEAST_ROUNDED_UP = -27
_WORD = 1 << 64
_TAKEN_WITH_UNKNOWN = 2


class Library:
    """The functions of the compiled `json_reader.c`. Raises OSError for another file."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        try:
            self.new, self.free = library.kde_new, library.kde_free
            self.read, self.sizes, self.take = library.kde_read, library.kde_sizes, library.kde_take
        except AttributeError as error:
            raise OSError(f"{path} is a different library: {error}") from error
        self.new.restype, self.new.argtypes = pointer, [pointer, ctypes.c_int32, ctypes.c_char_p, number, pointer]
        self.free.restype, self.free.argtypes = None, [pointer]
        self.read.restype, self.read.argtypes = number, [pointer, pointer, number, pointer, number, pointer]
        self.sizes.restype, self.sizes.argtypes = None, [pointer, pointer]
        self.take.restype, self.take.argtypes = None, [pointer, pointer]

    def native_decoder(self, columns: StructType, reading: DecodeOptions) -> NativeReader | None:
        """A `MakeNativeDecoder`."""
        plan = plan_of(columns, reading) if columns.fields else None  # nothing to read
        return None if plan is None else NativeReader(self, plan)


class NativeReader:
    """Reads messages into columns. Not thread-safe."""

    def __init__(self, library: Library, plan: Plan) -> None:
        self._library = library
        self._nodes = plan.nodes
        powers = powers_of_five()
        self._handle = library.new(
            plan.parts.ctypes.data, len(plan.nodes), plan.names, len(plan.names), powers.ctypes.data
        )
        if not self._handle:
            raise MemoryError(f"no reader for {len(plan.nodes)} values of a record")
        weakref.finalize(self, library.free, self._handle)

    def read(self, block: pa.BinaryArray) -> DecodedBlock:
        count = len(block)
        verdicts = np.zeros(count, np.uint8)
        _, offsets, data = block.buffers()
        if count and data is not None and data.size:
            first = np.frombuffer(offsets, np.int32)[block.offset : block.offset + count + 1]
            taken = self._library.read(
                self._handle, data.address, data.size, first.ctypes.data, count, verdicts.ctypes.data
            )
            if taken < 0:
                raise MemoryError(f"no memory for the columns of {data.size} bytes of messages")
        is_taken = verdicts != 0
        return DecodedBlock(self._taken(), is_taken, verdicts[is_taken] == _TAKEN_WITH_UNKNOWN)

    def _taken(self) -> pa.StructArray:
        sizes = np.zeros((len(self._nodes), 4), np.int64)
        self._library.sizes(self._handle, sizes.ctypes.data)
        targets = np.zeros((len(self._nodes), 3), np.uintp)
        buffers: list[list[pa.Buffer | None]] = []
        for node, (_, validity, values, data), addresses in zip(self._nodes, sizes.tolist(), targets, strict=True):
            arrays = [pa.allocate_buffer(validity) if validity else None]
            if node.has_values:
                arrays.append(pa.allocate_buffer(values))
            if node.has_data:
                arrays.append(pa.allocate_buffer(data))
            for index, buffer in enumerate(arrays):
                addresses[index] = 0 if buffer is None else buffer.address
            buffers.append(arrays)
        self._library.take(self._handle, targets.ctypes.data)
        return _array(self._nodes[0], sizes[:, 0].tolist(), buffers)


def _array(node: Node, lengths: list[int], buffers: list[list[pa.Buffer | None]]) -> pa.Array:
    own = buffers[node.place]
    children = [_array(child, lengths, buffers) for child in node.children]
    nulls = 0 if own[0] is None else -1
    return pa.Array.from_buffers(node.arrow, lengths[node.place], own, nulls, 0, children or None)


@cache
def powers_of_five() -> NDArray[np.uint64]:
    """For each power of five its upper 128 bits, the highest of them one.

    Rounded down, except the small negative powers, which are rounded up so that the algorithm sees exact halves.
    """
    powers = [_upper_bits(power) for power in range(LEAST_POWER, MOST_POWER + 1)]
    return np.array([(bits >> 64, bits % _WORD) for bits in powers], np.uint64)


def _upper_bits(power: int) -> int:
    whole: int = 5 ** abs(power)
    if power >= 0:
        return whole << 128 >> whole.bit_length()
    if power >= _LEAST_ROUNDED_UP:
        return (1 << (whole.bit_length() + 127)) // whole + 1
    bits = (1 << (2 * whole.bit_length() + 128)) // whole + 1
    return bits >> (bits.bit_length() - 128)
