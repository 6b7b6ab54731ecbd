"""The operators of a stream that need no state, and their nodes.

Each calls the user's function and forwards; a record is never changed in place (records.py, rule 1).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

from stage_writer.topologies.dsl.graph import BuilderGraph
from stage_writer.topologies.records import Key, Record, Value
from stage_writer.topologies.task.context import Processor

Predicate = Callable[[Key, Value], object]


class Filter(Processor):
    """The records for which the predicate is true (or not, for ``keep=False``)."""

    def __init__(self, predicate: Predicate, *, keep: bool) -> None:
        self._predicate = predicate
        self._keep = keep

    def process(self, record: Record) -> None:
        if bool(self._predicate(record.key, record.value)) is self._keep:
            self.context.forward(record)


class MapPairs(Processor):
    def __init__(self, mapper: Callable[[Key, Value], tuple[Key, Value]]) -> None:
        self._mapper = mapper

    def process(self, record: Record) -> None:
        key, value = self._mapper(record.key, record.value)
        self.context.forward(record.with_pair(key, value))


class MapValues(Processor):
    def __init__(self, mapper: Callable[[Key, Value], Value]) -> None:
        self._mapper = mapper

    def process(self, record: Record) -> None:
        self.context.forward(record.with_value(self._mapper(record.key, record.value)))


class MapKey(Processor):
    def __init__(self, mapper: Callable[[Key, Value], Key]) -> None:
        self._mapper = mapper

    def process(self, record: Record) -> None:
        self.context.forward(record.with_key(self._mapper(record.key, record.value)))


class FlatMapPairs(Processor):
    def __init__(self, mapper: Callable[[Key, Value], Iterable[tuple[Key, Value]]]) -> None:
        self._mapper = mapper

    def process(self, record: Record) -> None:
        for key, value in self._mapper(record.key, record.value):
            self.context.forward(record.with_pair(key, value))


class FlatMapValues(Processor):
    def __init__(self, mapper: Callable[[Key, Value], Iterable[Value]]) -> None:
        self._mapper = mapper

    def process(self, record: Record) -> None:
        for value in self._mapper(record.key, record.value):
            self.context.forward(record.with_value(value))


class Peek(Processor):
    """Passes on each record unchanged, after calling the user's function."""

    def __init__(self, action: Callable[[Key, Value], object]) -> None:
        self._action = action

    def process(self, record: Record) -> None:
        self._action(record.key, record.value)
        self.context.forward(record)


class Branch(Processor):
    """Passes each record to the first child whose predicate is true, or to the last child when there is one more."""

    def __init__(self, predicates: Sequence[Predicate], children: Sequence[str]) -> None:
        self._predicates = tuple(zip(predicates, children, strict=False))
        self._rest = children[len(predicates)] if len(children) > len(predicates) else None

    def process(self, record: Record) -> None:
        """Forward it to one child at most."""
        for predicate, child in self._predicates:
            if predicate(record.key, record.value):
                self.context.forward(record, child)
                return
        if self._rest is not None:
            self.context.forward(record, self._rest)


class PassThrough(Processor):
    """Passes on each record unchanged: joins several paths, or names one."""

    def process(self, record: Record) -> None:
        self.context.forward(record)


class StatelessOperators:
    """The operators of a `KStream` that take its records one by one, without state."""

    def __init__(self, graph: BuilderGraph, node: str, rekeyed_by: str = "") -> None:
        self._graph = graph
        self.node = node
        self.rekeyed_by = rekeyed_by
        """The node that changed the keys since they were read from a topic."""

    def filter(self, predicate: Predicate, *, name: str = "") -> Self:
        """The records for which ``predicate(key, value)`` is true."""
        return self._child("filter", lambda: Filter(predicate, keep=True), name)

    def filter_not(self, predicate: Predicate, *, name: str = "") -> Self:
        """The records for which ``predicate(key, value)`` is not true."""
        return self._child("filter", lambda: Filter(predicate, keep=False), name)

    def map(
        self, mapper: Callable[[Any, Any], tuple[Key, Value]], *, keeps_partition: bool = False, name: str = ""
    ) -> Self:
        """``mapper(key, value)`` gives each record's new key and value."""
        return self._rekeyed("map", lambda: MapPairs(mapper), name, keeps_partition)

    def map_values(self, mapper: Callable[[Any], Value], *, name: str = "") -> Self:
        """``mapper(value)`` gives each record's new value."""
        return self.map_values_with_key(lambda _key, value: mapper(value), name=name)

    def map_values_with_key(self, mapper: Callable[[Any, Any], Value], *, name: str = "") -> Self:
        """``mapper(key, value)`` gives each record's new value."""
        return self._child("map-values", lambda: MapValues(mapper), name)

    def flat_map(
        self,
        mapper: Callable[[Any, Any], Iterable[tuple[Key, Value]]],
        *,
        keeps_partition: bool = False,
        name: str = "",
    ) -> Self:
        """``mapper(key, value)`` gives any number of keys and values for each record."""
        return self._rekeyed("flat-map", lambda: FlatMapPairs(mapper), name, keeps_partition)

    def flat_map_values(self, mapper: Callable[[Any], Iterable[Value]], *, name: str = "") -> Self:
        """``mapper(value)`` gives any number of values for each record."""
        return self._child("flat-map-values", lambda: FlatMapValues(lambda _key, value: mapper(value)), name)

    def select_key(self, mapper: Callable[[Any, Any], Key], *, keeps_partition: bool = False, name: str = "") -> Self:
        """``mapper(key, value)`` gives each record's new key."""
        return self._rekeyed("select-key", lambda: MapKey(mapper), name, keeps_partition)

    def peek(self, action: Callable[[Any, Any], object], *, name: str = "") -> Self:
        """Call ``action(key, value)`` for each record, and pass it on unchanged."""
        return self._child("peek", lambda: Peek(action), name)

    def branch(self, *predicates: Predicate, default: bool = False, name: str = "") -> list[Self]:
        """A stream for each predicate, with the records for which it is the first that is true.

        With ``default``, one more for the remaining records; without, they are left out.
        """
        node = self._graph.name("branch", name)
        children = [f"{node}-{number + 1}" for number in range(len(predicates) + default)]
        self._graph.processor(node, lambda: Branch(predicates, children), self.node)
        for child in children:
            self._graph.processor(child, PassThrough, node)
        return [self._with(child, self.rekeyed_by) for child in children]

    def merge(self, *others: Self, name: str = "") -> Self:
        """This stream's records and those of others, in order of arrival."""
        streams = (self, *others)
        node = self._graph.name("merge", name)
        self._graph.processor(node, PassThrough, *(stream.node for stream in streams))
        return self._with(node, next((stream.rekeyed_by for stream in streams if stream.rekeyed_by), ""))

    def process(
        self,
        supplier: Callable[[], Processor],
        *,
        stores: Sequence[str] = (),
        keeps_partition: bool = False,
        name: str = "",
    ) -> Self:
        """The records that a processor forwards; ``supplier`` makes one for each task."""
        node = self._graph.name("process", name)
        self._graph.processor(node, supplier, self.node, stores=stores)
        return self._with(node, self.rekeyed_by if keeps_partition else node)

    def _with(self, node: str, rekeyed_by: str) -> Self:
        return type(self)(self._graph, node, rekeyed_by)

    def _child(self, kind: str, supplier: Callable[[], Processor], name: str) -> Self:
        node = self._graph.processor(self._graph.name(kind, name), supplier, self.node)
        return self._with(node, self.rekeyed_by)

    def _rekeyed(self, kind: str, supplier: Callable[[], Processor], name: str, keeps_partition: bool) -> Self:  # noqa: FBT001 - the user's own argument
        node = self._graph.processor(self._graph.name(kind, name), supplier, self.node)
        return self._with(node, self.rekeyed_by if keeps_partition else node)
