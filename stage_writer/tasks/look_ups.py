"""Lookups in the stores of this process's tasks, from another thread.

Rules:

1. A lookup changes nothing. It sees a task between two portions of messages, never within one: every user of the stores
   holds the task's gate. It may see a state ahead of the table, by what is not flushed yet.
2. It is bounded by a number of entries; the task waits no longer than it takes to read them.
3. It covers only this process's tasks: to look up a key, query all writers.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from threading import Lock
from typing import Any, NamedTuple

from common.spans import TopicPartition
from stage_writer.topologies.stores import (
    Key,
    KeyValueStore,
    SessionStore,
    StoreBuilder,
    StoreKind,
    TaskStores,
    Value,
    WindowStore,
)

MOST_ENTRIES = 10_000
EARLIEST_MS, LATEST_MS = -(1 << 61), 1 << 61


@dataclass(frozen=True, slots=True)
class StoreQuery:
    keys: tuple[Key, ...] = ()
    """None or one key: None itself is a key."""
    low: Key = None
    high: Key = None
    prefix: Key = None
    from_ms: int = EARLIEST_MS
    to_ms: int = LATEST_MS
    limit: int = 100


class StoreEntry(NamedTuple):
    """An entry of a store; times where the store has windows or sessions."""

    key: Key
    value: Value
    start_ms: int | None = None
    end_ms: int | None = None


@dataclass(slots=True)
class OpenTask:
    """A task that can be queried while it is open. Every user of its stores holds the gate (rule 1)."""

    partition: TopicPartition
    stores: TaskStores
    gate: Lock = field(default_factory=Lock)
    is_open: bool = True

    def find(self, store: str, kind: StoreKind, query: StoreQuery) -> list[StoreEntry] | None:
        """Entries of a store; None when the task has ended meanwhile."""
        with self.gate:
            if not self.is_open:
                return None
            return list(islice(_entries(self.stores.store(store), kind, query), min(query.limit, MOST_ENTRIES)))

    def close(self) -> None:
        with self.gate:
            self.is_open = False

    def count(self) -> int | None:
        """The approximate number of entries in all stores; None when the task has ended meanwhile."""
        with self.gate:
            return self.stores.entries if self.is_open else None


class LookUps:
    def __init__(self) -> None:
        self.streams: dict[str, dict[str, StoreKind]] = {}
        """The kinds of the stores, by stream and name."""
        self._tasks: dict[str, dict[TopicPartition, OpenTask]] = {}

    def declare(self, app_id: str, builders: Iterable[StoreBuilder]) -> None:
        self.streams.setdefault(app_id, {}).update({builder.name: builder.kind for builder in builders})
        self._tasks.setdefault(app_id, {})

    def add(self, app_id: str, task: OpenTask) -> None:
        self._tasks[app_id][task.partition] = task

    def remove(self, app_id: str, task: OpenTask) -> None:
        """A task has ended; a new one of its partition may have started already."""
        if self._tasks[app_id].get(task.partition) is task:
            del self._tasks[app_id][task.partition]

    def tasks(self, app_id: str) -> list[OpenTask]:
        open_tasks = list(self._tasks.get(app_id, {}).values())
        return sorted(open_tasks, key=lambda task: (task.partition.topic, task.partition.partition))


def _entries(store: Any, kind: StoreKind, query: StoreQuery) -> Iterator[StoreEntry]:  # noqa: ANN401 - what it is, its kind says
    match kind:
        case StoreKind.KEY_VALUE:
            yield from _values(store, query)
        case StoreKind.WINDOW | StoreKind.WINDOW_DUPLICATES:
            yield from _windows(store, query)
        case StoreKind.SESSION:
            yield from _sessions(store, query)


def _values(store: KeyValueStore, query: StoreQuery) -> Iterator[StoreEntry]:
    for key in query.keys:
        value = store.get(key)
        if value is not None:
            yield StoreEntry(key, value)
    if not query.keys:
        entries = store.range(query.low, query.high) if query.prefix is None else store.prefix(query.prefix)
        for key, value in entries:
            yield StoreEntry(key, value)


def _windows(store: WindowStore, query: StoreQuery) -> Iterator[StoreEntry]:
    for key in query.keys:
        for start_ms, value in store.fetch_range(key, query.from_ms, query.to_ms):
            yield StoreEntry(key, value, start_ms, start_ms + store.size_ms)
    if not query.keys:
        for windowed, value in store.fetch_keys(query.from_ms, query.to_ms):
            yield StoreEntry(windowed.key, value, windowed.start_ms, windowed.end_ms)


def _sessions(store: SessionStore, query: StoreQuery) -> Iterator[StoreEntry]:
    for key in query.keys:
        for session, value in store.find_sessions(key, query.from_ms, query.to_ms):
            yield StoreEntry(key, value, session.start_ms, session.end_ms)
    if not query.keys:
        for session, value in store.all():
            yield StoreEntry(session.key, value, session.start_ms, session.end_ms)
