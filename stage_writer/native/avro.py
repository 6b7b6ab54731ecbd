"""The `AvroPass` in C: passes it the plan of a record and the messages' buffers, and has the JSON texts of the result.

Rules:

1. The GIL is released while C reads (by `ctypes`).
2. The texts are copied once, into memory of Arrow's.
3. What only Python makes a text of is left to it: a record with such a value is not taken.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stage_writer.decode.binary.avro_plan import AvroKind, AvroNode
from stage_writer.decode.binary.texts import quoted

_TEXT = len(AvroKind)
"""The kind of an enum's symbol."""
_DEEPEST = 150


class AvroLibrary:
    """The functions of the compiled `avro_reader.c`. Raises OSError for another file."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        try:
            self.new, self.free = library.kde_avro_new, library.kde_avro_free
            self.read, self.take = library.kde_avro_read, library.kde_avro_take
        except AttributeError as error:
            raise OSError(f"{path} is a different library: {error}") from error
        self.new.restype, self.new.argtypes = pointer, [pointer, ctypes.c_int32, ctypes.c_char_p, number]
        self.free.restype, self.free.argtypes = None, [pointer]
        self.read.restype = number
        self.read.argtypes = [pointer, pointer, number, pointer, number, pointer, pointer]
        self.take.restype, self.take.argtypes = None, [pointer, pointer]

    def avro_pass(self, node: AvroNode) -> NativeAvroReader | None:
        """A `MakeAvroPass`."""
        laid_out = avro_parts(node)
        return None if laid_out is None else NativeAvroReader(self, *laid_out)


class NativeAvroReader:
    """Makes the JSON of records. Not thread-safe."""

    def __init__(self, library: AvroLibrary, parts: NDArray[np.int32], texts: bytes) -> None:
        self._library = library
        self._handle = library.new(parts.ctypes.data, len(parts), texts, len(texts))
        if not self._handle:
            raise MemoryError(f"no reader for {len(parts)} values of an Avro record")
        weakref.finalize(self, library.free, self._handle)

    def read(self, bodies: pa.LargeBinaryArray) -> tuple[pa.LargeBinaryArray, NDArray[np.bool_]]:
        """The JSON of the ordinary records, and for each body whether it is one."""
        count = len(bodies)
        verdicts, ends = np.zeros(count, np.uint8), np.zeros(count + 1, np.int64)
        _, bounds, data = bodies.buffers()
        if count == 0 or data is None or data.size == 0:
            return pa.array([], pa.large_binary()), verdicts != 0
        offsets = np.frombuffer(bounds, np.int64)[bodies.offset : bodies.offset + count + 1]
        size = self._library.read(
            self._handle,
            data.address,
            data.size,
            offsets.ctypes.data,
            count,
            verdicts.ctypes.data,
            ends[1:].ctypes.data,
        )
        if size < 0:
            raise MemoryError(f"no memory for the JSON of {data.size} bytes of Avro")
        buffer = pa.allocate_buffer(size)
        self._library.take(self._handle, buffer.address)
        is_taken = verdicts != 0
        taken = int(np.count_nonzero(is_taken))
        starts = pa.py_buffer(ends[: taken + 1])
        return pa.Array.from_buffers(pa.large_binary(), taken, [None, starts, buffer]), is_taken


@dataclass(slots=True)
class _Part:
    """A node, what comes before its value in the JSON, and how deep it is."""

    node: AvroNode | None
    begin: bytes
    depth: int
    children: list[_Part] = field(default_factory=list)
    place: int = 0


def avro_parts(node: AvroNode) -> tuple[NDArray[np.int32], bytes] | None:
    """A plan in the form of the reader in C: numbers for each node, and texts. None for one that is too deep.

    The nodes of a record's fields are consecutive, and come after the record.
    """
    parts = [_Part(node, b"", 0)]
    for place, part in enumerate(parts):  # which grows
        if part.depth > _DEEPEST:
            return None
        part.place = place
        part.children = list(_children(part))
        parts.extend(part.children)
    starts = np.cumsum([0, *(len(part.begin) for part in parts)]).tolist()
    rows = [(*_numbers(part), start, len(part.begin)) for part, start in zip(parts, starts, strict=False)]
    return np.array(rows, np.int32), b"".join(part.begin for part in parts)


def _children(part: _Part) -> Iterator[_Part]:
    node, depth = part.node, part.depth + 1
    if node is None or node.kind is AvroKind.OTHER:
        return
    match node.kind:
        case AvroKind.ENUM:
            for symbol in node.names:
                yield _Part(None, quoted(symbol).encode(), depth)
        case AvroKind.RECORD:
            for number, (name, inner) in enumerate(zip(node.names, node.parts, strict=True)):
                yield _Part(inner, f"{',' if number else '{'}{quoted(name)}:".encode(), depth)
        case _:
            for inner in node.parts:
                yield _Part(inner, b"", depth)


def _numbers(part: _Part) -> tuple[int, int, int, int, int, int]:
    first = part.children[0].place if part.children else 0
    node, count = part.node, 2 * len(part.children)
    if node is None:
        return _TEXT, 0, -1, 0, 0, 0
    return node.kind, node.bits, node.size, node.digits, count + node.zone, first
