"""The changes since the last markers, in layers over a backend that is at one of them.

Rules:

1. The backend never holds unsealed changes: they are in layers above it, the newest on top. One layer is open; those
   below it are sealed, and wait for their markers.
2. A sealed layer never changes.
3. A change is recorded in the task's journal with the previous value, so that a record can be undone.
4. An iterator of one record, or of a lookup, sees the store as it was at its start; callers do not keep it longer. An
   iterator that outlives the merging of a layer raises an error.
5. Entries with a time are ordered by time too: the layers compute that order themselves; the backend has an index.
   Expired entries are deleted at the end of a layer, so most of them never enter a state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Final, cast

from sortedcontainers import SortedList

from stage_writer.topologies.stores.backend import Backend, Space, SpaceChanges
from stage_writer.topologies.stores.keys import FIRST_KEY, TIME_BYTES

NumberCodec = tuple[Callable[[int], bytes], Callable[[bytes], int]]


class Missing(Enum):
    """The type of `MISSING`."""

    MISSING = 0


MISSING: Final = Missing.MISSING
"""The value of a key for which a layer has no entry. (None says that the key was deleted.)"""
Entry = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """The order of entries by time: in a space of its own, whose keys start with the time, and which has no values."""

    space: Space
    bytes_after_time: int
    """The length of what follows the time in an entry's key: it is the last part of the index's key, too."""

    def index_key_of(self, key: bytes) -> bytes | None:
        """An entry's position in the order by time. None for the store's internal entries."""
        if key < FIRST_KEY:
            return None
        end = len(key) - self.bytes_after_time
        start = end - TIME_BYTES
        return key[start:end] + key[:start] + key[end:]

    def key_of(self, index_key: bytes) -> bytes:
        """The inverse of `index_key_of`."""
        end = len(index_key) - self.bytes_after_time
        return index_key[TIME_BYTES:end] + index_key[:TIME_BYTES] + index_key[end:]


class _Order:
    __slots__ = ("_index_key_of", "_new", "_ordered")

    def __init__(self, index: Index | None, keys: Iterable[bytes]) -> None:
        """Without an index the keys are in their own order."""
        self._index_key_of = _itself if index is None else index.index_key_of
        self._ordered: SortedList[bytes] = SortedList()
        self._new = list(keys)
        """Additions since the order was last used, in order of arrival."""

    def add(self, key: bytes) -> None:
        self._new.append(key)

    def remove_last(self, key: bytes) -> None:
        if self._new:
            self._new.pop()
            return
        index_key = self._index_key_of(key)
        if index_key is not None:
            self._ordered.remove(index_key)

    def within(self, low: bytes, high: bytes | None) -> Iterator[bytes]:
        if self._new:
            self._ordered.update(index_key for index_key in map(self._index_key_of, self._new) if index_key is not None)
            self._new.clear()
        return iter(self._ordered.irange(low, high, inclusive=(True, False)))


class Layer:
    """The changes of one space between two seals; an order is kept from its first use on."""

    __slots__ = ("_orders", "size_bytes", "values")

    def __init__(self) -> None:
        self.values: SpaceChanges = {}
        self.size_bytes = 0
        """The size of the keys, and of all values put since the layer started."""
        self._orders: dict[Index | None, _Order] = {}

    def put(self, key: bytes, value: bytes | None) -> bytes | Missing | None:
        """Record a change; returns the layer's previous entry for the key."""
        values = self.values
        before = values.get(key, MISSING)
        values[key] = value
        if before is MISSING:
            self.size_bytes += len(key)
            for order in self._orders.values():
                order.add(key)
        if value is not None:
            self.size_bytes += len(value)
        return before

    def undo(self, key: bytes, before: object) -> None:
        """Restore the layer's entry from before the key's most recent change that is not undone."""
        if before is not MISSING:
            self.values[key] = cast("bytes | None", before)
            return
        del self.values[key]
        for order in self._orders.values():
            order.remove_last(key)

    def forget(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            del self.values[key]
            self.size_bytes -= len(key)
        self._orders.clear()

    def within(self, low: bytes, high: bytes | None, index: Index | None = None) -> Iterator[bytes]:
        """The keys from ``low`` (inclusive) to ``high`` (exclusive), in order; or their positions in an index."""
        order = self._orders.get(index)
        if order is None:
            order = self._orders[index] = _Order(index, self.values)
        return order.within(low, high)


class Rising:
    """An integer in a store that changes with nearly every record: converted to bytes only at a layer's end."""

    __slots__ = ("_from_bytes", "_key", "_note", "_start", "_to_bytes", "_written", "value")

    def __init__(self, key: bytes, start: int, codec: NumberCodec, journal: Journal) -> None:
        self._key = key
        self._to_bytes, self._from_bytes = codec
        self._note = journal.entries.append
        self._start = self._written = self.value = start

    def set(self, value: int) -> None:
        self._note((self, self._key, self.value))
        self.value = value

    def undo(self, _key: bytes, before: object) -> None:
        """Undo the most recent change that is not undone."""
        self.value = cast("int", before)

    def reread(self, stored: bytes | None) -> None:
        """The layers hold another state now."""
        self._written = self.value = self._start if stored is None else self._from_bytes(stored)

    def write(self, layer: Layer) -> None:
        """Add it to the changes of a layer that ends, if it changed."""
        if self.value != self._written:
            layer.put(self._key, self._to_bytes(self.value))
            self._written = self.value


class Journal:
    """The values that the changes of the current record have replaced."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: Final[list[tuple[Layer | Rising, bytes, object]]] = []

    def begin(self) -> None:
        """Keep all changes so far."""
        if self.entries:
            self.entries.clear()

    def undo_to(self, length: int) -> None:
        """Undo all changes since `begin` except the given number of first ones."""
        for changed, key, before in reversed(self.entries[length:]):
            changed.undo(key, before)
        del self.entries[length:]


class Layers:
    """One space of a task, as its processors see it."""

    __slots__ = ("_backend", "_index", "_journal", "_merges", "_note", "_open", "_rising", "_sealed", "_space")

    def __init__(self, space: Space, backend: Backend, journal: Journal, index: Index | None = None) -> None:
        """``index`` is present when the entries have a time."""
        self._space = space
        self._backend = backend
        self._index = index
        self._journal = journal
        self._note = journal.entries.append
        self._open = Layer()
        self._sealed: tuple[Layer, ...] = ()
        self._rising: dict[bytes, Rising] = {}
        self._merges = 0

    def rising(self, key: bytes, start: int, codec: NumberCodec) -> Rising:
        """The number that is kept at a key, which nothing else may change; the same object for all callers."""
        if key not in self._rising:
            self._rising[key] = Rising(key, start, codec, self._journal)
            self._rising[key].reread(self.get(key))
        return self._rising[key]

    def get(self, key: bytes) -> bytes | None:
        value = self._open.values.get(key, MISSING)
        return self._below_open(key) if value is MISSING else value

    def _below_open(self, key: bytes) -> bytes | None:
        for layer in reversed(self._sealed):
            value = layer.values.get(key, MISSING)
            if value is not MISSING:
                return value
        return self._backend.get(self._space, key)

    def put(self, key: bytes, value: bytes | None) -> None:
        """Change a key's value; None deletes it."""
        layer = self._open
        self._note((layer, key, layer.put(key, value)))

    def scan(self, low: bytes = b"", high: bytes | None = None, *, reverse: bool = False) -> Iterator[Entry]:
        """The entries from ``low`` (inclusive) to ``high`` (exclusive), in key order or its reverse (rule 4)."""
        changed: SpaceChanges = {}
        for layer in (*self._sealed, self._open):
            if layer.values:
                changed.update((key, layer.values[key]) for key in layer.within(low, high))
        below = self._below(low, high, self._space, reverse=reverse)
        if not changed:
            return below
        return _merged(sorted(changed.items(), reverse=reverse, key=_key), changed, below, reverse=reverse)

    def scan_by_time(self, low: bytes = b"", high: bytes | None = None) -> Iterator[Entry]:
        """The entries positioned from ``low`` (inclusive) to ``high`` (exclusive) by time, in that order (rule 4)."""
        index = self._indexed()
        changed: SpaceChanges = {}
        for layer in (*self._sealed, self._open):
            if layer.values:
                changed.update(
                    (index_key, layer.values[index.key_of(index_key)]) for index_key in layer.within(low, high, index)
                )
        below = self._below(low, high, index.space)
        for index_key, value in _merged(sorted(changed.items()), changed, below, reverse=False):
            data = value or self._backend.get(self._space, index.key_of(index_key))  # the index has no values
            if data is not None:
                yield index_key, data

    def expire(self, end: bytes) -> bool:
        """Delete the entries positioned below ``end``: at the end of a layer, because this is not undone (rule 5).

        Entries in layers that wait for their markers stay until a later call after these are merged; then it returns
        False.
        """
        index, layer = self._indexed(), self._open
        expired = [
            key for key in layer.values if (index_key := index.index_key_of(key)) is not None and index_key < end
        ]
        known = {key for key in expired if self._below_open(key) is not None}
        layer.forget(key for key in expired if key not in known)
        for index_key, _ in self._backend.scan(index.space, b"", end):
            key = index.key_of(index_key)
            if self._below_open(key) is not None:
                known.add(key)
        for key in known:
            layer.put(key, None)
        return not self._sealed

    def _indexed(self) -> Index:
        if self._index is None:
            raise RuntimeError(f"the entries of the store {self._space} have no time")
        return self._index

    def count(self) -> int:
        """The approximate number of entries: keys in a layer count as new, deleted ones as gone."""
        layers = (*self._sealed, self._open)
        changed = sum(-1 if value is None else 1 for layer in layers for value in layer.values.values())
        return max(self._backend.count(self._space) + changed, 0)

    @property
    def size_bytes(self) -> int:
        return self._open.size_bytes + sum(layer.size_bytes for layer in self._sealed)

    def seal(self) -> SpaceChanges:
        """Start a new layer. Returns the changes so far, which are immutable from now on (rule 2)."""
        sealed = self._open
        for rising in self._rising.values():
            rising.write(sealed)
        self._sealed = (*self._sealed, sealed)
        self._open = Layer()
        return sealed.values

    def at_last_seal(self) -> Callable[[], Iterator[Entry]]:
        """Iterates over the entries of now; call it right after a seal, in any thread, while no layer is merged."""
        sealed = self._sealed

        def entries() -> Iterator[Entry]:
            changed: SpaceChanges = {}
            for layer in sealed:
                changed.update(layer.values)
            return _merged(sorted(changed.items(), key=_key), changed, self._backend.scan(self._space), reverse=False)

        return entries

    def oldest(self) -> SpaceChanges:
        return self._sealed[0].values

    def merged(self) -> None:
        """The oldest sealed layer is in the backend now: drop it."""
        self._sealed = self._sealed[1:]
        self._merges += 1

    def forget(self) -> None:
        """The backend was filled again: drop all layers above it."""
        self._sealed, self._open = (), Layer()
        self._merges += 1
        for key, rising in self._rising.items():
            rising.reread(self.get(key))

    def _below(self, low: bytes, high: bytes | None, space: Space, *, reverse: bool = False) -> Iterator[Entry]:
        merges = self._merges
        for entry in self._backend.scan(space, low, high, reverse=reverse):
            if merges != self._merges:
                raise RuntimeError("an iterator over a store was used after the record that opened it: open a new one")
            yield entry


def _itself(key: bytes) -> bytes:
    return key


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
