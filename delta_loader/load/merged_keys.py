"""Whether events may be merged into the rows that a table has: each event changes every row with its key.

Rules:

1. If all rows of a table were merged by the same keys, the table has one row for each value of them, and for each value
   of any keys that include them. The newest own commit says by which keys rows were merged
   (common/tables/commit_metadata.py, rule 5). Without that, the rows' keys are read once, before the first merge. While
   several rows have one key, events are not merged: all of these rows would become the same row.
2. Rows that other programs add to a table later are not considered; `delta-loader verify` reports them.
3. Versions that were kept by one sequence are not continued by another, because ``valid_from`` has the first one's
   values.
"""

# ruff: noqa: S608 - every name in a statement is quoted, and a person runs it

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from common.errors import NotCompatibleError, SchemaError
from common.remedies import delta_table
from common.schema import backticks, schema_from_json
from common.tables.changes import IS_CURRENT, MergeBy, MergedBy
from delta_loader.plan.plan import TableShape
from delta_loader.tables.commits import Target

_ANOTHER_TABLE = "load into a new table (another table, app_id and stage)"
_MOST_NAMED = 3


class KeyReader(Protocol):
    """Reads a table's keys. Raises TableError."""

    def repeated_keys(self, url: str, version: int, keys: Sequence[str], where: str | None) -> list[str]:
        """Keys that several rows of a table have, as JSON; the first ones only.

        ``keys`` are columns or fields in them, in SQL, and ``where`` is a condition on rows.
        """


@dataclass(frozen=True, slots=True)
class MergedKeys:
    """The check of all tables, kept from pass to pass."""

    reader: KeyReader
    _read: dict[tuple[str, str, tuple[str, ...]], tuple[int, list[str]]] = field(default_factory=dict)
    """By table and keys, the version that was read, and some of the keys that several of its rows have."""

    def require(self, target: Target, merge: MergeBy) -> None:
        """Raise NotCompatibleError when several rows of the table have one key."""
        before = target.identity.merged_by
        if has_one_row_for_each_key(before, merge):
            return
        twice = self._keys_twice(target, merge)
        if twice:
            named = ", ".join(twice[:_MOST_NAMED]) + (", …" if twice[_MOST_NAMED:] else "")
            msg = (
                f"events cannot be merged into the Delta table {target.url} by {', '.join(merge.keys)}: its rows were "
                f"{how_merged(before)}, and several have the key ({named}), each of which an event of that key would "
                "change"
            )
            raise NotCompatibleError(msg, _remedy(target, merge, before))

    def _keys_twice(self, target: Target, merge: MergeBy) -> list[str]:
        """Read once for each version: what others commit, and a RESTORE, may bring keys twice."""
        key = (target.url, target.table_id, merge.keys)
        known = self._read.get(key)
        if known is None or known[0] != target.version:
            conditions = [f"{key} IS NOT NULL" for key in merge.sql_keys]
            if merge.history:
                conditions.append(f"coalesce({IS_CURRENT}, true)")
            condition = " AND ".join(conditions)
            known = target.version, self.reader.repeated_keys(target.url, target.version, merge.sql_keys, condition)
            self._read[key] = known
        return known[1]


def require_sequence(target: Target, merge: MergeBy, restage: str) -> None:
    """Raise NotCompatibleError when the table's versions were kept by another sequence (rule 3).

    ``restage`` has the commands that stage the events again, once the stream's settings have changed.
    """
    change = changed_sequence(target.identity.merged_by, merge)
    if change is not None:
        problem, setting = change
        msg = f"events cannot be merged into the Delta table {target.url}: {problem}"
        raise NotCompatibleError(msg, f"{setting} and {restage}; or {_ANOTHER_TABLE}")


def _remedy(target: Target, merge: MergeBy, before: MergedBy | None) -> str:
    """The statement that keeps one row for each key: the row that merging would have left."""
    newest = _order(target.shape, merge)
    if newest is None or (before is not None and before.history):
        return f"delete all rows of such a key but one; or {_ANOTHER_TABLE}"
    table, keys = delta_table(target.url), merge.sql_keys
    whole, part = " AND ".join(f"{key} IS NOT NULL" for key in keys), " OR ".join(f"{key} IS NULL" for key in keys)
    deleted = (
        "then delete the rows of keys that were deleted since: rows that were not merged include events that delete, "
        "and tombstones left no row; "
        if before is None
        else ""
    )
    return (
        f"keep the newest row of each key: INSERT OVERWRITE {table} SELECT newest.* FROM (SELECT max_by(struct(*), "
        f"struct({', '.join(newest)})) AS newest FROM {table} WHERE {whole} GROUP BY {', '.join(keys)}) "
        f"UNION ALL SELECT * FROM {table} WHERE {part}; {deleted}or {_ANOTHER_TABLE}"
    )


def _order(table: TableShape, merge: MergeBy) -> list[str] | None:
    """The columns that say which row of a key is newer; None where the table has none."""
    try:
        names = schema_from_json(table.schema).names
    except SchemaError:
        return None  # reported by the comparison of columns
    order = merge.place if merge.sequence is None else (merge.sequence, *merge.place)
    return [backticks(name) for name in order if name in names] or None


def has_one_row_for_each_key(before: MergedBy | None, merge: MergeBy) -> bool:
    """Whether it is known that no two rows have the same keys (rule 1)."""
    return before is not None and {*before.keys} <= {*merge.keys}


def how_merged(before: MergedBy | None) -> str:
    return "not merged" if before is None else f"merged by {', '.join(before.keys)}"


def changed_sequence(before: MergedBy | None, merge: MergeBy) -> tuple[str, str] | None:
    """The problem of versions that were kept by another sequence, and the setting that was used (rule 3)."""
    if before is None or not (before.history and merge.history) or before.sequence == merge.sequence:
        return None
    now, then = (f"by {name}" if name else "without a sequence" for name in (merge.sequence, before.sequence))
    setting = f"write merge.sequence: {before.sequence}" if before.sequence else "remove merge.sequence"
    return f"its versions were kept {then}, and what is staged would be put between them {now}", setting
