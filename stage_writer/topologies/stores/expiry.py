"""How stores of windows expire entries: by the highest time that was put into them.

Rules:

1. An entry ``retention_ms`` or more before the highest time that the store has seen is expired: it is not put, and not
   found, even if it is still held. So results depend on the records alone.
2. Expired entries are deleted before a flush, so those added since the last one are in no state. If the time has not
   moved, nothing more has expired, and nothing is scanned.
3. The highest time is part of the state. Undoing a record restores the time before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stage_writer.topologies.stores.keys import NEVER_MS, TIME_CODEC, bound_to_bytes

if TYPE_CHECKING:
    from stage_writer.topologies.stores.layers import Layers

HIGHEST_TIME = b"\x00highest_time"


class Expiry:
    """The time of one store."""

    def __init__(self, layers: Layers, retention_ms: int) -> None:
        self._layers = layers
        self._retention_ms = retention_ms
        self._highest = layers.rising(HIGHEST_TIME, NEVER_MS, TIME_CODEC)
        self._swept_to_ms: int | None = None
        self.dropped = 0
        """How many puts were too late since the program started."""

    @property
    def live_from_ms(self) -> int:
        """The first time that has not expired."""
        return self._highest.value - self._retention_ms + 1

    def admits(self, time_ms: int) -> bool:
        """Whether an entry with that time may be put; advances the store's time (rule 1)."""
        highest_ms = self._highest.value
        if time_ms > highest_ms:
            self._highest.set(time_ms)
        elif time_ms <= highest_ms - self._retention_ms:
            self.dropped += 1
            return False
        return True

    def sweep(self) -> None:
        """Delete expired entries (rule 2)."""
        end_ms = self.live_from_ms
        if end_ms != self._swept_to_ms and self._layers.expire(bound_to_bytes(end_ms)):
            self._swept_to_ms = end_ms
