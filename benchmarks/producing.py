"""Messages into topics, as many as it takes."""

from collections.abc import Iterable

from confluent_kafka import Producer

_MIB = 2**20
_QUEUED = 500_000
_FLUSH_TIMEOUT_S = 300
LARGEST_MESSAGE_BYTES = 64 * _MIB
"""What a topic has to allow as well, for messages beyond Kafka's own limit of 1 MiB."""


def produce(servers: str, topic: str, partitions: int, values: Iterable[bytes]) -> int:
    """Spread values over a topic's partitions, in turns; the bytes of all of them."""
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
        while True:
            try:
                producer.produce(topic, value, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(_FLUSH_TIMEOUT_S):
        msg = f"the broker did not take all messages of {topic}"
        raise RuntimeError(msg)
    return size_bytes
