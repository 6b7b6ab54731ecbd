"""The records that flow through a topology, one at a time.

Rules:

1. A record is a value: nodes make new ones (`Record.with_value`), and a record's dict is not changed, because sibling
   nodes may share it.
2. The time of a record is event time in milliseconds since 1970: the time of its message in Kafka, or of the column
   that the source names.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

Key: TypeAlias = Any
"""None, str, int, float, bool, bytes, a tuple of these, or a window's key: the types that a store accepts as keys."""
Value: TypeAlias = Any
"""A dict for a decoded message, None for a tombstone; between nodes any type they agree on."""
Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]


new_tuple = tuple.__new__
"""Half the cost of a named tuple's own constructor."""


class Record(NamedTuple):
    """A key, a value and their time."""

    key: Key
    value: Value
    timestamp_ms: int
    headers: Headers = ()

    def with_key(self, key: Key) -> Record:
        """This record with another key."""
        return new_tuple(Record, (key, self.value, self.timestamp_ms, self.headers))

    def with_value(self, value: Value) -> Record:
        """This record with another value."""
        return new_tuple(Record, (self.key, value, self.timestamp_ms, self.headers))

    def with_pair(self, key: Key, value: Value) -> Record:
        """This record with another key and value."""
        return new_tuple(Record, (key, value, self.timestamp_ms, self.headers))

    def at(self, key: Key, value: Value, timestamp_ms: int) -> Record:
        """Another record with the headers of this one."""
        return new_tuple(Record, (key, value, timestamp_ms, self.headers))

    def with_timestamp(self, timestamp_ms: int) -> Record:
        """This record at another time."""
        return new_tuple(Record, (self.key, self.value, timestamp_ms, self.headers))

    def with_headers(self, headers: Headers) -> Record:
        """This record with other headers."""
        return new_tuple(Record, (self.key, self.value, self.timestamp_ms, headers))


class TopicRecord(NamedTuple):
    """A record for a Kafka topic, as bytes."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers
    index: int  # type: ignore[assignment] # hides the search of tuples, which no code uses
    """The number of the message that the record was made for."""
