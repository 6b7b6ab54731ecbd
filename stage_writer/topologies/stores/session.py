"""The session store: values by key and by the span of a session, both ends inclusive.

Rules:

1. An entry is ordered by its key, then the session's end and its start; so the sessions of one key are in the order of
   their ends. The order by time is end, key and start.
2. Sessions expire by their ends; see timed.py for when.
"""

from collections.abc import Iterator

from stage_writer.topologies.stores.key_value import FIRST_KEY
from stage_writer.topologies.stores.keys import (
    FOREVER_MS,
    NEVER_MS,
    TIME_BYTES,
    Key,
    Windowed,
    after_key,
    bound_to_bytes,
    key_at,
    key_to_bytes,
    time_at,
    time_to_bytes,
)
from stage_writer.topologies.stores.timed import TimedStore
from stage_writer.topologies.stores.values import Value, value_from_bytes, value_to_bytes


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


def index_key_of(entry: bytes) -> bytes | None:
    """An entry's position in the order by time (end, key, start). None for the store's internal entries."""
    if entry < FIRST_KEY:
        return None
    end = len(entry) - 2 * TIME_BYTES
    return entry[end:-TIME_BYTES] + entry[:end] + entry[-TIME_BYTES:]


def entry_of(index_key: bytes) -> bytes:
    return index_key[TIME_BYTES:-TIME_BYTES] + index_key[:TIME_BYTES] + index_key[-TIME_BYTES:]


def _entry(session: Windowed) -> bytes:
    return key_to_bytes(session.key) + time_to_bytes(session.end_ms) + time_to_bytes(session.start_ms)
