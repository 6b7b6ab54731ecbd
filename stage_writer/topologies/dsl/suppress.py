"""Changes that are held back: until a window's result is final, or for a while.

Rules:

1. Of a key's held changes, the last one is forwarded, with its own time, and the value before the first of them as its
   old value: nodes below see one change.
2. Final results are forwarded when no record can change them any more, the earliest window first. For a session this is
   a millisecond later than in Kafka Streams, whose "final" result may be repeated when a record arrives exactly as late
   as the grace allows.
3. Time is the highest that this node has seen, kept in a store as in aggregates.py.
4. Held changes are checked only when one may be due: a lower bound of their times is kept with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from itertools import islice

from stage_writer.topologies.dsl.aggregates import StreamTime
from stage_writer.topologies.dsl.changes import Change, Getter, Stamped, Table, stamped
from stage_writer.topologies.dsl.windows import milliseconds
from stage_writer.topologies.records import Key, Record
from stage_writer.topologies.stores.keys import NEVER_MS
from stage_writer.topologies.task.context import Processor, ProcessorContext

_COUNT, _EARLIEST = "count", "earliest"  # next to the keys' positions, which are tuples


@dataclass(frozen=True, slots=True)
class Suppressed:
    """When to release a table's changes."""

    wait_ms: int | None
    """None: at the end of their window."""
    max_records: int | None = None

    @classmethod
    def until_window_closes(cls) -> Suppressed:
        """One result for each window: the final one."""
        return cls(None)

    @classmethod
    def until_time_limit(cls, limit: timedelta, max_records: int | None = None) -> Suppressed:
        """One change of a key per interval; earlier when more than ``max_records`` keys wait."""
        return cls(milliseconds(limit, "how long changes are held back"), max_records)


class SuppressedTable(Table):
    """A table as nodes below see it: up to the changes that were forwarded."""

    def __init__(self, parent: Table, store: str, suppressed: Suppressed, closing_ms: int) -> None:
        self.parent = parent
        self.store = store
        self.wait_ms = closing_ms if suppressed.wait_ms is None else suppressed.wait_ms
        self.is_final = suppressed.wait_ms is None
        self.max_records = suppressed.max_records
        parent.enable_old(force=True)

    def own_stores(self) -> tuple[str, ...]:
        """The held changes in order of time, and each key's position in that order."""
        return self.store, f"{self.store}-keys"

    def stores(self) -> tuple[str, ...]:
        return (*self.own_stores(), *self.parent.stores())

    def open(self, context: ProcessorContext) -> Getter:
        """The value before the held changes, whose time is no longer known; or the parent's row."""
        parent = self.parent.open(context)
        held, times = map(context.store, self.own_stores())

        def get(key: Key) -> Stamped | None:
            due_ms = times.get((key,))
            if due_ms is None:
                return parent(key)
            _, old, _, _ = held.get((due_ms, key))
            return stamped(old, NEVER_MS)

        return get


class HoldBack(Processor):
    def __init__(self, table: SuppressedTable) -> None:
        self._table = table

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self._held, self._places = map(context.store, self._table.own_stores())
        self._time = StreamTime(context, self._table.store)

    def process(self, record: Record) -> None:
        """Hold the change, and forward those that are due."""
        seen_ms = self._time.see(record.timestamp_ms)
        self._hold(record)
        for due_ms, key in self._due(seen_ms - self._table.wait_ms):
            self._forward(due_ms, key)

    def _hold(self, record: Record) -> None:
        change: Change = record.value
        due_ms, old = self._places.get((record.key,)), change.old
        if due_ms is None:
            due_ms = record.key.end_ms if self._table.is_final else record.timestamp_ms
            self._places.put((record.key,), due_ms)
            self._count(1)
            earliest_ms = self._places.get(_EARLIEST)
            if earliest_ms is None or due_ms < earliest_ms:
                self._places.put(_EARLIEST, due_ms)
        else:
            _, old, _, _ = self._held.get((due_ms, record.key))
        self._held.put((due_ms, record.key), (change.new, old, record.timestamp_ms, record.headers))

    def _due(self, latest_ms: int) -> list[tuple[int, Key]]:
        """The due changes, and the earliest others when too many wait."""
        earliest_ms = self._places.get(_EARLIEST)
        too_many = 0 if self._table.max_records is None else self._count(0) - self._table.max_records
        if earliest_ms > latest_ms and too_many <= 0:  # the usual case; a scan of the held changes costs more
            return []
        due = [due_ms for due_ms, _ in self._held.range((earliest_ms,), (max(earliest_ms, latest_ms + 1),))]
        if len(due) < too_many:
            due = [due_ms for due_ms, _ in islice(self._held.all(), too_many)]
        self._places.put(_EARLIEST, max(earliest_ms, latest_ms + 1))
        return due

    def _forward(self, due_ms: int, key: Key) -> None:
        new, old, time_ms, headers = self._held.delete((due_ms, key))
        self._places.delete((key,))
        self._count(-1)
        if new is not None or not self._table.is_final:
            self.context.forward(Record(key, self._table.change(new, old), time_ms, headers))

    def _count(self, change: int) -> int:
        if self._table.max_records is None:
            return 0
        held = int(self._places.get(_COUNT) or 0) + change
        if change:
            self._places.put(_COUNT, held)
        return held
