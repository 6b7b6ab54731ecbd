"""The common parts of window and session stores: entries with a time, which expire by the highest time that was put.

Rules:

1. An entry ``retention_ms`` or more before the highest time that the store has seen is expired: it is not put, and not
   found, even if it is still held. So results depend on the records alone.
2. Expired entries are deleted before a flush, so those added since the last one are in no state. If the time has not
   moved, nothing more has expired, and nothing is scanned.
3. The highest time is part of the state. Undoing a record restores the time before it.
"""

from stage_writer.topologies.stores.keys import NEVER_MS, TIME_CODEC, bound_to_bytes
from stage_writer.topologies.stores.layers import Layers

HIGHEST_TIME = b"\x00highest_time"


class TimedStore:
    def __init__(self, name: str, layers: Layers, retention_ms: int) -> None:
        self.name = name
        self.retention_ms = retention_ms
        """How long before the highest time entries are kept."""
        self.dropped = 0
        """How many puts were too late to be accepted, since the program started."""
        self._layers = layers
        self._highest = layers.rising(HIGHEST_TIME, NEVER_MS, TIME_CODEC)
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
