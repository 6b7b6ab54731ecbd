"""`KStream`: a stream of records.

Rules:

1. An operator adds nodes and returns a new stream or table; nothing runs while a topology is built.
2. Functions are called with what they need in Kafka Streams' order: a key and a value, or a value alone.
3. A stream whose keys were changed must go through a topic before it is grouped, joined or made a table, because the
   records of a new key may be in several tasks. ``keeps_partition=True`` declares that they are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from common.errors import ConfigError
from stage_writer.topologies.dsl import stateless
from stage_writer.topologies.dsl.aggregates import time_store
from stage_writer.topologies.dsl.graph import Materialized, span
from stage_writer.topologies.dsl.grouped import KGroupedStream
from stage_writer.topologies.dsl.joins.streams import JoinSide, StreamJoin
from stage_writer.topologies.dsl.joins.tables import LookUp, Previous
from stage_writer.topologies.dsl.ktable import KTable
from stage_writer.topologies.dsl.tables import SourceProcessor, SourceTable
from stage_writer.topologies.nodes import KeyType, ValueType
from stage_writer.topologies.steps import BatchStep, Derive, MapBatches, Select, Where
from stage_writer.topologies.stores import Stores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa

    from stage_writer.topologies.dsl.builder import StreamsBuilder
    from stage_writer.topologies.dsl.graph import Graph
    from stage_writer.topologies.dsl.stateless import Predicate
    from stage_writer.topologies.dsl.windows import JoinWindows
    from stage_writer.topologies.processors import Processor
    from stage_writer.topologies.records import Key, Value

    Joiner = Callable[[Any, Any], Value]


class KStream:
    """A stream of records; made by `StreamsBuilder.stream` and by other streams and tables."""

    def __init__(self, builder: StreamsBuilder, graph: Graph, node: str, rekeyed_by: str = "") -> None:
        self._builder = builder
        self._graph = graph
        self.node = node
        """The name of the node that forwards its records."""
        self.rekeyed_by = rekeyed_by
        """The node that changed the keys since they were read from a topic."""

    # ------------------------------------------------------------------------------------------------ record by record

    def filter(self, predicate: Predicate, *, name: str = "") -> KStream:
        """The records for which ``predicate(key, value)`` is true."""
        return self._child("filter", lambda: stateless.Filter(predicate, keep=True), name)

    def filter_not(self, predicate: Predicate, *, name: str = "") -> KStream:
        """The records for which ``predicate(key, value)`` is not true."""
        return self._child("filter", lambda: stateless.Filter(predicate, keep=False), name)

    def map(
        self, mapper: Callable[[Any, Any], tuple[Key, Value]], *, keeps_partition: bool = False, name: str = ""
    ) -> KStream:
        """``mapper(key, value)`` gives each record's new key and value."""
        return self._rekeyed("map", lambda: stateless.MapPairs(mapper), name, keeps_partition)

    def map_values(self, mapper: Callable[[Any], Value], *, name: str = "") -> KStream:
        """``mapper(value)`` gives each record's new value."""
        return self.map_values_with_key(lambda _key, value: mapper(value), name=name)

    def map_values_with_key(self, mapper: Callable[[Any, Any], Value], *, name: str = "") -> KStream:
        """``mapper(key, value)`` gives each record's new value."""
        return self._child("map-values", lambda: stateless.MapValues(mapper), name)

    def flat_map(
        self,
        mapper: Callable[[Any, Any], Iterable[tuple[Key, Value]]],
        *,
        keeps_partition: bool = False,
        name: str = "",
    ) -> KStream:
        """``mapper(key, value)`` gives any number of keys and values for each record."""
        return self._rekeyed("flat-map", lambda: stateless.FlatMapPairs(mapper), name, keeps_partition)

    def flat_map_values(self, mapper: Callable[[Any], Iterable[Value]], *, name: str = "") -> KStream:
        """``mapper(value)`` gives any number of values for each record."""
        return self._child("flat-map-values", lambda: stateless.FlatMapValues(lambda _key, value: mapper(value)), name)

    def select_key(
        self, mapper: Callable[[Any, Any], Key], *, keeps_partition: bool = False, name: str = ""
    ) -> KStream:
        """``mapper(key, value)`` gives each record's new key."""
        return self._rekeyed("select-key", lambda: stateless.MapKey(mapper), name, keeps_partition)

    def peek(self, action: Callable[[Any, Any], object], *, name: str = "") -> KStream:
        """Call ``action(key, value)`` for each record, and pass it on unchanged."""
        return self._child("peek", lambda: stateless.Peek(action), name)

    def branch(self, *predicates: Predicate, default: bool = False, name: str = "") -> list[KStream]:
        """A stream for each predicate, with the records for which it is the first that is true.

        With ``default``, one more for the remaining records; without, they are left out.
        """
        node = self._graph.name("branch", name)
        children = [f"{node}-{number + 1}" for number in range(len(predicates) + default)]
        self._graph.processor(node, lambda: stateless.Branch(predicates, children), self.node)
        for child in children:
            self._graph.processor(child, stateless.PassThrough, node)
        return [self._with(child, self.rekeyed_by) for child in children]

    def merge(self, *others: KStream, name: str = "") -> KStream:
        """This stream's records and those of others, in order of arrival."""
        streams = (self, *others)
        node = self._graph.name("merge", name)
        self._graph.processor(node, stateless.PassThrough, *(stream.node for stream in streams))
        return self._with(node, next((stream.rekeyed_by for stream in streams if stream.rekeyed_by), ""))

    def process(
        self,
        supplier: Callable[[], Processor],
        *,
        stores: Sequence[str] = (),
        keeps_partition: bool = False,
        name: str = "",
    ) -> KStream:
        """The records that a processor forwards; ``supplier`` makes one for each task."""
        node = self._graph.name("process", name)
        self._graph.processor(node, supplier, self.node, stores=lambda: tuple(stores))
        return self._with(node, self.rekeyed_by if keeps_partition else node)

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
        """Write to a topic and continue with what is read from it: records of one key meet in one task again.

        The topic must exist, and be one of the stream's ``topics``. Its values are JSON.
        """
        self.to_topic(topic, key=key, name=name)
        return self._builder.stream(topic, columns=columns, key=key, timestamp=timestamp)

    # ----------------------------------------------------------------------------------------------- groups and tables

    def group_by_key(self) -> KGroupedStream:
        """The records of each key, to be aggregated."""
        self._needs_keys("group_by_key")
        return KGroupedStream(self._builder, self._graph, self.node)

    def group_by(
        self, mapper: Callable[[Any, Any], Key], *, keeps_partition: bool = False, name: str = ""
    ) -> KGroupedStream:
        """The records of each new key that ``mapper(key, value)`` gives."""
        return self.select_key(mapper, keeps_partition=keeps_partition, name=name).group_by_key()

    def to_table(self, *, materialized: Materialized | None = None, name: str = "") -> KTable:
        """The last value of each key; a record without a value deletes the key."""
        self._needs_keys("to_table")
        node = self._graph.name("table", name)
        how = materialized or Materialized()
        table = SourceTable(self._graph.key_value(how.name or node, how), is_kept=bool(how.name))
        self._graph.processor(
            node, lambda: SourceProcessor(table), self.node, stores=lambda: (table.store,) if table.is_kept else ()
        )
        return KTable(self._builder, self._graph, node, table)

    # ----------------------------------------------------------------------------------------------------------- joins

    def join(
        self,
        other: KStream | KTable,
        joiner: Joiner,
        windows: JoinWindows | None = None,
        *,
        materialized: Materialized | None = None,
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
        *,
        materialized: Materialized | None = None,
        name: str = "",
    ) -> KStream:
        """The same, and own records that have no match, with None for the other."""
        if isinstance(other, KTable):
            return self._looked_up(other, joiner, name, keeps_unmatched=True)
        return self._joined(other, joiner, windows, materialized, name, keeps_left=True)

    def outer_join(
        self,
        other: KStream,
        joiner: Joiner,
        windows: JoinWindows,
        *,
        materialized: Materialized | None = None,
        name: str = "",
    ) -> KStream:
        """The same, and records of both sides that have no match."""
        return self._joined(other, joiner, windows, materialized, name, keeps_left=True, keeps_right=True)

    def join_prior(
        self,
        other: KStream,
        joiner: Joiner,
        windows: JoinWindows,
        *,
        materialized: Materialized | None = None,
        name: str = "",
    ) -> KStream:
        """Each record of both sides with the earlier records of the other side that are older, within windows."""
        return self._joined(other, joiner, windows, materialized, name, is_prior=True)

    def join_previous(self, joiner: Joiner, *, materialized: Materialized | None = None, name: str = "") -> KStream:
        """Each record with the previous value of its key, None for the first: ``joiner(own, previous)``."""
        self._needs_keys("join_previous")
        node = self._graph.name("previous", name)
        how = materialized or Materialized()
        store = self._graph.key_value(how.name or node, how)
        self._graph.processor(node, lambda: Previous(store, joiner), self.node, stores=lambda: (store,))
        return self._with(node, "")

    # -------------------------------------------------------------------------------------------------------- plumbing

    def _with(self, node: str, rekeyed_by: str) -> KStream:
        return KStream(self._builder, self._graph, node, rekeyed_by)

    def _child(self, kind: str, supplier: Callable[[], Processor], name: str) -> KStream:
        node = self._graph.processor(self._graph.name(kind, name), supplier, self.node)
        return self._with(node, self.rekeyed_by)

    def _rekeyed(self, kind: str, supplier: Callable[[], Processor], name: str, keeps_partition: bool) -> KStream:  # noqa: FBT001 - the user's own argument
        node = self._graph.processor(self._graph.name(kind, name), supplier, self.node)
        return self._with(node, self.rekeyed_by if keeps_partition else node)

    def _step(self, kind: str, step: BatchStep, columns: str | None, name: str) -> KStream:
        node = self._graph.name(kind, name)
        self._graph.add(lambda topology: topology.add_step(node, step, self.node, columns=columns))
        return self._with(node, self.rekeyed_by)

    def _needs_keys(self, operator: str) -> None:
        if self.rekeyed_by:
            msg = f"{operator} needs the records of a key in one task, and {self.rekeyed_by!r} has changed their keys"
            raise ConfigError(
                msg,
                "send them through a topic with `through`, or, where equal new keys always come from one partition, "
                "say keeps_partition=True where they are changed",
            )

    def _looked_up(self, table: KTable, joiner: Joiner, name: str, *, keeps_unmatched: bool) -> KStream:
        self._needs_keys("a join with a table")
        node, stores = self._graph.name("look-up", name), table.table.stores()
        supplier = lambda: LookUp(table.table, joiner, keeps_unmatched=keeps_unmatched)  # noqa: E731
        self._graph.processor(node, supplier, self.node, stores=lambda: stores)
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
            msg = "a join of two streams has no windows"
            raise ConfigError(msg, "give JoinWindows.of_time_difference_…")
        self._needs_keys("a join")
        other._needs_keys("a join")
        node, how = self._graph.name("join", name), materialized or Materialized()
        base = how.name or node
        join = StreamJoin(joiner, windows, base, keeps_left, keeps_right, is_prior)
        stores = [join.left_store, join.right_store]
        for store in stores:
            kept = Stores.window(store, span(windows.retention_ms), span(1), duplicates=True, persistent=how.persistent)
            self._graph.store(kept)
        if join.keeps:
            stores += [self._graph.key_value(one, how) for one in (join.waiting_store, time_store(join.waiting_store))]
        sides = [(f"{node}-left", self.node, True), (f"{node}-right", other.node, False)]
        for side, parent, is_left in sides:
            supplier = _side(join, is_left=is_left)
            self._graph.processor(side, supplier, parent, stores=lambda: tuple(stores))
        self._graph.processor(node, stateless.PassThrough, *(side for side, _, _ in sides))
        return self._with(node, "")


def _side(join: StreamJoin, *, is_left: bool) -> Callable[[], Processor]:
    return lambda: JoinSide(join, is_left=is_left)
