"""The updates between the nodes of tables, with the value that each replaces where that is needed.

Rules:

1. A table's node forwards records whose value is a `Change`. A value of None means that the key is not in the table.
2. The old value is sent only when a node below asked for it while the topology was built (`Table.enable_old`), because
   it costs a lookup, and makes a table without a name keep its rows in a store. The same tables do so as in Kafka
   Streams.
3. A store of a table holds ``[value, timestamp_ms]``, so a join can give its results their time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from stage_writer.topologies.records import Key, Record, Value, new_tuple
from stage_writer.topologies.task.context import Processor, ProcessorContext


class Change(NamedTuple):
    """A key's new value, and the previous one."""

    new: Value
    old: Value


Stamped: TypeAlias = list[Any]
Getter: TypeAlias = Callable[[Key], Stamped | None]


class Table(ABC):
    """A table as the nodes below see it: whether it sends old values, and how to read its rows."""

    sends_old: bool = False

    def enable_old(self, *, force: bool) -> bool:  # noqa: ARG002 - what others ask their parents
        """Send old values from now on, if that is possible; ``force`` gives the table a store for it."""
        self.sends_old = True
        return True

    @abstractmethod
    def stores(self) -> tuple[str, ...]:
        """The stores that a reader of this table needs. The table keeps its rows from now on."""

    @abstractmethod
    def open(self, context: ProcessorContext) -> Getter:
        """A task's reader of the table: returns a key's value and time, or None."""

    def change(self, new: Value, old: Value) -> Change:
        return new_tuple(Change, (new, old if self.sends_old else None))


def value_of(stamped: Stamped | None) -> Value:
    """The value without its time."""
    return None if stamped is None else stamped[0]


def stamped(value: Value, time_ms: int) -> Stamped | None:
    """A value with its time; None (delete) for no value."""
    return None if value is None else [value, time_ms]


def stored_rows(context: ProcessorContext, store: str) -> Getter:
    """A reader of the rows in a table's own store."""
    getter: Getter = context.store(store).get
    return getter


class StoredTable(Table):
    """A table that always has a key-value store: an aggregate's."""

    def __init__(self, store: str) -> None:
        self.store = store

    def stores(self) -> tuple[str, ...]:
        return (self.store,)

    def open(self, context: ProcessorContext) -> Getter:
        return stored_rows(context, self.store)


class ViewedTable(Table):
    """A table derived from another one: its rows are computed when they are read, unless it has its own store."""

    def __init__(self, parent: Table, store: str | None) -> None:
        self.parent = parent
        self.store = store

    def enable_old(self, *, force: bool) -> bool:
        """From its own store, or from the old values of its parent."""
        if self.store is not None or self.parent.enable_old(force=force):
            self.sends_old = True
        return self.sends_old

    def stores(self) -> tuple[str, ...]:
        return self.parent.stores() if self.store is None else (self.store,)

    def open(self, context: ProcessorContext) -> Getter:
        """Reads its store, or computes from its parent."""
        return self.view(self.parent.open(context)) if self.store is None else stored_rows(context, self.store)

    def view(self, parent: Getter) -> Getter:
        """Reads a row through the parent's."""
        return parent


class TableProcessor(Processor):
    def __init__(self, table: Table, store: str | None) -> None:
        self._table = table
        self._store_name = store

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self._store = None if self._store_name is None else context.store(self._store_name)

    def emit(self, record: Record, new: Value, old: Value) -> None:
        """Store and forward; with a store, the old value is the stored one."""
        if self._store is not None:
            old = value_of(self._store.get(record.key)) if self._table.sends_old else None
            self._store.put(record.key, stamped(new, record.timestamp_ms))
        self.context.forward(record.with_value(self._table.change(new, old)))


class ToStream(Processor):
    """A table's changes as a stream of its new values."""

    def process(self, record: Record) -> None:
        """Forward the new value; None says that the key was deleted."""
        self.context.forward(record.with_value(record.value.new))
