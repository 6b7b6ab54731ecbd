"""Kafka's transactions for one chain: its records, with how far they bring the chain.

The rules are those of `stage_writer.outbox.delivery`; here they meet the client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from common.errors import BrokerError
from common.kafka.bounded import close_within
from common.kafka.client import QUIET, client_properties
from common.spans import Position
from common.stage.merged import inputs_of
from stage_writer.outbox.ports import Delivered, FencedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from common.settings.section import Option
    from common.spans import TopicPartition
    from stage_writer.outbox.ports import Place

_TIMEOUT_S = 30.0
_FENCED = {
    KafkaError._FENCED,  # noqa: SLF001 - librdkafka's own code
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
}


@dataclass(slots=True)
class KafkaTransactions:
    """A `stage_writer.outbox.ports.Transactions`."""

    place: Place
    at: Callable[[str], None]
    producer: Producer
    group: Consumer
    delivered: dict[TopicPartition, Delivered]

    @classmethod
    def begin(cls, place: Place, at: Callable[[str], None]) -> KafkaTransactions:
        """A `stage_writer.outbox.ports.Begins`."""
        try:
            return cls._begin(place, at)
        except KafkaException as error:
            raise _failed(place, error) from error

    @classmethod
    def _begin(cls, place: Place, at: Callable[[str], None]) -> KafkaTransactions:
        given = client_properties(place.kafka)
        fixed: dict[str, Option] = {"transactional.id": place.transactional_id, "enable.idempotence": True}
        # Kafka's own clients choose partitions by this one; librdkafka's default would send a key elsewhere.
        producer = Producer({"partitioner": "murmur2_random", **given, **fixed}, logger=QUIET)
        producer.init_transactions(_TIMEOUT_S)
        of_group: dict[str, Option] = {
            "group.id": place.out_group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
        group = Consumer({**given, **of_group}, logger=QUIET)
        inputs = inputs_of(place.source)
        found = group.committed([KafkaPartition(one.topic, one.partition) for one in inputs], timeout=_TIMEOUT_S)
        for answer in found:
            if answer.error is not None:
                raise KafkaException(answer.error)
        delivered = {
            one: Delivered(Position(answer.offset), _generation_of(answer.metadata))
            for one, answer in zip(inputs, found, strict=True)
            if answer.offset >= 0
        }
        return cls(place, at, producer, group, delivered)

    def transact(self, records: pa.Table, ends: Mapping[TopicPartition, Position], generation: int) -> None:
        """Records and positions, both or neither."""
        try:
            self._transact(records, ends, generation)
        except KafkaException as error:
            raise _failed(self.place, error) from error
        self.delivered.update({one: Delivered(position, generation) for one, position in ends.items()})

    def _transact(self, records: pa.Table, ends: Mapping[TopicPartition, Position], generation: int) -> None:
        self.producer.begin_transaction()
        for batch in records.to_batches():
            _produce(self.producer, batch)
        self.at("produced")
        offsets = [
            KafkaPartition(one.topic, one.partition, position, metadata=str(generation))
            for one, position in ends.items()
        ]
        self.producer.send_offsets_to_transaction(offsets, self.group.consumer_group_metadata(), _TIMEOUT_S)
        self.at("sent")
        self.producer.commit_transaction(_TIMEOUT_S)

    def close(self) -> None:
        """Let go of the connections."""
        close_within(self.group)


def _produce(producer: Producer, batch: pa.RecordBatch) -> None:
    for record in batch.select(["topic", "key", "value", "timestamp_ms", "headers"]).to_pylist():
        headers = [(one["name"], one["value"]) for one in record["headers"] or ()]
        while True:
            try:
                producer.produce(
                    record["topic"],
                    record["value"],
                    record["key"],
                    timestamp=max(0, record["timestamp_ms"]),
                    headers=headers,
                )
                break
            except BufferError:
                producer.poll(0.1)
    producer.poll(0)


def _generation_of(metadata: str | None) -> int:
    """What was noted beside a position; -1, which no chain has, for anything else."""
    return int(metadata) if metadata is not None and metadata.isascii() and metadata.isdigit() else -1


def _failed(place: Place, error: KafkaException) -> BrokerError | FencedError:
    cause = error.args[0]
    if cause.code() in _FENCED:
        return FencedError(cause.str())
    msg = f"cannot deliver what the topology of {place.app_id!r} has for Kafka topics, of {place.source}: {cause.str()}"
    remedy = (
        f"see that the topics are there, and that this user may write to them, use the transactional id "
        f"{place.transactional_id} and commit for the group {place.out_group}; it is tried again"
    )
    return BrokerError(msg, remedy)
