"""What ``status`` asks of Kafka: the ends of partitions and what retention has left, and the ids of topics.

Loading itself never asks Kafka.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from common.kafka.client import QUIET, client_properties, topic_id
from common.spans import Partition, Position, Topic, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from confluent_kafka.admin import AdminClient

    from common.settings import Settings, Stream

_TIMEOUT_S = 5.0
_IDS_TIMEOUT_S = 2.0


def described_ids(admin: AdminClient, topics: Collection[Topic]) -> dict[Topic, str | None]:
    """The ids of those topics that the broker knows and describes. Raises KafkaException."""
    from confluent_kafka import KafkaException, TopicCollection  # noqa: PLC0415 - see BrokerEnds.__call__

    from common.kafka.bounded import answer_of  # noqa: PLC0415 - the same

    found: dict[Topic, str | None] = {}
    if not topics:
        return found
    answers = admin.describe_topics(TopicCollection(sorted(topics)), request_timeout=_IDS_TIMEOUT_S)
    for name, answer in answers.items():
        # A topic that is gone meanwhile, or that may not be described, keeps no other from being told.
        with suppress(KafkaException):
            found[Topic(name)] = topic_id(answer_of(answer, _IDS_TIMEOUT_S))
    return found


class BrokerEnds:
    """Asks the broker of the settings, within a bounded time, and is silent about a broker that is not there."""

    def __init__(self, settings: Settings, timeout_s: float = _TIMEOUT_S) -> None:
        """Nothing is asked yet; ``timeout_s`` bounds all questions together."""
        self._properties = dict(settings.kafka)
        self._deadline_s = time.monotonic() + timeout_s
        self._firsts: dict[TopicPartition, Position] = {}

    def __call__(self, stream: Stream) -> Mapping[TopicPartition, Position]:
        """By partition, the position that the next record will have; empty when Kafka does not answer in time."""
        try:
            from confluent_kafka import KafkaException  # noqa: PLC0415 - status works without Kafka's client, too
        except ImportError:
            return {}
        try:
            return self._ask(stream)
        except KafkaException:
            return {}

    def firsts(self, sources: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        """The positions of the first records that Kafka still has, as told with the ends."""
        return {source: self._firsts[source] for source in sources if source in self._firsts}

    def topic_ids(self, topics: Collection[Topic]) -> Mapping[Topic, str | None]:
        """The ids of those topics that the broker knows; None from one that has no ids, empty when it is not there."""
        try:
            from confluent_kafka import KafkaException  # noqa: PLC0415 - see __call__
            from confluent_kafka.admin import AdminClient  # noqa: PLC0415
        except ImportError:
            return {}
        try:
            admin = AdminClient({**client_properties(self._properties), "log_level": 0}, logger=QUIET)
            return described_ids(admin, topics)
        except KafkaException:
            return {}

    def _left_s(self) -> float:
        return max(0.1, self._deadline_s - time.monotonic())

    def _ask(self, stream: Stream) -> dict[TopicPartition, Position]:
        from confluent_kafka import Consumer  # noqa: PLC0415 - see __call__
        from confluent_kafka import TopicPartition as KafkaPartition  # noqa: PLC0415

        from common.kafka.bounded import close_within  # noqa: PLC0415

        # A group is asked for by the client; it is never joined and nothing is committed to it.
        quiet = {"group.id": "delta-loader-status", "enable.auto.commit": False, "log_level": 0}
        consumer = Consumer({**self._properties, **quiet}, logger=QUIET)
        try:
            topics = consumer.list_topics(timeout=self._left_s()).topics
            ends: dict[TopicPartition, Position] = {}
            for topic in sorted(topics):
                for partition in topics[topic].partitions if stream.takes(topic) else ():
                    if time.monotonic() > self._deadline_s:
                        return ends
                    first, end = consumer.get_watermark_offsets(
                        KafkaPartition(topic, partition), timeout=self._left_s()
                    )
                    source = TopicPartition(Topic(topic), Partition(partition))
                    ends[source], self._firsts[source] = Position(int(end)), Position(int(first))
            return ends
        finally:
            close_within(consumer)
