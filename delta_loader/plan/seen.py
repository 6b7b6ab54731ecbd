"""What a pass has seen of one Kafka partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from common.spans import Position
    from common.stage.undeclared import UndeclaredFields


@dataclass(frozen=True, slots=True)
class SeenPartition:
    """How far one Kafka partition is at the end of a pass."""

    begins: Position
    """The start of the lowest marker."""
    loaded: Position | None
    staged: Position
    waiting: int
    """How many markers wait."""
    oldest_ms: int | None
    """When the first waiting marker was made; None when none waits or it has no time."""
    topic_id: str | None = None
    """The id of the topic that it was staged from; None where its markers do not have one."""
    ends: bool = True
    """Whether ``staged`` is the chain's end. False if it is somewhere before: not all of many waiting markers were
    read."""
    undeclared: UndeclaredFields | None = None
    """The fields of records that no column takes, from the markers near its position."""

    @property
    def lag(self) -> int:
        """How many positions are staged and not loaded."""
        return max(0, self.staged - (self.begins if self.loaded is None else self.loaded))
