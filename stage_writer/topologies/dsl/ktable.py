"""`KTable`: the last value of each key, as it changes.

A table keeps its rows in a store when it is read (by a join), when it is an aggregate, or when `Materialized` names it;
otherwise its changes pass through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from common.errors import ConfigError
from stage_writer.topologies.dsl.aggregates import fold_of_aggregator, fold_of_reducer, time_store
from stage_writer.topologies.dsl.changes import StoredTable, ToStream
from stage_writer.topologies.dsl.graph import Materialized
from stage_writer.topologies.dsl.joins.tables import JoinedTable, JoinKind, MergeSides, TableJoinSide
from stage_writer.topologies.dsl.suppress import HoldBack, Suppressed, SuppressedTable
from stage_writer.topologies.dsl.tables import AggregateRows, FilteredTable, FilterRows, MappedTable, MapRows, Regroup

if TYPE_CHECKING:
    from collections.abc import Callable

    from stage_writer.topologies.dsl.aggregates import Fold
    from stage_writer.topologies.dsl.builder import StreamsBuilder
    from stage_writer.topologies.dsl.changes import Table
    from stage_writer.topologies.dsl.graph import Graph
    from stage_writer.topologies.dsl.kstream import KStream
    from stage_writer.topologies.dsl.stateless import Predicate
    from stage_writer.topologies.processors import Processor
    from stage_writer.topologies.records import Key, Value

    Joiner = Callable[[Any, Any], Value]


class KTable:
    """A table; made by `StreamsBuilder.table`, `KStream.to_table`, aggregates and other tables."""

    def __init__(
        self, builder: StreamsBuilder, graph: Graph, node: str, table: Table, closing_ms: int | None = None
    ) -> None:
        self._builder = builder
        self._graph = graph
        self.node = node
        """The name of the node that forwards its changes."""
        self.table = table
        """How other nodes read it."""
        self._closing_ms = closing_ms  # how long after its end a window is final; None for keys without windows

    def filter(self, predicate: Predicate, *, materialized: Materialized | None = None, name: str = "") -> KTable:
        """The rows for which ``predicate(key, value)`` is true; a row for which it becomes false is deleted."""
        return self._filtered(predicate, materialized, name, keep=True)

    def filter_not(self, predicate: Predicate, *, materialized: Materialized | None = None, name: str = "") -> KTable:
        """The rows for which ``predicate(key, value)`` is not true."""
        return self._filtered(predicate, materialized, name, keep=False)

    def map_values(
        self, mapper: Callable[[Any], Value], *, materialized: Materialized | None = None, name: str = ""
    ) -> KTable:
        """``mapper(value)`` gives each row's new value; it is not called for deletions."""
        return self.map_values_with_key(lambda _key, value: mapper(value), materialized=materialized, name=name)

    def map_values_with_key(
        self, mapper: Callable[[Any, Any], Value], *, materialized: Materialized | None = None, name: str = ""
    ) -> KTable:
        """``mapper(key, value)`` gives each row's new value."""
        store = self._store(materialized)
        table = MappedTable(self.table, mapper, store)
        return self._child("map-rows", lambda: MapRows(table), table, store, name)

    def to_stream(self, *, name: str = "") -> KStream:
        """The changes as a stream of new values; None says that the key was deleted."""
        from stage_writer.topologies.dsl.kstream import KStream  # noqa: PLC0415 - streams make tables, tables streams

        node = self._graph.processor(self._graph.name("to-stream", name), ToStream, self.node)
        return KStream(self._builder, self._graph, node)

    def suppress(self, suppressed: Suppressed, *, materialized: Materialized | None = None, name: str = "") -> KTable:
        """The changes held back: until their window is closed, or for a while."""
        if suppressed.wait_ms is None and self._closing_ms is None:
            problem = "suppress(Suppressed.until_window_closes()) stands below a table that has no windows"
            raise ConfigError(problem, "put it below a windowed aggregate, or use Suppressed.until_time_limit")
        node, how = self._graph.name("suppress", name), materialized or Materialized()
        table = SuppressedTable(self.table, how.name or node, suppressed, self._closing_ms or 0)
        stores = (*table.own_stores(), time_store(table.store))
        for store in stores:
            self._graph.key_value(store, how)
        self._graph.processor(node, lambda: HoldBack(table), self.node, stores=lambda: stores)
        return KTable(self._builder, self._graph, node, table, self._closing_ms)

    def join(
        self, other: KTable, joiner: Joiner, *, materialized: Materialized | None = None, name: str = ""
    ) -> KTable:
        """The rows of keys that both tables have: ``joiner(own, other)``."""
        return self._joined(other, joiner, JoinKind.INNER, materialized, name)

    def left_join(
        self, other: KTable, joiner: Joiner, *, materialized: Materialized | None = None, name: str = ""
    ) -> KTable:
        """The rows of this table's keys, with None where the other has none."""
        return self._joined(other, joiner, JoinKind.LEFT, materialized, name)

    def outer_join(
        self, other: KTable, joiner: Joiner, *, materialized: Materialized | None = None, name: str = ""
    ) -> KTable:
        """The rows of keys that one of the tables has, with None where one has none."""
        return self._joined(other, joiner, JoinKind.OUTER, materialized, name)

    def group_by(
        self, mapper: Callable[[Any, Any], tuple[Key, Value]], *, keeps_partition: bool = False, name: str = ""
    ) -> KGroupedTable:
        """The rows under the keys and values that ``mapper(key, value)`` gives, to be aggregated.

        There is no topic in between, so equal new keys must come from one partition: confirm it with
        ``keeps_partition``.
        """
        if not keeps_partition:
            msg = "group_by of a table needs the rows of a new key in one task"
            raise ConfigError(
                msg,
                "say keeps_partition=True where equal new keys always come from one partition; otherwise make a stream "
                "of it, send that through a topic, and make a table of what is read there",
            )
        self.table.enable_old(force=True)
        node = self._graph.processor(self._graph.name("regroup", name), lambda: Regroup(mapper), self.node)
        return KGroupedTable(self._builder, self._graph, node)

    def _store(self, materialized: Materialized | None) -> str | None:
        if materialized is None or not materialized.name:
            return None
        return self._graph.key_value(materialized.name, materialized)

    def _filtered(self, predicate: Predicate, how: Materialized | None, name: str, *, keep: bool) -> KTable:
        store = self._store(how)
        table = FilteredTable(self.table, predicate, store, keep=keep)
        return self._child("filter-rows", lambda: FilterRows(table), table, store, name)

    def _child(
        self, kind: str, supplier: Callable[[], Processor], table: Table, store: str | None, name: str
    ) -> KTable:
        stores = () if store is None else (store,)
        node = self._graph.name(kind, name)
        self._graph.processor(node, supplier, self.node, stores=lambda: stores)
        return KTable(self._builder, self._graph, node, table, self._closing_ms)

    def _joined(
        self, other: KTable, joiner: Joiner, kind: JoinKind, materialized: Materialized | None, name: str
    ) -> KTable:
        node, store = self._graph.name("join-rows", name), self._store(materialized)
        table = JoinedTable(self.table, other.table, joiner, kind, store)
        read_by_left, read_by_right = other.table.stores(), self.table.stores()
        self._graph.processor(
            f"{node}-left", lambda: TableJoinSide(table, is_left=True), self.node, stores=lambda: read_by_left
        )
        self._graph.processor(
            f"{node}-right", lambda: TableJoinSide(table, is_left=False), other.node, stores=lambda: read_by_right
        )
        own = () if store is None else (store,)
        self._graph.processor(node, lambda: MergeSides(table), f"{node}-left", f"{node}-right", stores=lambda: own)
        return KTable(self._builder, self._graph, node, table)


class KGroupedTable:
    """A table's rows under other keys."""

    def __init__(self, builder: StreamsBuilder, graph: Graph, node: str) -> None:
        self._builder = builder
        self._graph = graph
        self.node = node

    def count(self, *, materialized: Materialized | None = None, name: str = "") -> KTable:
        """The number of rows of each key."""
        return self.aggregate(
            lambda: 0, lambda _k, _v, count: count + 1, lambda _k, _v, count: count - 1,
            materialized=materialized, name=name or self._graph.name("count"),
        )  # fmt: skip

    def aggregate(
        self,
        initializer: Callable[[], Value],
        adder: Callable[[Any, Any, Any], Value],
        subtractor: Callable[[Any, Any, Any], Value],
        *,
        materialized: Materialized | None = None,
        name: str = "",
    ) -> KTable:
        """``adder(key, value, aggregate)`` adds a row, ``subtractor(key, value, aggregate)`` removes one."""
        return self._aggregated(fold_of_aggregator(initializer, adder), subtractor, materialized, name)

    def reduce(
        self,
        adder: Callable[[Any, Any], Value],
        subtractor: Callable[[Any, Any], Value],
        *,
        materialized: Materialized | None = None,
        name: str = "",
    ) -> KTable:
        """``adder(reduced, value)`` adds a row, ``subtractor(reduced, value)`` removes one."""
        removed = lambda _key, value, so_far: subtractor(so_far, value)  # noqa: E731 - a fold beside another one
        return self._aggregated(fold_of_reducer(adder), removed, materialized, name)

    def _aggregated(self, add: Fold, remove: Fold, materialized: Materialized | None, name: str) -> KTable:
        node, how = self._graph.name("aggregate-rows", name), materialized or Materialized()
        table = StoredTable(self._graph.key_value(how.name or node, how))
        self._graph.processor(node, lambda: AggregateRows(table, add, remove), self.node, stores=lambda: (table.store,))
        return KTable(self._builder, self._graph, node, table)
