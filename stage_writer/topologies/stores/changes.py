"""The changes of a task's stores between two seals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stage_writer.topologies.stores.backend import Space


@dataclass(frozen=True, slots=True)
class Changes:
    """The last value of each key that changed; None where it was deleted. Treated as immutable."""

    spaces: Mapping[Space, Mapping[bytes, bytes | None]]
    """By the stores' names."""
    kinds: Mapping[Space, str] = field(default_factory=dict)
    """The kinds of all stores of the task: how their bytes are read."""

    @property
    def entries(self) -> int:
        """How many keys changed."""
        return sum(map(len, self.spaces.values()))

    @property
    def size_bytes(self) -> int:
        """Of the keys and values."""
        return sum(
            len(key) + (0 if value is None else len(value))
            for space in self.spaces.values()
            for key, value in space.items()
        )
