"""The positions of a chain at which the state of a topology's task is known, and what a repair keeps of it.

Rules:

1. A flush's marker records the state at its start and at its end (common/stage/state_files.py). A marker made by hand
   does not change the state. A chain without any state in its markers belongs to a stream without a topology.
2. A chain is rewound to a position with a known state, so the next owner continues as if the later records had never
   been read. Below the position where a task started with an empty state, the state is empty too.
3. A marker made by a repair records the state there: those below it may be settled later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.stage.markers import Origin
from common.stage.state_files import EMPTY_STATE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from common.spans import Position
    from common.stage.chain import Chain
    from common.stage.markers import Marker
    from common.stage.state_files import StateFiles


@dataclass(frozen=True, slots=True)
class TaskStates:
    """The states in a chain's markers, by position."""

    known: Mapping[Position, StateFiles]

    @classmethod
    def of(cls, chain: Chain) -> TaskStates:
        """The states in the valid markers."""
        known: dict[Position, StateFiles] = {}
        for marker in chain.markers:
            state = None if marker.manifest is None else marker.manifest.state
            if state is not None:
                known[marker.span.start] = state.before
                known[marker.span.end] = state.files
            elif not _is_flush(marker) and marker.span.start in known:
                known[marker.span.end] = known[marker.span.start]
        return cls(known)

    def at(self, position: Position) -> StateFiles | None:
        """The state there, if known."""
        found = self.known.get(position)
        if found is None and self.known:
            lowest = min(self.known)
            return EMPTY_STATE if position < lowest and self.known[lowest] == EMPTY_STATE else None
        return found

    def sound(self, position: Position, is_sound: Callable[[Position], bool]) -> Position:
        """The highest sound position up to ``position`` with a known state; the position itself where there is none."""
        if not self.known or self.at(position) is not None:
            return position
        return max((place for place in self.known if place < position and is_sound(place)), default=position)

    def note(self, position: Position) -> tuple[str, ...]:
        """A note for the operator on the position of a rewind."""
        if not self.known or position == 0 or self.at(position) is not None:
            return ()
        note = (
            f"the state of the stream's topology at {position} is no longer known, so the writers will hold the "
            "partition; --to 0 --below-table rebuilds it from all records"
        )
        return (note,)


def _is_flush(marker: Marker) -> bool:
    return marker.manifest is not None and marker.manifest.origin is Origin.FLUSH
