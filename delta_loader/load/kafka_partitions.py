"""Reads from Kafka which partitions the topics of streams have, for valid-through times (delta_loader/load/settle.py).

Rules:

1. Loading needs no Kafka. If Kafka does not answer within `_TIMEOUT_S`, it is not queried again for `_AGAIN_AFTER_S`.
   Until then, writers' records of the partitions count.
2. One answer serves all streams of a pass: it covers all topics, and is valid for `_GOOD_FOR_S`.
3. Chains of several topics are assembled by writers, so only writers know their partitions.
"""

import threading
from collections.abc import Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from common.kafka.client import QUIET, client_properties
from common.ports import Clock
from common.settings import Settings, Stream
from common.spans import Topic
from common.stage.idle import StreamFact

_TIMEOUT_S = 3.0
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
            topics = admin.list_topics(timeout=_TIMEOUT_S).topics
        except KafkaException:
            return None
        return time_ms, {Topic(name): len(topic.partitions) for name, topic in topics.items() if topic.error is None}
