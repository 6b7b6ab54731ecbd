"""The SQL that merges a load's staged events into a table.

Rules:

1. Of a load's events of one key, the last one wins: the last in Kafka's order (topic, partition, offset; of one message
   the last row), so if one key is in two partitions, the higher partition counts. With a sequence, an event counts only
   if none of the key's events before it in the load, and not the table's row, has a higher one; of equal ones the later
   counts. A delete without a sequence always counts.
2. A load thus needs one row per key (`source`), and that row alone decides whether a row of the table changes, no
   matter what the other events were. The result of the merge is the same as a replay of all events, one by one: tests
   verify that.
3. A delete removes the row; its sequence is forgotten at the end of the load. With soft deletes the row stays as it
   was, or as the load's last upsert that counts made it, except for the flag and the sequence; a key that the table
   does not have gets a row with nothing else, so that older upserts that arrive later are recognized as older.
4. Rows that no event of the load is about are not read where the table's statistics allow it: the lowest and highest
   key of the load are literals in the condition (see `bounds`).
5. Columns of the table that the stream does not have are left as they are.
6. With ``event_columns``, a null in any other column leaves the row's value. So an upsert of the load carries, for each
   such column, the last value that the key's upserts gave it since the key was last deleted, and the sequence that came
   with this value: the row's own sequence may be higher. An upsert after a delete that counts starts with a new row.
7. An event that truncates the source table is a delete without a sequence, at its place, of each key that the table or
   the load has.

The text is run by Spark, and by DuckDB in tests: both parse it in the same way except for quotes and IGNORE NULLS.
"""

# ruff: noqa: S608 - every name is quoted, and no value of a record is in a text but as `bounds` writes it

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from common.schema import backticks
from common.tables.changes import DELETE_COLUMN, RESERVED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from common.tables.changes import MergeBy

_APPLIES = f"{RESERVED}applies"
_RANK = f"{RESERVED}rank"
_IMAGE = f"{RESERVED}image"
_IMAGE_SEQUENCE = f"{RESERVED}image_sequence"
_LAST_DELETES = f"{RESERVED}last_deletes"
_LAST_SEQUENCE = f"{RESERVED}last_sequence"
_PLAIN = f"{RESERVED}plain"
_SEGMENT = f"{RESERVED}segment"
_RESET = f"{RESERVED}reset"
_RESET_SEQUENCE = f"{RESERVED}reset_sequence"
RUNNING = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"


@dataclass(frozen=True, slots=True)
class MergeStatement:
    """All inputs of a merge; ``text`` is the statement."""

    target: str
    """The table's name in SQL."""
    staged: str
    """The view of the staged rows."""
    columns: tuple[str, ...]
    """The staged rows' columns that the table has."""
    by: MergeBy
    bounds: tuple[str, ...] = ()
    """Conditions on ``t`` that are true for all rows that an event of the load may be about."""
    quote: Callable[[str], str] = backticks
    truncated: str | None = None
    """The table in SQL, as it is before the load, where that has events that truncate it (rule 7)."""
    last_known: str = "last_value({}) IGNORE NULLS"
    """The window function for the last value that is not null."""

    @property
    def text(self) -> str:
        keys = [f"{self._t_key(key)} = {self._s(key)}" for key in self.by.keys]
        clauses = self._hard() if self.by.soft_delete is None else self._soft(self.by.soft_delete)
        return "\n".join(
            (
                f"MERGE INTO {self.target} AS t",
                f"USING ({self.source}) AS s",
                f"ON {' AND '.join((*keys, *self.bounds))}",
                *clauses,
            )
        )

    def with_truncated(self, before: str) -> MergeStatement:
        """The statement for a load with events that truncate the table; ``before`` is as in ``truncated``."""
        return replace(self, bounds=(), truncated=before)

    @property
    def source(self) -> str:
        """One row per key of the load (rules 1 and 2)."""
        if self.by.soft_delete is None:
            return self._last_events()
        return self._last_images(self.by.soft_delete)

    # One row per key.

    def _last_events(self) -> str:
        columns = [self._q(name) for name in (*self.columns, *self._made_keys, DELETE_COLUMN)]
        ranked = [f"{self._rank(f'{self._q(_APPLIES)} DESC')} AS {self._q(_RANK)}"]
        if self.by.sequence is not None:
            columns += [self._q(_PLAIN)]
            ranked += [f"{self._any_plain()} AS {self._q(_PLAIN)}"]
        columns += map(self._q, self._of_composed)
        return (
            f"SELECT {', '.join(columns)} FROM (SELECT *, {', '.join(ranked)} FROM ({self._composed()}) AS judged) "
            f"AS ranked WHERE {self._q(_RANK)} = 1"
        )

    def _last_images(self, soft_delete: str) -> str:
        """Each key's last upsert that counts, with the effect of its last event; null where there is no upsert."""
        q, delete = self._q, self._q(DELETE_COLUMN)
        image = f"({q(_APPLIES)} AND NOT {delete})"
        last = f"OVER (PARTITION BY {self._keys()} ORDER BY {q(_APPLIES)} DESC, {self._place('DESC')})"
        made = [
            f"{self._rank(f'{image} DESC')} AS {q(_RANK)}",
            f"{image} AS {q(_IMAGE)}",
            f"first_value({delete}) {last} AS {q(_LAST_DELETES)}",
        ]
        kept = [q(_IMAGE), q(_LAST_DELETES), *map(q, self._of_composed)]
        sequence = self.by.sequence
        if sequence is not None:
            made += [
                f"first_value({q(sequence)}) {last} AS {q(_LAST_SEQUENCE)}",
                f"{q(sequence)} AS {q(_IMAGE_SEQUENCE)}",
                f"max({q(sequence)}) OVER (PARTITION BY {self._keys()}) AS {q(f'{RESERVED}highest')}",
                f"{self._any_plain()} AS {q(_PLAIN)}",
            ]
            kept += [q(_LAST_SEQUENCE), q(_IMAGE_SEQUENCE), q(_PLAIN)]
        chosen = [self._in_last_image(name, soft_delete) for name in (*self.columns, *self._made_keys)]
        columns = ", ".join((*chosen, *kept))
        ranked = f"SELECT *, {', '.join(made)} FROM ({self._composed()}) AS judged"
        return f"SELECT {columns} FROM ({ranked}) AS ranked WHERE {q(_RANK)} = 1"

    def _in_last_image(self, name: str, soft_delete: str) -> str:
        q = self._q
        if name in self.by.keys:
            return q(name)
        if name == soft_delete:
            return f"{q(_LAST_DELETES)} AS {q(name)}"
        if name == self.by.sequence:
            return f"{q(f'{RESERVED}highest')} AS {q(name)}"
        return f"CASE WHEN {q(_IMAGE)} THEN {q(name)} END AS {q(name)}"

    def _judged(self) -> str:
        """The staged events, each with whether it counts among those of the load."""
        if self.by.sequence is None:
            return f"SELECT *, true AS {self._q(_APPLIES)} FROM {self.events()}"
        sequence = self._q(self.by.sequence)
        highest = f"max({sequence}) OVER (PARTITION BY {self._keys()} ORDER BY {self._place('ASC')} {RUNNING})"
        return f"SELECT *, ({sequence} IS NULL OR {sequence} >= {highest}) AS {self._q(_APPLIES)} FROM {self.events()}"

    def events(self) -> str:
        """The staged events, with a delete of each key in place of one of all rows."""
        truncate = self.by.truncate
        if self.truncated is None or truncate is None:
            return self.staged
        of_all, keys = self._q(truncate), self._keys()
        others = dict.fromkeys((*self.columns, *self._made_keys, *self.by.order, DELETE_COLUMN))
        names = [*self.by.keys, *(name for name in others if name not in self.by.keys)]
        events = f"SELECT {', '.join(map(self._q, names))} FROM {self.staged} WHERE NOT {of_all}"
        there = f"SELECT {keys} FROM {self.truncated}"
        if self.by.soft_delete is not None:
            there += f" WHERE NOT coalesce({self._q(self.by.soft_delete)}, false)"
        known = f"{there} UNION SELECT {keys} FROM {self.staged} WHERE NOT {of_all}"
        made = [f"{'k' if name in self.by.keys else 'e'}.{self._q(name)}" for name in names]
        deletes = f"SELECT {', '.join(made)} FROM ({known}) AS k CROSS JOIN {self.staged} AS e WHERE e.{of_all}"
        return f"({events} UNION ALL {deletes}) AS events"

    @property
    def _patched(self) -> tuple[str, ...]:
        """The columns in which a null leaves the row's value (rule 6)."""
        if self.by.event_columns is None:
            return ()
        others = {*self.by.keys, *self.by.event_columns, self.by.sequence, self.by.soft_delete}
        return tuple(name for name in self.columns if name not in others)

    @property
    def _of_composed(self) -> tuple[str, ...]:
        """The columns that `_composed` adds, for the table's row to be compared with."""
        if not self._patched:
            return ()
        if self.by.sequence is None:
            return (_RESET,)
        return (_RESET, _RESET_SEQUENCE, *map(self._came_with, range(len(self._patched))))

    def _came_with(self, number: int) -> str:
        return f"{RESERVED}came_with_{number}"

    def _composed(self) -> str:
        """The judged events, where upserts have the values of the key's earlier ones that they leave as they are."""
        if not self._patched:
            return self._judged()
        q, sequence = self._q, self.by.sequence
        deletes, upserts = (f"({q(_APPLIES)} AND {what}{q(DELETE_COLUMN)})" for what in ("", "NOT "))
        key = f"OVER (PARTITION BY {self._keys()} ORDER BY {self._place('ASC')} {RUNNING})"
        within = f"OVER (PARTITION BY {self._keys()}, {q(_SEGMENT)} ORDER BY {self._place('ASC')} {RUNNING})"
        others = dict.fromkeys((*self.columns, *self.by.order, DELETE_COLUMN, _APPLIES))
        made = [q(name) for name in others if name not in self._patched]
        for number, name in enumerate(self._patched):
            given = f"{upserts} AND {q(name)} IS NOT NULL"
            made.append(f"{self.last_known.format(f'CASE WHEN {given} THEN {q(name)} END')} {within} AS {q(name)}")
            if sequence is not None:
                came = self.last_known.format(f"CASE WHEN {given} THEN {q(sequence)} END")
                made.append(f"{came} {within} AS {q(self._came_with(number))}")
        always = deletes if sequence is None else f"{deletes} AND {q(sequence)} IS NULL"
        made.append(f"(max(CASE WHEN {always} THEN 1 ELSE 0 END) {key} = 1) AS {q(_RESET)}")
        if sequence is not None:
            made.append(f"max(CASE WHEN {deletes} THEN {q(sequence)} END) {key} AS {q(_RESET_SEQUENCE)}")
        segments = f"sum(CASE WHEN {deletes} THEN 1 ELSE 0 END) {key} AS {q(_SEGMENT)}"
        return f"SELECT {', '.join(made)} FROM (SELECT *, {segments} FROM ({self._judged()}) AS one) AS parted"

    def _any_plain(self) -> str:
        """Whether the load has a delete of the key that always counts."""
        plain = f"{self._q(DELETE_COLUMN)} AND {self._q(self.by.sequence or '')} IS NULL"
        return f"(max(CASE WHEN {plain} THEN 1 ELSE 0 END) OVER (PARTITION BY {self._keys()}) = 1)"

    def _rank(self, first: str) -> str:
        return f"row_number() OVER (PARTITION BY {self._keys()} ORDER BY {first}, {self._place('DESC')})"

    def _keys(self) -> str:
        return ", ".join(map(self._q, self.by.keys))

    def _place(self, direction: str) -> str:
        return ", ".join(f"{self._q(name)} {direction}" for name in self.by.order)

    # The changes to the rows.

    def _hard(self) -> Sequence[str]:
        delete, newer = self._s(DELETE_COLUMN), None
        gone = delete
        if self.by.sequence is not None:
            newer = self._newer(self._s(self.by.sequence), self.by.sequence)
            gone = f"(({newer} AND {delete}) OR (NOT {newer} AND {self._s(_PLAIN)}))"
        changes = self._set()
        return (
            f"WHEN MATCHED AND {gone} THEN DELETE",
            *([f"WHEN MATCHED{f' AND {newer}' if newer else ''} THEN UPDATE SET {changes}"] if changes else []),
            f"WHEN NOT MATCHED AND NOT {delete} THEN {self._insert()}",
        )

    def _soft(self, soft_delete: str) -> Sequence[str]:
        sequence, image = self.by.sequence, self._s(_IMAGE)
        if sequence is None:
            flag, condition = self._s(_LAST_DELETES), ""
        else:
            newer = self._newer(self._s(_LAST_SEQUENCE), sequence)
            flag = f"CASE WHEN {newer} THEN {self._s(_LAST_DELETES)} ELSE true END"
            condition = f" AND ({newer} OR {self._s(_PLAIN)})"
            image = f"({image} AND {self._newer(self._s(_IMAGE_SEQUENCE), sequence)})"
        changes = [f"{self._q(soft_delete)} = {flag}"]
        if sequence is not None:
            changes.append(f"{self._q(sequence)} = greatest({self._t(sequence)}, {self._s(sequence)})")
        changes += (
            f"{self._q(name)} = CASE WHEN {image} THEN {self._value(name)} ELSE {self._t(name)} END"
            for name in self.columns
            if name not in (soft_delete, sequence, *self.by.keys)
        )
        return (
            f"WHEN MATCHED{condition} THEN UPDATE SET {', '.join(changes)}",
            f"WHEN NOT MATCHED THEN {self._insert()}",
        )

    def _newer(self, event: str, sequence: str) -> str:
        """Whether an event counts, by the row's sequence; an event without a sequence does."""
        row = self._t(sequence)
        return f"({row} IS NULL OR {event} IS NULL OR {event} >= {row})"

    def _set(self) -> str:
        return ", ".join(f"{self._q(name)} = {self._value(name)}" for name in self.columns if name not in self.by.keys)

    def _value(self, name: str) -> str:
        """What a column of a row becomes by the load's last upsert."""
        given = self._s(name)
        if name not in self._patched:
            return given
        known, resets = f"{given} IS NOT NULL", [self._s(_RESET)]
        sequence = self.by.sequence
        if sequence is not None:
            known += f" AND {self._newer(self._s(self._came_with(self._patched.index(name))), sequence)}"
            deleted = self._s(_RESET_SEQUENCE)
            resets.append(f"({deleted} IS NOT NULL AND {self._newer(deleted, sequence)})")
        if self.by.soft_delete is not None:
            resets.append(f"coalesce({self._t(self.by.soft_delete)}, false)")
        return f"CASE WHEN {known} THEN {given} WHEN {' OR '.join(resets)} THEN NULL ELSE {self._t(name)} END"

    def _insert(self) -> str:
        names, values = map(self._q, self.columns), map(self._s, self.columns)
        return f"INSERT ({', '.join(names)}) VALUES ({', '.join(values)})"

    def _q(self, name: str) -> str:
        return self.quote(name)

    def _s(self, name: str) -> str:
        return f"s.{self.quote(name)}"

    def _t(self, name: str) -> str:
        return f"t.{self.quote(name)}"

    def _t_key(self, key: str) -> str:
        return self._t(key)

    @property
    def _made_keys(self) -> tuple[str, ...]:
        """The keys that are no columns of the table."""
        return tuple(key for key in self.by.keys if key not in self.columns)
