"""How stores of windows forget: by the highest time that was put into them.

Rules:

1. What is ``retention_ms`` or more before the highest time that the store has seen is expired: it is not put, and it is
   not found, whether it is still held or not. So what is seen depends on the records alone.
2. Expired entries are deleted in strides, through an index of the entries by time; the index is made from the entries
   and not stored with them.
3. The highest time is part of the state. An undone record takes back what it moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stage_writer.topologies.stores.keys import bound_to_bytes, time_at, time_to_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from stage_writer.topologies.stores.layers import Layers

HIGHEST_TIME = b"\x00highest_time"
NEVER_MS = -(1 << 62)
FOREVER_MS = 1 << 62
_STRIDES = 8  # of a retention


class Expiry:
    """The time of one store, and its entries by time."""

    def __init__(self, layers: Layers, by_time: Layers, retention_ms: int, entry_of: Callable[[bytes], bytes]) -> None:
        """``entry_of`` makes an entry's key out of its key in the index."""
        self._layers = layers
        self._by_time = by_time
        self._retention_ms = retention_ms
        self._entry_of = entry_of
        self._stride_ms = max(retention_ms // _STRIDES, 1)
        self.dropped = 0
        """How many puts came too late since the program began."""
        self.reread()

    @property
    def live_from_ms(self) -> int:
        """The first time that is not expired."""
        return self._highest_ms - self._retention_ms + 1

    def admits(self, time_ms: int) -> bool:
        """Whether an entry of that time may be put; moves the store's time (rule 1)."""
        if time_ms > self._highest_ms:
            self._move(time_ms)
        elif time_ms < self.live_from_ms:
            self.dropped += 1
            return False
        return True

    def reread(self) -> None:
        """The layers were set back, or hold another state (rule 3)."""
        found = self._layers.get(HIGHEST_TIME)
        self._highest_ms = NEVER_MS if found is None else time_at(found, 0)
        self._swept_ms = self._highest_ms
        self._swept_to = b""

    def _move(self, time_ms: int) -> None:
        self._highest_ms = time_ms
        self._layers.put(HIGHEST_TIME, time_to_bytes(time_ms))
        if time_ms - self._swept_ms >= self._stride_ms:
            self._swept_ms = time_ms
            # From where the last sweep ended: what it deleted is still noted as deleted, and would be passed again.
            low, self._swept_to = self._swept_to, bound_to_bytes(self.live_from_ms)
            for key, _ in self._by_time.scan(low, self._swept_to):
                self._by_time.put(key, None)
                self._layers.put(self._entry_of(key), None)
