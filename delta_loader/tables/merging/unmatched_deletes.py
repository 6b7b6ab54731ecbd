"""Which change events a table forbids, decided for each event by itself, independent of how events are batched.

Rules:

1. An upsert is refused if the table would not accept its row. Only the row's own columns decide. Events before or after
   it do not matter, nor whether a later event, or one with a higher sequence, would have won. A refused event is
   treated as if it had never been sent: the event before it stands, and its sequence does not count. Neither the table
   nor its dead letters therefore depend on how events are split into loads, and both match a replay of one event at a
   time.
2. A delete removes a row, and a table cannot forbid the absence of a row. A soft delete changes a row that the table
   accepted before. Only if its key has no row does a soft delete create one, with just key, sequence and flag, and only
   then is that row checked. A key has a row if the table has one, or if an event of the load before it was not refused.
3. A constraint on sequence and flag alone also applies to a soft delete, regardless of the row's other columns.
4. In a check, columns of the table that the stream does not have take the values of the table's row, or their defaults.

The text is run by Spark, and by DuckDB in tests, like that of the merge.
"""

# ruff: noqa: S608 - every name is quoted, and no value of a record is in a text but as `bounds` writes it

import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from common.schema import backticks, schema_from_json
from common.tables.changes import RESERVED, IdentityColumns, MergeBy
from common.tables.table_features import GENERATED

JUDGED_PLACE: IdentityColumns = (f"{RESERVED}of_topic", f"{RESERVED}of_partition", f"{RESERVED}of_offset")
"""An event's record identity next to its row: the row of a soft delete has Kafka's columns empty."""


def judged_order(by: MergeBy) -> tuple[str, ...]:
    """The columns by which events are ordered next to their rows."""
    return JUDGED_PLACE if by.row is None else (*JUDGED_PLACE, by.row)


@dataclass(frozen=True, slots=True)
class UnmatchedDeletes:
    """Soft deletes whose row the table forbids (rule 2); ``text`` selects them."""

    doubtful: str
    """The view of the deletes whose row, with nothing else in it, the table does not accept."""
    fine: str
    """The view of the load's events whose row it accepts."""
    target: str
    by: MergeBy
    bounds: Sequence[str] = ()
    """As in the merge."""
    quote: Callable[[str], str] = backticks

    @property
    def text(self) -> str:
        is_before = f"({self._place('e')}) < ({self._place('d')})"
        earlier = f"SELECT 1 FROM {self.fine} AS e WHERE {self._same('e')} AND {is_before}"
        bounds = "".join(f" AND {bound}" for bound in self.bounds)
        there = f"SELECT 1 FROM {self.target} AS t WHERE {self._same('t')}{bounds}"
        return f"SELECT d.* FROM {self.doubtful} AS d WHERE NOT EXISTS ({earlier}) AND NOT EXISTS ({there})"

    def _same(self, other: str) -> str:
        return " AND ".join(f"{other}.{self.quote(key)} = d.{self.quote(key)}" for key in self.by.keys)

    def _place(self, table: str) -> str:
        return ", ".join(f"{table}.{self.quote(name)}" for name in judged_order(self.by))


def kept_columns_needed(texts: Iterable[str], schema: str, staged: Collection[str]) -> tuple[str, ...]:
    """The table's columns that are neither staged nor computed and that these expressions may use (rule 4)."""
    words = set(_words(" ".join(texts)))
    known = {name.casefold() for name in staged}
    kept = [field for field in schema_from_json(schema) if field.name.casefold() not in known]
    return tuple(
        field.name
        for field in kept
        if GENERATED not in json.loads(field.metadata_json) and words.issuperset(_words(field.name))
    )


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())
