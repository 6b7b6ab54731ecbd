"""Kafka's transactions for one chain: its records, with the position that they advance the chain to.

Rule: a process takes the chain's transactional id first, which aborts what another one had started, and only then
reads the position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from common.errors import BrokerError
from common.kafka.client import QUIET, client_properties, close_within
from common.kafka.delivering import Delivered, DeliveryIdentity, FencedError
from common.settings.section import Option
from common.spans import Position, TopicPartition
from common.stage.merged import inputs_of

_TIMEOUT_S = 30.0
_FENCED = {
    KafkaError._FENCED,  # noqa: SLF001 - librdkafka's own code
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
}

_REMEDIES = {
    KafkaError.MSG_SIZE_TOO_LARGE: (
        "raise max.message.bytes of the topic, and message.max.bytes in kafka, to that size"
    ),
    KafkaError.INVALID_TIMESTAMP: (
        "the record's time is too far from now for its topic: raise the topic's message.timestamp.after.max.ms or "
        "message.timestamp.before.max.ms"
    ),
}
"""Remedies for records that Kafka rejects; until one is applied, the chain delivers nothing more."""


@dataclass(slots=True)
class KafkaTransactions:
    """A `common.kafka.delivering.Transactions`."""

    identity: DeliveryIdentity
    reached: Callable[[str], None]
    producer: Producer
    group: Consumer
    delivered: dict[TopicPartition, Delivered]
    refused: list[KafkaError] = field(default_factory=list)
    """Why records of the transaction were rejected."""
    there: set[str] = field(default_factory=set)
    """The topics that Kafka is known to have."""

    @classmethod
    def begin(cls, identity: DeliveryIdentity, reached: Callable[[str], None]) -> KafkaTransactions:
        """A `common.kafka.delivering.StartDelivery`."""
        try:
            return cls._begin(identity, reached)
        except KafkaException as error:
            raise _failed(identity, error.args[0]) from error

    @classmethod
    def _begin(cls, identity: DeliveryIdentity, reached: Callable[[str], None]) -> KafkaTransactions:
        given = client_properties(identity.kafka)
        fixed: dict[str, Option] = {
            "transactional.id": identity.transactional_id,
            "enable.idempotence": True,
            "delivery.report.only.error": True,
        }
        # The partitioner of Kafka's own clients; librdkafka's default would send a key to another partition.
        producer = Producer({"partitioner": "murmur2_random", **given, **fixed}, logger=QUIET)
        producer.init_transactions(_TIMEOUT_S)
        of_group: dict[str, Option] = {
            "group.id": identity.out_group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
        group = Consumer({**given, **of_group}, logger=QUIET)
        inputs = inputs_of(identity.partition)
        committed_offsets = group.committed(
            [KafkaPartition(partition.topic, partition.partition) for partition in inputs], timeout=_TIMEOUT_S
        )
        for offset_of_input in committed_offsets:
            if offset_of_input.error is not None:
                raise KafkaException(offset_of_input.error)
        delivered = {
            partition: Delivered(Position(offset_of_input.offset), _generation_of(offset_of_input.metadata))
            for partition, offset_of_input in zip(inputs, committed_offsets, strict=True)
            if offset_of_input.offset >= 0
        }
        return cls(identity, reached, producer, group, delivered)

    def transact(self, records: pa.Table, ends: Mapping[TopicPartition, Position], generation: int) -> None:
        self.refused.clear()
        try:
            self._require_topics(records["topic"].unique().to_pylist())
            self._transact(records, ends, generation)
        except KafkaException as error:
            raise _failed(self.identity, self._cause(error)) from error
        self.delivered.update({partition: Delivered(position, generation) for partition, position in ends.items()})

    def _transact(self, records: pa.Table, ends: Mapping[TopicPartition, Position], generation: int) -> None:
        self.producer.begin_transaction()
        for batch in records.to_batches():
            self._produce(batch)
        self.reached("produced")
        offsets = [
            KafkaPartition(partition.topic, partition.partition, position, metadata=str(generation))
            for partition, position in ends.items()
        ]
        self.producer.send_offsets_to_transaction(offsets, self.group.consumer_group_metadata(), _TIMEOUT_S)
        self.reached("sent")
        self.producer.commit_transaction(_TIMEOUT_S)

    def _require_topics(self, topics: Iterable[str]) -> None:
        """Raise BrokerError for a missing topic: the client would wait for it longer than a run that ends does."""
        for topic in topics:
            if topic in self.there:
                continue
            error = self.producer.list_topics(topic, _TIMEOUT_S).topics[topic].error
            if error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                msg = f"{_wait(self.identity)}: the topic {topic!r} does not exist"
                raise BrokerError(
                    msg, "create the topic, or correct dead_letters_topic if that names it; the delivery is tried again"
                )
            if error is None:
                self.there.add(topic)

    def _cause(self, error: KafkaException) -> KafkaError:
        """The cause of an error: for a transaction that cannot continue, the client may report only that fact."""
        cause: KafkaError = error.args[0]
        if cause.code() != KafkaError._STATE:  # noqa: SLF001 - as above
            return cause
        try:
            self.producer.poll(0)  # reports records' errors, and raises fatal ones
        except KafkaException as fatal:
            return fatal.args[0]
        return self.refused[0] if self.refused else cause

    def _produce(self, batch: pa.RecordBatch) -> None:
        refused = self.refused

        # Not a method: messages hold a reference to their callback, and that would keep alive the producer that holds
        # them.
        def delivered(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                refused.append(error)

        for record in batch.select(["topic", "key", "value", "timestamp_ms", "headers"]).to_pylist():
            headers = [(header["name"], header["value"]) for header in record["headers"] or ()]
            while True:
                try:
                    self.producer.produce(
                        record["topic"],
                        record["value"],
                        record["key"],
                        timestamp=max(0, record["timestamp_ms"]),
                        headers=headers,
                        on_delivery=delivered,
                    )
                    break
                except BufferError:
                    self.producer.poll(0.1)
        self.producer.poll(0)

    def close(self) -> None:
        with suppress(KafkaException):  # a failed producer raises at each call
            self.producer.purge()
            self.producer.poll(0)
        close_within(self.group)


def _generation_of(metadata: str | None) -> int:
    """The generation stored with a position; -1, which no chain has, for other metadata."""
    return int(metadata) if metadata is not None and metadata.isascii() and metadata.isdigit() else -1


def _wait(identity: DeliveryIdentity) -> str:
    return f"cannot deliver the records of the stream {identity.app_id!r} for Kafka topics, of {identity.partition}"


def _failed(identity: DeliveryIdentity, cause: KafkaError) -> BrokerError | FencedError:
    if cause.code() in _FENCED:
        return FencedError(f"{cause.str()} (transactional id {identity.transactional_id})")
    msg = f"{_wait(identity)}: {cause.str()}"
    otherwise = (
        f"check that the topics exist, and that this user may write to them, use the transactional id "
        f"{identity.transactional_id} and commit for the group {identity.out_group}"
    )
    return BrokerError(msg, f"{_REMEDIES.get(cause.code(), otherwise)}; it is tried again")
