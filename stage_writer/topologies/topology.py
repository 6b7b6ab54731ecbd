"""The nodes of a topology and their connections: the result of a user's ``build`` function.

    topology = Topology()
    topology.add_source("clicks", "clicks", columns="page STRING, user STRING")
    topology.add_step("errors", Where("page IS NOT NULL"), "clicks")
    topology.add_processor("counts", Counts, "errors", stores=["counts"])
    topology.add_state_store(Stores.key_value("counts"))
    topology.add_sink("rows", "counts")

Rules:

1. A node is added after its parents, so there are no cycles, and children are called in the order of adding.
2. Errors are found when a node is added or in `check`, and name the node and the remedy.
3. Steps work on whole batches of columns. They come before the first processor of their path, or after the last one: in
   between, records of one message would overtake those of another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TypeVar

from common.errors import ConfigError, SchemaError
from common.schema import StructType, parse_ddl
from stage_writer.topologies.built import BuiltTopology, build
from stage_writer.topologies.nodes import (
    KeyType,
    Node,
    ProcessorNode,
    SourceNode,
    StepNode,
    TableSink,
    TopicSink,
    ValueType,
)
from stage_writer.topologies.steps import BatchStep
from stage_writer.topologies.stores import StoreBuilder
from stage_writer.topologies.task.context import Processor

Choice = TypeVar("Choice", bound=StrEnum)


class OnError(StrEnum):
    """The treatment of a message for which the user's code raises an exception."""

    DEAD_LETTER = "dead_letter"
    """The message goes to the dead letters, and everything done for it is undone."""

    FAIL = "fail"
    """The writer stops, and continues with this message when it is restarted."""


class Late(StrEnum):
    """The treatment of a record that a processor drops because it is late."""

    DROP = "drop"
    """The record is left out and counted; its message's other output stays."""

    DEAD_LETTER = "dead_letter"
    """The record's message goes to the dead letters, with all of the message's output undone."""


class Topology:
    """Sources, processors, steps and sinks. Raises ConfigError for invalid arguments."""

    def __init__(self, *, on_error: str = OnError.DEAD_LETTER, late: str = Late.DROP) -> None:
        self.on_error = _one_of(OnError, "on_error", on_error)
        self.late = _one_of(Late, "late", late)
        self._nodes: dict[str, Node] = {}
        self._stores: dict[str, StoreBuilder] = {}
        self._connected: list[tuple[str, str]] = []

    def add_source(
        self,
        name: str,
        *topics: str,
        columns: str | None = None,
        key: str = KeyType.STRING,
        timestamp: str | None = None,
        headers: bool = False,
    ) -> Topology:
        """The messages of topics, decoded by ``columns``; without them each value is its JSON, of any kind.

        ``key`` is the form of the messages' keys (`KeyType`), ``timestamp`` the column with the records' time: a
        TIMESTAMP, or a BIGINT of milliseconds. Headers are read from Kafka only on request.
        """
        if not topics:
            raise ConfigError(f"the source {name!r} has no topics", "name them after the source's name")
        schema = None
        if columns is not None:
            try:
                schema = parse_ddl(columns)
            except SchemaError as error:
                raise SchemaError(f"the source {name!r}: {error.problem}", error.remedy) from error
        for other in self._nodes.values():
            twice = set(topics) & set(other.topics) if isinstance(other, SourceNode) else set()
            if twice:
                problem = f"the sources {other.name!r} and {name!r} both read {', '.join(sorted(twice))}"
                raise ConfigError(problem, "add one source, and start both paths there")
        key_type = _one_of(KeyType, f"the key of {name!r}", key)
        self._add(SourceNode(name, (), tuple(topics), schema, key_type, timestamp, headers))
        return self

    def add_processor(
        self, name: str, supplier: Callable[[], Processor], *parents: str, stores: Sequence[str] = ()
    ) -> Topology:
        """A processor; ``supplier`` (its class, for instance) makes one for each task."""
        self._add(ProcessorNode(name, parents, supplier))
        self._connected += [(store, name) for store in stores]
        return self

    def add_step(self, name: str, step: BatchStep, *parents: str, columns: str | None = None) -> Topology:
        """A vectorized step. After a processor, ``columns`` declare the fields of the records' dicts."""
        schema: StructType | None = None if columns is None else parse_ddl(columns)
        self._add(StepNode(name, parents, step, schema))
        return self

    def add_sink(self, name: str, *parents: str, table: str = "") -> Topology:
        """Rows of the stream's table, or of one of its ``routes``: each record's value is a dict of columns."""
        self._add(TableSink(name, parents, table))
        return self

    def add_topic_sink(
        self, name: str, *parents: str, topic: str, key: str = KeyType.STRING, value: str = ValueType.JSON
    ) -> Topology:
        """Records for a Kafka topic, produced once they are staged."""
        key_type = _one_of(KeyType, f"the key of {name!r}", key)
        self._add(TopicSink(name, parents, topic, key_type, _one_of(ValueType, f"the value of {name!r}", value)))
        return self

    def add_state_store(self, builder: StoreBuilder, *processors: str) -> Topology:
        """A store, and the processors that use it."""
        if builder.name in self._stores:
            raise ConfigError(f"the state store {builder.name!r} is added twice", "give each store its own name")
        if builder.name.startswith("__"):
            raise ConfigError(f"the state store {builder.name!r} has a reserved name", "start it with a letter")
        self._stores[builder.name] = builder
        self._connected += [(builder.name, processor) for processor in processors]
        return self

    def check(self) -> BuiltTopology:
        """The topology in its runnable form. Raises ConfigError, or its subclasses SchemaError and ExpressionError."""
        return build(
            tuple(self._nodes.values()),
            self._stores,
            self._connected,
            fails_on_error=self.on_error is OnError.FAIL,
            late_to_dead_letters=self.late is Late.DEAD_LETTER,
        )

    def describe(self) -> str:
        """The tasks' topics, nodes and stores, as readable text."""
        return self.check().describe()

    def _add(self, node: Node) -> None:
        kind = type(node).__name__
        if not node.name or node.name in self._nodes:
            problem = f"two nodes are named {node.name!r}" if node.name else f"a {kind} has no name"
            raise ConfigError(problem, "give each node its own name")
        if not isinstance(node, SourceNode) and not node.parents:
            raise ConfigError(f"the node {node.name!r} has no parents", "name the nodes whose records it receives")
        for parent in node.parents:
            parent_node = self._nodes.get(parent)
            if parent_node is None:
                remedy = "add the parent first, and check its spelling"
                raise ConfigError(f"the node {node.name!r} has the parent {parent!r}, which does not exist", remedy)
            if isinstance(parent_node, TableSink | TopicSink):
                remedy = "use the sink's own parent"
                raise ConfigError(f"the node {node.name!r} has the sink {parent!r} as a parent", remedy)
        if len(set(node.parents)) < len(node.parents):
            raise ConfigError(f"the node {node.name!r} names a parent twice", "name it once")
        self._nodes[node.name] = node


def _one_of(choices: type[Choice], what: str, given: str) -> Choice:
    try:
        return choices(given)
    except ValueError:
        allowed = ", ".join(choices)
        raise ConfigError(f"{what} is {given!r}, which is unknown", f"use one of: {allowed}") from None
