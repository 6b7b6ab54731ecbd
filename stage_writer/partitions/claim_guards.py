"""The check that a flush job makes right before it claims, in its own thread.

Rules:

1. No record of a topic that was deleted and recreated gets into the old one's chain, although Kafka's client keeps
   reading: nothing is claimed without a check of the topic's id *after* its records were read.
   Of a thousand flushes that start together, the first one's answer serves them all: an id that was looked up after a
   record was read is that record's topic's, or a different one, because ids are never reused.
2. Nothing is claimed by a process that the group may have given up (freshness.py), or for a partition that was
   revoked.
"""

import threading
from collections.abc import Callable, Collection, Mapping

from common.ports import Clock
from common.spans import Topic, TopicPartition
from stage_writer.chain_end import Lineage
from stage_writer.partitions.freshness import Freshness
from stage_writer.partitions.partition import AssignedPartition
from stage_writer.partitions.resume_points import is_other
from stage_writer.ports import ClaimGuard, ClaimVerdict, OtherTopic


class TopicMonitor:
    """The ids of topics, looked up after a given moment. Called by flush jobs, in their own threads."""

    def __init__(self, topic_ids: Callable[[Collection[Topic]], Mapping[Topic, str | None]], clock: Clock) -> None:
        """``topic_ids`` is `stage_writer.ports.KafkaMetadata.topic_ids`, or another that any thread may call."""
        self._topic_ids = topic_ids
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[Topic, tuple[float, str | None]] = {}

    def guard(
        self, partition: TopicPartition, lineage: Lineage, read_until_s: float, is_ours: Callable[[], bool]
    ) -> ClaimGuard:
        """The guard of a job that flushes what was read of a partition until a moment of the monotonic clock."""

        def guard() -> ClaimVerdict | OtherTopic:
            topic_id = None if lineage.topic_id is None else self.since(partition.topic, read_until_s)
            if topic_id is not None and is_other(lineage, topic_id):
                return OtherTopic(topic_id)
            return ClaimVerdict.CLAIM if is_ours() else ClaimVerdict.WAIT

        return guard

    def since(self, topic: Topic, moment_s: float) -> str | None:
        """The topic's id, looked up after a moment of the monotonic clock; None when it has none.

        Raises BrokerError.
        """
        with self._lock:
            checked_s, known = self._known.get(topic, (moment_s, None))
        if checked_s > moment_s:
            return known
        checked_s = self._clock.monotonic_s()
        topic_id = self._topic_ids([topic]).get(topic)
        with self._lock:
            if checked_s >= self._known.get(topic, (checked_s, None))[0]:
                self._known[topic] = (checked_s, topic_id)
        return topic_id


class ClaimGuards:
    def __init__(
        self, assigned: Mapping[TopicPartition, AssignedPartition], topics: TopicMonitor, clock: Clock, session_s: float
    ) -> None:
        """``assigned`` are the writer's partitions at any time; ``session_s`` is the group's session timeout."""
        self._assigned = assigned
        self._topics = topics
        self._clock = clock
        self._freshness = Freshness(session_s)

    def polled(self, began_s: float) -> None:
        """A poll that started at ``began_s`` has served the group."""
        self._freshness.polled(began_s, self._clock.monotonic_s())

    def sign(self) -> None:
        """The loop is running."""
        self._freshness.sign(self._clock.monotonic_s())

    def of(self, assigned: AssignedPartition) -> ClaimGuard:
        """The guard of a job that flushes what was read of this partition until now."""

        def is_ours() -> bool:
            is_assigned = self._assigned.get(assigned.partition) is assigned
            return is_assigned and self._freshness.is_fresh(self._clock.monotonic_s())

        return self._topics.guard(assigned.partition, assigned.lineage, self._clock.monotonic_s(), is_ours)
