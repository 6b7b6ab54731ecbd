"""Changelog topics of a real cluster: a `stage_writer.changelog.changelog.ChangelogTopics`.

Rules:

1. The producer is idempotent and waits for all replicas in sync. A message's offset is the one that the broker
   acknowledged; a message without an acknowledgment is a failure, even if the broker has it. After a failure a new
   producer is made.
2. The topic's id is requested after the messages are written: one that was recreated meanwhile has other messages.
3. Reading joins no group and commits nothing, and it is not blocked by other producers' transactions.
4. A topic that does not keep its messages long enough (topic.py) is not written to.
5. A message that Kafka cannot find is gone only when the partition's end was before it for some seconds: a new leader
   may be a moment behind.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Lock

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from common.clock import SystemClock
from common.errors import BrokerError, StateError
from common.kafka.client import QUIET, client_properties, close_within, taking_properties
from common.kafka.errors import LastClientError, broker_error
from common.kafka.reader import topic_ids
from common.kafka.rights import Right
from common.settings.section import Option
from common.spans import Partition, Position, Topic, TopicPartition
from stage_writer.changelog.changelog import MESSAGE_BYTES, Appended, ChangelogMessage, missing_messages
from stage_writer.changelog.topic import LEAST_MESSAGE_BYTES, partitions_of, require_suitable
from stage_writer.partitions.claim_guards import TopicMonitor

_TIMEOUT_S = 30.0
_DELIVERY_S = 60
_POLL_S = 0.1
_GONE_AFTER_S = 5.0
_QUEUE_BYTES = 32 * 2**20
"""Messages in flight; further ones wait."""
_SKIPPED = 100
"""Messages up to which reading ahead is cheaper than a seek."""
# librdkafka's own codes start with an underscore.
_END = KafkaError._PARTITION_EOF  # noqa: SLF001
_OUT_OF_RANGE = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001
_PASSING = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)  # noqa: SLF001


class KafkaChangelogs:
    """Makes a producer with the first write, and a consumer for each reading."""

    def __init__(self, kafka: Mapping[str, Option], group_id: str, keep_s: float) -> None:
        """``group_id`` is the writers' group, which consumers must set; ``keep_s`` is ``writer.state_keep``, in s."""
        self._kafka = kafka
        self._group_id = group_id
        self._keep_s = keep_s
        self._servers = str(kafka["bootstrap.servers"])
        self._lock = Lock()
        self._producer: Producer | None = None
        self._asking: AdminClient | None = None
        self._partitions: dict[Topic, int] = {}
        self._monitor = TopicMonitor(self.topic_ids, SystemClock())

    def require_suitable(self, topic: Topic, rights: Collection[Right] = ()) -> int:
        """The number of partitions of a topic that is suitable (rule 4) and that this user may write to.

        Raises ConfigError and BrokerError.
        """
        with self._errors(f"look up the topic {topic}", topic):
            admin = self._admin()
            count = partitions_of(admin, topic, rights)
            require_suitable(admin, topic, self._keep_s)
        self._partitions[topic] = count
        return count

    def append(self, topic: Topic, task: TopicPartition, messages: Sequence[ChangelogMessage]) -> Appended:
        """Write them, and wait until they are durable. Raises BrokerError, and ConfigError for an unsuitable topic."""
        count = self._partitions.get(topic) or self.require_suitable(topic)
        partition = TopicPartition(topic, Partition(task.partition % count))
        with self._lock:
            producer = self._producer = self._producer or self._new_producer()
        try:
            with self._errors(f"write to {partition}", topic, "WRITE"):
                offsets = _written(producer, partition, messages)
        except BrokerError:
            with self._lock:
                self._producer = None if self._producer is producer else self._producer
            self._partitions.pop(topic, None)  # the topic may have been recreated
            raise
        return Appended(partition, self._monitor.since(topic, time.monotonic()), offsets)

    @contextmanager
    def reader(self) -> Iterator[KafkaChangelogReader]:
        fixed: dict[str, Option] = {
            "group.id": self._group_id,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_uncommitted",
            "queued.max.messages.kbytes": 8 * 2**10,
            # The defaults wait half a second at each new position, and a whole one whenever the queue was full.
            "fetch.wait.max.ms": 10,
            "fetch.queue.backoff.ms": 5,
        }
        client_error = LastClientError()
        with taking_properties():
            consumer = Consumer(
                {**client_properties(self._kafka), **fixed, "error_cb": client_error.record}, logger=QUIET
            )
        try:
            yield KafkaChangelogReader(self, consumer, self._servers, client_error)
        finally:
            close_within(consumer)

    def topic_ids(self, topics: Collection[Topic]) -> Mapping[Topic, str | None]:
        """The id of each topic that exists; None from a broker without topic ids. Raises BrokerError."""
        with self._errors("describe topics", " ".join(topics)):
            return topic_ids(self._admin(), topics, _TIMEOUT_S)

    def close(self) -> None:
        """Close the connections without waiting for requests in progress."""
        with self._lock:
            self._producer = self._asking = None

    def _new_producer(self) -> Producer:
        given = client_properties(self._kafka)
        own: dict[str, Option] = {} if "message.timeout.ms" in given else {"delivery.timeout.ms": _DELIVERY_S * 1000}
        fixed: dict[str, Option] = {
            "enable.idempotence": True,
            "acks": "all",
            "batch.size": MESSAGE_BYTES,  # max.message.bytes of a topic limits a batch
            "queue.buffering.max.kbytes": _QUEUE_BYTES // 2**10,
        }
        with taking_properties():
            return Producer({**own, **given, **fixed}, logger=QUIET)

    def _admin(self) -> AdminClient:
        """One client for all: a request is most of the cost of a small flush here, and connecting would cost more."""
        with self._lock:
            if self._asking is None:
                self._asking = AdminClient(client_properties(self._kafka), logger=QUIET)
            return self._asking

    @contextmanager
    def _errors(self, what: str, topic: str, right: str = "DESCRIBE and DESCRIBE_CONFIGS") -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise _failed(what, self._servers, error.args[0], _remedy(error.args[0], topic, right)) from error


class KafkaChangelogReader:
    """A `stage_writer.changelog.changelog.ChangelogReader`."""

    def __init__(
        self, topics: KafkaChangelogs, consumer: Consumer, servers: str, client_error: LastClientError
    ) -> None:
        self._topics = topics
        self._consumer = consumer
        self._servers = servers
        self._client_error = client_error
        self._next: tuple[TopicPartition, Position] | None = None

    def require_same(self, partition: TopicPartition, topic_id: str | None) -> None:
        topic_ids = self._topics.topic_ids([partition.topic])
        if partition.topic not in topic_ids:
            raise StateError(f"the topic {partition.topic}, which stored a task's state changes, no longer exists")
        if None not in {topic_id, topic_ids[partition.topic]} and topic_id != topic_ids[partition.topic]:
            msg = f"the topic {partition.topic}, which stored a task's state changes, was deleted and created again"
            raise StateError(msg)

    def at(self, partition: TopicPartition, offset: Position) -> ChangelogMessage:
        what = f"read offset {offset} of {partition}"
        try:
            self._go_to(partition, offset)
            message = self._awaited(partition, offset)
        except KafkaException as error:
            raise _failed(
                what, self._servers, error.args[0], _remedy(error.args[0], partition.topic, "READ")
            ) from error
        if message is None:
            raise broker_error(what, self._servers, None, self._client_error, user_of=partition.topic)
        self._next = (partition, Position(offset + 1))
        return message

    def _go_to(self, partition: TopicPartition, offset: Position) -> None:
        if self._next is not None and self._next[0] == partition and 0 <= offset - self._next[1] <= _SKIPPED:
            return
        self._next = (partition, offset)
        self._consumer.assign([KafkaPartition(partition.topic, partition.partition, offset)])

    def _awaited(self, partition: TopicPartition, offset: Position) -> ChangelogMessage | None:
        """The message; None when Kafka does not return it in time. Raises StateError and KafkaException."""
        deadline_s, ended_s = time.monotonic() + _TIMEOUT_S, 0.0
        while (now_s := time.monotonic()) < deadline_s:
            if ended_s and now_s - ended_s > _GONE_AFTER_S:
                raise self._missing(partition, offset)
            message = self._consumer.poll(_POLL_S)
            if message is None or (message.topic(), message.partition()) != (partition.topic, partition.partition):
                continue  # the rest of a response that was already read
            error, read_offset = message.error(), message.offset()
            if error is None and read_offset == offset:
                return _changelog_message(message)
            if (error is None and (read_offset or 0) > offset) or (error is not None and error.code() == _OUT_OF_RANGE):
                raise self._missing(partition, offset)
            if error is not None:
                ended_s = _ended(error, ended_s, now_s)
        return None

    def _missing(self, partition: TopicPartition, offset: Position) -> StateError:
        low, high = self._consumer.get_watermark_offsets(
            KafkaPartition(partition.topic, partition.partition), timeout=_TIMEOUT_S
        )
        self._next = None
        return missing_messages(partition, offset, Position(low), Position(high))


def _changelog_message(message: Message) -> ChangelogMessage:
    headers = [(name, value) for name, value in message.headers() or () if isinstance(value, bytes)]
    return ChangelogMessage(message.value() or b"", tuple(headers))


def _written(
    producer: Producer, partition: TopicPartition, messages: Sequence[ChangelogMessage]
) -> tuple[Position, ...]:
    """The offset of each piece. Raises KafkaException."""
    offsets: dict[int, Position] = {}
    errors: list[KafkaError] = []

    def reported(index: int, error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        if error is None and offset is not None and offset >= 0:
            offsets[index] = Position(offset)
        else:
            errors.append(error or KafkaError(KafkaError._FAIL, "Kafka has the record but does not return its offset"))  # noqa: SLF001

    for index, message in enumerate(messages):
        on_delivery = partial(reported, index)
        while not errors:
            try:
                producer.produce(
                    partition.topic,
                    message.value,
                    partition=partition.partition,
                    headers=list(message.headers),
                    on_delivery=on_delivery,
                )
                break
            except BufferError:
                producer.poll(_POLL_S)
        producer.poll(0)
    while len(offsets) < len(messages):
        if errors:
            raise KafkaException(errors[0])
        producer.poll(_POLL_S)  # a report arrives for each, at the latest after its timeout
    return tuple(offsets[index] for index in range(len(messages)))


def _ended(error: KafkaError, ended_s: float, now_s: float) -> float:
    """When the partition was first seen to end before it; 0 if it was not. Raises KafkaException if not transient."""
    if error.code() == _END:
        return ended_s or now_s
    if error.code() not in _PASSING:
        raise KafkaException(error)
    return ended_s


def _failed(what: str, servers: str, fault: KafkaError, remedy: str | None) -> BrokerError:
    failure = broker_error(what, servers, fault)
    return failure if remedy is None else BrokerError(failure.problem, remedy)


def _remedy(fault: KafkaError, topic: str, right: str) -> str | None:
    """The remedy for a refusal that is specific to changelog topics."""
    if fault.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return f"allow this user to {right} the topic {topic}"
    if fault.code() in {KafkaError.INVALID_RECORD, KafkaError.MSG_SIZE_TOO_LARGE}:
        return f"set cleanup.policy=delete and max.message.bytes of at least {LEAST_MESSAGE_BYTES} for {topic}"
    return None
