"""The interface to the bytes of a task's stores, and its implementation in memory.

Rules:

1. A backend holds ordered spaces that map bytes to bytes, and a mark that identifies the state of the task.
2. `Backend.apply` is all or nothing, with its mark: after a crash the backend is at the mark before or after.
3. Only `apply` and `clear` change it. Reads may come from another thread than writes, but never during a write
   (`TaskStores` ensures that).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sortedcontainers import SortedList


@dataclass(frozen=True, slots=True)
class Changes:
    """The last value of each key that changed; None where it was deleted. Treated as immutable."""

    spaces: Mapping[Space, Mapping[bytes, bytes | None]]
    """By the stores' names."""
    kinds: Mapping[Space, str] = field(default_factory=dict)
    """The kinds of all stores of the task: how their bytes are read."""

    @property
    def entries(self) -> int:
        """How many keys changed."""
        return sum(map(len, self.spaces.values()))

    @property
    def size_bytes(self) -> int:
        return sum(
            len(key) + (0 if value is None else len(value))
            for space in self.spaces.values()
            for key, value in space.items()
        )


Space = str
SpaceChanges = dict[bytes, "bytes | None"]
"""The last value of each key that has changed; None for a key that was deleted."""


class Backend(Protocol):
    """An ordered map of bytes, in spaces (rules 1 to 3). Raises `common.errors.StateError` when the disk fails."""

    @property
    def mark(self) -> str | None:
        """The mark of the state in it; None for an empty or half-restored backend."""

    def get(self, space: Space, key: bytes) -> bytes | None: ...

    def scan(
        self, space: Space, low: bytes = ..., high: bytes | None = ..., *, reverse: bool = ...
    ) -> Iterator[tuple[bytes, bytes]]:
        """The entries from ``low`` (inclusive) to ``high`` (exclusive), in key order or its reverse."""

    def count(self, space: Space) -> int:
        """The number of entries of a space, as far as it is known."""

    def apply(self, changes: Mapping[Space, Mapping[bytes, bytes | None]], mark: str | None) -> None:
        """Apply the changes and set the mark (rule 2)."""

    def clear(self) -> None:
        """Remove everything, the mark included."""

    @property
    def size_bytes(self) -> int:
        """Its size, in memory or on disk."""

    def close(self) -> None:
        """Release files and locks; files on disk stay."""


class MemoryBackend:
    """A `Backend` in memory: lost with the process."""

    def __init__(self) -> None:
        self._spaces: dict[Space, _Space] = {}
        self.mark: str | None = None

    def get(self, space: Space, key: bytes) -> bytes | None:
        held = self._spaces.get(space)
        return None if held is None else held.values.get(key)

    def scan(
        self, space: Space, low: bytes = b"", high: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        held = self._spaces.get(space)
        if held is not None:
            values = held.values
            for key in held.ordered().irange(low, high, inclusive=(True, False), reverse=reverse):
                yield key, values[key]

    def count(self, space: Space) -> int:
        held = self._spaces.get(space)
        return 0 if held is None else len(held.values)

    def apply(self, changes: Mapping[Space, Mapping[bytes, bytes | None]], mark: str | None) -> None:
        for name, changed in changes.items():
            space = self._spaces.setdefault(name, _Space())
            for key, value in changed.items():
                space.put(key, value)
        self.mark = mark

    def clear(self) -> None:
        self._spaces.clear()
        self.mark = None

    @property
    def size_bytes(self) -> int:
        return sum(space.size_bytes for space in self._spaces.values())

    def close(self) -> None:
        self.clear()


class _Space:
    """One space; its order is kept from its first use on."""

    __slots__ = ("_order", "size_bytes", "values")

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.size_bytes = 0
        self._order: SortedList[bytes] | None = None

    def ordered(self) -> SortedList[bytes]:
        if self._order is None:
            self._order = SortedList(self.values)
        return self._order

    def put(self, key: bytes, value: bytes | None) -> None:
        before = self.values.get(key)
        if value is None:
            if before is not None:
                del self.values[key]
                self.size_bytes -= len(key) + len(before)
                if self._order is not None:
                    self._order.remove(key)
            return
        if before is None:
            self.size_bytes += len(key)
            if self._order is not None:
                self._order.add(key)
        else:
            self.size_bytes -= len(before)
        self.size_bytes += len(value)
        self.values[key] = value
