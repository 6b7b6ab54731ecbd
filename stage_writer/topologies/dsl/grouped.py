"""Grouped streams, to be aggregated by key, by time window and by session."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from stage_writer.topologies.dsl.aggregates import (
    AggregateByKey,
    AggregateBySession,
    AggregateByWindow,
    SessionFold,
    SessionTable,
    WindowTable,
    fold_of_aggregator,
    fold_of_reducer,
    merge_of_reducer,
    time_store,
)
from stage_writer.topologies.dsl.changes import StoredTable
from stage_writer.topologies.dsl.graph import Materialized, span
from stage_writer.topologies.dsl.ktable import KTable
from stage_writer.topologies.stores import Stores

if TYPE_CHECKING:
    from collections.abc import Callable

    from stage_writer.topologies.dsl.aggregates import Fold, Merge
    from stage_writer.topologies.dsl.builder import StreamsBuilder
    from stage_writer.topologies.dsl.graph import Graph
    from stage_writer.topologies.dsl.windows import SessionWindows, TimeWindows
    from stage_writer.topologies.records import Value

    Aggregator = Callable[[Any, Any, Any], Value]
    Reducer = Callable[[Any, Any], Value]


class _Grouped:
    """The common base of all groups."""

    def __init__(self, builder: StreamsBuilder, graph: Graph, node: str) -> None:
        self._builder = builder
        self._graph = graph
        self.node = node


class _Folded(_Grouped, ABC):
    """Groups whose aggregate is a fold over their records: by key, or by key and time window."""

    def count(self, *, materialized: Materialized | None = None, name: str = "") -> KTable:
        """The number of records in each group."""
        return self._aggregated("count", fold_of_aggregator(_zero, _one_more), materialized, name)

    def reduce(self, reducer: Reducer, *, materialized: Materialized | None = None, name: str = "") -> KTable:
        """``reducer(so_far, value)`` from the second record of a group on; the first gives its value."""
        return self._aggregated("reduce", fold_of_reducer(reducer), materialized, name)

    def aggregate(
        self,
        initializer: Callable[[], Value],
        aggregator: Aggregator,
        *,
        materialized: Materialized | None = None,
        name: str = "",
    ) -> KTable:
        """``aggregator(key, value, so_far)`` for each record, starting each group with ``initializer()``."""
        return self._aggregated("aggregate", fold_of_aggregator(initializer, aggregator), materialized, name)

    @abstractmethod
    def _aggregated(self, kind: str, fold: Fold, materialized: Materialized | None, name: str) -> KTable:
        """The table of a fold's results."""


class KGroupedStream(_Folded):
    """A stream's records by key."""

    def windowed_by(self, windows: TimeWindows) -> TimeWindowedKStream:
        """The records of each key and time window."""
        return TimeWindowedKStream(self._builder, self._graph, self.node, windows)

    def windowed_by_sessions(self, windows: SessionWindows) -> SessionWindowedKStream:
        """The records of each key and session."""
        return SessionWindowedKStream(self._builder, self._graph, self.node, windows)

    def _aggregated(self, kind: str, fold: Fold, materialized: Materialized | None, name: str) -> KTable:
        node, how = self._graph.name(kind, name), materialized or Materialized()
        table = StoredTable(self._graph.key_value(how.name or node, how))
        self._graph.processor(node, lambda: AggregateByKey(table, fold), self.node, stores=lambda: (table.store,))
        return KTable(self._builder, self._graph, node, table)


class TimeWindowedKStream(_Folded):
    """A stream's records by key and time window; aggregates have `Windowed` keys."""

    def __init__(self, builder: StreamsBuilder, graph: Graph, node: str, windows: TimeWindows) -> None:
        super().__init__(builder, graph, node)
        self._windows = windows

    def _aggregated(self, kind: str, fold: Fold, materialized: Materialized | None, name: str) -> KTable:
        node, how, windows = self._graph.name(kind, name), materialized or Materialized(), self._windows
        retention = max(span(windows.size_ms + windows.grace_ms), how.retention or span(0))
        size = span(windows.size_ms)
        store = Stores.window(how.name or node, retention, size, persistent=how.persistent)
        table = WindowTable(self._graph.store(store))
        stores = (table.store, self._graph.key_value(time_store(table.store), how))
        self._graph.processor(node, lambda: AggregateByWindow(table, windows, fold), self.node, stores=lambda: stores)
        return KTable(self._builder, self._graph, node, table, windows.grace_ms)


class SessionWindowedKStream(_Grouped):
    """A stream's records by key and session; aggregates have `Windowed` keys."""

    def __init__(self, builder: StreamsBuilder, graph: Graph, node: str, windows: SessionWindows) -> None:
        super().__init__(builder, graph, node)
        self._windows = windows

    def count(self, *, materialized: Materialized | None = None, name: str = "") -> KTable:
        """The number of records in each session."""
        return self._aggregated(
            "count", SessionFold(_zero, _one_more, lambda _key, one, two: one + two), materialized, name
        )

    def reduce(self, reducer: Reducer, *, materialized: Materialized | None = None, name: str = "") -> KTable:
        """``reducer(so_far, value)``, which also merges two sessions."""
        fold, merge = fold_of_reducer(reducer), merge_of_reducer(reducer)
        return self._aggregated("reduce", SessionFold(lambda: None, fold, merge), materialized, name)

    def aggregate(
        self,
        initializer: Callable[[], Value],
        aggregator: Aggregator,
        merger: Merge,
        *,
        materialized: Materialized | None = None,
        name: str = "",
    ) -> KTable:
        """``aggregator(key, value, so_far)`` for each record; ``merger(key, one, two)`` for merged sessions.

        A record's session starts with ``initializer()``, into which existing sessions are merged: the initial value
        must be neutral for the merger.
        """
        return self._aggregated("aggregate", SessionFold(initializer, aggregator, merger), materialized, name)

    def _aggregated(self, kind: str, fold: SessionFold, materialized: Materialized | None, name: str) -> KTable:
        node, how, windows = self._graph.name(kind, name), materialized or Materialized(), self._windows
        closing_ms = windows.gap_ms + windows.grace_ms + 1
        store = Stores.session(
            how.name or node, max(span(closing_ms), how.retention or span(0)), persistent=how.persistent
        )
        table = SessionTable(self._graph.store(store))
        stores = (table.store, self._graph.key_value(time_store(table.store), how))
        supplier = lambda: AggregateBySession(table, windows, fold)  # noqa: E731
        self._graph.processor(node, supplier, self.node, stores=lambda: stores)
        return KTable(self._builder, self._graph, node, table, closing_ms)


def _zero() -> int:
    return 0


def _one_more(_key: object, _value: object, count: int) -> int:
    return count + 1
