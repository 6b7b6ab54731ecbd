"""The window store: values by key and by the time at which a window starts.

Rules:

1. An entry is ordered by its key, then its window's start, and where duplicates are kept a number that rises with each
   put; so the windows of one key are adjacent, in order of time. The order by time is start, key and number.
2. See timed.py for what expires, and when.
3. To fold a record into a window, a processor fetches it and then puts it: its encoded key is cached in between.
"""

from collections.abc import Iterator

from stage_writer.topologies.stores.key_value import FIRST_KEY
from stage_writer.topologies.stores.keys import (
    FOREVER_MS,
    NEVER_MS,
    TIME_BYTES,
    Key,
    Windowed,
    after_prefix,
    bound_to_bytes,
    key_at,
    key_to_bytes,
    time_at,
    time_to_bytes,
)
from stage_writer.topologies.stores.layers import Layers
from stage_writer.topologies.stores.timed import TimedStore
from stage_writer.topologies.stores.values import Value, value_from_bytes, value_to_bytes

_SEQUENCE = b"\x00sequence"
_SEQUENCE_BYTES = 8
_SEQUENCE_CODEC = (lambda number: number.to_bytes(_SEQUENCE_BYTES, "big"), lambda data: int.from_bytes(data, "big"))


class WindowStore(TimedStore):
    """Values by key and window start. Windows older than the retention are neither accepted nor found."""

    def __init__(self, name: str, layers: Layers, retention_ms: int, size_ms: int, *, duplicates: bool) -> None:
        super().__init__(name, layers, retention_ms)
        self.size_ms = size_ms
        """The length of a window; used for the window ends in the keys of `fetch_keys` and `all`."""
        self._next = layers.rising(_SEQUENCE, 0, _SEQUENCE_CODEC) if duplicates else None
        self._last: tuple[Key, int, bytes] | None = None

    def put(self, key: Key, value: Value, window_start_ms: int) -> None:
        """Set a window's value, or add one where duplicates are kept; None deletes it (them)."""
        entry = self._entry(key, window_start_ms)
        data = None if value is None else value_to_bytes(value)
        if not self._admits(window_start_ms):
            return
        if self._next is None:
            self._layers.put(entry, data)
        elif data is not None:
            number = self._next.value
            self._next.set(number + 1)
            self._layers.put(entry + number.to_bytes(_SEQUENCE_BYTES, "big"), data)
        else:
            for row, _ in self._layers.scan(entry, after_prefix(entry)):
                self._layers.put(row, None)

    def fetch(self, key: Key, window_start_ms: int) -> Value:
        """A window's value, or None. Where duplicates are kept: the first of them."""
        if self._next is not None or not NEVER_MS <= window_start_ms <= FOREVER_MS:
            return next((value for _, value in self.fetch_range(key, window_start_ms, window_start_ms)), None)
        data = self._layers.get(self._entry(key, window_start_ms))
        return None if data is None or window_start_ms < self._live_from_ms else value_from_bytes(data)

    def fetch_range(
        self, key: Key, from_ms: int = NEVER_MS, to_ms: int = FOREVER_MS, *, reverse: bool = False
    ) -> Iterator[tuple[int, Value]]:
        """Start and value of a key's windows that start from ``from_ms`` to ``to_ms``, both inclusive, by time."""
        prefix = key_to_bytes(key)
        low = prefix + bound_to_bytes(max(from_ms, self._live_from_ms))
        high = prefix + bound_to_bytes(to_ms + 1)
        for entry, value in self._layers.scan(low, high, reverse=reverse):
            yield time_at(entry, len(prefix)), value_from_bytes(value)

    def fetch_keys(self, from_ms: int = NEVER_MS, to_ms: int = FOREVER_MS) -> Iterator[tuple[Windowed, Value]]:
        """All keys' windows that start from ``from_ms`` to ``to_ms``, both inclusive, by time and then by key."""
        low = bound_to_bytes(max(from_ms, self._live_from_ms))
        high = bound_to_bytes(to_ms + 1)
        for index_key, value in self._layers.scan_by_time(low, high):
            start_ms = time_at(index_key, 0)
            yield Windowed(key_at(index_key, TIME_BYTES)[0], start_ms, start_ms + self.size_ms), value_from_bytes(value)

    def all(self) -> Iterator[tuple[Windowed, Value]]:
        """All windows, by time and then by key."""
        return self.fetch_keys()

    def _entry(self, key: Key, start_ms: int) -> bytes:
        """The stored key of a window (rule 3)."""
        last = self._last
        if last is not None and last[0] is key and last[1] == start_ms:
            return last[2]
        entry = key_to_bytes(key) + time_to_bytes(start_ms)
        self._last = (key, start_ms, entry)
        return entry


def index_key_of(entry: bytes) -> bytes | None:
    """An entry's position in the order by time; None for the store's internal entries."""
    if entry < FIRST_KEY:
        return None
    return entry[-TIME_BYTES:] + entry[:-TIME_BYTES]


def entry_of(index_key: bytes) -> bytes:
    """The inverse of `index_key_of`."""
    return index_key[TIME_BYTES:] + index_key[:TIME_BYTES]


def duplicate_index_key_of(entry: bytes) -> bytes | None:
    """Like `index_key_of`, where duplicates are kept."""
    if entry < FIRST_KEY:
        return None
    numbered = len(entry) - _SEQUENCE_BYTES
    start = numbered - TIME_BYTES
    return entry[start:numbered] + entry[:start] + entry[numbered:]


def duplicate_entry_of(index_key: bytes) -> bytes:
    """Like `entry_of`, where duplicates are kept."""
    return index_key[TIME_BYTES:-_SEQUENCE_BYTES] + index_key[:TIME_BYTES] + index_key[-_SEQUENCE_BYTES:]
