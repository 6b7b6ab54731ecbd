"""The common parts of window and session stores: entries with a time, and expiry (expiry.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stage_writer.topologies.stores.expiry import Expiry

if TYPE_CHECKING:
    from stage_writer.topologies.stores.layers import Layers


class TimedStore:
    def __init__(self, name: str, layers: Layers, retention_ms: int) -> None:
        self.name = name
        """The name it was added with."""
        self.retention_ms = retention_ms
        """How long before the highest time entries are kept."""
        self._layers = layers
        self._expiry = Expiry(layers, retention_ms)

    @property
    def dropped(self) -> int:
        """How many puts were too late to be accepted, since the program started."""
        return self._expiry.dropped

    def approximate_num_entries(self) -> int:
        """The approximate number of entries, including some that have expired."""
        return self._layers.count()

    def before_seal(self) -> None:
        """Called before the changes so far are sealed."""
        self._expiry.sweep()
