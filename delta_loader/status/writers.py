"""A loader's knowledge of its writers, from the ends of their chains and from Kafka, without asking them.

Rules:

1. A chain is compared with Kafka's ends at the time the chain was read, and not with later ones: between two passes
   writers continue, and may be further than the last pass saw.
2. If Kafka shows why writers hold a Kafka partition (its records are gone, its topic is another one), that is reported
   with the command that fixes it, as ``delta-loader status`` does. Any other reason for not staging, including writers
   that died, shows as records that wait longer than a flush and its retries explain.
3. Offsets past a chain's end may not be records: a transaction ends with a control record of Kafka's, and aborted ones
   leave theirs behind. Only a writer knows; waiting is therefore counted from the last time the writer reported that
   there was nothing new (common/stage/idle.py).
4. A Kafka partition without any chain is judged by the records that arrived since it was first seen, or by all that
   Kafka has of it if its stream starts there: only its writer knows where else a chain would start, so the writer's
   report counts at any position.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from common.lagging.history import EndHistory
from common.settings import Stream
from common.settings.values import StartAt
from common.spans import Position, Topic, TopicPartition
from common.stage.merged import ids_together, inputs_of, is_merged
from delta_loader.plan.chain_positions import PartitionProgress
from delta_loader.plan.held import Held, gone_from_kafka, topic_recreated

_FLUSHES = 2
_RETRIES_S = 600.0


def late_after_s(flush_after_s: float) -> float:
    """How long records may wait in Kafka in normal operation, in seconds."""
    return _FLUSHES * flush_after_s + _RETRIES_S


@dataclass(frozen=True, slots=True)
class Unstaged:
    """Records that have waited in Kafka for longer than that."""

    partition: TopicPartition
    records: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Chains:
    seen: Mapping[TopicPartition, PartitionProgress]
    refreshed_s: float
    """That time, by the monotonic clock."""


@dataclass(frozen=True, slots=True)
class IdleWriter:
    """A writer's report that there was nothing new past a position."""

    partition: TopicPartition
    position: Position
    moment_s: float
    """By the monotonic clock."""


@dataclass(slots=True)
class KafkaAnswers:
    """Facts from Kafka other than the ends of partitions; its owner updates it."""

    firsts: EndHistory
    """The positions of the first records that it still had."""
    is_answering: bool = False
    topic_ids: Mapping[Topic, str | None] = field(default_factory=dict)
    partitions: Collection[TopicPartition] = ()
    """The partitions of all topics that a stream takes."""
    idle: Collection[IdleWriter] = ()
    """Writers' latest records of partitions that have nothing new."""


def held_by_writers(chains: Chains, answers: KafkaAnswers) -> dict[TopicPartition, Held]:
    held: dict[TopicPartition, Held] = {}
    partitions = frozenset(answers.partitions)
    topics = {partition.topic for partition in partitions}
    for partition, seen in chains.seen.items():
        is_gone = partition.topic in topics and partition not in partitions  # of a topic created again
        topic_id = None if is_gone else ids_together(partition.topic, answers.topic_ids)
        reason = topic_recreated(partition, seen.topic_id, topic_id)
        if reason is None and seen.ends:
            reason = gone_from_kafka(partition, seen.staged, answers.firsts.end_at(partition, chains.refreshed_s))
        if reason is not None:
            held[partition] = reason
    return held


def without_chain(
    stream: Stream, seen: Collection[TopicPartition], partitions: Iterable[TopicPartition]
) -> Iterator[TopicPartition]:
    """The Kafka partitions of a stream of which nothing is staged; unknown for chains of several topics."""
    if not stream.may_merge:
        covered = {
            *seen,
            *(partition for partition in seen if is_merged(partition.topic) for partition in inputs_of(partition)),
        }
        yield from (partition for partition in partitions if stream.takes(partition.topic) and partition not in covered)


def unstaged(stream: Stream, chains: Chains, ends: EndHistory, answers: KafkaAnswers, limit_s: float) -> list[Unstaged]:
    """A stream's Kafka partitions with records waiting to be staged for longer than ``limit_s``; the worst first."""
    positions = {partition: seen.staged if seen.ends else None for partition, seen in chains.seen.items()}
    unbegun = frozenset(without_chain(stream, chains.seen, answers.partitions))
    start_positions = answers.firsts if stream.start is StartAt.EARLIEST else ends
    positions |= {partition: start_positions.first(partition) for partition in unbegun}
    lags: list[Unstaged] = []
    for partition, position in positions.items():
        seconds = ends.lag_s(partition, position, chains.refreshed_s)
        end = ends.end_at(partition, chains.refreshed_s)
        if seconds is None or position is None or end is None or end <= position:
            continue
        word = [
            idle
            for idle in answers.idle
            if idle.partition == partition and (partition in unbegun or idle.position <= position)
        ]
        seconds = min([seconds, *(chains.refreshed_s - idle.moment_s for idle in word)])
        if seconds > limit_s:
            lags.append(Unstaged(partition, end - position, seconds))
    return sorted(lags, key=lambda lag: (-lag.seconds, lag.partition))
