"""Keeps loads of chains of several topics, and first loads, apart from rewinds, by `common.stage.loading`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from common.errors import StoreError
from common.ports import ObjectStore
from common.spans import Position, TopicPartition
from common.stage.chain_origins import newest_origin
from common.stage.loading import LoadNote, loading_folder, loading_path
from common.stage.markers import MarkerName
from common.stage.merged import is_merged
from common.stage.repair_lock import LastRepair, last_repair
from delta_loader.plan.held import Held, repaired, under_repair
from delta_loader.plan.plan import Load
from delta_loader.stage.generations import unfinished_repair
from delta_loader.tables.commits import CommitOutcome, Conflicted, Failed, NotWritten, TableCommit

if TYPE_CHECKING:
    from delta_loader.load.ports import Ports


class MergedLoads:
    """The loads of such chains in one pass over one stream. Other loads make no store requests here."""

    def __init__(self, ports: Ports, hold: Callable[[TopicPartition, Held], None]) -> None:
        """``hold`` records why a chain waits."""
        self._ports = ports
        self._stage = ports.stage.store
        self._hold = hold
        self._repairs: dict[TopicPartition, LastRepair] = {}
        self._notes: dict[TopicPartition, str] = {}
        self._is_certain = True
        """Whether it is certain that no table has anything of the load that was started."""

    def check_repairs(
        self,
        waiting: Mapping[TopicPartition, Sequence[MarkerName]],
        position_of: Callable[[TopicPartition], Position | None],
    ) -> None:
        """Check for repairs before the markers of chains are read (rule 1). Raises StoreError.

        ``waiting`` are the listed markers of the chains that wait to be loaded. The lowest ones may be strays, so that
        the load will begin at a later one.
        """
        noted = [
            partition
            for partition, names in waiting.items()
            if needs_note(partition, position_of(partition), names[-1].start)
        ]
        repairs = self._ports.parallel(lambda partition: last_repair(self._stage, partition), noted)
        for partition, repair in zip(noted, repairs, strict=True):
            self._repairs[partition] = repair
            if not repair.ended and needs_note(partition, position_of(partition), waiting[partition][0].start):
                self._hold(partition, under_repair(partition, repair))
            if is_merged(partition.topic):
                self._delete_covered(partition, position_of(partition))

    def begin(
        self,
        load: Load,
        positions: Mapping[TopicPartition, Position | None],
        origin_of: Callable[[TopicPartition], Position | None],
    ) -> bool:
        """Note a load; False, with some chain held, when the plan has to be made again. Raises StoreError, MarkerError.

        The plan was made with these ``positions`` of the main table and these origins of the chains.
        """
        noted = [
            partition for partition, run in load.runs.items() if needs_note(partition, positions[partition], run.start)
        ]
        self._notes = {partition: loading_path(partition, self._ports.new_id()) for partition in noted}
        self._is_certain = True

        def note(partition: TopicPartition) -> Held | None:
            end = load.runs[partition].end
            self._stage.create(self._notes[partition], LoadNote(end, self._ports.clock.wall_ms()).to_bytes())
            repair = last_repair(self._stage, partition)
            if not repair.ended:
                return under_repair(partition, repair)
            return repaired(partition) if self._is_repaired(partition, repair, origin_of(partition)) else None

        reasons = [
            (partition, reason)
            for partition, reason in zip(noted, self._ports.parallel(note, noted), strict=True)
            if reason
        ]
        for partition, reason in reasons:
            self._hold(partition, reason)
        if reasons:
            self._forget()
        return not reasons

    def _is_repaired(self, partition: TopicPartition, repair: LastRepair, known: Position | None) -> bool:
        if repair != self._repairs.get(partition):
            return True
        if is_merged(partition.topic):
            return False
        # A repair that ended after the markers were listed, before `check_repairs`, shows in the origin alone.
        origin = newest_origin(self._stage, partition)
        return origin is not None and origin.first_position != known

    def commit(self, commit: TableCommit, carry_out: Callable[[TableCommit], CommitOutcome]) -> CommitOutcome:
        """Carry out a commit and record whether some of the load may be in a table."""
        before, self._is_certain = self._is_certain, self._is_certain and not commit.metadata.spans
        outcome = carry_out(commit)
        if isinstance(outcome, Conflicted | Failed | NotWritten):
            self._is_certain = before
        return outcome

    def end(self, load: Load, position_of: Callable[[TopicPartition], Position | None]) -> None:
        """End the load, successful or not (rule 3)."""
        loaded = all((position_of(partition) or 0) >= load.runs[partition].end for partition in self._notes)
        first = [partition for partition in self._notes if not is_merged(partition.topic)] if loaded else []
        if loaded or self._is_certain:
            self._forget()
        with suppress(StoreError):  # no later load of such a chain looks for the notes of loaders that died
            self._ports.parallel(lambda partition: self._delete_covered(partition, position_of(partition)), first)

    def _delete_covered(self, partition: TopicPartition, position: Position | None) -> None:
        for item in list(self._stage.list(loading_folder(partition))):
            data = self._stage.read(item.path)
            if data is not None and position is not None and LoadNote.from_bytes(data).end <= position:
                self._stage.delete([item.path])

    def _forget(self) -> None:
        with suppress(StoreError):  # leftovers are deleted once the table exists
            self._stage.delete(self._notes.values())
        self._notes = {}


def needs_note(partition: TopicPartition, position: Position | None, start: Position) -> bool:
    """Whether a rewind has to know of a load from ``start`` on: it is of several topics, or the first of its chain."""
    return is_merged(partition.topic) or (position is None and start > 0)


def repair_of(stage: ObjectStore, partition: TopicPartition, position: Position | None, start: Position) -> Held | None:
    """The repair for which a load from ``start`` on waits; None if it waits for none. Raises StoreError."""
    return unfinished_repair(stage, partition) if needs_note(partition, position, start) else None
