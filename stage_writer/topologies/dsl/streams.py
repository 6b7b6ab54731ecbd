"""`StreamsBuilder`, where a topology starts: `KStream`, a stream of records; `KTable`, the last value of each key.

    def build() -> StreamsBuilder:
        builder = StreamsBuilder()
        clicks = builder.stream("clicks", columns="page STRING, user STRING")
        clicks.group_by(lambda user, click: click["page"], keeps_partition=True).count().to_stream()…
        return builder

Rules:

1. An operator adds nodes and returns a new stream or table; nothing runs while a topology is built.
2. Functions are called with what they need in Kafka Streams' order: a key and a value, or a value alone.
3. A stream whose keys were changed must go through a topic before it is grouped, joined or made a table, because the
   records of a new key may be in several tasks. ``keeps_partition=True`` declares that they are not.
4. A table keeps its rows in a store when it is read (by a join), when it is an aggregate, or when `Materialized` names
   it; otherwise its changes pass through.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from common.errors import ConfigError
from stage_writer.topologies.built import BuiltTopology
from stage_writer.topologies.dsl.aggregates import (
    AggregateByKey,
    AggregateBySession,
    AggregateByWindow,
    Fold,
    Merge,
    SessionFold,
    SessionTable,
    WindowTable,
    fold_of_aggregator,
    fold_of_reducer,
    merge_of_reducer,
    time_store,
)
from stage_writer.topologies.dsl.changes import StoredTable, Table, ToStream
from stage_writer.topologies.dsl.graph import BuilderGraph, Materialized, TopicSource, span
from stage_writer.topologies.dsl.joins.streams import JoinSide, StreamJoin
from stage_writer.topologies.dsl.joins.tables import (
    JoinedTable,
    JoinKind,
    LookUp,
    MergeSides,
    Previous,
    TableJoinSide,
)
from stage_writer.topologies.dsl.stateless import PassThrough, Predicate, StatelessOperators
from stage_writer.topologies.dsl.suppress import HoldBack, Suppressed, SuppressedTable
from stage_writer.topologies.dsl.tables import (
    AggregateRows,
    FilteredTable,
    MappedTable,
    MapRows,
    Regroup,
    SourceProcessor,
    SourceTable,
)
from stage_writer.topologies.dsl.windows import JoinWindows, SessionWindows, TimeWindows
from stage_writer.topologies.nodes import KeyType, ValueType
from stage_writer.topologies.records import Key, Value
from stage_writer.topologies.steps import BatchStep, Derive, MapBatches, Select, Where
from stage_writer.topologies.stores import StoreBuilder, Stores
from stage_writer.topologies.task.context import Processor
from stage_writer.topologies.topology import Late, OnError, Topology

Joiner = Callable[[Any, Any], Value]
Aggregator = Callable[[Any, Any, Any], Value]
Reducer = Callable[[Any, Any], Value]


class StreamsBuilder:
    """Makes streams and tables of topics; they make the rest. Raises ConfigError for invalid arguments."""

    def __init__(self, *, on_error: str = OnError.DEAD_LETTER, late: str = Late.DROP) -> None:
        """See `Topology` for the handling of errors and late records."""
        self._graph = BuilderGraph(on_error=on_error, late=late)

    def stream(
        self,
        *topics: str,
        columns: str | None = None,
        key: str = KeyType.STRING,
        timestamp: str | None = None,
        headers: bool = False,
        name: str = "",
    ) -> KStream:
        """The messages of topics as a stream; the arguments are those of `Topology.add_source`."""
        source = TopicSource(topics, columns, key, timestamp, headers)
        return KStream(self._graph, self._graph.source(source, name))

    def table(
        self,
        topic: str,
        *,
        columns: str | None = None,
        key: str = KeyType.STRING,
        timestamp: str | None = None,
        materialized: Materialized | None = None,
        name: str = "",
    ) -> KTable:
        """The messages of a topic as a table: the last value of each key; a tombstone deletes the key."""
        stream = self.stream(topic, columns=columns, key=key, timestamp=timestamp)
        return stream.to_table(materialized=materialized, name=name)

    def add_state_store(self, builder: StoreBuilder) -> StreamsBuilder:
        self._graph.store(builder)
        return self

    def build(self) -> Topology:
        """The topology, to which nodes can be added manually."""
        return self._graph.build()

    def check(self) -> BuiltTopology:
        return self.build().check()

    def describe(self) -> str:
        """The tasks' topics, nodes and stores, as readable text."""
        return self.build().describe()


class KStream(StatelessOperators):
    """A stream of records; made by `StreamsBuilder.stream` and by other streams and tables."""

    # ------------------------------------------------------------------------------------------------------ on columns

    def where(self, condition: str, *, columns: str | None = None, name: str = "") -> KStream:
        """The records for which a SQL condition is true, a batch at a time.

        This and the other operators on columns come before the first record-wise operator of a path; or after the last
        one, right before `to`, and then ``columns`` declare the fields of the records' dicts.
        """
        return self._step("where", Where(condition), columns, name)

    def derive(self, expressions: Mapping[str, str], *, columns: str | None = None, name: str = "") -> KStream:
        """The records with more columns, each a SQL expression over the others."""
        return self._step("derive", Derive(expressions), columns, name)

    def select(self, expressions: Mapping[str, str], *, columns: str | None = None, name: str = "") -> KStream:
        """The records with these columns and no others, each a SQL expression."""
        return self._step("select", Select(expressions), columns, name)

    def map_batches(
        self, function: Callable[[pa.Table], pa.Table], gives: str, *, columns: str | None = None, name: str = ""
    ) -> KStream:
        """``function`` turns each Arrow table into one with the columns ``gives``, row by row."""
        return self._step("map-batches", MapBatches(function, gives), columns, name)

    # ----------------------------------------------------------------------------------------------------------- sinks

    def to(self, table: str = "", *, name: str = "") -> None:
        """Rows of the stream's table, or of one of its ``routes``: each value is a dict of columns."""
        node = self._graph.name("sink", name)
        self._graph.add(lambda topology: topology.add_sink(node, self.node, table=table))

    def to_topic(self, topic: str, *, key: str = KeyType.STRING, value: str = ValueType.JSON, name: str = "") -> None:
        """Records of a Kafka topic, which are produced once they are staged."""
        node = self._graph.name("topic-sink", name)
        self._graph.add(lambda topology: topology.add_topic_sink(node, self.node, topic=topic, key=key, value=value))

    def through(
        self,
        topic: str,
        *,
        columns: str | None = None,
        key: str = KeyType.STRING,
        timestamp: str | None = None,
        name: str = "",
    ) -> KStream:
        """Write to a topic and continue with the records read from it: records of one key meet in one task again.

        The topic must exist, and be one of the stream's ``topics``. Its values are JSON.
        """
        self.to_topic(topic, key=key, name=name)
        return KStream(self._graph, self._graph.source(TopicSource((topic,), columns, key, timestamp)))

    # ----------------------------------------------------------------------------------------------- groups and tables

    def group_by_key(self) -> KGroupedStream:
        """The records of each key, to be aggregated."""
        self._needs_keys("group_by_key")
        return KGroupedStream(self._graph, self.node)

    def group_by(
        self, mapper: Callable[[Any, Any], Key], *, keeps_partition: bool = False, name: str = ""
    ) -> KGroupedStream:
        """The records of each new key that ``mapper(key, value)`` gives."""
        return self.select_key(mapper, keeps_partition=keeps_partition, name=name).group_by_key()

    def to_table(self, materialized: Materialized | None = None, *, name: str = "") -> KTable:
        """The last value of each key; a record without a value deletes the key."""
        self._needs_keys("to_table")
        node, how = self._graph.kept("table", name, materialized)
        is_kept = materialized is not None and bool(materialized.name)
        table = SourceTable(self._graph.key_value(how), is_kept=is_kept)
        self._graph.processor(node, partial(SourceProcessor, table), self.node, stores=table.kept_in)
        return KTable(self._graph, node, table)

    # ----------------------------------------------------------------------------------------------------------- joins

    def join(
        self,
        other: KStream | KTable,
        joiner: Joiner,
        windows: JoinWindows | None = None,
        materialized: Materialized | None = None,
        *,
        name: str = "",
    ) -> KStream:
        """A key's pairs within ``windows``, or records that a table has a row for, by ``joiner(own, other)``."""
        if isinstance(other, KTable):
            return self._looked_up(other, joiner, name, keeps_unmatched=False)
        return self._joined(other, joiner, windows, materialized, name)

    def left_join(
        self,
        other: KStream | KTable,
        joiner: Joiner,
        windows: JoinWindows | None = None,
        materialized: Materialized | None = None,
        *,
        name: str = "",
    ) -> KStream:
        """Like `join`, with this stream's records without a match, too: None stands for the other side."""
        if isinstance(other, KTable):
            return self._looked_up(other, joiner, name, keeps_unmatched=True)
        return self._joined(other, joiner, windows, materialized, name, keeps_left=True)

    def outer_join(
        self,
        other: KStream,
        joiner: Joiner,
        windows: JoinWindows,
        materialized: Materialized | None = None,
        *,
        name: str = "",
    ) -> KStream:
        """Like `join`, with the records of both sides that have no match, too."""
        return self._joined(other, joiner, windows, materialized, name, keeps_left=True, keeps_right=True)

    def join_prior(
        self,
        other: KStream,
        joiner: Joiner,
        windows: JoinWindows,
        materialized: Materialized | None = None,
        *,
        name: str = "",
    ) -> KStream:
        """Each record of both sides with the earlier records of the other side that are older, within windows."""
        return self._joined(other, joiner, windows, materialized, name, is_prior=True)

    def join_previous(self, joiner: Joiner, materialized: Materialized | None = None, *, name: str = "") -> KStream:
        """Each record with the previous value of its key, None for the first: ``joiner(own, previous)``."""
        self._needs_keys("join_previous")
        node, how = self._graph.kept("previous", name, materialized)
        store = self._graph.key_value(how)
        self._graph.processor(node, partial(Previous, store, joiner), self.node, stores=(store,))
        return self._with(node, "")

    # -------------------------------------------------------------------------------------------------------- plumbing

    def _step(self, kind: str, step: BatchStep, columns: str | None, name: str) -> KStream:
        node = self._graph.name(kind, name)
        self._graph.add(lambda topology: topology.add_step(node, step, self.node, columns=columns))
        return self._with(node, self.rekeyed_by)

    def _needs_keys(self, operator: str) -> None:
        if self.rekeyed_by:
            msg = f"{operator} needs all records of a key in one task, but {self.rekeyed_by!r} changed their keys"
            raise ConfigError(
                msg,
                "send them through a topic with `through`; or, if equal new keys always come from one partition, "
                "set keeps_partition=True where the keys are changed",
            )

    def _looked_up(self, table: KTable, joiner: Joiner, name: str, *, keeps_unmatched: bool) -> KStream:
        self._needs_keys("a join with a table")
        node = self._graph.name("look-up", name)
        supplier = partial(LookUp, table.table, joiner, keeps_unmatched=keeps_unmatched)
        self._graph.processor(node, supplier, self.node, stores=table.table.stores())
        return self._with(node, "")

    def _joined(
        self,
        other: KStream,
        joiner: Joiner,
        windows: JoinWindows | None,
        materialized: Materialized | None,
        name: str,
        *,
        keeps_left: bool = False,
        keeps_right: bool = False,
        is_prior: bool = False,
    ) -> KStream:
        if windows is None:
            raise ConfigError("a join of two streams has no windows", "give JoinWindows.of_time_difference_…")
        self._needs_keys("a join")
        other._needs_keys("a join")
        node, how = self._graph.kept("join", name, materialized)
        join = StreamJoin(joiner, windows, how.name, keeps_left, keeps_right, is_prior)
        stores, retention = [join.left_store, join.right_store], span(windows.retention_ms)
        for store in stores:
            self._graph.store(Stores.window(store, retention, span(1), duplicates=True, persistent=how.persistent))
        if join.keeps:
            own = (join.waiting_store, time_store(join.waiting_store))
            stores += [self._graph.key_value(how, store) for store in own]
        left, right = f"{node}-left", f"{node}-right"
        self._graph.processor(left, partial(JoinSide, join, is_left=True), self.node, stores=stores)
        self._graph.processor(right, partial(JoinSide, join, is_left=False), other.node, stores=stores)
        return self._with(self._graph.processor(node, PassThrough, left, right), "")


class KTable:
    """A table; made by `StreamsBuilder.table`, `KStream.to_table`, aggregates and other tables."""

    def __init__(self, graph: BuilderGraph, node: str, table: Table, closing_ms: int | None = None) -> None:
        self._graph = graph
        self.node = node
        """The name of the node that forwards its changes."""
        self.table = table
        """How other nodes read it."""
        self._closing_ms = closing_ms  # how long after its end a window is final; None for keys without windows

    def filter(self, predicate: Predicate, materialized: Materialized | None = None, *, name: str = "") -> KTable:
        """The rows for which ``predicate(key, value)`` is true; a row for which it becomes false is deleted."""
        return self._filtered(predicate, materialized, name, keep=True)

    def filter_not(self, predicate: Predicate, materialized: Materialized | None = None, *, name: str = "") -> KTable:
        """The rows for which ``predicate(key, value)`` is not true."""
        return self._filtered(predicate, materialized, name, keep=False)

    def map_values(
        self, mapper: Callable[[Any], Value], materialized: Materialized | None = None, *, name: str = ""
    ) -> KTable:
        """``mapper(value)`` gives each row's new value; it is not called for deletions."""
        return self.map_values_with_key(lambda _key, value: mapper(value), materialized=materialized, name=name)

    def map_values_with_key(
        self, mapper: Callable[[Any, Any], Value], materialized: Materialized | None = None, *, name: str = ""
    ) -> KTable:
        """``mapper(key, value)`` gives each row's new value."""
        return self._mapped("map-rows", MappedTable(self.table, mapper, self._store(materialized)), name)

    def to_stream(self, *, name: str = "") -> KStream:
        """The changes as a stream of new values; None says that the key was deleted."""
        return KStream(self._graph, self._graph.processor(self._graph.name("to-stream", name), ToStream, self.node))

    def suppress(self, suppressed: Suppressed, materialized: Materialized | None = None, *, name: str = "") -> KTable:
        """The changes held back: until their window is closed, or for a while."""
        if suppressed.wait_ms is None and self._closing_ms is None:
            problem = "suppress(Suppressed.until_window_closes()) follows a table without windows"
            raise ConfigError(problem, "put it after a windowed aggregate, or use Suppressed.until_time_limit")
        node, how = self._graph.kept("suppress", name, materialized)
        table = SuppressedTable(self.table, how.name, suppressed, self._closing_ms or 0)
        stores = [self._graph.key_value(how, store) for store in (*table.own_stores(), time_store(table.store))]
        self._graph.processor(node, partial(HoldBack, table), self.node, stores=stores)
        return KTable(self._graph, node, table, self._closing_ms)

    def join(
        self, other: KTable, joiner: Joiner, materialized: Materialized | None = None, *, name: str = ""
    ) -> KTable:
        """The rows of keys that both tables have: ``joiner(own, other)``."""
        return self._joined(other, joiner, JoinKind.INNER, materialized, name)

    def left_join(
        self, other: KTable, joiner: Joiner, materialized: Materialized | None = None, *, name: str = ""
    ) -> KTable:
        """The rows of this table's keys, with None where the other has none."""
        return self._joined(other, joiner, JoinKind.LEFT, materialized, name)

    def outer_join(
        self, other: KTable, joiner: Joiner, materialized: Materialized | None = None, *, name: str = ""
    ) -> KTable:
        """The rows of keys that at least one of the tables has, with None for the table without the key."""
        return self._joined(other, joiner, JoinKind.OUTER, materialized, name)

    def group_by(
        self, mapper: Callable[[Any, Any], tuple[Key, Value]], *, keeps_partition: bool = False, name: str = ""
    ) -> KGroupedTable:
        """The rows under the keys and values that ``mapper(key, value)`` gives, to be aggregated.

        There is no topic in between, so equal new keys must come from one partition: confirm it with
        ``keeps_partition``.
        """
        if not keeps_partition:
            msg = "group_by of a table needs all rows of a new key in one task"
            raise ConfigError(
                msg,
                "set keeps_partition=True if equal new keys always come from one partition; otherwise make a stream "
                "of it, send that through a topic, and read the topic as a table",
            )
        self.table.enable_old(force=True)
        node = self._graph.processor(self._graph.name("regroup", name), lambda: Regroup(mapper), self.node)
        return KGroupedTable(self._graph, node)

    def _store(self, materialized: Materialized | None) -> str | None:
        if materialized is None or not materialized.name:
            return None
        return self._graph.key_value(materialized)

    def _filtered(self, predicate: Predicate, how: Materialized | None, name: str, *, keep: bool) -> KTable:
        return self._mapped("filter-rows", FilteredTable(self.table, predicate, self._store(how), keep=keep), name)

    def _mapped(self, kind: str, table: MappedTable, name: str) -> KTable:
        node, stores = self._graph.name(kind, name), () if table.store is None else (table.store,)
        self._graph.processor(node, partial(MapRows, table), self.node, stores=stores)
        return KTable(self._graph, node, table, self._closing_ms)

    def _joined(
        self, other: KTable, joiner: Joiner, kind: JoinKind, materialized: Materialized | None, name: str
    ) -> KTable:
        node, store = self._graph.name("join-rows", name), self._store(materialized)
        table = JoinedTable(self.table, other.table, joiner, kind, store)
        left, right = f"{node}-left", f"{node}-right"
        left_reads, right_reads = table.right.stores(), table.left.stores()
        self._graph.processor(left, partial(TableJoinSide, table, is_left=True), self.node, stores=left_reads)
        self._graph.processor(right, partial(TableJoinSide, table, is_left=False), other.node, stores=right_reads)
        own = () if store is None else (store,)
        self._graph.processor(node, partial(MergeSides, table), left, right, stores=own)
        return KTable(self._graph, node, table)


class _Grouped:
    """The common base of all groups."""

    def __init__(self, graph: BuilderGraph, node: str) -> None:
        self._graph = graph
        self.node = node

    def _table(self, node: str, table: StoredTable, supplier: Callable[[], Processor]) -> KTable:
        self._graph.processor(node, supplier, self.node, stores=(table.store,))
        return KTable(self._graph, node, table)

    def _over_time(
        self, node: str, table: StoredTable, supplier: Callable[[], Processor], how: Materialized, closing_ms: int
    ) -> KTable:
        """A table with the time that its node has seen in a store next to it."""
        stores = (table.store, self._graph.key_value(how, time_store(table.store)))
        self._graph.processor(node, supplier, self.node, stores=stores)
        return KTable(self._graph, node, table, closing_ms)


class KGroupedTable(_Grouped):
    """A table's rows under other keys."""

    def count(self, materialized: Materialized | None = None, *, name: str = "") -> KTable:
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
        materialized: Materialized | None = None,
        *,
        name: str = "",
    ) -> KTable:
        """``adder(key, value, aggregate)`` adds a row, ``subtractor(key, value, aggregate)`` removes one."""
        return self._aggregated(fold_of_aggregator(initializer, adder), subtractor, materialized, name)

    def reduce(
        self,
        adder: Callable[[Any, Any], Value],
        subtractor: Callable[[Any, Any], Value],
        materialized: Materialized | None = None,
        *,
        name: str = "",
    ) -> KTable:
        """``adder(reduced, value)`` adds a row, ``subtractor(reduced, value)`` removes one."""
        removed = lambda _key, value, so_far: subtractor(so_far, value)  # noqa: E731 - a fold next to another one
        return self._aggregated(fold_of_reducer(adder), removed, materialized, name)

    def _aggregated(self, add: Fold, remove: Fold, materialized: Materialized | None, name: str) -> KTable:
        node, how = self._graph.kept("aggregate-rows", name, materialized)
        table = StoredTable(self._graph.key_value(how))
        return self._table(node, table, partial(AggregateRows, table, add, remove))


class _Folded(_Grouped, ABC):
    """Groups whose aggregate is a fold over their records: by key, or by key and time window."""

    def count(self, materialized: Materialized | None = None, *, name: str = "") -> KTable:
        """The number of records in each group."""
        return self._aggregated("count", fold_of_aggregator(_zero, _one_more), materialized, name)

    def reduce(self, reducer: Reducer, materialized: Materialized | None = None, *, name: str = "") -> KTable:
        """``reducer(so_far, value)`` from the second record of a group on; the first gives its value."""
        return self._aggregated("reduce", fold_of_reducer(reducer), materialized, name)

    def aggregate(
        self,
        initializer: Callable[[], Value],
        aggregator: Aggregator,
        materialized: Materialized | None = None,
        *,
        name: str = "",
    ) -> KTable:
        """``aggregator(key, value, so_far)`` for each record, starting each group with ``initializer()``."""
        return self._aggregated("aggregate", fold_of_aggregator(initializer, aggregator), materialized, name)

    @abstractmethod
    def _aggregated(self, kind: str, fold: Fold, materialized: Materialized | None, name: str) -> KTable: ...


class KGroupedStream(_Folded):
    """A stream's records by key."""

    def windowed_by(self, windows: TimeWindows) -> TimeWindowedKStream:
        """The records of each key and time window."""
        return TimeWindowedKStream(self._graph, self.node, windows)

    def windowed_by_sessions(self, windows: SessionWindows) -> SessionWindowedKStream:
        """The records of each key and session."""
        return SessionWindowedKStream(self._graph, self.node, windows)

    def _aggregated(self, kind: str, fold: Fold, materialized: Materialized | None, name: str) -> KTable:
        node, how = self._graph.kept(kind, name, materialized)
        table = StoredTable(self._graph.key_value(how))
        return self._table(node, table, partial(AggregateByKey, table, fold))


class TimeWindowedKStream(_Folded):
    """A stream's records by key and time window; aggregates have `Windowed` keys."""

    def __init__(self, graph: BuilderGraph, node: str, windows: TimeWindows) -> None:
        super().__init__(graph, node)
        self._windows = windows

    def _aggregated(self, kind: str, fold: Fold, materialized: Materialized | None, name: str) -> KTable:
        node, how = self._graph.kept(kind, name, materialized)
        windows, size = self._windows, span(self._windows.size_ms)
        retention = max(span(windows.size_ms + windows.grace_ms), how.retention or span(0))
        table = WindowTable(self._graph.store(Stores.window(how.name, retention, size, persistent=how.persistent)))
        supplier = partial(AggregateByWindow, table, windows, fold)
        return self._over_time(node, table, supplier, how, windows.grace_ms)


class SessionWindowedKStream(_Grouped):
    """A stream's records by key and session; aggregates have `Windowed` keys."""

    def __init__(self, graph: BuilderGraph, node: str, windows: SessionWindows) -> None:
        super().__init__(graph, node)
        self._windows = windows

    def count(self, materialized: Materialized | None = None, *, name: str = "") -> KTable:
        """The number of records in each session."""
        return self._aggregated(
            "count", SessionFold(_zero, _one_more, lambda _key, first, two: first + two), materialized, name
        )

    def reduce(self, reducer: Reducer, materialized: Materialized | None = None, *, name: str = "") -> KTable:
        """``reducer(so_far, value)``, which also merges two sessions."""
        fold, merge = fold_of_reducer(reducer), merge_of_reducer(reducer)
        return self._aggregated("reduce", SessionFold(lambda: None, fold, merge), materialized, name)

    def aggregate(
        self,
        initializer: Callable[[], Value],
        aggregator: Aggregator,
        merger: Merge,
        materialized: Materialized | None = None,
        *,
        name: str = "",
    ) -> KTable:
        """``aggregator(key, value, so_far)`` for each record; ``merger(key, one, two)`` for merged sessions.

        A record's session starts with ``initializer()``, into which existing sessions are merged: the initial value
        must be neutral for the merger.
        """
        return self._aggregated("aggregate", SessionFold(initializer, aggregator, merger), materialized, name)

    def _aggregated(self, kind: str, fold: SessionFold, materialized: Materialized | None, name: str) -> KTable:
        node, how = self._graph.kept(kind, name, materialized)
        windows = self._windows
        retention = max(span(windows.closing_ms), how.retention or span(0))
        table = SessionTable(self._graph.store(Stores.session(how.name, retention, persistent=how.persistent)))
        supplier = partial(AggregateBySession, table, windows, fold)
        return self._over_time(node, table, supplier, how, windows.closing_ms)


def _zero() -> int:
    return 0


def _one_more(_key: object, _value: object, count: int) -> int:
    return count + 1
