"""Kafka for a replay: the ends of partitions, the offsets at a moment, and the records of a range.

Rules:

1. No group is joined and nothing is committed: partitions are assigned. A running writer is not disturbed.
2. Batches are those of the service (`stage_writer.shell.kafka.message_batch`), so that a replay converts what a writer
   would have converted.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from common.errors import BrokerError
from common.kafka import QUIET, refused_property
from common.spans import Partition, Position, Span, Topic, TopicPartition
from stage_writer.shell.kafka import consumer_properties, message_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from common.settings import Settings
    from stage_writer.core.batch import MessageBatch

_TIMEOUT_S = 30.0
_LOOK_S = 0.5
_END = KafkaError._PARTITION_EOF  # noqa: SLF001 - librdkafka's own codes begin with an underscore


class ReplayKafka:
    """A consumer of assigned partitions."""

    def __init__(self, settings: Settings, *, with_headers: bool) -> None:
        """Raises ConfigError for properties that librdkafka refuses."""
        self._servers = str(settings.kafka["bootstrap.servers"])
        self._most = settings.writer.consume_records
        self._with_headers = with_headers
        try:
            self._consumer = Consumer(consumer_properties(settings), logger=QUIET)
        except KafkaException as error:
            raise refused_property(error.args[0].str()) from error

    def partitions(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic; none when there is no such topic."""
        with self._errors("list topics"):
            found = self._consumer.list_topics(topic, timeout=_TIMEOUT_S).topics.get(topic)
        known = found is not None and found.error is None
        return [TopicPartition(Topic(topic), Partition(one)) for one in sorted(found.partitions)] if known else []

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

    def batches(self, source: TopicPartition, span: Span) -> Iterator[MessageBatch]:
        """The records of a range, in order."""
        self._consumer.assign([_kafka(source, span.start)])
        ended, heard_s = False, time.monotonic()
        while not ended:
            with self._errors(f"read {source}"):
                # It waits until it has as many or the time is over, also at the partition's end.
                messages = self._consumer.consume(self._most, _LOOK_S)
                for message in messages:
                    if message.error() is not None and message.error().code() != _END:
                        raise KafkaException(message.error())
            if messages:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > _TIMEOUT_S:
                msg = f"Kafka at {self._servers} did not send anything of {source} for {_TIMEOUT_S:.0f} seconds"
                raise BrokerError(msg, "see whether the brokers are well, and run the command again")
            # None of the partition that was read before.
            messages = [one for one in messages if (one.topic(), one.partition()) == (source.topic, source.partition)]
            wanted = [one for one in messages if one.error() is None and one.offset() < span.end]
            ended = len(wanted) < len(messages)
            if wanted:
                yield message_batch(source, wanted, with_headers=self._with_headers).after(span.start)

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


def _kafka(source: TopicPartition, offset: int) -> KafkaPartition:
    return KafkaPartition(source.topic, source.partition, offset)
