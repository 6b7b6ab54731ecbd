"""Nodes of tables: sources, filters, mapped values, groups by another key, and suppressed changes."""

from collections.abc import Callable

from stage_writer.topologies.dsl.changes import (
    Change,
    Getter,
    Stamped,
    StoredTable,
    Table,
    TableProcessor,
    ViewedTable,
    stamped,
    value_of,
)
from stage_writer.topologies.records import Key, Record, Value
from stage_writer.topologies.task.context import Processor, ProcessorContext

NULL_KEY = "null_key"


class SourceTable(StoredTable):
    """A topic, or a stream, read as a table: it keeps rows only when another node reads them, or it has a name."""

    def __init__(self, store: str, *, is_kept: bool) -> None:
        super().__init__(store)
        self.kept_in = [store] if is_kept else []
        """Its own store, from when it has one."""

    def enable_old(self, *, force: bool) -> bool:
        """Only a kept table knows old values."""
        if not force and not self.kept_in:
            return False
        self.stores()
        return super().enable_old(force=force)

    def stores(self) -> tuple[str, ...]:
        """Its own store, which it has from now on."""
        self.kept_in[:] = [self.store]
        return super().stores()


class SourceProcessor(TableProcessor):
    """Turns records into changes of their keys; the last to arrive wins, regardless of its time."""

    def __init__(self, table: SourceTable) -> None:
        super().__init__(table, table.store if table.kept_in else None)

    def process(self, record: Record) -> None:
        """Keep and forward; a record without a key is dropped."""
        if record.key is None:
            self.context.drop(record, NULL_KEY)
        else:
            self.emit(record, record.value, None)


class MappedTable(ViewedTable):
    is_filter = False

    def __init__(self, parent: Table, mapper: Callable[[Key, Value], Value], store: str | None) -> None:
        super().__init__(parent, store)
        self._mapper = mapper

    def mapped(self, key: Key, value: Value) -> Value:
        """The mapped value; None stays None."""
        return None if value is None else self._mapper(key, value)

    def view(self, parent: Getter) -> Getter:
        """The parent's row, mapped; None from a mapper means no row."""

        def get(key: Key) -> Stamped | None:
            row = parent(key)
            return None if row is None else stamped(self.mapped(key, row[0]), row[1])

        return get


class FilteredTable(MappedTable):
    is_filter = True

    def __init__(
        self, parent: Table, predicate: Callable[[Key, Value], object], store: str | None, *, keep: bool
    ) -> None:
        super().__init__(parent, predicate, store)
        self._keep = keep
        # If the parent keeps its rows anyway, its old values avoid deletions of keys that were never sent.
        self.sends_old = parent.enable_old(force=False)

    def mapped(self, key: Key, value: Value) -> Value:
        """The value, or None if the predicate filters it."""
        passes = value is not None and bool(self._mapper(key, value)) is self._keep
        return value if passes else None


class MapRows(TableProcessor):
    """A table's rows, mapped or filtered."""

    def __init__(self, table: MappedTable) -> None:
        super().__init__(table, table.store)
        self._mapped = table

    def process(self, record: Record) -> None:
        """Forward the row, or its deletion; a filter forwards nothing if the row never existed."""
        change: Change = record.value
        table, old = self._mapped, None
        new = table.mapped(record.key, change.new)
        if table.sends_old and self._store is None:
            old = table.mapped(record.key, change.old)
        if new is None and table.sends_old and table.is_filter:
            known = old if self._store is None else value_of(self._store.get(record.key))
            if known is None:
                return
        self.emit(record, new, old)


class Regroup(Processor):
    """Changes under the keys that a mapper gives: removed from the old key and added to the new one."""

    def __init__(self, mapper: Callable[[Key, Value], tuple[Key, Value]]) -> None:
        self._mapper = mapper

    def process(self, record: Record) -> None:
        """Forward the removal, then the addition, or both in one change when the key is the same."""
        change: Change = record.value
        old_key, old = self._pair(record.key, change.old)
        new_key, new = self._pair(record.key, change.new)
        if old is not None and new is not None and old_key == new_key:
            self.context.forward(record._replace(key=new_key, value=Change(new, old)))
            return
        if old is not None:
            self.context.forward(record._replace(key=old_key, value=Change(None, old)))
        if new is not None:
            self.context.forward(record._replace(key=new_key, value=Change(new, None)))

    def _pair(self, key: Key, value: Value) -> tuple[Key, Value]:
        if value is None:
            return None, None
        new_key, mapped = self._mapper(key, value)
        return (None, None) if new_key is None else (new_key, mapped)


class AggregateRows(Processor):
    """An aggregate over a table's rows: the old value is subtracted, then the new one added."""

    def __init__(
        self,
        table: StoredTable,
        add: Callable[[Key, Value, Value], Value],
        remove: Callable[[Key, Value, Value], Value],
    ) -> None:
        self._table = table
        self._add = add
        self._remove = remove

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self._store = context.store(self._table.store)

    def process(self, record: Record) -> None:
        change: Change = record.value
        before = self._store.get(record.key)
        old = value_of(before)
        time_ms = record.timestamp_ms
        between = old
        if change.old is not None and old is not None:
            between = self._remove(record.key, change.old, old)
            time_ms = max(time_ms, before[1])
        new = between
        if change.new is not None:
            new = self._add(record.key, change.new, between)
            if before is not None:
                time_ms = max(time_ms, before[1])
        self._store.put(record.key, stamped(new, time_ms))
        self.context.forward(record._replace(value=self._table.change(new, old), timestamp_ms=time_ms))
