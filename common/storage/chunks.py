"""Bytes in pieces: a file that was made in memory, and is sent without a second complete copy.

Rules:

1. It is never changed once it is made.
2. A slice is a bytes object of its own, so a store's client can send a part, and only that part is copied.
"""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate


class ByteChunks:
    """An immutable sequence of bytes, held in the original pieces."""

    __slots__ = ("_ends", "parts")

    def __init__(self, chunks: Iterable[bytes] = ()) -> None:
        self.parts = tuple(chunk for chunk in chunks if chunk)
        self._ends = tuple(accumulate(map(len, self.parts)))

    @property
    def size_bytes(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __len__(self) -> int:
        return self.size_bytes

    def __getitem__(self, bounds: slice) -> bytes:
        """The bytes ``[start:stop]``; without a step."""
        start, stop, step = bounds.indices(self.size_bytes)
        if step != 1:
            raise ValueError("pieces cannot be sliced with a step")
        pieces: list[bytes] = []
        index = bisect_right(self._ends, start)
        while start < stop:
            piece_start = self._ends[index] - len(self.parts[index])
            pieces.append(self.parts[index][start - piece_start : stop - piece_start])
            start, index = self._ends[index], index + 1
        return b"".join(pieces)

    def to_bytes(self) -> bytes:
        """All bytes, as a copy unless it is one piece."""
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)
