"""The demo and the benchmarks produce at the broker's speed, however slow it is."""

from typing import cast

from confluent_kafka import Producer

from devservices.producing import enqueue


class _SlowProducer:
    """Holds one record in its queue, until `poll` delivers it."""

    def __init__(self) -> None:
        self.queue: list[bytes] = []
        self.delivered: list[bytes] = []

    def produce(self, _topic: str, value: bytes, *_args: object, **_rest: object) -> None:
        if self.queue:
            raise BufferError
        self.queue.append(value)

    def poll(self, _timeout_s: float) -> int:
        self.delivered += self.queue
        self.queue.clear()
        return len(self.delivered)


def test_full_queue_waits_for_deliveries() -> None:
    producer = _SlowProducer()
    for value in (b"1", b"2", b"3"):
        enqueue(cast("Producer", producer), "flights", value)
    assert (producer.delivered, producer.queue) == ([b"1", b"2"], [b"3"])
