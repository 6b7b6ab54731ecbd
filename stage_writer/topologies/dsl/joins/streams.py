"""Joins of two streams: records with the same key that are close in time.

Rules:

1. Each side keeps its records for as long as matches may arrive. A record is first joined with the other side's
   records, then kept.
2. A pair's time is the later of the two, and it is made once, when the second of them arrives.
3. In a left or outer join a record without a match waits, and is forwarded alone, with its own time, once no match can
   arrive any more, by the highest time that the join has seen on either side. A record that arrives after its window is
   forwarded at once, independent of the grace, as in Kafka Streams. Waiting records are checked by each record that
   advances the time.
4. A record without a key is forwarded alone where its side is an outer one, else it is dropped; one without a value is
   dropped.
5. A prior join only matches records older than the record itself.
"""

from collections.abc import Callable
from dataclasses import dataclass

from stage_writer.topologies.dsl.aggregates import BEFORE_1970, StreamTime
from stage_writer.topologies.dsl.tables import NULL_KEY
from stage_writer.topologies.dsl.windows import JoinWindows
from stage_writer.topologies.records import Key, Record, Value
from stage_writer.topologies.task.context import Processor, ProcessorContext

_WAITING = "waiting"
_NULL_VALUE = "null_value"


@dataclass(frozen=True, slots=True)
class StreamJoin:
    """One join of two streams. ``keeps_left`` forwards left records without a match, ``keeps_right`` right ones."""

    joiner: Callable[[Value, Value], Value]
    windows: JoinWindows
    store: str
    keeps_left: bool = False
    keeps_right: bool = False
    is_prior: bool = False

    @property
    def left_store(self) -> str:
        return f"{self.store}-left"

    @property
    def right_store(self) -> str:
        return f"{self.store}-right"

    @property
    def waiting_store(self) -> str:
        """The records of both sides that wait for a match."""
        return f"{self.store}-waiting"

    @property
    def keeps(self) -> bool:
        """Whether records wait for a match."""
        return self.keeps_left or self.keeps_right


class JoinSide(Processor):
    def __init__(self, join: StreamJoin, *, is_left: bool) -> None:
        self._join = join
        self._is_left = is_left
        windows = join.windows
        self._back_ms = windows.before_ms if is_left else windows.after_ms
        self._ahead_ms = windows.after_ms if is_left else windows.before_ms
        self._keeps = join.keeps_left if is_left else join.keeps_right

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        own, other = self._join.left_store, self._join.right_store
        self._own, self._other = map(context.store, (own, other) if self._is_left else (other, own))
        self._time = StreamTime(context, self._join.waiting_store) if self._join.keeps else None
        self._waiting = _Waiting(context, self._join) if self._join.keeps else None

    def process(self, record: Record) -> None:
        seen_ms = record.timestamp_ms if self._time is None else self._time.see(record.timestamp_ms)
        if self._keeps and record.key is None and record.value is not None:
            self.context.forward(record.with_value(self._joined(record.value, None)))
            return
        if record.key is None or record.value is None or record.timestamp_ms < 0:
            self.context.drop(record, _reason(record))
            return
        if self._waiting is not None and record.timestamp_ms == seen_ms:
            self._waiting.forward_unmatched(self.context, record, seen_ms)
        self._match(record, seen_ms)
        self._own.put(record.key, record.value, record.timestamp_ms)

    def _match(self, record: Record, seen_ms: int) -> None:
        time_ms = record.timestamp_ms
        latest_ms = time_ms - 1 if self._join.is_prior else time_ms + self._ahead_ms
        earliest_ms = max(0, time_ms - self._back_ms)
        others = list(self._other.fetch_range(record.key, earliest_ms, latest_ms)) if latest_ms >= 0 else []
        for other_ms, other in others:
            if self._waiting is not None:
                self._waiting.forget(other_ms, record.key, is_left=not self._is_left)
            joined = self._joined(record.value, other)
            self.context.forward(record._replace(value=joined, timestamp_ms=max(time_ms, other_ms)))
        if not others and self._keeps and self._waiting is not None:
            if latest_ms < seen_ms:
                self.context.forward(record.with_value(self._joined(record.value, None)))
            else:
                self._waiting.add(record, is_left=self._is_left)

    def _joined(self, own: Value, other: Value) -> Value:
        return self._join.joiner(own, other) if self._is_left else self._join.joiner(other, own)


class _Waiting:
    """Records without a match so far, of both sides: ``(time, is left, key)`` to their values."""

    def __init__(self, context: ProcessorContext, join: StreamJoin) -> None:
        self._store = context.store(join.waiting_store)
        self._join = join
        self._left_ms = join.windows.after_ms + join.windows.grace_ms
        self._right_ms = join.windows.before_ms + join.windows.grace_ms
        waits = ((join.keeps_left, self._left_ms), (join.keeps_right, self._right_ms))
        self._shortest_ms = min(wait_ms for keeps, wait_ms in waits if keeps)

    def add(self, record: Record, *, is_left: bool) -> None:
        key = (record.timestamp_ms, is_left, record.key)
        self._store.put(key, [*(self._store.get(key) or []), record.value])
        earliest_ms = self._store.get(_WAITING)
        if earliest_ms is None or record.timestamp_ms < earliest_ms:
            self._store.put(_WAITING, record.timestamp_ms)

    def forget(self, time_ms: int, key: Key, *, is_left: bool) -> None:
        """Remove records that have a match."""
        if self._store.get((time_ms, is_left, key)) is not None:
            self._store.put((time_ms, is_left, key), None)

    def forward_unmatched(self, context: ProcessorContext, record: Record, seen_ms: int) -> None:
        """Forward those that can no longer get a match, earliest first."""
        earliest_ms = self._store.get(_WAITING)
        if earliest_ms is None or earliest_ms + self._shortest_ms >= seen_ms:
            return
        over, earliest_ms = self._over(earliest_ms, seen_ms)
        self._store.put(_WAITING, earliest_ms)
        for key, values in over:
            time_ms, is_left, record_key = key
            self._store.put(key, None)
            for value in values:
                joined = self._join.joiner(value, None) if is_left else self._join.joiner(None, value)
                context.forward(record._replace(key=record_key, value=joined, timestamp_ms=time_ms))

    def _over(self, first_ms: int, seen_ms: int) -> tuple[list[tuple[tuple[int, bool, Key], list[Value]]], int | None]:
        over: list[tuple[tuple[int, bool, Key], list[Value]]] = []
        earliest_ms: int | None = None
        latest_ms = seen_ms - self._shortest_ms
        for key, values in self._store.range((first_ms,), (latest_ms,)):
            if key[0] + (self._left_ms if key[1] else self._right_ms) < seen_ms:
                over.append((key, values))
            else:
                earliest_ms = key[0] if earliest_ms is None else earliest_ms
        return over, latest_ms if earliest_ms is None else earliest_ms


def _reason(record: Record) -> str:
    if record.key is None:
        return NULL_KEY
    return _NULL_VALUE if record.value is None else BEFORE_1970
