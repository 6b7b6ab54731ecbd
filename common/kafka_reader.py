"""Reads ranges of Kafka partitions, for whoever is no member of a group: a replay, a verification.

Rules:

1. No group is joined and nothing is committed: partitions are assigned. A running writer is not disturbed.
2. Every question is bounded in time. Properties that librdkafka refuses are the settings' fault (ConfigError); all else
   is the broker's (BrokerError), and names the servers.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from common.errors import BrokerError
from common.kafka import QUIET, client_properties, refused_property, topic_id
from common.spans import Partition, Position, Topic, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from confluent_kafka import Message

    from common.settings.section import Option
    from common.spans import Span

_TIMEOUT_S = 30.0
_LOOK_S = 0.5
# librdkafka's own codes begin with an underscore.
_END = KafkaError._PARTITION_EOF  # noqa: SLF001
_NO_FEATURE = KafkaError._UNSUPPORTED_FEATURE  # noqa: SLF001


class KafkaReader:
    """A consumer of assigned partitions."""

    def __init__(self, properties: Mapping[str, Option], at_a_time: int) -> None:
        """``properties`` are a consumer's, ``at_a_time`` is how many records are handed over. Raises ConfigError."""
        self._servers = str(properties["bootstrap.servers"])
        self._at_a_time = at_a_time
        fixed: dict[str, Option] = {
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
        self._properties = {**properties, **fixed}
        try:
            self._consumer = Consumer(self._properties, logger=QUIET)
        except KafkaException as error:
            raise refused_property(error.args[0].str()) from error

    def partitions(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic; none when there is no such topic."""
        with self._errors("list topics"):
            found = self._consumer.list_topics(topic, timeout=_TIMEOUT_S).topics.get(topic)
        known = found is not None and found.error is None
        return [TopicPartition(Topic(topic), Partition(one)) for one in sorted(found.partitions)] if known else []

    def topic_ids(self, topics: Collection[Topic]) -> Mapping[Topic, str | None]:
        """The id of each topic that is there; None from a broker that has no ids."""
        with self._errors("describe topics"):
            return topic_ids(AdminClient(client_properties(self._properties), logger=QUIET), topics, _TIMEOUT_S)

    def ends(self, source: TopicPartition) -> tuple[Position, Position]:
        """The first position that Kafka still has, and the end."""
        with self._errors(f"look up the ends of {source}"):
            low, high = self._consumer.get_watermark_offsets(_kafka(source, 0), timeout=_TIMEOUT_S)
        return Position(low), Position(high)

    def position_at(self, source: TopicPartition, timestamp_ms: int, high: Position) -> Position:
        """The first record at or after a moment; ``high``, the end, when there is none."""
        with self._errors(f"look up {source} by time"):
            (answer,) = self._consumer.offsets_for_times([_kafka(source, timestamp_ms)], timeout=_TIMEOUT_S)
            if answer.error is not None:
                raise KafkaException(answer.error)
        return Position(answer.offset) if answer.offset >= 0 else high

    def messages(self, source: TopicPartition, span: Span) -> Iterator[list[Message]]:
        """The records of a range, in order; some at a time, and never none."""
        self._consumer.assign([_kafka(source, span.start)])
        ended, heard_s = False, time.monotonic()
        while not ended:
            with self._errors(f"read {source}"):
                # It waits until it has as many or the time is over, also at the partition's end.
                messages = self._consumer.consume(self._at_a_time, _LOOK_S)
                for problem in (message.error() for message in messages):
                    if problem is not None and problem.code() != _END:
                        raise KafkaException(problem)
            if messages:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > _TIMEOUT_S:
                msg = f"Kafka at {self._servers} did not send anything of {source} for {_TIMEOUT_S:.0f} seconds"
                raise BrokerError(msg, "see whether the brokers are well, and run the command again")
            # None of the partition that was read before.
            messages = [one for one in messages if (one.topic(), one.partition()) == (source.topic, source.partition)]
            wanted = [one for one in messages if one.error() is None and int(one.offset() or 0) < span.end]
            ended = len(wanted) < len(messages)
            if wanted:
                yield wanted

    def close(self) -> None:
        """Let go of the connections."""
        self._consumer.close()

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            cause = error.args[0] if error.args else error
            reason = cause.str() if isinstance(cause, KafkaError) else str(cause)
            msg = f"cannot {what} at Kafka {self._servers}: {reason}"
            raise BrokerError(msg, "check the settings below kafka, and that the brokers are up") from error


def topic_ids(admin: AdminClient, topics: Collection[Topic], timeout_s: float) -> dict[Topic, str | None]:
    """The id of each topic that is there; None from a broker that has no ids. Raises KafkaException."""
    try:
        answers = admin.describe_topics(TopicCollection(sorted(set(topics))), request_timeout=timeout_s)
    except KafkaException as error:
        if error.args[0].code() != _NO_FEATURE:
            raise
        return dict.fromkeys(topics)
    found: dict[Topic, str | None] = {}
    for name, answer in answers.items():
        try:
            found[Topic(name)] = topic_id(answer.result(timeout_s + 1))
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
    return found


def _kafka(source: TopicPartition, offset: int) -> KafkaPartition:
    return KafkaPartition(source.topic, source.partition, offset)
