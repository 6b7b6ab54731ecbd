"""The SQL that merges the elements of records (`explode`), each a row of the table.

Rules:

1. The keys of an element may be inside a column. The events have these keys as columns of their own, which are compared
   with the part of the table's column.
2. Where other keys name the record, the record's rows are replaced together. Whether an event counts is decided for the
   record, by the highest sequence of its rows and by the events before it in the load. An element of the table, or of
   an event that counts, is deleted by the next event that counts, if neither this event nor a later one has the
   element. What is left to merge are events of single elements, by the same rules as any others. Example: the table has
   elements a and b, and the next event has b and c, so a is deleted, and b and c are merged.
3. A record without elements has no row that keeps its sequence. As after a hard delete, an older event in a later load
   therefore brings its elements again.
4. Only the keys and sequences of the load's records are read from the table, at the version that the load's transaction
   began with. Bounds are of the record's keys only, because the keys of its lost elements are not known.

The text is run by Spark, and by DuckDB in tests, like that of the other merges.
"""

# ruff: noqa: S608 - every name is quoted, and no value of a record is in a text but as `bounds` writes it

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from common.schema import backticks
from common.tables.changes import DELETE_COLUMN, RESERVED, MergeBy
from delta_loader.tables.merging.inputs import MergeInputs
from delta_loader.tables.merging.last_events import RUNNING
from delta_loader.tables.merging.statement import MergeStatement

_IS_THERE = f"{RESERVED}is_there"
_HIGHEST = f"{RESERVED}highest"
_KNOWN = f"{RESERVED}known"
_NUMBER = f"{RESERVED}number"
_NEXT = f"{RESERVED}next"
_IS_SHOWN = f"{RESERVED}is_shown"
_ENDS = f"{RESERVED}ends"
_OF_NEXT = f"{RESERVED}of_next_"


def element_statement(
    target: str,
    staged: str,
    columns: tuple[str, ...],
    by: MergeBy,
    bounds: tuple[str, ...],
    *,
    before: str,
    quote: Callable[[str], str] = backticks,
) -> ElementStatement:
    """``before`` is the table in SQL, as it is before the load."""
    paths = {f"{RESERVED}key_{number}": steps for number, steps in enumerate(by.element)}
    inside = {name: ".".join(map(quote, steps)) for name, steps in paths.items()}

    return ElementStatement(
        target,
        _with_keys(staged, inside, quote),
        columns,
        replace(by, keys=(*by.record, *inside)),
        bounds,
        quote,
        before=before,
        inside=inside,
    )


@dataclass(frozen=True, slots=True)
class ElementStatement(MergeStatement):
    """All inputs of such a merge. The keys of elements are columns of ``staged`` and ``truncated`` (rule 1)."""

    before: str = ""
    inside: Mapping[str, str] = field(default_factory=dict)
    """For each of these columns the part of the table's column."""

    def with_truncated(self, before: str) -> Self:
        return replace(self, bounds=(), truncated=_with_keys(before, self.inside, self.quote))

    def t_key(self, key: str) -> str:
        return f"t.{self.inside[key]}" if key in self.inside else self.t(key)

    def events(self) -> str:
        return f"({self._of_elements()}) AS events" if self.by.record else MergeInputs.events(self)

    def _of_elements(self) -> str:
        """Events of single elements (rule 2)."""
        q, delete, sequence = self.q, self.q(DELETE_COLUMN), self.by.sequence
        record, elements = ", ".join(map(q, self.by.record)), ", ".join(map(q, self.inside))
        order = f"{q(_IS_THERE)} DESC, {self.place('ASC')}"
        counted = self._together()
        if sequence is not None:
            highest = f"max({q(_KNOWN)}) OVER (PARTITION BY {record} ORDER BY {order} {RUNNING})"
            judged = f"SELECT *, {highest} AS {q(_HIGHEST)} FROM ({counted}) AS together"
            counted = (
                f"SELECT * FROM ({judged}) AS judged WHERE {q(_IS_THERE)} OR {q(sequence)} IS NULL "
                f"OR {q(sequence)} >= {q(_HIGHEST)}"
            )
        numbered = f"SELECT *, dense_rank() OVER (PARTITION BY {record} ORDER BY {order}) AS {q(_NUMBER)} "
        numbered += f"FROM ({counted}) AS counted"
        following = f"OVER (PARTITION BY {record} ORDER BY {q(_NUMBER)} RANGE BETWEEN 1 FOLLOWING AND 1 FOLLOWING)"
        of_next = [f"first_value({q(name)}) {following} AS {q(_OF_NEXT + name)}" for name in self._of_event]
        again = f"lead({q(_NUMBER)}) OVER (PARTITION BY {record}, {elements} ORDER BY {q(_NUMBER)}) AS {q(_NEXT)}"
        followed = f"SELECT *, {again}, {', '.join(of_next)} FROM ({numbered}) AS numbered"
        is_lost = f"{q(_OF_NEXT + self.by.place[2])} IS NOT NULL AND {q(_NEXT)} IS NULL"
        # Each row gives its own event, and the one that deletes it.
        both = f"(SELECT false AS {q(_ENDS)} UNION ALL SELECT true AS {q(_ENDS)}) AS both_events"
        made = (
            f"CASE WHEN {q(_ENDS)} THEN {q(_OF_NEXT + name) if name in self._of_event else 'NULL'} ELSE {q(name)} END "
            f"AS {q(name)}"
            for name in self._names
            if name not in self.by.keys
        )
        return (
            f"SELECT {record}, {elements}, {', '.join(made)}, {q(_ENDS)} AS {delete} "
            f"FROM ({followed}) AS followed CROSS JOIN {both} "
            f"WHERE NOT {delete} AND ((NOT {q(_ENDS)} AND NOT {q(_IS_THERE)}) "
            f"OR ({q(_ENDS)} AND {q(_IS_SHOWN)} AND {is_lost}))"
        )

    @property
    def _names(self) -> Sequence[str]:
        """The columns of the events of elements, without that of deletes."""
        return [*dict.fromkeys((*self.by.keys, *self.columns, *self.by.order))]

    @property
    def _of_event(self) -> Sequence[str]:
        """The columns that a delete needs, equal in all rows of an event."""
        return [*dict.fromkeys((*self.by.order, *(() if self.by.sequence is None else (self.by.sequence,))))]

    def _together(self) -> str:
        """The table's rows of the load's records, then the rows of the load's events."""
        q, record = self.q, self.by.record
        of_record = replace(self.by, keys=record, element=())
        columns = (*self.columns, *self.inside)
        events = MergeInputs(
            self.target, self.staged, columns, of_record, quote=self.quote, truncated=self.truncated
        ).events()
        mine, sequence = ", ".join(map(q, (*self._names, DELETE_COLUMN))), self.by.sequence
        known, highest = ("NULL", "NULL") if sequence is None else (q(sequence), f"max({self.t(sequence)})")
        sent = (
            f"SELECT {mine}, {known} AS {q(_KNOWN)}, false AS {q(_IS_THERE)}, true AS {q(_IS_SHOWN)} "
            f"FROM (SELECT * FROM {events}) AS sent"
        )
        shown = "true"
        if self.by.soft_delete is not None:
            shown = f"max(CASE WHEN coalesce({self.t(self.by.soft_delete)}, false) THEN 0 ELSE 1 END) = 1"
        keys = {key: self.t_key(key) for key in self.by.keys}
        values = ", ".join(f"{keys.get(name, 'NULL')} AS {q(name)}" for name in self._names)
        same = " AND ".join(f"e.{q(key)} = {self.t(key)}" for key in record)
        conditions = [
            f"EXISTS (SELECT 1 FROM (SELECT * FROM {events}) AS e WHERE {same})",
            *(f"{self.t_key(key)} IS NOT NULL" for key in self.inside),
            *self.bounds,
        ]
        there = (
            f"SELECT {values}, false AS {q(DELETE_COLUMN)}, {highest} AS {q(_KNOWN)}, true AS {q(_IS_THERE)}, "
            f"{shown} AS {q(_IS_SHOWN)} FROM {self.before} AS t WHERE {' AND '.join(conditions)} "
            f"GROUP BY {', '.join(keys.values())}"
        )
        return f"{sent} UNION ALL {there}"


def _with_keys(rows: str, inside: Mapping[str, str], quote: Callable[[str], str]) -> str:
    made = (f"one.{path} AS {quote(name)}" for name, path in inside.items())
    return f"(SELECT one.*, {', '.join(made)} FROM {rows} AS one)"
