"""The SQL that merges a load's staged events into a table that keeps every version of a row (SCD type 2).

Rules:

1. Each upsert makes a version of a row. The version is valid from the upsert's time to the time of the key's next
   change. Until there is one, the version is current. A delete ends a version and makes none; with soft deletes it
   makes one that is flagged.
2. Without a sequence, the events of a key follow one another in Kafka's order, and none is late. If an event's time is
   lower than that of the event before it, also in an earlier load, it gets the time of that event. The current versions
   are therefore what a merge without history would have made, and no version is lost where times are equal. A delete of
   a key that has no current version does nothing.
3. With a sequence, a key has one version for each value of the sequence. An event that arrives late gets its place
   among the versions that the table has, and the version before it ends at it. Of events with equal sequences, the
   later one counts. A delete does not remove the version with its own sequence: that version ends where it began. Two
   facts are forgotten when the load ends: a delete that ends no version, and the former end of a version when an
   earlier delete moves it.
4. Only the table's versions of the load's keys are read, at the version that the load's transaction began with. Only
   versions whose end changes are changed. A row with nulls in `HISTORY_COLUMNS` was there before the table kept
   versions. It is current, and if its sequence is null it is the oldest.

The text is run by Spark, and by DuckDB in tests, like that of the other merge.
"""

# ruff: noqa: S608 - every name is quoted, and no value of a record is in a text but as `bounds` writes it

from collections.abc import Iterable
from dataclasses import dataclass

from common.tables.changes import DELETE_COLUMN, HISTORY_COLUMNS, IS_CURRENT, RESERVED, VALID_FROM, VALID_TO
from delta_loader.tables.merging.inputs import MergeInputs

_AT = f"{RESERVED}at"
_NEXT = f"{RESERVED}next"
_IS_LAST = f"{RESERVED}is_last"
_IS_NEW = f"{RESERVED}is_new"
_IS_THERE = f"{RESERVED}is_there"
_IS_EVENT = f"{RESERVED}is_event"
_IS_VERSION = f"{RESERVED}is_version"
_ENDS = f"{RESERVED}ends"
_END = f"{RESERVED}end"
_EXISTS = f"{RESERVED}exists"
_LATEST = f"{RESERVED}latest"
_NUMBER = f"{RESERVED}number"


@dataclass(frozen=True, slots=True)
class HistoryStatement(MergeInputs):
    before: str = ""
    """The table in SQL, as it is before the load."""

    @property
    def text(self) -> str:
        return self._in_kafkas_order() if self.by.sequence is None else self._by_sequence(self.by.sequence)

    # Without a sequence (rule 2).

    def _in_kafkas_order(self) -> str:
        q, delete = self.q, self.q(DELETE_COLUMN)
        soft = self.by.soft_delete
        key = f"OVER (PARTITION BY {self.keys()} ORDER BY {self.place('ASC')}"
        # Whether the key has a current version, whether that is of a row that exists, and the latest time of all.
        is_current = f"coalesce({self.t(IS_CURRENT)}, true)"
        exists = is_current if soft is None else f"{is_current} AND NOT coalesce({self.t(soft)}, false)"
        known = (
            f"SELECT {self.keys()}, max(CASE WHEN {is_current} THEN 1 ELSE 0 END) AS {q(_IS_THERE)}, "
            f"max(CASE WHEN {exists} THEN 1 ELSE 0 END) AS {q(_EXISTS)}, "
            f"greatest(max({self.t(VALID_FROM)}), max({self.t(VALID_TO)})) AS {q(_LATEST)} "
            f"{self._there()} GROUP BY {self.keys()}"
        )
        names = [*self._own, VALID_FROM, DELETE_COLUMN, *(name for name in self.by.order if name not in self._own)]
        events = (
            f"SELECT {self._of('e', names)}, coalesce(k.{q(_IS_THERE)}, 0) = 1 AS {q(_IS_THERE)}, k.{q(_LATEST)}, "
            f"coalesce(k.{q(_EXISTS)}, 0) = 1 AS {q(_EXISTS)} FROM (SELECT * FROM {self.events()}) AS e "
            f"LEFT JOIN ({known}) AS k ON {self._same('e', 'k')}"
        )
        # A delete counts where it follows an upsert.
        ends = f"NOT coalesce(lag({delete}) {key}), NOT {q(_EXISTS)})"
        counted = f"SELECT * FROM (SELECT *, ({ends}) AS {q(_ENDS)} FROM ({events}) AS judged) AS following "
        counted += f"WHERE NOT {delete} OR {q(_ENDS)}"
        running = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
        timed = (
            f"SELECT *, greatest({q(_LATEST)}, max({q(VALID_FROM)}) {key} {running}) AS {q(_AT)}, "
            f"row_number() {key}) AS {q(_NUMBER)} FROM ({counted}) AS counted"
        )
        placed = (
            f"SELECT *, lead({q(_AT)}) {key}) AS {q(_NEXT)}, lead({q(_NUMBER)}) {key}) IS NULL AS {q(_IS_LAST)} "
            f"FROM ({timed}) AS timed"
        )
        made = "true" if soft is not None else f"NOT {delete}"
        versions = f"SELECT {self._row(q(_AT), q(_NEXT), q(_IS_LAST))}, true AS {q(_IS_NEW)} FROM ({placed}) AS placed "
        nulls = [q(name) if name in self.by.keys else f"NULL AS {q(name)}" for name in self._own]
        ended = f"SELECT {', '.join(nulls)}, NULL AS {q(VALID_FROM)}, {q(_AT)} AS {q(VALID_TO)}, "
        ended += f"false AS {q(IS_CURRENT)}, false AS {q(_IS_NEW)} FROM ({placed}) AS placed "
        source = f"{versions} WHERE {made} UNION ALL {ended} WHERE {q(_NUMBER)} = 1 AND {q(_IS_THERE)}"
        condition = f"NOT {self.s(_IS_NEW)} AND {is_current}"
        return self._merge(source, condition, (f"WHEN MATCHED THEN UPDATE SET {self._sets((VALID_TO, IS_CURRENT))}",))

    # By sequence (rule 3).

    def _by_sequence(self, sequence: str) -> str:
        q, delete = self.q, self.q(DELETE_COLUMN)
        if self.by.soft_delete is not None:
            delete = "false"
        of_time = f"OVER (PARTITION BY {self.keys()}, {q(sequence)} ORDER BY"
        ranked = (
            f"SELECT *, row_number() {of_time} {delete}, {self.place('DESC')}) AS {q(_NUMBER)}, "
            f"first_value({delete}) {of_time} {self.place('DESC')}) AS {q(_ENDS)} FROM {self.events()}"
        )
        changes = (
            f"SELECT {self._of('', self._own)}, {q(sequence)} AS {q(_AT)}, true AS {q(_IS_EVENT)}, "
            f"NOT {delete} AS {q(_IS_VERSION)}, {q(_ENDS)}, NULL AS {q(_END)} "
            f"FROM ({ranked}) AS ranked WHERE {q(_NUMBER)} = 1"
        )
        began = f"coalesce({self.t(VALID_FROM)}, {self.t(sequence)})"
        nulls = [self.t(name) if name in self.by.keys else f"NULL AS {q(name)}" for name in self._own]
        there = (
            f"SELECT {', '.join(nulls)}, {began} AS {q(_AT)}, false AS {q(_IS_EVENT)}, true AS {q(_IS_VERSION)}, "
            f"coalesce({self.t(VALID_TO)} = {began}, false) AS {q(_ENDS)}, {self.t(VALID_TO)} AS {q(_END)} "
            f"{self._there()}"
        )
        ends = (
            f"SELECT {', '.join(nulls)}, {self.t(VALID_TO)} AS {q(_AT)}, false AS {q(_IS_EVENT)}, "
            f"false AS {q(_IS_VERSION)}, true AS {q(_ENDS)}, NULL AS {q(_END)} {self._there()} "
            f"AND {self.t(VALID_TO)} IS NOT NULL"
        )
        # At one time, an event of the load counts before the table's, and a version before an end.
        window = f"OVER (PARTITION BY {self.keys()}, {q(_AT)}"
        is_there = f"max(CASE WHEN {q(_IS_VERSION)} AND NOT {q(_IS_EVENT)} THEN 1 ELSE 0 END) {window}) = 1"
        together = (
            f"SELECT *, row_number() {window} ORDER BY {q(_IS_EVENT)} DESC, {q(_IS_VERSION)} DESC) AS {q(_NUMBER)}, "
            f"{is_there} AS {q(_IS_THERE)}, max({q(_END)}) {window}) AS {q(_LATEST)} "
            f"FROM ({changes} UNION ALL {there} UNION ALL {ends}) AS changes"
        )
        following = f"lead({q(_AT)}) OVER (PARTITION BY {self.keys()} ORDER BY {q(_AT)} NULLS FIRST)"
        placed = (
            f"SELECT *, CASE WHEN {q(_ENDS)} THEN {q(_AT)} ELSE {following} END AS {q(_NEXT)}, "
            f"({q(_IS_EVENT)} AND {q(_IS_VERSION)}) AS {q(_IS_NEW)} "
            f"FROM ({together}) AS together WHERE {q(_NUMBER)} = 1"
        )
        changed = f"{q(_IS_NEW)} OR ({q(_IS_THERE)} AND {q(_NEXT)} IS DISTINCT FROM {q(_LATEST)})"
        row = self._row(q(_AT), q(_NEXT), f"{q(_NEXT)} IS NULL")
        values = (name for name in self.columns if name not in self.by.keys)
        source = f"SELECT {row}, {q(_IS_NEW)} FROM ({placed}) AS placed WHERE {changed}"
        return self._merge(
            source,
            f"{began} IS NOT DISTINCT FROM {self.s(VALID_FROM)}",
            (
                f"WHEN MATCHED AND {self.s(_IS_NEW)} THEN UPDATE SET {self._sets(values)}",
                f"WHEN MATCHED THEN UPDATE SET {self._sets(HISTORY_COLUMNS)}",
            ),
        )

    @property
    def _own(self) -> tuple[str, ...]:
        """The columns of a version's values."""
        return tuple(name for name in self.columns if name not in HISTORY_COLUMNS)

    def _row(self, valid_from: str, valid_to: str, is_current: str) -> str:
        made = f"{valid_from} AS {self.q(VALID_FROM)}, {valid_to} AS {self.q(VALID_TO)}"
        return f"{self._of('', self._own)}, {made}, {is_current} AS {self.q(IS_CURRENT)}"

    def _there(self) -> str:
        """The versions that the table has of the load's keys."""
        events = f"SELECT 1 FROM (SELECT * FROM {self.events()}) AS e WHERE {self._same('e', 't')}"
        return f"FROM {self.before} AS t WHERE {' AND '.join((f'EXISTS ({events})', *self.bounds))}"

    def _merge(self, source: str, condition: str, clauses: Iterable[str]) -> str:
        inserted = f"WHEN NOT MATCHED AND {self.s(_IS_NEW)} THEN {self.insert()}"
        on = " AND ".join((self._same("t", "s"), *self.bounds, condition))
        return "\n".join((f"MERGE INTO {self.target} AS t", f"USING ({source}) AS s", f"ON {on}", *clauses, inserted))

    def _same(self, first: str, other: str) -> str:
        return " AND ".join(f"{first}.{self.q(key)} = {other}.{self.q(key)}" for key in self.by.keys)

    def _of(self, table: str, names: Iterable[str]) -> str:
        return ", ".join(f"{table}.{self.q(name)}" if table else self.q(name) for name in names)

    def _sets(self, names: Iterable[str]) -> str:
        return ", ".join(f"{self.q(name)} = {self.s(name)}" for name in names)
