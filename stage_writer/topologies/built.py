"""A checked topology: which nodes form a task, which run on columns, and which record by record.

Rules:

1. Nodes that are connected, by their edges or by a state store, are one group, and a task of it has partition p of each
   of its topics. Topics that share only stateless nodes need not be read together: each has a group of its own.
2. Within a group a node is *early* (sources and the steps below them), *record-wise* (processors, and sinks of theirs),
   or *late* (steps after processors). Below a late node are only late ones and sinks of tables.
3. Columns that go into a table without passing a processor are all in the table, so that nothing is left out; and each
   NOT NULL column of the table is present.
4. A column's type is the table's, or a narrower number. A cast that could refuse single rows must be written
   explicitly.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.errors import ConfigError, SchemaError
from common.schema import INTEGER_BITS, DataType, Primitive, StructType, quote_name, type_to_ddl
from stage_writer.topologies.nodes import Node, ProcessorNode, SourceNode, StepNode, TableSink, TopicSink
from stage_writer.topologies.stores import StoreBuilder

if TYPE_CHECKING:
    from stage_writer.shape.rows import Step


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """The work of a task: a part of the topology that is independent of the other parts, and co-partitioned topics."""

    topics: tuple[str, ...]
    """The names of its topics, sorted."""
    nodes: tuple[Node, ...]
    """The nodes in the order in which they were added."""
    stores: tuple[StoreBuilder, ...]

    @property
    def name(self) -> str:
        """The topic of its tasks' chains: its one topic, or all of them joined with a plus."""
        return "+".join(self.topics)


@dataclass(frozen=True, slots=True, eq=False)
class BuiltTopology:
    groups: tuple[TaskGroup, ...]
    sources: Mapping[str, SourceNode]
    """The source of each topic."""
    children: Mapping[str, tuple[Node, ...]]
    """The children of each node, by its name, in the order in which they were added."""
    early: Mapping[str, Step]
    """The bound steps before the first processor of their paths, by the node's name."""
    late: Mapping[str, Step]
    """The bound steps after the last processor of their paths."""
    columns: Mapping[str, StructType]
    """The output columns of sources, early and late steps, by the node's name; without sources of plain JSON."""
    connected: Mapping[str, frozenset[str]]
    """The names of the stores of each processor."""
    fails_on_error: bool
    late_to_dead_letters: bool

    @property
    def needs_headers(self) -> bool:
        """Whether Kafka's headers must be read."""
        requested = any(source.headers for source in self.sources.values())
        return requested or any(step.needs_headers for step in self.early.values())

    @property
    def has_state(self) -> bool:
        return any(group.stores for group in self.groups)

    @property
    def is_columns_only(self) -> bool:
        """Whether no node takes records one by one."""
        nodes = [node for group in self.groups for node in group.nodes]
        return not self.late and not any(isinstance(node, ProcessorNode | TopicSink) for node in nodes)

    @property
    def tables(self) -> tuple[str, ...]:
        sinks = [node for group in self.groups for node in group.nodes if isinstance(node, TableSink)]
        return tuple(dict.fromkeys(sink.table for sink in sinks))

    @property
    def topics_written(self) -> tuple[str, ...]:
        sinks = [node for group in self.groups for node in group.nodes if isinstance(node, TopicSink)]
        return tuple(dict.fromkeys(sink.topic for sink in sinks))

    def group_of(self, topic: str) -> TaskGroup:
        """The group of a source topic, or of a chain's topic. Raises KeyError for other topics."""
        for group in self.groups:
            if topic == group.name or topic in group.topics:
                return group
        raise KeyError(topic)

    def describe(self) -> str:
        """The groups' topics, nodes and stores, as readable text."""
        return "\n".join(line for number, group in enumerate(self.groups) for line in self._described(number, group))

    def _described(self, number: int, group: TaskGroup) -> Iterator[str]:
        yield f"Sub-topology {number}: a task for each partition of {' and '.join(group.topics)}"
        for node in group.nodes:
            below = ", ".join(child.name for child in self.children.get(node.name, ()))
            arrow = f" → {below}" if below else ""
            yield f"  {_kind(node)} {node.name}{self._detail(node)}{arrow}"
        for store in group.stores:
            users = ", ".join(name for name, stores in self.connected.items() if store.name in stores)
            yield f"  store {store.name} (of {users})"

    def _detail(self, node: Node) -> str:
        match node:
            case SourceNode():
                return f" (topics: {', '.join(node.topics)})"
            case ProcessorNode():
                stores = sorted(self.connected.get(node.name, ()))
                return f" (stores: {', '.join(stores)})" if stores else ""
            case StepNode():
                return " (on columns)"
            case TableSink():
                return f" (table: {node.table or 'main'})"
            case TopicSink():
                return f" (topic: {node.topic})"


def _kind(node: Node) -> str:
    match node:
        case SourceNode():
            return "source"
        case ProcessorNode():
            return "processor"
        case StepNode():
            return "step"
        case TableSink() | TopicSink():
            return "sink"


def build(
    nodes: tuple[Node, ...],
    stores: Mapping[str, StoreBuilder],
    connections: Sequence[tuple[str, str]],
    *,
    fails_on_error: bool,
    late_to_dead_letters: bool,
) -> BuiltTopology:
    """Check a topology's nodes, each of which comes after its parents. ``connections`` are stores and processors."""
    by_name = {node.name: node for node in nodes}
    children: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        for parent in node.parents:
            children[parent].append(node)
    connected = _connected(by_name, stores, connections)
    bound = _Bound()
    for node in nodes:
        bound.add(node)
    _require_used(nodes, children, stores, connected)
    sources = {topic: node for node in nodes if isinstance(node, SourceNode) for topic in node.topics}
    return BuiltTopology(
        groups=tuple(_groups(nodes, stores, connected)),
        sources=sources,
        children={name: tuple(nodes) for name, nodes in children.items()},
        early=bound.early,
        late=bound.late,
        columns=bound.columns,
        connected=connected,
        fails_on_error=fails_on_error,
        late_to_dead_letters=late_to_dead_letters,
    )


def _connected(
    nodes: Mapping[str, Node], stores: Mapping[str, StoreBuilder], connections: Sequence[tuple[str, str]]
) -> dict[str, frozenset[str]]:
    stores_of_nodes: dict[str, set[str]] = defaultdict(set)
    for store, name in connections:
        if store not in stores:
            remedy = "add it with add_state_store, and check its spelling"
            raise ConfigError(f"the processor {name!r} uses the state store {store!r}, which does not exist", remedy)
        if not isinstance(nodes.get(name), ProcessorNode):
            remedy = "name processors: sources, steps and sinks have no stores"
            raise ConfigError(f"the state store {store!r} is connected to {name!r}, which is not a processor", remedy)
        stores_of_nodes[name].add(store)
    return {name: frozenset(of_node) for name, of_node in stores_of_nodes.items()}


def _require_used(
    nodes: Sequence[Node],
    children: Mapping[str, Sequence[Node]],
    stores: Mapping[str, StoreBuilder],
    connected: Mapping[str, frozenset[str]],
) -> None:
    if not any(isinstance(node, SourceNode) for node in nodes):
        raise ConfigError("the topology has no source", "add one with add_source")
    for node in nodes:
        if isinstance(node, SourceNode | StepNode) and not children.get(node.name):
            remedy = "add a node that receives its records, or remove it"
            raise ConfigError(f"no node receives the records of {node.name!r}", remedy)
    used = frozenset[str]().union(*connected.values())
    for store in stores:
        if store not in used:
            remedy = "name its processors in add_state_store, or remove it"
            raise ConfigError(f"no processor uses the state store {store!r}", remedy)


class _Bound:
    """Which nodes are early, and which late, with their output columns (rule 2)."""

    def __init__(self) -> None:
        self.early: dict[str, Step] = {}
        self.late: dict[str, Step] = {}
        self.columns: dict[str, StructType] = {}
        self._early_nodes: set[str] = set()

    def add(self, node: Node) -> None:
        """Place a node below its parents."""
        after_late = [parent for parent in node.parents if parent in self.late]
        match node:
            case SourceNode():
                self._early_nodes.add(node.name)
                if node.columns is not None:
                    self.columns[node.name] = node.columns
                _check_time(node)
            case StepNode():
                self._add_step(node)
            case ProcessorNode() | TopicSink() if after_late:
                problem = f"{node.name!r} comes after the step {after_late[0]!r}, which comes after a processor"
                remedy = "write that step as a processor, or put it before the first processor of its path"
                raise ConfigError(f"{problem}: a batch's records would be out of order", remedy)
            case TableSink():
                without = [name for name in node.parents if name in self._early_nodes and name not in self.columns]
                if without:
                    msg = f"the sink {node.name!r} receives records of {without[0]!r}, which have no declared columns"
                    raise SchemaError(msg, f"give the source {without[0]!r} its columns")
            case ProcessorNode() | TopicSink():
                pass

    def _add_step(self, node: StepNode) -> None:
        early = all(parent in self._early_nodes for parent in node.parents)
        given = {parent: self.columns.get(parent) for parent in node.parents}
        if not early:
            unknown = [parent for parent, columns in given.items() if columns is None]
            given = {parent: columns for parent, columns in given.items() if columns is not None}
            if node.columns is None and unknown:
                problem = f"the step {node.name!r} follows a processor, so its columns are unknown"
                raise SchemaError(problem, "declare the fields of the records: add_step(…, columns='…')")
            if node.columns is not None:
                given[node.name] = node.columns
        for parent, columns in given.items():
            if columns is None:
                problem = f"the step {node.name!r} receives records of {parent!r}, which have no declared columns"
                raise SchemaError(problem, f"give the source of {parent!r} its columns")
        first = next(iter(given.values()))
        if any(columns != first for columns in given.values()) or first is None:
            problem = f"the parents of the step {node.name!r} have different columns: {', '.join(given)}"
            raise SchemaError(problem, "give them the same columns in the same order, for example by a Select")
        try:
            step = node.step.bind(first)
        except ConfigError as error:
            raise type(error)(f"the step {node.name!r}: {error.problem}", error.remedy) from error
        if not early and getattr(step, "needs_kafka", False):
            msg = f"the step {node.name!r} comes after a processor, but uses kafka.*"
            raise SchemaError(msg, "copy what you need of it into a column before the first processor")
        self.columns[node.name] = step.columns
        if early:
            self._early_nodes.add(node.name)
            self.early[node.name] = step
        else:
            self.late[node.name] = step


def _check_time(source: SourceNode) -> None:
    if source.timestamp is None:
        return
    field = None if source.columns is None else source.columns.field(source.timestamp)
    if field is None:
        problem = f"the source {source.name!r} has the timestamp {source.timestamp!r}, which is not one of its columns"
        raise SchemaError(problem, "name one of its columns; a source without columns has Kafka's time only")
    data_type = field.type
    if data_type not in (Primitive.TIMESTAMP, Primitive.LONG):
        problem = f"the timestamp {source.timestamp!r} of the source {source.name!r} is {type_to_ddl(data_type)}"
        raise SchemaError(problem, "name a TIMESTAMP, or a BIGINT of milliseconds since 1970")


def _groups(
    nodes: Sequence[Node], stores: Mapping[str, StoreBuilder], connected: Mapping[str, frozenset[str]]
) -> Iterator[TaskGroup]:
    """The groups in the order of their first sources (rule 1)."""
    part_of = {node.name: node.name for node in nodes}

    def root(name: str) -> str:
        while part_of[name] != name:
            name = part_of[name]
        return name

    first_user: dict[str, str] = {}
    for node in nodes:
        for parent in node.parents:
            part_of[root(parent)] = root(node.name)
        for store in connected.get(node.name, ()):
            part_of[root(first_user.setdefault(store, node.name))] = root(node.name)
    parts: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        parts[root(node.name)].append(node)
    for part in parts.values():
        names = {store for node in part for store in connected.get(node.name, ())}
        topics = sorted(topic for node in part if isinstance(node, SourceNode) for topic in node.topics)
        used = tuple(builder for name, builder in stores.items() if name in names)
        if used:
            yield TaskGroup(tuple(topics), tuple(part), used)
            continue
        for topic in topics:
            yield TaskGroup((topic,), tuple(_below(topic, part)), ())


def _below(topic: str, part: Sequence[Node]) -> Iterator[Node]:
    """The nodes that records of a topic can reach."""
    reached: set[str] = set()
    for node in part:
        is_source = isinstance(node, SourceNode) and topic in node.topics
        if is_source or not reached.isdisjoint(node.parents):
            reached.add(node.name)
            yield node


def check_tables(topology: BuiltTopology, tables: Mapping[str, StructType]) -> None:
    """Raises SchemaError for columns that are incompatible with their table. ``tables`` by their sinks' names."""
    for group in topology.groups:
        for node in group.nodes:
            if isinstance(node, TableSink) and node.table in tables:
                for parent in node.parents:
                    given = topology.columns.get(parent)
                    if given is not None:
                        _check(node, parent, given, tables[node.table])


def _check(sink: TableSink, parent: str, given: StructType, table: StructType) -> None:
    what = f"the table {sink.table!r}" if sink.table else "the stream's table"
    unknown = [name for name in given.names if name not in table.names]
    if unknown:
        msg = f"{parent!r} gives the column {unknown[0]!r} to the sink {sink.name!r}, but {what} does not have it"
        close_matches = difflib.get_close_matches(
            unknown[0], [name for name in table.names if name not in given.names], 1
        )
        hint = f"did you mean {close_matches[0]!r}? " if close_matches else ""
        raise SchemaError(msg, f"{hint}add it to the table's columns, or remove it with a Select step")
    for field in table:
        parent_field = given.field(field.name)
        if parent_field is None:
            if not field.nullable:
                msg = f"{what} has the column {field.name!r} NOT NULL, but {parent!r} does not provide it"
                raise SchemaError(
                    msg, f"provide it, for example in the step {parent!r}, or declare it without NOT NULL"
                )
        elif not _takes(field.type, parent_field.type):
            shown = type_to_ddl(field.type)
            msg = f"{parent!r} gives {field.name!r} as {type_to_ddl(parent_field.type)}, but {what} has it as {shown}"
            raise SchemaError(msg, f"cast it there: CAST({quote_name(field.name)} AS {shown})")


def _takes(table: DataType, given: DataType) -> bool:
    bits = [
        INTEGER_BITS[data_type]
        for data_type in (given, table)
        if isinstance(data_type, Primitive) and data_type in INTEGER_BITS
    ]
    is_narrower = len(bits) == len((given, table)) and bits[0] <= bits[1]
    return table == given or is_narrower or (table is Primitive.DOUBLE and given is Primitive.FLOAT)
