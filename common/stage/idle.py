"""Writers' records about their topics: facts that let a table's valid-through time advance, or hold it back.

Rules:

1. A fact says: at a point in time, the end of a Kafka partition was this position, and its chain had everything before
   it. A fact was true then, and stays true, regardless of the writer. Facts of a writer that lost its partition, or
   died, therefore do no harm.
2. The time is the writer's clock before it queried Kafka, less a minute for records in transit and clocks that differ.
3. A table that has all positions up to a fact's is complete up to the fact's time, as far as that partition is
   concerned.
4. One object for each writer has all its facts, so a thousand idle partitions cost one request per minute. The object
   is overwritten, and has nothing that must not be lost.
5. The object also says which partitions a stream's topics had at a point in time. A table is complete up to no later
   time: it has nothing of partitions added since. Older releases do not record this.
6. The object also says which partitions its writer held, where, and why. A partition is no longer held once its chain
   ends elsewhere, or a writer had nothing new there later on. It is not held either once the writer is gone and other
   writers have its streams, because they would report the partition if they held it. A writer is gone if its report is
   three intervals older than theirs, by the store's clock.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.data_files import escape, shortened
from common.stage.stored import Count, StoredPosition, read_object
from common.stored_types import StoredForm, omit_defaults, with_partition

IDLE = "idle"
MAX_PARTITION = 2**31 - 1
MARGIN_MS = 60_000
"""Rule 2."""
REPORT_EVERY_S = 60.0
_GONE_AFTER_MS = int(3 * REPORT_EVERY_S * 1000)


@dataclass(frozen=True, slots=True)
class IdleFact:
    """At a point in time, a chain had everything up to the end of its Kafka partition (rule 1)."""

    partition: TopicPartition
    position: StoredPosition
    time_ms: int
    generation: Count
    """The generation of the chain (common/stage/chain_origins.py)."""


@dataclass(frozen=True, slots=True)
class HeldFact:
    """A writer holds a Kafka partition: where, since when, and why (rule 6)."""

    partition: TopicPartition
    position: StoredPosition
    time_ms: int
    generation: Count
    reason: str
    problem: str
    remedy: str

    def holds(self, position: Position | None, generation: int, idle: Iterable[IdleFact]) -> bool:
        """Whether the partition still waits; ``position`` is the end of its chain, or its origin."""
        idle_later = any(
            fact.partition == self.partition and fact.position == position and fact.time_ms > self.time_ms
            for fact in idle
        )
        return (self.position, self.generation) == (position, generation) and not idle_later


@dataclass(frozen=True, slots=True)
class StreamFact:
    """Rule 5: at a point in time, these were all topics of a stream, and their numbers of partitions."""

    app_id: str
    time_ms: int
    topics: Mapping[Topic, Count]

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


@dataclass(frozen=True, slots=True)
class WriterFacts:
    partitions: tuple[Annotated[IdleFact, with_partition(IdleFact, "partition")], ...]
    streams: tuple[StreamFact, ...] = ()
    held: tuple[Annotated[HeldFact, with_partition(HeldFact, "partition")], ...] = ()

    _without_held = omit_defaults("held")


def holds_of_running_writers(reports: Sequence[tuple[int, WriterFacts]]) -> dict[TopicPartition, HeldFact]:
    """The newest fact that a writer holds a Kafka partition, by partition (rule 6).

    Each report is given with its time of writing.
    """
    newest: dict[str, int] = {}
    for written_ms, report in reports:
        newest |= {each.app_id: max(written_ms, newest.get(each.app_id, 0)) for each in report.streams}
    facts = [
        fact
        for written_ms, report in reports
        if not report.streams or any(newest[each.app_id] - written_ms < _GONE_AFTER_MS for each in report.streams)
        for fact in report.held
    ]
    return {fact.partition: fact for fact in sorted(facts, key=lambda fact: fact.time_ms)}


_FORM = StoredForm(WriterFacts)


def facts_to_bytes(
    facts: Iterable[IdleFact], streams: Iterable[StreamFact] = (), held: Iterable[HeldFact] = ()
) -> bytes:
    return _FORM.to_bytes(WriterFacts(tuple(facts), tuple(streams), tuple(held)))


def facts_from_bytes(path: str, data: bytes) -> WriterFacts:
    """The inverse. Raises MarkerError."""
    return read_object(_FORM, path, data, "delete it: a writer writes it again within a minute or so")
