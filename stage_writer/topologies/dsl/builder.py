"""The starting point of a topology in the DSL.

def build() -> StreamsBuilder: builder = StreamsBuilder() clicks = builder.stream("clicks", columns="page STRING, user
STRING") clicks.group_by(lambda user, click: click["page"], keeps_partition=True).count() … return builder
"""

from __future__ import annotations

from stage_writer.topologies.built import BuiltTopology
from stage_writer.topologies.dsl.graph import BuilderGraph, Materialized, TopicSource
from stage_writer.topologies.dsl.streams import KStream, KTable
from stage_writer.topologies.nodes import KeyType
from stage_writer.topologies.stores import StoreBuilder
from stage_writer.topologies.topology import Late, OnError, Topology


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
