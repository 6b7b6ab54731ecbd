"""What stores of windows and of sessions have in common: entries with a time, and an index of them by it.

Rules:

1. The index has a key for each entry, and no values: where an entry is there is told by who puts it.
2. What expires, and when: expiry.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stage_writer.topologies.stores.expiry import Expiry

if TYPE_CHECKING:
    from collections.abc import Callable

    from stage_writer.topologies.stores.layers import Layers


class TimedStore:
    """The entries of one store in the layers of a task."""

    def __init__(
        self, name: str, layers: Layers, by_time: Layers, retention_ms: int, entry_of: Callable[[bytes], bytes]
    ) -> None:
        """``entry_of`` makes an entry's key out of its key in the index."""
        self._name = name
        self._layers = layers
        self._by_time = by_time
        self._retention_ms = retention_ms
        self._entry_of = entry_of
        self._expiry = Expiry(layers, by_time, retention_ms, entry_of)

    @property
    def name(self) -> str:
        """The name it was added by."""
        return self._name

    @property
    def retention_ms(self) -> int:
        """How far back from the highest time it remembers."""
        return self._retention_ms

    @property
    def dropped(self) -> int:
        """How many puts were too late to be taken, since the program began."""
        return self._expiry.dropped

    def approximate_num_entries(self) -> int:
        """About how many entries there are, with some that have expired."""
        return self._by_time.count()

    def reread(self) -> None:
        """The layers hold another state."""
        self._expiry.reread()

    def _set(self, entry: bytes, at: bytes, data: bytes | None) -> None:
        """Put an entry that is ``at`` in the index; None deletes it."""
        if data is None:
            self._by_time.put(at, None)
        elif self._layers.get(entry) is None:
            self._by_time.put(at, b"")
        self._layers.put(entry, data)
