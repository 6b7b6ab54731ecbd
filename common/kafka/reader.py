"""Reads ranges of Kafka partitions without being a group member: for a replay, a verification.

Rules:

1. No group is joined and nothing is committed: partitions are assigned. A running writer is not affected. The client
   still looks up its required group, and delivers an authorization error for it among the records.
2. Every request has a timeout. Properties that librdkafka rejects are a ConfigError; everything else is a BrokerError,
   which names the servers.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message, TopicCollection
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, TopicMetadata

from common.errors import BrokerError
from common.kafka.client import QUIET, client_properties, close_within, result_of, taking_properties, topic_id
from common.kafka.errors import LastClientError, broker_error
from common.settings.section import Option
from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.merged import kafka_topic

_TIMEOUT_S = 30.0
_POLL_S = 0.5
_REFUSED_S = 2.0
_NEWEST_S = 10.0
# librdkafka's own codes start with an underscore.
_END = KafkaError._PARTITION_EOF  # noqa: SLF001
_NO_ANSWER = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT)  # noqa: SLF001
_NO_FEATURE = KafkaError._UNSUPPORTED_FEATURE  # noqa: SLF001
NO_GROUP = KafkaError.GROUP_AUTHORIZATION_FAILED
"""The error for a consumer that may not read its group; irrelevant if it joins none."""


class KafkaReader:
    def __init__(self, properties: Mapping[str, Option], at_a_time: int = 1, timeout_s: float = _TIMEOUT_S) -> None:
        """``properties`` are a consumer's, ``at_a_time`` is the largest batch of records. Raises ConfigError."""
        self._timeout_s = timeout_s
        self._servers = str(properties["bootstrap.servers"])
        self._at_a_time = at_a_time
        fixed: dict[str, Option] = {
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
        }
        self._properties = {**properties, **fixed}
        self._client_error = LastClientError()
        self._reading = False
        with taking_properties():
            self._consumer = Consumer({**self._properties, "error_cb": self._client_error.record}, logger=QUIET)

    def partitions(self, topic: str) -> list[TopicPartition]:
        of_kafka = kafka_topic(topic)
        with self._errors(f"look up the topic {of_kafka}", of_kafka):
            numbers = require_allowed(self._consumer, of_kafka, self._timeout_s, self._client_error)
        return [TopicPartition(Topic(topic), Partition(number)) for number in numbers]

    def topics(self) -> dict[str, TopicMetadata]:
        with self._errors("list topics"):
            return dict(sorted(topics_of(self._consumer, self._timeout_s, self._client_error).items()))

    def topic_ids(self, topics: Collection[Topic]) -> Mapping[Topic, str | None]:
        with self._errors("describe topics"):
            return topic_ids(AdminClient(client_properties(self._properties), logger=QUIET), topics, self._timeout_s)

    def ends(self, partition: TopicPartition) -> tuple[Position, Position]:
        with self._errors(f"look up the ends of {partition}", kafka_topic(partition.topic)):
            low, high = self._consumer.get_watermark_offsets(_kafka(partition, 0), timeout=self._timeout_s)
        return Position(low), Position(high)

    def position_at(self, partition: TopicPartition, timestamp_ms: int, high: Position) -> Position:
        with self._errors(f"look up {partition} by time", kafka_topic(partition.topic)):
            wanted = [_kafka(partition, timestamp_ms)]
            (kafka_offset,) = self._consumer.offsets_for_times(wanted, timeout=self._timeout_s)
            if kafka_offset.error is not None:
                raise KafkaException(kafka_offset.error)
        return Position(kafka_offset.offset) if kafka_offset.offset >= 0 else high

    def committed(self, partitions: Sequence[TopicPartition], group: str) -> dict[TopicPartition, Position]:
        """The positions that the group of the properties has committed, without those of partitions that have none."""
        with self._errors(f"look up the offsets of the group {group}", group):
            responses = self._consumer.committed([_kafka(partition) for partition in partitions], self._timeout_s)
            for response in responses:
                if response.error is not None:
                    raise KafkaException(response.error)
        offsets = zip(partitions, responses, strict=True)
        return {partition: Position(response.offset) for partition, response in offsets if response.offset >= 0}

    def messages(self, partition: TopicPartition, span: Span) -> Iterator[list[Message]]:
        """The records of a range, in order; in batches that are never empty."""
        self._reading, kafka_partition = True, _kafka(partition, span.start)
        self._consumer.assign([kafka_partition])
        ended, heard_s = False, time.monotonic()
        while not ended:
            messages = self._consumed(f"read {partition}", kafka_partition.topic)
            if messages:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > _TIMEOUT_S:
                msg = f"Kafka at {self._servers} sent nothing of {partition} for {_TIMEOUT_S:.0f} seconds"
                raise BrokerError(msg, "check the brokers, and run the command again")
            # Drops leftovers of the partition that was read before.
            messages = [
                message
                for message in messages
                if (message.topic(), message.partition()) == (kafka_partition.topic, kafka_partition.partition)
            ]
            wanted = [
                message for message in messages if message.error() is None and int(message.offset() or 0) < span.end
            ]
            ended = len(wanted) < len(messages)
            if wanted:
                yield wanted

    def newest(self, spans: Mapping[TopicPartition, Span]) -> Iterator[list[Message]]:
        """The records of ranges that reach to their partitions' ends, in order of arrival.

        Those of all partitions are mixed. Ends early when Kafka returns nothing for a while.
        """
        self._reading = True
        self._consumer.assign([_kafka(partition, span.start) for partition, span in spans.items()])
        left, heard_s = set(spans), time.monotonic()
        while left and time.monotonic() - heard_s < _NEWEST_S:
            messages = self._consumed("read the newest records")
            for message in messages:
                heard_s = time.monotonic()
                partition = TopicPartition(Topic(str(message.topic())), Partition(int(message.partition() or 0)))
                is_end = message.error() is not None or (
                    partition in left and message.offset() == spans[partition].end - 1
                )
                left -= {partition} if is_end else set()
            if wanted := [message for message in messages if message.error() is None]:
                yield wanted

    def _consumed(self, what: str, topic: str = "") -> list[Message]:
        with self._errors(what, topic):
            # It waits for that many or the timeout, even at the partition's end.
            messages: list[Message] = self._consumer.consume(self._at_a_time, _POLL_S)
            for problem in (message.error() for message in messages):
                if problem is not None and problem.code() not in {_END, NO_GROUP}:
                    raise KafkaException(problem)
        return messages

    def close(self) -> None:
        close_within(self._consumer)

    @contextmanager
    def _errors(self, what: str, topic: str = "") -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            if not self._reading:  # loses nothing: librdkafka delivers its connection events
                self._consumer.poll(0)
            raise broker_error(what, self._servers, error.args[0], self._client_error, user_of=topic) from error


def topics_of(
    consumer: Consumer, timeout_s: float, client_error: LastClientError | None, topic: str | None = None
) -> dict[str, TopicMetadata]:
    """Kafka's topics, or one. Raises KafkaException, and soon when the brokers reject us: waiting does not help.

    ``client_error`` returns the error of a consumer that reads nothing yet; without it the full timeout is used.
    """
    began_s = time.monotonic()
    left_s = timeout_s
    while True:
        try:
            metadata = consumer.list_topics(topic, timeout=left_s if client_error is None else min(left_s, _POLL_S))
        except KafkaException as error:
            # The clock is read once: later the remaining time could be negative, which librdkafka treats as infinite.
            passed_s = time.monotonic() - began_s
            left_s = timeout_s - passed_s
            if client_error is None or error.args[0].code() not in _NO_ANSWER or left_s <= 0:
                raise
            consumer.poll(0)  # delivers librdkafka's connection events
            if client_error.is_refusal and passed_s >= _REFUSED_S:
                raise
        else:
            topics: dict[str, TopicMetadata] = metadata.topics
            return topics


def require_allowed(
    consumer: Consumer, topic: str, timeout_s: float, client_error: LastClientError | None = None
) -> list[int]:
    """The partitions of a topic, none if it does not exist. Raises KafkaException, also for a hidden topic.

    A list of all topics omits those that this user may not see; a request for one of them returns the error.
    """
    metadata = topics_of(consumer, timeout_s, client_error, topic).get(topic)
    if (
        metadata is not None
        and metadata.error is not None
        and metadata.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    ):
        raise KafkaException(metadata.error)
    return sorted(metadata.partitions) if metadata is not None and metadata.error is None else []


def topic_ids(admin: AdminClient, topics: Collection[Topic], timeout_s: float) -> dict[Topic, str | None]:
    """The id of each topic that exists; None from a broker without topic ids. Raises KafkaException."""
    try:
        described = admin.describe_topics(TopicCollection(sorted(set(topics))), request_timeout=timeout_s)
    except KafkaException as error:
        if error.args[0].code() != _NO_FEATURE:
            raise
        return dict.fromkeys(topics)
    ids: dict[Topic, str | None] = {}
    for name, described_topic in described.items():
        try:
            ids[Topic(name)] = topic_id(result_of(described_topic, timeout_s))
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
    return ids


def _kafka(partition: TopicPartition, offset: int = OFFSET_INVALID) -> KafkaPartition:
    return KafkaPartition(kafka_topic(partition.topic), partition.partition, offset)
