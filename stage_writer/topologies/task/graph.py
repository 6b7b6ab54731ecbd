"""The nodes of one task, created and connected: each has the functions of its children.

Rules:

1. A task has its own instance of each processor. Children are connected before their parents, so parents call the
   methods that a processor replaces during its initialization.
2. A sink's function records a copy of the record's dict: later changes by the user's code affect no row.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count

from common.errors import ConfigError, KafkaDeltaExpressError
from stage_writer.topologies.built import BuiltTopology, TaskGroup
from stage_writer.topologies.errors import error_text
from stage_writer.topologies.keys import kafka_headers, kafka_time, key_encoder, value_encoder
from stage_writer.topologies.nodes import Node, ProcessorNode, SourceNode, StepNode, TableSink, TopicSink
from stage_writer.topologies.records import Record, TopicRecord
from stage_writer.topologies.task.clock import TaskClock
from stage_writer.topologies.task.context import Current, Processor, ProcessorContext, Target, forward_to
from stage_writer.topologies.task.inputs import Collected, Outbox


@dataclass(frozen=True, slots=True)
class Graph:
    processors: Mapping[str, Processor]
    """By the names of their nodes."""
    entries: Mapping[str, tuple[tuple[int, Target], ...]]
    """For each source by its name, the functions that take its records or those of early steps below it, depth first.

    With the number of their input: 0 is the source, and the steps are counted as they are reached.
    """

    def node_of(self, error: BaseException) -> str:
        """The innermost node whose code raised."""
        names = {id(processor): name for name, processor in self.processors.items()}
        node = ""
        trace = error.__traceback__
        while trace is not None:
            node = names.get(id(trace.tb_frame.f_locals.get("self")), node)
            trace = trace.tb_next
        return node


class GraphMaker:
    def __init__(
        self,
        topology: BuiltTopology,
        group: TaskGroup,
        task_id: str,
        stores: Mapping[str, object],
        shared: tuple[Current, TaskClock, Outbox],
    ) -> None:
        self._topology = topology
        self._group = group
        self._task_id = task_id
        self._stores = stores
        self._shared = shared
        self._current, _, self._outbox = shared
        self._processors: dict[str, Processor] = {}
        self._targets: dict[str, Target] = {}

    def make(self) -> Graph:
        """The graph, with all processors initialized (rule 1)."""
        topology = self._topology
        for node in reversed(self._group.nodes):
            if isinstance(node, SourceNode) or node.name in topology.early:
                continue
            self._targets[node.name] = self._target(node)
        sources = [node for node in self._group.nodes if isinstance(node, SourceNode)]
        entries = {source.name: tuple(self._entries(source, count())) for source in sources}
        processors = {
            node.name: self._processors[node.name] for node in self._group.nodes if node.name in self._processors
        }
        return Graph(processors, entries)

    def _entries(self, node: Node, numbers: Iterator[int]) -> Iterator[tuple[int, Target]]:
        """An early node's tables take columns, like its early steps; all other children take records one by one."""
        number = next(numbers)
        for child in self._topology.children.get(node.name, ()):
            if child.name in self._topology.early:
                yield from self._entries(child, numbers)
            elif not isinstance(child, TableSink):
                yield number, self._targets[child.name]

    def _target(self, node: Node) -> Target:
        match node:
            case ProcessorNode():
                return self._processor(node)
            case StepNode():
                return self._collector(node.name, self._outbox.late.setdefault(node.name, Collected()))
            case TableSink():
                return self._collector(node.name, self._outbox.rows.setdefault(node.table, Collected()))
            case TopicSink():
                return self._topic(node)
            case SourceNode():
                raise RuntimeError(f"the source {node.name!r} receives no records")

    def _processor(self, node: ProcessorNode) -> Target:
        children = self._topology.children.get(node.name, ())
        forward = forward_to(node.name, [(child.name, self._targets[child.name]) for child in children])
        has_begun = False

        def not_in_init(record: Record, child: str | None = None) -> None:
            if not has_begun:  # its work would be repeated after each restart
                msg = f"the processor of the node {node.name!r} forwards a record in init(), before any message"
                raise ConfigError(msg, "forward in process(), or in a punctuation")
            forward(record, child)

        connected = self._topology.connected.get(node.name, frozenset())
        context = ProcessorContext(
            node.name,
            self._task_id,
            not_in_init,
            {name: self._stores[name] for name in connected},
            self._shared,
            late_to_dead_letters=self._topology.late_to_dead_letters,
        )
        try:
            processor = node.supplier()
            context.punctuate = processor.punctuate
            processor.init(context)
        except KafkaDeltaExpressError:
            raise
        except Exception as error:
            msg = f"the processor of the node {node.name!r} cannot start: {type(error).__name__}: {error_text(error)}"
            raise ConfigError(msg, "fix the topology's code") from error
        has_begun, context.forward = True, forward
        self._processors[node.name] = processor
        return processor.process

    def _collector(self, node: str, collected: Collected) -> Target:
        current, outbox = self._current, self._outbox

        def collect(record: Record) -> None:
            value = record.value
            if type(value) is not dict:
                if value is None:
                    outbox.dropped.append((current.index, "tombstone"))
                    return
                raise TypeError(f"{node}: a row is a dict of columns, not {type(value).__name__}: {value!r}")
            collected.index.append(current.index)
            collected.values.append(value.copy())
            if collected.check is not None:
                collected.check(value)

        return collect

    def _topic(self, node: TopicSink) -> Target:
        current, made = self._current, self._outbox.topics
        topic, to_key, to_value = node.topic, key_encoder(node.key), value_encoder(node.value)

        def produce(record: Record) -> None:
            key, value = to_key(record.key), to_value(record.value)
            time_ms, headers = kafka_time(record.timestamp_ms), kafka_headers(record.headers)
            made.append(TopicRecord(topic, key, value, time_ms, headers, current.index))

        return produce
