"""Background reads from Kafka for the loader's status page: ends of partitions, and facts about writers.

Rules:

1. One thread queries Kafka (common/lagging/watch.py). Ends are read each time; the rest, which changes rarely, once per
   minute, or for new partitions: which exist, the first records that they still have, and the ids of their topics.
2. Once per minute, writers' records of idle partitions are read too, from the stage.
3. Loading does not depend on it. An unanswered query leaves the value unknown, and is repeated.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress

from confluent_kafka import KafkaException
from confluent_kafka.admin import OffsetSpec
from structlog.typing import FilteringBoundLogger

from common.errors import StoreError
from common.lagging.history import EndHistory
from common.lagging.watch import KafkaEnds
from common.ports import Clock
from common.settings import Settings
from common.spans import Partition, Position, TopicPartition
from common.stage.merged import is_merged, kafka_partition, topics_of, with_chains
from delta_loader.stage.reading import Stage
from delta_loader.status.kafka import described_ids
from delta_loader.status.writers import IdleWriter, KafkaAnswers

EVERY_S = 60.0
_TIMEOUT_S = 5.0


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
