"""Producing to Kafka at the speed of the broker."""

from collections.abc import Callable

from confluent_kafka import KafkaError, Message, Producer

_WAIT_S = 0.1


def enqueue(
    producer: Producer,
    topic: str,
    value: bytes,
    key: bytes | None = None,
    *,
    partition: int = -1,
    timestamp_ms: int = 0,
    on_delivery: Callable[[KafkaError | None, Message], None] | None = None,
) -> None:
    """Produce a record, and wait for deliveries while the producer's queue is full.

    Partition -1: by the key. Timestamp 0: the time of the call.
    """
    while True:
        try:
            producer.produce(topic, value, key, partition, on_delivery=on_delivery, timestamp=timestamp_ms)
        except BufferError:
            producer.poll(_WAIT_S)
        else:
            return
