"""The window and the session store: entries with a time, which expire by the highest time that was put.

Rules:

1. An entry ``retention_ms`` or more before the highest time that the store has seen is expired: it is not put, and not
   found, even if it is still held. So results depend on the records alone.
2. Expired entries are deleted before a flush, so those added since the last one are in no state. If the time has not
   moved, nothing more has expired, and nothing is scanned.
3. The highest time is part of the state. Undoing a record restores the time before it.
4. A window is ordered by its key, then its start, and where duplicates are kept a number that rises with each put; so
   the windows of one key are adjacent, in order of time. The order by time is start, key and number.
5. A session is ordered by its key, then its end, by which it expires, and its start; both ends are inclusive. The order
   by time is end, key and start.
6. To fold a record into a window, a processor fetches it and then puts it: its encoded key is cached in between.
"""

from collections.abc import Iterator

from stage_writer.topologies.stores.keys import (
    FOREVER_MS,
    NEVER_MS,
    TIME_BYTES,
    TIME_CODEC,
    Key,
    Windowed,
    after_key,
    after_prefix,
    bound_to_bytes,
    key_at,
    key_to_bytes,
    time_at,
    time_to_bytes,
)
from stage_writer.topologies.stores.layers import Layers
from stage_writer.topologies.stores.values import Value, value_from_bytes, value_to_bytes

SEQUENCE_BYTES = 8
_SEQUENCE = b"\x00sequence"
_SEQUENCE_CODEC = (lambda number: number.to_bytes(SEQUENCE_BYTES, "big"), lambda data: int.from_bytes(data, "big"))
_HIGHEST_TIME = b"\x00highest_time"


class TimedStore:
    def __init__(self, name: str, layers: Layers, retention_ms: int) -> None:
        self.name = name
        self.retention_ms = retention_ms
        """How long before the highest time entries are kept."""
        self.dropped = 0
        """How many puts were too late to be accepted, since the program started."""
        self._layers = layers
        self._highest = layers.rising(_HIGHEST_TIME, NEVER_MS, TIME_CODEC)
        self._swept_to_ms: int | None = None

    def approximate_num_entries(self) -> int:
        """The approximate number of entries, including some that have expired."""
        return self._layers.count()

    def before_seal(self) -> None:
        """Delete expired entries (rule 2); called before the changes so far are sealed."""
        end_ms = self._live_from_ms
        if end_ms != self._swept_to_ms and self._layers.expire(bound_to_bytes(end_ms)):
            self._swept_to_ms = end_ms

    @property
    def _live_from_ms(self) -> int:
        return self._highest.value - self.retention_ms + 1

    def _admits(self, time_ms: int) -> bool:
        """Whether an entry with that time may be put; advances the store's time (rule 1)."""
        highest_ms = self._highest.value
        if time_ms > highest_ms:
            self._highest.set(time_ms)
        elif time_ms <= highest_ms - self.retention_ms:
            self.dropped += 1
            return False
        return True


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
            self._layers.put(entry + number.to_bytes(SEQUENCE_BYTES, "big"), data)
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
        """The stored key of a window (rule 6)."""
        last = self._last
        if last is not None and last[0] is key and last[1] == start_ms:
            return last[2]
        entry = key_to_bytes(key) + time_to_bytes(start_ms)
        self._last = (key, start_ms, entry)
        return entry


class SessionStore(TimedStore):
    """Values by session. Sessions that ended before the retention are neither accepted nor found."""

    def put(self, session: Windowed, aggregate: Value) -> None:
        """Set a session's value; None deletes it."""
        entry = _entry(session)
        data = None if aggregate is None else value_to_bytes(aggregate)
        if self._admits(session.end_ms):
            self._layers.put(entry, data)

    def remove(self, session: Windowed) -> None:
        """Delete a session."""
        self._layers.put(_entry(session), None)

    def fetch_session(self, session: Windowed) -> Value:
        """A session's value, or None."""
        if session.end_ms < self._live_from_ms:
            return None
        data = self._layers.get(_entry(session))
        return None if data is None else value_from_bytes(data)

    def fetch(self, key: Key) -> Iterator[tuple[Windowed, Value]]:
        """A key's sessions, by their ends."""
        return self.find_sessions(key, NEVER_MS, FOREVER_MS)

    def find_sessions(self, key: Key, earliest_end_ms: int, latest_start_ms: int) -> Iterator[tuple[Windowed, Value]]:
        """A key's sessions that end then or later and start then or earlier, by their ends and then their starts."""
        prefix = key_to_bytes(key)
        low = prefix + bound_to_bytes(max(earliest_end_ms, self._live_from_ms))
        for entry, value in self._layers.scan(low, after_key(prefix)):
            start_ms = time_at(entry, len(prefix) + TIME_BYTES)
            if start_ms <= latest_start_ms:
                yield Windowed(key, start_ms, time_at(entry, len(prefix))), value_from_bytes(value)

    def all(self) -> Iterator[tuple[Windowed, Value]]:
        """All sessions, by their ends and then by key."""
        for index_key, value in self._layers.scan_by_time(bound_to_bytes(self._live_from_ms)):
            key, end = key_at(index_key, TIME_BYTES)
            yield Windowed(key, time_at(index_key, end), time_at(index_key, 0)), value_from_bytes(value)


def _entry(session: Windowed) -> bytes:
    return key_to_bytes(session.key) + time_to_bytes(session.end_ms) + time_to_bytes(session.start_ms)
