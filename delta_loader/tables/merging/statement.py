"""The SQL that merges a load's staged events into a table.

Rules:

1. Of a load's events of one key, the last one wins. The last is by Kafka's order: topic, partition, offset, and of one
   message the last row. If one key is in two partitions, the higher partition therefore counts. With a sequence, an
   event counts only if its sequence is not lower than that of the table's row and of the key's events before it in the
   load. Of equal sequences the later event counts. A delete without a sequence always counts.
2. A load thus needs one row per key (last_events.py). That row alone decides whether a row of the table changes, no
   matter what the other events were. The result of the merge is the same as a replay of all events, one by one: tests
   verify that.
3. A delete removes the row, and its sequence is forgotten at the end of the load. With soft deletes the row stays as it
   was, or as the load's last upsert that counts made it, except for the flag and the sequence. If the table does not
   have the key, it gets a row with only key, flag and sequence. An older upsert that arrives later is thus recognized
   as older.
4. Rows that no event of the load is about are not read where the table's statistics allow it: the lowest and highest
   key of the load are literals in the condition (see `bounds`).
5. Columns of the table that the stream does not have are left as they are.
6. With ``event_columns``, a null in any other column leaves the row's value. The load's row for a key therefore
   carries, for each such column, the last value that the key's upserts gave it since the key was last deleted. It also
   carries the sequence that came with this value: the row's own sequence may be higher. An upsert after a delete that
   counts starts with a new row.
7. An event that truncates the source table is a delete without a sequence, at its place, of each key that the table or
   the load has.

The text is run by Spark, and by DuckDB in tests: both parse it in the same way except for quotes and IGNORE NULLS.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from common.tables.changes import DELETE_COLUMN
from delta_loader.tables.merging.inputs import MergeInputs
from delta_loader.tables.merging.last_events import (
    IMAGE,
    IMAGE_SEQUENCE,
    LAST_DELETES,
    LAST_SEQUENCE,
    PLAIN,
    RESET,
    RESET_SEQUENCE,
    came_with,
    last_events,
)


@dataclass(frozen=True, slots=True)
class MergeStatement(MergeInputs):
    """``text`` is the statement."""

    @property
    def text(self) -> str:
        keys = [f"{self.t_key(key)} = {self.s(key)}" for key in self.by.keys]
        clauses = self._hard() if self.by.soft_delete is None else self._soft(self.by.soft_delete)
        return "\n".join(
            (
                f"MERGE INTO {self.target} AS t",
                f"USING ({last_events(self)}) AS s",
                f"ON {' AND '.join((*keys, *self.bounds))}",
                *clauses,
            )
        )

    def _hard(self) -> Sequence[str]:
        delete, newer = self.s(DELETE_COLUMN), None
        gone = delete
        if self.by.sequence is not None:
            newer = self._newer(self.s(self.by.sequence), self.by.sequence)
            gone = f"(({newer} AND {delete}) OR (NOT {newer} AND {self.s(PLAIN)}))"
        changes = self._set()
        return (
            f"WHEN MATCHED AND {gone} THEN DELETE",
            *([f"WHEN MATCHED{f' AND {newer}' if newer else ''} THEN UPDATE SET {changes}"] if changes else []),
            f"WHEN NOT MATCHED AND NOT {delete} THEN {self.insert()}",
        )

    def _soft(self, soft_delete: str) -> Sequence[str]:
        sequence, image = self.by.sequence, self.s(IMAGE)
        if sequence is None:
            flag, condition = self.s(LAST_DELETES), ""
        else:
            newer = self._newer(self.s(LAST_SEQUENCE), sequence)
            flag = f"CASE WHEN {newer} THEN {self.s(LAST_DELETES)} ELSE true END"
            condition = f" AND ({newer} OR {self.s(PLAIN)})"
            image = f"({image} AND {self._newer(self.s(IMAGE_SEQUENCE), sequence)})"
        changes = [f"{self.q(soft_delete)} = {flag}"]
        if sequence is not None:
            changes.append(f"{self.q(sequence)} = greatest({self.t(sequence)}, {self.s(sequence)})")
        changes += (
            f"{self.q(name)} = CASE WHEN {image} THEN {self._value(name)} ELSE {self.t(name)} END"
            for name in self.columns
            if name not in (soft_delete, sequence, *self.by.keys)
        )
        return (
            f"WHEN MATCHED{condition} THEN UPDATE SET {', '.join(changes)}",
            f"WHEN NOT MATCHED THEN {self.insert()}",
        )

    def _newer(self, event: str, sequence: str) -> str:
        """Whether an event counts, by the row's sequence; an event without a sequence does."""
        row = self.t(sequence)
        return f"({row} IS NULL OR {event} IS NULL OR {event} >= {row})"

    def _set(self) -> str:
        return ", ".join(f"{self.q(name)} = {self._value(name)}" for name in self.columns if name not in self.by.keys)

    def _value(self, name: str) -> str:
        """The value that the load's last upsert gives a row's column."""
        given = self.s(name)
        if name not in self.patched:
            return given
        known, resets = f"{given} IS NOT NULL", [self.s(RESET)]
        sequence = self.by.sequence
        if sequence is not None:
            known += f" AND {self._newer(self.s(came_with(self.patched.index(name))), sequence)}"
            deleted = self.s(RESET_SEQUENCE)
            resets.append(f"({deleted} IS NOT NULL AND {self._newer(deleted, sequence)})")
        if self.by.soft_delete is not None:
            resets.append(f"coalesce({self.t(self.by.soft_delete)}, false)")
        return f"CASE WHEN {known} THEN {given} WHEN {' OR '.join(resets)} THEN NULL ELSE {self.t(name)} END"
