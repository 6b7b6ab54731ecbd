"""What has changed since the last markers, over a backend that stands at one of them.

Rules:

1. The backend never holds what no marker has sealed: changes are held in layers above it, the newest above all. One
   layer is open; those below it are sealed, and wait for their markers.
2. A sealed layer never changes.
3. A change is written down in the task's journal with what was there before, so that a record can be undone.
4. What one record, or a look-up, iterates over is the store as it was when it began to; nobody keeps an iterator
   beyond that. One that outlives the merging of a layer says so.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from sortedcontainers import SortedList

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stage_writer.topologies.stores.backend import Backend, Space, SpaceChanges


class Missing:
    """The type of `MISSING`."""


MISSING: Final = Missing()
"""Where a layer says nothing of a key; None says that the key was deleted."""
Entry = tuple[bytes, bytes]


class Layer:
    """The changes of one space between two seals; their order is kept from the first time that it is asked for."""

    __slots__ = ("_order", "_unordered", "size_bytes", "values")

    def __init__(self) -> None:
        self.values: SpaceChanges = {}
        self.size_bytes = 0
        """Of the keys, and of all values that were put since the layer began."""
        self._order: SortedList[bytes] | None = None
        self._unordered: list[bytes] = []
        """What came since the order was asked for, as it came."""

    def put(self, key: bytes, value: bytes | None) -> bytes | Missing | None:
        """Note a change; what was said of the key before."""
        values = self.values
        before = values.get(key, MISSING)
        values[key] = value
        if before is MISSING:
            self.size_bytes += len(key)
            if self._order is not None:
                self._unordered.append(key)
        if value is not None:
            self.size_bytes += len(value)
        return before

    def undo(self, key: bytes, before: bytes | Missing | None) -> None:
        """Say of a key what was said before the last change of all that is not undone."""
        if not isinstance(before, Missing):
            self.values[key] = before
            return
        del self.values[key]
        if self._unordered:
            self._unordered.pop()  # the last new key of all
        elif self._order is not None:
            self._order.remove(key)

    def within(self, low: bytes, high: bytes | None) -> Iterator[bytes]:
        """The keys from ``low`` up to but without ``high``, in their order."""
        if self._order is None:
            self._order = SortedList(self.values)
        elif self._unordered:
            self._order.update(self._unordered)
            self._unordered.clear()
        return iter(self._order.irange(low, high, inclusive=(True, False)))


class Journal:
    """What the changes of the current record have replaced."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: Final[list[tuple[Layer, bytes, bytes | Missing | None]]] = []

    def begin(self) -> None:
        """What was done up to now stays."""
        if self.entries:
            self.entries.clear()

    def undo_to(self, place: int) -> None:
        """Take back all but that many changes since `begin`."""
        for layer, key, before in reversed(self.entries[place:]):
            layer.undo(key, before)
        del self.entries[place:]


class Layers:
    """One space of a task, as its processors see it."""

    __slots__ = ("_backend", "_merges", "_note", "_open", "_sealed", "_space")

    def __init__(self, space: Space, backend: Backend, journal: Journal) -> None:
        self._space = space
        self._backend = backend
        self._note = journal.entries.append
        self._open = Layer()
        self._sealed: tuple[Layer, ...] = ()
        self._merges = 0

    def get(self, key: bytes) -> bytes | None:
        """A key's value, or None."""
        found = self._open.values.get(key, MISSING)
        if not isinstance(found, Missing):
            return found
        for layer in reversed(self._sealed):
            found = layer.values.get(key, MISSING)
            if not isinstance(found, Missing):
                return found
        return self._backend.get(self._space, key)

    def put(self, key: bytes, value: bytes | None) -> None:
        """Change a key's value; None deletes it."""
        layer = self._open
        self._note((layer, key, layer.put(key, value)))

    def scan(self, low: bytes = b"", high: bytes | None = None, *, reverse: bool = False) -> Iterator[Entry]:
        """The entries from ``low`` up to but without ``high``, in the order of their keys or its reverse (rule 4)."""
        changed: SpaceChanges = {}
        for layer in (*self._sealed, self._open):
            if layer.values:
                changed.update((key, layer.values[key]) for key in layer.within(low, high))
        below = self._below(low, high, reverse=reverse)
        if not changed:
            return below
        return _merged(sorted(changed.items(), reverse=reverse, key=_key), changed, below, reverse=reverse)

    def count(self) -> int:
        """About how many entries there are: keys in a layer count as new ones, deleted ones as gone."""
        layers = (*self._sealed, self._open)
        changed = sum(-1 if value is None else 1 for layer in layers for value in layer.values.values())
        return max(self._backend.count(self._space) + changed, 0)

    @property
    def size_bytes(self) -> int:
        """What the layers hold in memory."""
        return self._open.size_bytes + sum(layer.size_bytes for layer in self._sealed)

    def seal(self) -> SpaceChanges:
        """Begin a new layer; what has changed up to now, which nobody may change any more (rule 2)."""
        sealed = self._open
        self._sealed = (*self._sealed, sealed)
        self._open = Layer()
        return sealed.values

    def at_last_seal(self) -> Callable[[], Iterator[Entry]]:
        """Gives the entries of now, called right after a seal; from any thread, as long as no layer is merged."""
        sealed = self._sealed

        def entries() -> Iterator[Entry]:
            changed: SpaceChanges = {}
            for layer in sealed:
                changed.update(layer.values)
            return _merged(sorted(changed.items(), key=_key), changed, self._backend.scan(self._space), reverse=False)

        return entries

    def oldest(self) -> SpaceChanges:
        """The changes of the oldest sealed layer."""
        return self._sealed[0].values

    def merged(self) -> None:
        """The oldest sealed layer is in the backend now."""
        self._sealed = self._sealed[1:]
        self._merges += 1

    def forget(self) -> None:
        """The backend was filled anew: no layer is above it."""
        self._sealed, self._open = (), Layer()
        self._merges += 1

    def _below(self, low: bytes, high: bytes | None, *, reverse: bool) -> Iterator[Entry]:
        merges = self._merges
        for entry in self._backend.scan(self._space, low, high, reverse=reverse):
            if merges != self._merges:
                msg = "an iterator over a store was kept beyond the record that opened it: open a new one"
                raise RuntimeError(msg)
            yield entry


def _key(change: tuple[bytes, bytes | None]) -> bytes:
    return change[0]


def _merged(
    changes: list[tuple[bytes, bytes | None]], changed: SpaceChanges, below: Iterator[Entry], *, reverse: bool
) -> Iterator[Entry]:
    ahead = iter(changes)
    change = next(ahead, None)
    for entry in below:
        key = entry[0]
        while change is not None and (change[0] > key if reverse else change[0] < key):
            if change[1] is not None:
                yield change[0], change[1]
            change = next(ahead, None)
        if key not in changed:
            yield entry
    if change is not None:
        for key, value in chain((change,), ahead):
            if value is not None:
                yield key, value
