"""Stateless nodes, run by `KStream`'s plain operators.

Each calls the user's function and forwards; a record is never changed in place (records.py, rule 1).
"""

from collections.abc import Callable, Iterable, Sequence

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
