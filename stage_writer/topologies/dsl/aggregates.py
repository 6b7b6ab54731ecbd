"""Aggregates of streams: by key, by key and time window, by key and session.

Rules:

1. An aggregate's time is the latest of the times of its records; a session's is its end.
2. A record without a key is in no group, and is dropped with the reason ``null_key``; so is one without a value where
   there are no windows. Windows give a missing value to the aggregator, as in Kafka Streams.
3. Lateness is measured by the highest time that the *operator* has seen, which is kept in a store next to the
   aggregates: a restart or an undone record does not change which records are late.
4. A window store's own retention is a window's size and grace, and one millisecond more for sessions, so it never
   expires what this operator still changes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from stage_writer.topologies.dsl.changes import Getter, Stamped, StoredTable, stamped, value_of
from stage_writer.topologies.dsl.tables import NULL_KEY
from stage_writer.topologies.dsl.windows import SessionWindows, TimeWindows
from stage_writer.topologies.records import Key, Record, Value, new_tuple
from stage_writer.topologies.stores.keys import NEVER_MS, Windowed
from stage_writer.topologies.stores.layers import Rising
from stage_writer.topologies.task.context import Processor, ProcessorContext

Fold: TypeAlias = Callable[[Key, Value, Value], Value]
"""Computes the aggregate from a key, a record's value and the previous aggregate (None at first)."""
Merge: TypeAlias = Callable[[Key, Value, Value], Value]
"""Computes the aggregate of two merged sessions from a key and both aggregates."""

LATE, PARTLY_LATE = "late", "partly_late"
BEFORE_1970 = "before_1970"


def fold_of_aggregator(initializer: Callable[[], Value], aggregator: Fold) -> Fold:
    """The fold that starts with the initializer's value."""
    return lambda key, value, so_far: aggregator(key, value, initializer() if so_far is None else so_far)


def fold_of_reducer(reducer: Callable[[Value, Value], Value]) -> Fold:
    return lambda _key, value, so_far: value if so_far is None else reducer(so_far, value)


def merge_of_reducer(reducer: Callable[[Value, Value], Value]) -> Merge:
    """Two sessions' aggregates, each of which may be missing."""
    return lambda _key, aggregate, two: two if aggregate is None else reducer(aggregate, two)


def time_store(store: str) -> str:
    """The store of the time that an operator has seen."""
    return f"{store}-time"


class StreamTime:
    """The highest time that an operator has seen (rule 3)."""

    def __init__(self, context: ProcessorContext, store: str) -> None:
        self._highest: Rising = context.store(time_store(store)).rising("highest", NEVER_MS)

    def see(self, timestamp_ms: int) -> int:
        """Add a record's time, and return the highest one."""
        highest = self._highest
        if timestamp_ms > highest.value:
            highest.set(timestamp_ms)
        return highest.value


class AggregateByKey(Processor):
    def __init__(self, table: StoredTable, fold: Fold) -> None:
        self._table = table
        self._fold = fold

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self._store = context.store(self._table.store)

    def process(self, record: Record) -> None:
        if record.key is None or record.value is None:
            self.context.drop(record, NULL_KEY if record.key is None else "null_value")
            return
        new, old, time_ms = _folded(self._fold, record, self._store.get(record.key))
        self._store.put(record.key, stamped(new, time_ms))
        self.context.forward(record.at(record.key, self._table.change(new, old), time_ms))


def _folded(fold: Fold, record: Record, before: Stamped | None) -> tuple[Value, Value, int]:
    """An aggregate with a record folded in, the previous one, and the time of the new one (rule 1)."""
    old = value_of(before)
    time_ms = record.timestamp_ms if before is None else max(record.timestamp_ms, before[1])
    return fold(record.key, record.value, old), old, time_ms


class _OverTime(Processor, ABC):
    def __init__(self, table: StoredTable) -> None:
        self._table = table

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self._store = context.store(self._table.store)
        self._time = StreamTime(context, self._table.store)

    def process(self, record: Record) -> None:
        """Fold the record in; it is dropped when it is in no group (rule 2), or has no time."""
        if record.key is None or record.timestamp_ms < 0:
            self.context.drop(record, NULL_KEY if record.key is None else BEFORE_1970)
        else:
            self._take(record)

    @abstractmethod
    def _take(self, record: Record) -> None:
        """Fold in a record with a key and a time."""


class WindowTable(StoredTable):
    """The table of a windowed aggregate: its keys are windowed ones."""

    def open(self, context: ProcessorContext) -> Getter:
        store = context.store(self.store)

        def get(windowed: Windowed) -> Stamped | None:
            aggregate: Stamped | None = store.fetch(windowed.key, windowed.start_ms)
            return aggregate

        return get


class AggregateByWindow(_OverTime):
    def __init__(self, table: WindowTable, windows: TimeWindows, fold: Fold) -> None:
        super().__init__(table)
        self._windows = windows
        self._fold = fold

    def _take(self, record: Record) -> None:
        """Fold the record into each open window that contains it, and count it for each closed one.

        It is late only when all of them are closed: as a dead letter it would be missing in the open ones.
        """
        closed_ms, closed, is_late = self._time.see(record.timestamp_ms) - self._windows.grace_ms, 0, True
        for start_ms in self._windows.starts(record.timestamp_ms):
            if start_ms + self._windows.size_ms > closed_ms:
                self._update(record, start_ms)
                is_late = False
            else:
                closed += 1
        for _ in range(closed):
            self.context.drop(record, LATE if is_late else PARTLY_LATE)

    def _update(self, record: Record, start_ms: int) -> None:
        new, old, time_ms = _folded(self._fold, record, self._store.fetch(record.key, start_ms))
        self._store.put(record.key, stamped(new, time_ms), start_ms)
        windowed = new_tuple(Windowed, (record.key, start_ms, start_ms + self._windows.size_ms))
        self.context.forward(record.at(windowed, self._table.change(new, old), time_ms))


@dataclass(frozen=True, slots=True)
class SessionFold:
    """How a session's aggregate starts, folds in a record, and merges another session."""

    initializer: Callable[[], Value]
    fold: Fold
    merge: Merge


class SessionTable(StoredTable):
    def open(self, context: ProcessorContext) -> Getter:
        store = context.store(self.store)

        def get(windowed: Windowed) -> Stamped | None:
            aggregate = store.fetch_session(windowed)
            return None if aggregate is None else [aggregate, windowed.end_ms]

        return get


class AggregateBySession(_OverTime):
    """One aggregate for each key and session; sessions that a record connects become one."""

    def __init__(self, table: SessionTable, windows: SessionWindows, fold: SessionFold) -> None:
        super().__init__(table)
        self._windows = windows
        self._fold = fold

    def _take(self, record: Record) -> None:
        """Forward the deletion of the sessions that are merged, and then the merged one."""
        time_ms, gap_ms = record.timestamp_ms, self._windows.gap_ms
        closed_ms = self._time.see(time_ms) - self._windows.grace_ms - gap_ms
        sessions = list(self._store.find_sessions(record.key, time_ms - gap_ms, time_ms + gap_ms))
        start_ms, end_ms, so_far = time_ms, time_ms, self._fold.initializer()
        for session, aggregate in sessions:
            start_ms, end_ms = min(start_ms, session.start_ms), max(end_ms, session.end_ms)
            so_far = self._fold.merge(record.key, so_far, aggregate)
        if end_ms < closed_ms:
            self.context.drop(record, LATE)
            return
        if (start_ms, end_ms) != (time_ms, time_ms):
            for session, aggregate in sessions:
                self._store.remove(session)
                self._forward(session, None, aggregate)
        merged = Windowed(record.key, start_ms, end_ms)
        new = self._fold.fold(record.key, record.value, so_far)
        self._store.put(merged, new)
        self._forward(merged, new, None)

    def _forward(self, session: Windowed, new: Value, old: Value) -> None:
        self.context.forward(Record(session, self._table.change(new, old), session.end_ms))
