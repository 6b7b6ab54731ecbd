"""What Kafka says: the partitions of a stream, their ends, the offsets at a moment, and a group's commits.

Rules: nothing is consumed, joined or committed; every question is bounded in time, and its failure names the servers.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from bootstrap.core.state import Ends
from common.errors import BrokerError, UsageError
from common.kafka import QUIET, client_properties, refused_property
from common.kafka_reader import topic_ids
from common.spans import Partition, Position, Topic, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from common.settings import Settings, Stream

TIMEOUT_S = 10.0
_NOBODY = "kafka-delta-express-bootstrap"


class KafkaView:
    """A read-only look at a cluster."""

    def __init__(self, settings: Settings, group: str | None = None) -> None:
        """``group`` is the one whose commits are asked for. Raises ConfigError for properties that are refused."""
        self._servers = str(settings.kafka["bootstrap.servers"])
        self._last_error = ""
        given = {key: value for key, value in settings.kafka.items() if value is not None}
        fixed = {
            "group.id": group or _NOBODY,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "error_cb": self._remember,
        }
        try:
            self._consumer = Consumer({**given, **fixed}, logger=QUIET)
            self._admin = AdminClient(client_properties(given), logger=QUIET)
        except KafkaException as error:
            raise refused_property(error.args[0].str()) from error

    def close(self) -> None:
        """Let go of the connections."""
        self._consumer.close()

    def partitions(self, stream: Stream) -> tuple[TopicPartition, ...]:
        """The partitions of a stream's topics, in order. Raises BrokerError, and UsageError for an unknown topic."""
        with self._errors("list topics"):
            topics = self._consumer.list_topics(timeout=TIMEOUT_S).topics
        known = {name: found for name, found in topics.items() if found.error is None}
        missing = [topic for topic in stream.topics if stream.pattern is None and topic not in known]
        if missing:
            msg = f"Kafka at {self._servers} has no topic {missing[0]!r}, which stream {stream.app_id!r} names"
            raise UsageError(msg, "create the topic, or mend the name in streams[].topics")
        found = tuple(
            TopicPartition(Topic(name), Partition(partition))
            for name, topic in sorted(known.items())
            if stream.takes(name)
            for partition in sorted(topic.partitions)
        )
        if not found:
            msg = f"no topic in Kafka at {self._servers} fits {stream.topics[0]}, which stream {stream.app_id!r} reads"
            raise UsageError(msg, "create a topic, or mend the expression in streams[].topics")
        return found

    def topic_ids(self, topics: Iterable[Topic]) -> dict[Topic, str | None]:
        """The id of each topic; None from a broker that has no ids, and of a topic that is gone meanwhile."""
        asked = set(topics)
        with self._errors("describe topics"):
            return {**dict.fromkeys(asked), **topic_ids(self._admin, asked, TIMEOUT_S)}

    def ends(self, sources: Sequence[TopicPartition]) -> dict[TopicPartition, Ends]:
        """The first and the last position of each partition."""
        found: dict[TopicPartition, Ends] = {}
        for source in sources:
            with self._errors(f"look up the ends of {source}"):
                low, high = self._consumer.get_watermark_offsets(_kafka(source), timeout=TIMEOUT_S)
            found[source] = Ends(Position(low), Position(high))
        return found

    def positions_at(self, ends: Mapping[TopicPartition, Ends], timestamp_ms: int) -> dict[TopicPartition, Position]:
        """The first record at or after a moment; the partition's end where there is none."""
        asked = [KafkaPartition(source.topic, source.partition, timestamp_ms) for source in ends]
        with self._errors("look up offsets by time"):
            answers = self._consumer.offsets_for_times(asked, timeout=TIMEOUT_S)
        return {
            source: Position(offset) if offset >= 0 else ends[source].high
            for source, offset in self._offsets(answers, "look up offsets by time").items()
        }

    def committed(self, sources: Sequence[TopicPartition]) -> dict[TopicPartition, Position]:
        """The group's committed positions; partitions without a commit are left out."""
        with self._errors("look up the group's offsets"):
            answers = self._consumer.committed([_kafka(source) for source in sources], timeout=TIMEOUT_S)
        offsets = self._offsets(answers, "look up the group's offsets")
        return {source: Position(offset) for source, offset in offsets.items() if offset >= 0}

    def _offsets(self, answers: Sequence[KafkaPartition], what: str) -> dict[TopicPartition, int]:
        for answer in answers:
            if answer.error is not None:
                raise self._failure(what, f"{answer.topic}/{answer.partition}: {answer.error.str()}")
        return {
            TopicPartition(Topic(answer.topic), Partition(answer.partition)): int(answer.offset) for answer in answers
        }

    def _remember(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - librdkafka's own codes begin with an underscore
            self._last_error = error.str()

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            if hasattr(self, "_consumer"):
                self._consumer.poll(0)  # hands over what librdkafka has to say about its connections
            cause = error.args[0] if error.args else error
            reason = cause.str() if isinstance(cause, KafkaError) else str(cause)
            raise self._failure(what, self._last_error or reason) from error

    def _failure(self, what: str, reason: str) -> BrokerError:
        msg = f"cannot {what} at Kafka, bootstrap.servers {self._servers}: {reason}"
        return BrokerError(msg, "check kafka.bootstrap.servers and the security settings, and that the brokers are up")


def _kafka(source: TopicPartition) -> KafkaPartition:
    return KafkaPartition(source.topic, source.partition)
