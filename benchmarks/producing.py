"""Produces messages into topics."""

from collections.abc import Iterable

from confluent_kafka import Producer

from devservices.producing import enqueue

_MIB = 2**20
_QUEUED = 500_000
_FLUSH_TIMEOUT_S = 300
LARGEST_MESSAGE_BYTES = 64 * _MIB
"""Message size limit in bytes, above Kafka's default of 1 MiB; the topic must allow it too."""


def produce(servers: str, topic: str, partitions: int, values: Iterable[bytes]) -> int:
    """Spread values evenly over a topic's partitions; returns the bytes of all values."""
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "linger.ms": 50,
            "message.max.bytes": LARGEST_MESSAGE_BYTES,
            "queue.buffering.max.messages": _QUEUED,
            "queue.buffering.max.kbytes": 256 * 1024,
        }
    )
    size_bytes = 0
    for number, value in enumerate(values):
        size_bytes += len(value)
        enqueue(producer, topic, value, partition=number % partitions)
    if producer.flush(_FLUSH_TIMEOUT_S):
        msg = f"the broker did not acknowledge all messages of {topic}"
        raise RuntimeError(msg)
    return size_bytes
