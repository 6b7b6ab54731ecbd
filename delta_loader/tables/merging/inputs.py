"""The inputs of a merge: the table, the load's staged events, and their names in SQL.

Rules:

1. An event that truncates the source table is a delete without a sequence, at its place, of each key that the table or
   the load has.
2. With ``event_columns``, a null in any other column leaves the row's value.
"""

# ruff: noqa: S608 - every name is quoted, and no value of a record is in a text but as `bounds` writes it

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from common.schema import backticks
from common.tables.changes import DELETE_COLUMN, MergeBy


@dataclass(frozen=True, slots=True)
class MergeInputs:
    target: str
    """The table's name in SQL."""
    staged: str
    columns: tuple[str, ...]
    """The staged rows' columns that the table has."""
    by: MergeBy
    bounds: tuple[str, ...] = ()
    """Conditions on ``t`` that are true for all rows that an event of the load may be about."""
    quote: Callable[[str], str] = backticks
    truncated: str | None = None
    """The table in SQL, as it is before the load, where that has events that truncate it (rule 1)."""
    last_known: str = "last_value({}) IGNORE NULLS"
    """The window function for the last value that is not null."""

    def with_truncated(self, before: str) -> Self:
        """The statement for a load with events that truncate the table; ``before`` is as in ``truncated``."""
        return replace(self, bounds=(), truncated=before)

    def events(self) -> str:
        """The staged events, with a delete of each key in place of one of all rows."""
        truncate = self.by.truncate
        if self.truncated is None or truncate is None:
            return self.staged
        of_all, keys = self.q(truncate), self.keys()
        others = dict.fromkeys((*self.columns, *self.made_keys, *self.by.order, DELETE_COLUMN))
        names = [*self.by.keys, *(name for name in others if name not in self.by.keys)]
        events = f"SELECT {', '.join(map(self.q, names))} FROM {self.staged} WHERE NOT {of_all}"
        there = f"SELECT {keys} FROM {self.truncated}"
        if self.by.soft_delete is not None:
            there += f" WHERE NOT coalesce({self.q(self.by.soft_delete)}, false)"
        known = f"{there} UNION SELECT {keys} FROM {self.staged} WHERE NOT {of_all}"
        made = [f"{'k' if name in self.by.keys else 'e'}.{self.q(name)}" for name in names]
        deletes = f"SELECT {', '.join(made)} FROM ({known}) AS k CROSS JOIN {self.staged} AS e WHERE e.{of_all}"
        return f"({events} UNION ALL {deletes}) AS events"

    @property
    def patched(self) -> tuple[str, ...]:
        """The columns in which a null leaves the row's value (rule 2)."""
        if self.by.event_columns is None:
            return ()
        others = {*self.by.keys, *self.by.event_columns, self.by.sequence, self.by.soft_delete}
        return tuple(name for name in self.columns if name not in others)

    @property
    def made_keys(self) -> tuple[str, ...]:
        """The keys that are not columns of the table."""
        return tuple(key for key in self.by.keys if key not in self.columns)

    def keys(self) -> str:
        return ", ".join(map(self.q, self.by.keys))

    def place(self, direction: str) -> str:
        """The order of the events."""
        return ", ".join(f"{self.q(name)} {direction}" for name in self.by.order)

    def insert(self) -> str:
        names, values = map(self.q, self.columns), map(self.s, self.columns)
        return f"INSERT ({', '.join(names)}) VALUES ({', '.join(values)})"

    def q(self, name: str) -> str:
        """A column of the events."""
        return self.quote(name)

    def s(self, name: str) -> str:
        """A column of the source ``s``."""
        return f"s.{self.quote(name)}"

    def t(self, name: str) -> str:
        """A column of the table ``t``."""
        return f"t.{self.quote(name)}"

    def t_key(self, key: str) -> str:
        return self.t(key)
