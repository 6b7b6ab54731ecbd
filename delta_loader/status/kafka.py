"""Facts from Kafka for ``status`` and the status page: ends of partitions, first records after retention, topic ids.

Rules:

1. Loading itself does not need Kafka. An unanswered query leaves the value unknown, and is repeated.
2. For the page, one thread queries Kafka (common/lagging/watch.py). Ends are read each time; the rest, which changes
   rarely, once per minute, or for new partitions: which exist, the first records that they still have, and the ids of
   their topics.
3. Once per minute, writers' records of idle partitions are read too, from the stage.
4. For valid-through times (delta_loader/load/settle.py), `KafkaPartitions` asks which partitions the topics of streams
   have. If Kafka does not answer within `_PARTITIONS_TIMEOUT_S`, it is not queried again for `_AGAIN_AFTER_S`; until
   then, writers' records of the partitions count. One answer covers all topics, and is valid for `_GOOD_FOR_S`: it
   serves all streams of a pass. Chains of several topics are assembled by writers, so only writers know theirs.
"""

import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, OffsetSpec
from structlog.typing import FilteringBoundLogger

from common.errors import StoreError
from common.kafka.client import QUIET, client_properties, result_of, topic_id
from common.lagging.history import EndHistory
from common.lagging.watch import KafkaEnds, query_offsets
from common.ports import Clock
from common.settings import Settings, Stream
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.idle import StreamFact
from common.stage.merged import is_merged, kafka_partition, topics_of, with_chains
from delta_loader.stage.reading import Stage
from delta_loader.status.writers import IdleWriter, KafkaAnswers

_TIMEOUT_S = 5.0
_IDS_TIMEOUT_S = 2.0


def described_ids(admin: AdminClient, topics: Collection[Topic]) -> dict[Topic, str | None]:
    """The ids of those topics that the broker knows and describes. Raises KafkaException."""
    ids: dict[Topic, str | None] = {}
    if not topics:
        return ids
    futures = admin.describe_topics(TopicCollection(sorted(topics)), request_timeout=_IDS_TIMEOUT_S)
    for name, future in futures.items():
        # A topic that was deleted meanwhile, or that may not be described, does not hide the others.
        with suppress(KafkaException):
            ids[Topic(name)] = topic_id(result_of(future, _IDS_TIMEOUT_S))
    return ids


@dataclass(frozen=True, slots=True)
class _TopicFacts:
    topics: frozenset[Topic] = frozenset()
    ends: Mapping[TopicPartition, Position] = field(default_factory=dict)
    firsts: Mapping[TopicPartition, Position] = field(default_factory=dict)


class BrokerEnds:
    """Queries the broker of the settings; an unavailable broker is not an error.

    One client and three requests serve all streams, when the first one is queried; only `now` asks again. Each request
    has its own deadline: the time for one stream's partitions is not taken from another's.
    """

    def __init__(self, settings: Settings, timeout_s: float = _TIMEOUT_S) -> None:
        """``timeout_s`` bounds the request for the topics."""
        self._properties = dict(settings.kafka)
        self._streams = settings.streams
        self._timeout_s = timeout_s

    def __call__(self, stream: Stream) -> Mapping[TopicPartition, Position] | None:
        """The position that the next record will have, by partition; None when Kafka does not answer in time.

        Empty when Kafka has none of the stream's topics.
        """
        known = self._known
        if known is None:
            return None
        ends = {
            stream.chain_at(partition): end for partition, end in known.ends.items() if stream.reads(partition.topic)
        }
        return ends if ends or not any(map(stream.reads, known.topics)) else None

    def now(self, stream: Stream) -> Mapping[TopicPartition, Position]:
        """The ends of a stream's partitions by a request of their own; empty when Kafka does not answer in time."""
        partitions = [] if self._known is None else [each for each in self._known.ends if stream.reads(each.topic)]
        try:
            ends, _ = query_offsets(self._admin, partitions, OffsetSpec.latest())
        except KafkaException:
            return {}
        return {stream.chain_at(partition): end for partition, end in ends.items()}

    def firsts(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        """The positions of the first records that Kafka still has, from the same answer as the ends."""
        firsts = {} if self._known is None else self._known.firsts
        return {
            partition: firsts[kafka_key]
            for partition in partitions
            if (kafka_key := kafka_partition(partition)) in firsts
        }

    def topic_ids(self, topics: Collection[Topic]) -> Mapping[Topic, str | None]:
        """The ids of the broker's topics; None from a broker without topic ids, empty if it does not answer."""
        try:
            return described_ids(self._admin, topics)
        except KafkaException:
            return {}

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient({**client_properties(self._properties), "log_level": 0}, logger=QUIET)

    @cached_property
    def _known(self) -> _TopicFacts | None:
        try:
            return self._ask()
        except KafkaException:
            return None

    def _ask(self) -> _TopicFacts:
        admin = self._admin
        topics = {
            Topic(name): topic.partitions
            for name, topic in admin.list_topics(timeout=self._timeout_s).topics.items()
            if any(stream.reads(name) for stream in self._streams)
        }
        partitions = [TopicPartition(topic, Partition(number)) for topic in sorted(topics) for number in topics[topic]]
        ends, _ = query_offsets(admin, partitions, OffsetSpec.latest())
        firsts, _ = query_offsets(admin, partitions, OffsetSpec.earliest())
        return _TopicFacts(frozenset(topics), ends, firsts)


EVERY_S = 60.0


class KafkaRefresher:
    """The latest information from Kafka; called as `KafkaEnds` are."""

    def __init__(self, settings: Settings, clock: Clock, stage: Stage, log: FilteringBoundLogger) -> None:
        self._stage = stage
        self._streams = settings.streams
        self._ends = KafkaEnds(settings.kafka, log)
        self._clock = clock
        self._requested_s: float | None = None
        self._requested: frozenset[TopicPartition] = frozenset()
        self.answers = KafkaAnswers(EndHistory())

    def __call__(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        """The ends. Raises KafkaException."""
        now_s = self._clock.monotonic_s()
        try:
            positions = self._ends(partitions)
        except KafkaException:
            self.answers.is_answering = False
            raise
        self.answers.is_answering = True
        if (
            self._requested_s is None
            or now_s - self._requested_s >= EVERY_S
            or not self._requested.issuperset(partitions)
        ):
            self._requested_s, self._requested = now_s, frozenset(partitions)
            with suppress(KafkaException):  # earlier values stay; the ends do not wait for it
                self._refresh(partitions, now_s)
        return positions

    def _refresh(self, partitions: Collection[TopicPartition], now_s: float) -> None:
        self.answers.partitions = self._partitions()
        plain = {partition for partition in partitions if not is_merged(partition.topic)}
        self.answers.firsts.retain(plain)
        firsts = self._ends.offsets({kafka_partition(partition) for partition in plain}, OffsetSpec.earliest())
        self.answers.firsts.observe(with_chains(firsts, plain), now_s)
        topics = {topic for partition in partitions for topic in topics_of(partition.topic)}
        self.answers.topic_ids = described_ids(self._ends.admin, topics)
        self.answers.idle = self._idle(now_s)

    def _idle(self, now_s: float) -> Collection[IdleWriter]:
        now_ms = self._clock.wall_ms()
        try:
            facts, _ = self._stage.facts()
        except StoreError:
            return ()
        return [IdleWriter(fact.partition, fact.position, now_s - (now_ms - fact.time_ms) / 1000) for fact in facts]

    def _partitions(self) -> Collection[TopicPartition]:
        topics = self._ends.admin.list_topics(timeout=_TIMEOUT_S).topics
        return frozenset(
            TopicPartition(stream.chain_of(name), Partition(number))
            for name, topic in topics.items()
            for stream in self._streams
            if stream.reads(name)
            for number in topic.partitions
        )


_PARTITIONS_TIMEOUT_S = 3.0
_GOOD_FOR_S = 5.0
_AGAIN_AFTER_S = 60.0


class KafkaPartitions:
    """Queries the brokers of the settings; safe to call from any thread."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._properties = client_properties(settings.kafka)
        self._clock = clock
        self._lock = threading.Lock()
        self._until_s: float | None = None
        self._counted: tuple[int, Mapping[Topic, int]] | None = None

    def __call__(self, stream: Stream) -> StreamFact | None:
        """Kafka's current answer; None if it does not answer, or not for all topics that the stream names."""
        if stream.may_merge:
            return None
        with self._lock:
            now_s = self._clock.monotonic_s()
            if self._until_s is None or now_s >= self._until_s:
                self._counted = self._ask()
                self._until_s = self._clock.monotonic_s() + (_AGAIN_AFTER_S if self._counted is None else _GOOD_FOR_S)
            counted = self._counted
        if counted is None:
            return None
        time_ms, counts = counted
        topics = {stream.chain_of(topic): count for topic, count in counts.items() if stream.reads(topic)}
        named = () if stream.pattern is not None else stream.topics
        return (
            None
            if any(stream.chain_of(topic) not in topics for topic in named)
            else StreamFact(stream.app_id, time_ms, topics)
        )

    def _ask(self) -> tuple[int, Mapping[Topic, int]] | None:
        time_ms = self._clock.wall_ms()
        try:
            admin = AdminClient({**self._properties, "log_level": 0}, logger=QUIET)
            topics = admin.list_topics(timeout=_PARTITIONS_TIMEOUT_S).topics
        except KafkaException:
            return None
        return time_ms, {Topic(name): len(topic.partitions) for name, topic in topics.items() if topic.error is None}
