"""The nodes that the DSL's streams and tables add, held until the topology is built.

Rules:

1. Nodes are named by their kind and a number per kind, ``filter-1``, or by the user. Stores too: a store's name
   identifies its state in the stage, so a topology that is going to change should name them.
2. Nodes that are added later may determine which stores a node needs. So stores are connected when the topology is
   built, and unused ones are left out.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from common.errors import ConfigError
from stage_writer.topologies.stores import StoreBuilder, Stores
from stage_writer.topologies.task.context import Processor
from stage_writer.topologies.topology import Late, OnError, Topology

Adding = Callable[[Topology], object]


@dataclass(frozen=True, slots=True)
class Materialized:
    """How an operator keeps its state: under which name, on disk or in memory, and for how long."""

    name: str = ""
    """The store's name; the operator's own name by default."""
    persistent: bool = False
    """On disk, where state is larger than memory."""
    retention: timedelta | None = None
    """The retention of windows and sessions, for readers of the store; by default as long as they can change."""


@dataclass(frozen=True, slots=True)
class TopicSource:
    topics: tuple[str, ...]
    columns: str | None
    key: str
    timestamp: str | None
    headers: bool = False


class BuilderGraph:
    def __init__(self, *, on_error: str = OnError.DEAD_LETTER, late: str = Late.DROP) -> None:
        self._on_error = on_error
        self._late = late
        self._steps: list[Adding] = []
        self._stores: dict[str, StoreBuilder] = {}
        self._connections: list[tuple[str, Sequence[str]]] = []
        self._numbers: Counter[str] = Counter()
        self._sources: dict[TopicSource, str] = {}

    def name(self, kind: str, given: str = "") -> str:
        """The user's name for a node, or a new one."""
        if given:
            return given
        self._numbers[kind] += 1
        return f"{kind}-{self._numbers[kind]}"

    def kept(self, kind: str, given: str, how: Materialized | None) -> tuple[str, Materialized]:
        """A node's name, and how it keeps its state: by default in a store with that name."""
        node, how = self.name(kind, given), how or Materialized()
        return node, how if how.name else replace(how, name=node)

    def add(self, step: Adding) -> None:
        self._steps.append(step)

    def source(self, source: TopicSource, name: str = "") -> str:
        """The node that reads topics; one for all streams that read them alike."""
        if source not in self._sources:
            node = self._sources[source] = self.name("source", name)
            self.add(
                lambda topology: topology.add_source(
                    node,
                    *source.topics,
                    columns=source.columns,
                    key=source.key,
                    timestamp=source.timestamp,
                    headers=source.headers,
                )
            )
        return self._sources[source]

    def processor(self, name: str, supplier: Callable[[], Processor], *parents: str, stores: Sequence[str] = ()) -> str:
        """Add a processor; ``stores`` may be a list that grows until all nodes exist (rule 2)."""
        self.add(lambda topology: topology.add_processor(name, supplier, *parents))
        self._connections.append((name, stores))
        return name

    def store(self, builder: StoreBuilder) -> str:
        if builder.name in self._stores:
            problem = f"two operators keep their state in the store {builder.name!r}"
            raise ConfigError(problem, "give each its own name, with Materialized(name=…)")
        self._stores[builder.name] = builder
        return builder.name

    def key_value(self, how: Materialized, name: str = "") -> str:
        """A store that is kept that way, with the name there or another one."""
        return self.store(Stores.key_value(name or how.name, persistent=how.persistent))

    def build(self) -> Topology:
        topology = Topology(on_error=self._on_error, late=self._late)
        for step in self._steps:
            step(topology)
        users: dict[str, list[str]] = {}
        for node, stores in self._connections:
            for store in stores:
                users.setdefault(store, []).append(node)
        for store, nodes in users.items():
            builder = self._stores.get(store)
            if builder is None:
                remedy = "add it with StreamsBuilder.add_state_store, and check its spelling"
                msg = f"the node {nodes[0]!r} names the state store {store!r}, which does not exist"
                raise ConfigError(msg, remedy)
            topology.add_state_store(builder, *dict.fromkeys(nodes))
        return topology


def span(milliseconds: int) -> timedelta:
    """A duration for a store, a millisecond at least."""
    return timedelta(milliseconds=max(milliseconds, 1))
