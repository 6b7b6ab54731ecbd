"""Operators that add several nodes or stores to the graph.

Each returns the node that forwards its records, and the table where it makes one.
"""

from collections.abc import Callable
from typing import Any

from stage_writer.topologies.dsl.aggregates import (
    AggregateByKey,
    AggregateBySession,
    AggregateByWindow,
    Fold,
    SessionFold,
    SessionTable,
    WindowTable,
    time_store,
)
from stage_writer.topologies.dsl.changes import StoredTable
from stage_writer.topologies.dsl.graph import BuilderGraph, Materialized, span
from stage_writer.topologies.dsl.joins.streams import JoinSide, StreamJoin
from stage_writer.topologies.dsl.joins.tables import JoinedTable, MergeSides, TableJoinSide
from stage_writer.topologies.dsl.stateless import PassThrough
from stage_writer.topologies.dsl.suppress import HoldBack, SuppressedTable
from stage_writer.topologies.dsl.tables import SourceProcessor, SourceTable
from stage_writer.topologies.dsl.windows import SessionWindows, TimeWindows
from stage_writer.topologies.processors import Processor
from stage_writer.topologies.records import Value
from stage_writer.topologies.stores import Stores

Joiner = Callable[[Any, Any], Value]


def last_values(graph: BuilderGraph, node: str, parent: str, how: Materialized) -> SourceTable:
    table = SourceTable(graph.key_value(how.name or node, how), is_kept=bool(how.name))
    stores = lambda: (table.store,) if table.is_kept else ()  # noqa: E731
    graph.processor(node, lambda: SourceProcessor(table), parent, stores=stores)
    return table


def by_key(graph: BuilderGraph, node: str, parent: str, fold: Fold, *, how: Materialized) -> StoredTable:
    table = StoredTable(graph.key_value(how.name or node, how))
    graph.processor(node, lambda: AggregateByKey(table, fold), parent, stores=lambda: (table.store,))
    return table


def by_window(
    graph: BuilderGraph, node: str, parent: str, windows: TimeWindows, fold: Fold, *, how: Materialized
) -> WindowTable:
    retention = max(span(windows.size_ms + windows.grace_ms), how.retention or span(0))
    store = Stores.window(how.name or node, retention, span(windows.size_ms), persistent=how.persistent)
    table = WindowTable(graph.store(store))
    stores = (table.store, graph.key_value(time_store(table.store), how))
    graph.processor(node, lambda: AggregateByWindow(table, windows, fold), parent, stores=lambda: stores)
    return table


def by_session(
    graph: BuilderGraph, node: str, parent: str, windows: SessionWindows, fold: SessionFold, *, how: Materialized
) -> SessionTable:
    retention = max(span(windows.closing_ms), how.retention or span(0))
    table = SessionTable(graph.store(Stores.session(how.name or node, retention, persistent=how.persistent)))
    stores = (table.store, graph.key_value(time_store(table.store), how))
    graph.processor(node, lambda: AggregateBySession(table, windows, fold), parent, stores=lambda: stores)
    return table


def joined_streams(
    graph: BuilderGraph, node: str, parents: tuple[str, str], join: StreamJoin, how: Materialized
) -> None:
    stores = [join.left_store, join.right_store]
    retention = span(join.windows.retention_ms)
    for store in stores:
        graph.store(Stores.window(store, retention, span(1), duplicates=True, persistent=how.persistent))
    if join.keeps:
        stores += [graph.key_value(name, how) for name in (join.waiting_store, time_store(join.waiting_store))]
    sides = [f"{node}-left", f"{node}-right"]
    for side, parent in zip(sides, parents, strict=True):
        supplier = _side(join, is_left=side is sides[0])
        graph.processor(side, supplier, parent, stores=lambda: tuple(stores))
    graph.processor(node, PassThrough, *sides)


def joined_tables(graph: BuilderGraph, node: str, parents: tuple[str, str], table: JoinedTable) -> None:
    left, right = table.left.stores(), table.right.stores()
    graph.processor(f"{node}-left", lambda: TableJoinSide(table, is_left=True), parents[0], stores=lambda: right)
    graph.processor(f"{node}-right", lambda: TableJoinSide(table, is_left=False), parents[1], stores=lambda: left)
    own = () if table.store is None else (table.store,)
    graph.processor(node, lambda: MergeSides(table), f"{node}-left", f"{node}-right", stores=lambda: own)


def held_back(graph: BuilderGraph, node: str, parent: str, table: SuppressedTable, how: Materialized) -> None:
    """The changes of a table that are forwarded later."""
    stores = (*table.own_stores(), time_store(table.store))
    for store in stores:
        graph.key_value(store, how)
    graph.processor(node, lambda: HoldBack(table), parent, stores=lambda: stores)


def _side(join: StreamJoin, *, is_left: bool) -> Callable[[], Processor]:
    return lambda: JoinSide(join, is_left=is_left)
