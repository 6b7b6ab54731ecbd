"""The key-value store."""

from collections.abc import Iterable, Iterator

from stage_writer.topologies.stores.keys import FIRST_KEY, Key, key_from_bytes, key_to_bytes, prefix_bounds
from stage_writer.topologies.stores.layers import Layers, Rising
from stage_writer.topologies.stores.values import Value, value_from_bytes, value_to_bytes


class KeyValueStore:
    """Values by keys. A returned value belongs to the caller: only `put` changes the store's content."""

    def __init__(self, name: str, layers: Layers) -> None:
        self.name = name
        self._layers = layers

    def get(self, key: Key) -> Value:
        """The key's value, or None."""
        data = self._layers.get(key_to_bytes(key))
        return None if data is None else value_from_bytes(data)

    def put(self, key: Key, value: Value) -> None:
        """Set the key's value; None deletes it."""
        self._layers.put(key_to_bytes(key), None if value is None else value_to_bytes(value))

    def put_all(self, entries: Iterable[tuple[Key, Value]]) -> None:
        """Set several."""
        for key, value in entries:
            self.put(key, value)

    def put_if_absent(self, key: Key, value: Value) -> Value:
        """Set the key's value if it has none. Returns the previous value, or None."""
        before = self.get(key)
        if before is None:
            self.put(key, value)
        return before

    def delete(self, key: Key) -> Value:
        """Delete the key. Returns the previous value, or None."""
        before = self.get(key)
        if before is not None:
            self.put(key, None)
        return before

    def range(self, low: Key = None, high: Key = None) -> Iterator[tuple[Key, Value]]:
        """The entries from ``low`` to ``high``, both inclusive, in key order; None means unbounded."""
        return self._scan(*_bounds(low, high))

    def reverse_range(self, low: Key = None, high: Key = None) -> Iterator[tuple[Key, Value]]:
        """Like `range`, with the highest key first."""
        return self._scan(*_bounds(low, high), reverse=True)

    def prefix(self, prefix: Key) -> Iterator[tuple[Key, Value]]:
        """The entries whose key starts with that text, those bytes, or those elements."""
        return self._scan(*prefix_bounds(prefix))

    def all(self) -> Iterator[tuple[Key, Value]]:
        """All entries, in the order of their keys."""
        return self._scan(FIRST_KEY, None)

    def approximate_num_entries(self) -> int:
        """The approximate number of entries."""
        return self._layers.count()

    def rising(self, key: Key, start: int) -> Rising:
        """An integer at a key that only this changes, and often; ``start`` until it is set."""
        return self._layers.rising(key_to_bytes(key), start, (value_to_bytes, value_from_bytes))

    def before_seal(self) -> None:
        """Called before the changes so far are sealed."""

    def _scan(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterator[tuple[Key, Value]]:
        for key, value in self._layers.scan(low, high, reverse=reverse):
            yield key_from_bytes(key), value_from_bytes(value)


def _bounds(low: Key, high: Key) -> tuple[bytes, bytes | None]:
    return FIRST_KEY if low is None else key_to_bytes(low), None if high is None else key_to_bytes(high) + b"\x00"
