"""A topology's state and undelivered outboxes at the positions of a chain. Repairs keep both.

Rules:

1. A flush's marker records the state at its start and at its end (common/stage/task_files.py). A marker made by hand
   does not change the state. If no marker of a chain has a state, its stream has no topology.
2. A chain is rewound to a position whose state is known. The next owner then continues as if the later records had
   never been read. Below the position where a task started with an empty state, the state is empty too.
3. A marker made by a repair records the state and the outboxes at its position, and so does an origin: the markers
   below may be settled later.
4. The outboxes at a position are those that the last marker below it names, and those that the markers above it name
   and that start before the position. A marker names every outbox that is not known to be delivered, also if the
   markers below it are settled. Outboxes that were delivered meanwhile are passed over by the delivery
   (stage_writer/outbox/delivery.py, rules 3 and 4).
5. Where a table has more than the chain, a marker that was put aside may name the outbox with those records
   (common/stage/put_aside.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bootstrap.plans.state import PartitionState, TaskPoint
from common.spans import Position
from common.stage.markers import Origin
from common.stage.put_aside import outboxes_beyond
from common.stage.task_files import EMPTY_STATE, OutboxName, StateFiles


@dataclass(frozen=True, slots=True)
class TaskStates:
    known: Mapping[Position, StateFiles]
    chain: PartitionState

    @classmethod
    def from_chain(cls, chain: PartitionState) -> TaskStates:
        known: dict[Position, StateFiles] = {}
        origin = chain.origin
        if origin is not None and origin.state is not None:
            known[origin.position] = origin.state
        for marker in chain.chain.markers:
            state = None if marker.manifest is None else marker.manifest.state
            if state is not None:
                known[marker.span.start] = state.before
                known[marker.span.end] = state.files
            elif marker.origin is not Origin.FLUSH and marker.span.start in known:
                known[marker.span.end] = known[marker.span.start]
        return cls(known, chain)

    def point(self, position: Position) -> TaskPoint:
        """The record in an operator's marker or origin for a chain that continues there."""
        return TaskPoint(self.at(position), self.outboxes(position))

    def at(self, position: Position) -> StateFiles | None:
        files = self.known.get(position)
        if files is None and self.known:
            lowest = min(self.known)
            return EMPTY_STATE if position < lowest and self.known[lowest] == EMPTY_STATE else None
        return files

    def highest_sound(self, position: Position, is_sound: Callable[[Position], bool]) -> Position:
        """The highest sound position up to ``position`` with a known state; the position itself where there is none."""
        if self.at(position) is not None:
            return position
        return max(
            (known_position for known_position in self.known if known_position < position and is_sound(known_position)),
            default=position,
        )

    def note(self, position: Position) -> tuple[str, ...]:
        if not self.known or position == 0 or self.at(position) is not None:
            return ()
        note = (
            f"the state of the stream's topology at {position} is no longer known, so the writers will hold the "
            "partition; --to 0 --below-table rebuilds it from all records"
        )
        return (note,)

    def outboxes(self, position: Position) -> tuple[str, ...]:
        """The outboxes not known to be delivered there, oldest first (rules 4 and 5)."""
        origin = self.chain.origin
        named = () if origin is None else origin.outboxes
        for marker in self.chain.chain.markers:
            if marker.manifest is not None:
                below = () if marker.span.end <= position else named
                named = (*below, *marker.manifest.outboxes)
        named = (*named, *self._loaded_beyond())
        parsed = ((path, OutboxName.parse(path)) for path in dict.fromkeys(named))
        return tuple(path for path, name in parsed if name is not None and name.start < position)

    def _loaded_beyond(self) -> tuple[str, ...]:
        """The outboxes of what all tables have and the chain lacks (rule 5)."""
        chain, loaded = self.chain, self.chain.in_all_tables
        if loaded is None:
            return ()
        return outboxes_beyond(chain.put_aside, chain.end, chain.staged_generation, loaded)
