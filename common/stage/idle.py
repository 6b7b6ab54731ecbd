"""Writers' records about their topics: facts that let a table's valid-through time advance, or hold it back.

Rules:

1. A fact says: at a point in time, the end of a Kafka partition was this position, and its chain had everything before
   it. It was true then, and stays true, regardless of the writer; so facts of a writer that lost its partition, or
   died, do no harm.
2. The time is the writer's clock before it queried Kafka, less a minute for records in transit and clocks that differ.
3. A table that has all positions up to a fact's is complete up to its time, as far as that partition is concerned.
4. One object for each writer has all its facts, so a thousand idle partitions cost one request per minute. It is
   overwritten, and has nothing that must not be lost.
5. It also says which partitions a stream's topics had at a point in time. A table is complete up to no later time: it
   has nothing of partitions added since. Older releases do not record this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.data_files import escape, shortened
from common.stage.stored import Count, Stored, StoredOffset, reading, require_known_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

IDLE = "idle"
VERSION = 1
MAX_PARTITION = 2**31 - 1
MARGIN_MS = 60_000
"""Rule 2."""


@dataclass(frozen=True, slots=True)
class IdleFact:
    """Rule 1."""

    partition: TopicPartition
    position: Position
    time_ms: int
    generation: int
    """The generation of the chain (common/stage/chain_origins.py)."""


@dataclass(frozen=True, slots=True)
class StreamFact:
    """Rule 5: at a point in time, these were all topics of a stream, and their numbers of partitions."""

    app_id: str
    time_ms: int
    topics: Mapping[Topic, int]

    def has(self, partition: TopicPartition) -> bool:
        """Whether it was one of them; true for a topic that is not listed."""
        return partition.partition < self.topics.get(partition.topic, MAX_PARTITION + 1)

    def sources(self) -> Iterator[TopicPartition]:
        for topic, count in self.topics.items():
            yield from (TopicPartition(topic, Partition(number)) for number in range(count))


def stream_fact(app_id: str, time_ms: int, partitions: Iterable[TopicPartition]) -> StreamFact:
    """The fact that these were a stream's partitions."""
    topics: dict[Topic, int] = {}
    for partition in partitions:
        topics[partition.topic] = max(topics.get(partition.topic, 0), partition.partition + 1)
    return StreamFact(app_id, time_ms, topics)


def idle_path(writer: str) -> str:
    return f"{IDLE}/{escape(shortened(writer))}.idle"


class _StoredFact(Stored):
    topic: str
    partition: Count
    position: StoredOffset
    time_ms: int
    generation: Count


class _StoredStream(Stored):
    app_id: str
    time_ms: int
    topics: dict[str, Count]


class _StoredIdle(Stored):
    version: Literal[1]
    partitions: list[_StoredFact]
    streams: list[_StoredStream] = Field(default_factory=list)


def facts_to_bytes(facts: Iterable[IdleFact], streams: Iterable[StreamFact] = ()) -> bytes:
    """The object's content."""
    stored_streams = [
        _StoredStream(
            app_id=fact.app_id, time_ms=fact.time_ms, topics={str(topic): count for topic, count in fact.topics.items()}
        )
        for fact in streams
    ]
    stored = [
        _StoredFact(
            topic=str(fact.partition.topic),
            partition=int(fact.partition.partition),
            position=int(fact.position),
            time_ms=fact.time_ms,
            generation=fact.generation,
        )
        for fact in facts
    ]
    return _StoredIdle(version=1, partitions=stored, streams=stored_streams).model_dump_json().encode()


def facts_from_bytes(path: str, data: bytes) -> tuple[tuple[IdleFact, ...], tuple[StreamFact, ...]]:
    """The inverse of `facts_to_bytes`. Raises MarkerError."""
    with reading(path, "delete it: a writer writes it again within a minute or so"):
        require_known_version(path, data, VERSION)
        stored = _StoredIdle.model_validate_json(data)
    stored_facts = stored.partitions
    streams = (
        StreamFact(
            stored_fact.app_id,
            stored_fact.time_ms,
            {Topic(topic): count for topic, count in stored_fact.topics.items()},
        )
        for stored_fact in stored.streams
    )
    idle = (
        IdleFact(
            TopicPartition(Topic(fact.topic), Partition(fact.partition)),
            Position(fact.position),
            fact.time_ms,
            fact.generation,
        )
        for fact in stored_facts
    )
    return tuple(idle), tuple(streams)
