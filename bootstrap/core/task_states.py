"""Where on a chain the state of a topology's task is known: what a repair keeps of it.

Rules:

1. A flush's marker says what the state was where it begins and where it ends (common/stage/state_files.py). A marker
   made by hand changes nothing of it. A chain none of whose markers says anything is of a stream without a topology.
2. A chain is rewound to a place whose state is known, so that the next owner goes on as if what came after had never
   been. Below where a task began with nothing there is nothing either.
3. A marker that a repair makes says what the state is there: those below it may be settled later.
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
    """The states that a chain's markers know, by their positions."""

    known: Mapping[Position, StateFiles]

    @classmethod
    def of(cls, chain: Chain) -> TaskStates:
        """What the living markers say."""
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
        """The state there, as far as it is known."""
        found = self.known.get(position)
        if found is None and self.known:
            lowest = min(self.known)
            return EMPTY_STATE if position < lowest and self.known[lowest] == EMPTY_STATE else None
        return found

    def sound(self, position: Position, is_sound: Callable[[Position], bool]) -> Position:
        """The highest sound place up to ``position`` whose state is known; the place itself where there is none."""
        if not self.known or self.at(position) is not None:
            return position
        return max((place for place in self.known if place < position and is_sound(place)), default=position)

    def note(self, position: Position) -> tuple[str, ...]:
        """What a person has to know of a place that is rewound to."""
        if not self.known or position == 0 or self.at(position) is not None:
            return ()
        note = (
            f"the state of the stream's topology at {position} is no longer known, so the writers will hold the "
            "partition; --to 0 --below-table rebuilds it from all records"
        )
        return (note,)


def _is_flush(marker: Marker) -> bool:
    return marker.manifest is not None and marker.manifest.origin is Origin.FLUSH
