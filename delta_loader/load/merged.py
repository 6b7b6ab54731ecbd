"""Keeps loads of chains of several topics apart from rewinds of them, by the rules of `common.stage.loading`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from common.errors import StoreError
from common.stage.loading import LoadNote, loading_folder, loading_path
from common.stage.merged import is_merged
from common.stage.repair_lock import LastRepair, last_repair, repairs_folder
from delta_loader.plan.held import repaired, under_repair
from delta_loader.tables.commits import Conflicted, Failed, NotWritten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from common.ports import Clock, ObjectStore
    from common.spans import Position, TopicPartition
    from delta_loader.plan.held import Held
    from delta_loader.plan.plan import Load
    from delta_loader.ports import NewId
    from delta_loader.tables.commits import CommitOutcome, TableCommit


class MergedLoads:
    """The loads of such chains in one pass over one stream. Streams without such chains make no store requests here."""

    def __init__(
        self, stage: ObjectStore, clock: Clock, new_id: NewId, hold: Callable[[TopicPartition, Held], None]
    ) -> None:
        """``hold`` records why a chain waits."""
        self._stage = stage
        self._clock = clock
        self._new_id = new_id
        self._hold = hold
        self._turns: dict[TopicPartition, LastRepair] = {}
        self._notes: dict[str, Position] = {}
        self._is_certain = True
        """Whether it is certain that no table has anything of the load that was started."""

    def check_repairs(
        self, waiting: Iterable[TopicPartition], position_of: Callable[[TopicPartition], Position | None]
    ) -> None:
        """Check for repairs before the markers of chains are read (rule 1). Raises StoreError."""
        for partition in filter(_is_merged, waiting):
            self._turns[partition] = turn = _last_turn(self._stage, partition)
            if not turn.ended:
                self._hold(partition, under_repair(partition, turn.number))
            for item in list(self._stage.list(loading_folder(partition))):
                data, position = self._stage.read(item.path), position_of(partition)
                if data is not None and position is not None and LoadNote.from_bytes(data).end <= position:
                    self._stage.delete([item.path])

    def begin(self, load: Load) -> bool:
        """Note a load; False, with some chain held, when the plan has to be made again. Raises StoreError."""
        self._notes, self._is_certain = {}, True
        for partition in filter(_is_merged, load.runs):
            path, note = (
                loading_path(partition, self._new_id()),
                LoadNote(load.runs[partition].end, self._clock.wall_ms()),
            )
            self._notes[path] = note.end
            self._stage.create(path, note.to_bytes())
            turn = _last_turn(self._stage, partition)
            if turn != self._turns.get(partition):
                self._hold(partition, repaired(partition) if turn.ended else under_repair(partition, turn.number))
                self._forget()
                return False
        return True

    def commit(self, commit: TableCommit, carry_out: Callable[[TableCommit], CommitOutcome]) -> CommitOutcome:
        """Carry out a commit and record whether some of the load may be in a table."""
        before, self._is_certain = self._is_certain, self._is_certain and not commit.metadata.spans
        outcome = carry_out(commit)
        if isinstance(outcome, Conflicted | Failed | NotWritten):
            self._is_certain = before
        return outcome

    def end(self, load: Load, position_of: Callable[[TopicPartition], Position | None]) -> None:
        """End the load, successful or not (rule 3)."""
        loaded = all(
            (position_of(partition) or 0) >= load.runs[partition].end for partition in filter(_is_merged, load.runs)
        )
        if loaded or self._is_certain:
            self._forget()

    def _forget(self) -> None:
        with suppress(StoreError):  # leftovers are deleted once the table exists
            self._stage.delete(self._notes)
        self._notes = {}


def repair_of(stage: ObjectStore, partition: TopicPartition) -> Held | None:
    """The repair for which a chain of several topics waits; None for any other chain. Raises StoreError."""
    turn = _last_turn(stage, partition) if _is_merged(partition) else None
    return None if turn is None or turn.ended else under_repair(partition, turn.number)


def _last_turn(stage: ObjectStore, partition: TopicPartition) -> LastRepair:
    return last_repair(item.path for item in stage.list(repairs_folder(partition)))


def _is_merged(partition: TopicPartition) -> bool:
    return is_merged(partition.topic)
