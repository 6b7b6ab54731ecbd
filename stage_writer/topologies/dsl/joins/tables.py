"""Joins with tables: a stream's records looked up in a table, and tables with the same key.

Rules:

1. A stream's record is joined with the row that the table has when the record arrives, and keeps its own time.
2. A join of tables is a table: each change on either side gives a change of the joined row, at the later of both times.
3. As in Kafka Streams, the deletion of a joined row is forwarded even if the row never was, unless old values are sent.
"""

from collections.abc import Callable
from enum import Enum, auto

from stage_writer.topologies.dsl.changes import (
    Change,
    Getter,
    Stamped,
    Table,
    TableProcessor,
    stamped,
    stored_rows,
    value_of,
)
from stage_writer.topologies.dsl.tables import NULL_KEY
from stage_writer.topologies.records import Key, Record, Value
from stage_writer.topologies.task.context import Processor, ProcessorContext

Joiner = Callable[[Value, Value], Value]


class LookUp(Processor):
    """A stream's records with the table's row of their key."""

    def __init__(self, table: Table, joiner: Joiner, *, keeps_unmatched: bool) -> None:
        self._table = table
        self._joiner = joiner
        self._keeps_unmatched = keeps_unmatched

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self._get = self._table.open(context)

    def process(self, record: Record) -> None:
        """Forward it joined; without a row only in a left join."""
        if record.value is None or (record.key is None and not self._keeps_unmatched):
            self.context.drop(record, NULL_KEY if record.key is None else "null_value")
            return
        row = None if record.key is None else value_of(self._get(record.key))
        if row is not None or self._keeps_unmatched:
            self.context.forward(record.with_value(self._joiner(record.value, row)))


class Previous(Processor):
    """Each record with the previous value of its key."""

    def __init__(self, store: str, joiner: Joiner) -> None:
        self._store_name = store
        self._joiner = joiner

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self._store = context.store(self._store_name)

    def process(self, record: Record) -> None:
        if record.key is None or record.value is None:
            self.context.drop(record, NULL_KEY if record.key is None else "null_value")
            return
        before = self._store.get(record.key)
        self._store.put(record.key, record.value)
        self.context.forward(record.with_value(self._joiner(record.value, before)))


class JoinKind(Enum):
    """Which rows a join of tables has."""

    INNER = auto()
    """The rows of keys that both tables have."""
    LEFT = auto()
    """The rows of keys that the left table has."""
    OUTER = auto()
    """The rows of keys that either table has."""


class JoinedTable(Table):
    def __init__(self, left: Table, right: Table, joiner: Joiner, kind: JoinKind, store: str | None) -> None:
        self.left = left
        self.right = right
        self.kind = kind
        self.store = store
        self.joiner = joiner
        if kind is not JoinKind.INNER:
            left.enable_old(force=True)
        if kind is JoinKind.OUTER:
            right.enable_old(force=True)

    def enable_old(self, *, force: bool) -> bool:
        """Old rows are computed from the old values of both."""
        self.left.enable_old(force=True)
        self.right.enable_old(force=True)
        return super().enable_old(force=force)

    def stores(self) -> tuple[str, ...]:
        """Its own store, or those of both tables."""
        return (*self.left.stores(), *self.right.stores()) if self.store is None else (self.store,)

    def open(self, context: ProcessorContext) -> Getter:
        """Reads its store, or joins the rows of both."""
        if self.store is not None:
            return stored_rows(context, self.store)
        left, right = self.left.open(context), self.right.open(context)

        def get(key: Key) -> Stamped | None:
            return self._row(left(key), right(key))

        return get

    def _row(self, left: Stamped | None, right: Stamped | None) -> Stamped | None:
        needed = {JoinKind.INNER: (left, right), JoinKind.LEFT: (left,), JoinKind.OUTER: ()}[self.kind]
        there = [side for side in (left, right) if side is not None]
        if None in needed or not there:
            return None
        return stamped(self.joiner(value_of(left), value_of(right)), max(time_ms for _, time_ms in there))


class TableJoinSide(Processor):
    def __init__(self, table: JoinedTable, *, is_left: bool) -> None:
        self._table = table
        self._is_left = is_left

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self._get = (self._table.right if self._is_left else self._table.left).open(context)

    def process(self, record: Record) -> None:
        change: Change = record.value
        other = self._get(record.key)
        match self._table.kind:
            case JoinKind.INNER:
                matters, needs_own = other is not None, True
            case JoinKind.LEFT if not self._is_left:
                matters, needs_own = other is not None, False
            case JoinKind.LEFT:
                matters, needs_own = other is not None or change != Change(None, None), True
            case _:
                matters, needs_own = other is not None or change != Change(None, None), other is None
        if not matters:
            return
        row = value_of(other)
        new = None if needs_own and change.new is None else self._joined(change.new, row)
        sends_old = self._table.sends_old and not (needs_own and change.old is None)
        old = self._joined(change.old, row) if sends_old else None
        time_ms = record.timestamp_ms if other is None else max(record.timestamp_ms, other[1])
        self.context.forward(record._replace(value=Change(new, old), timestamp_ms=time_ms))

    def _joined(self, own: Value, other: Value) -> Value:
        return self._table.joiner(own, other) if self._is_left else self._table.joiner(other, own)


class MergeSides(TableProcessor):
    """Where both sides of a join of tables become one table."""

    def __init__(self, table: JoinedTable) -> None:
        super().__init__(table, table.store)

    def process(self, record: Record) -> None:
        change: Change = record.value
        self.emit(record, change.new, change.old)
