"""Records in Kafka, for tests."""

from confluent_kafka import Producer


def produce(servers: str, topic: str, *values: str | bytes | None, **more: object) -> None:
    """Produce records with these values, and wait until Kafka has them; ``more`` is as of `Producer.produce`."""
    producer = Producer({"bootstrap.servers": servers})
    for value in values:
        producer.produce(topic, value, **more)
    assert producer.flush(180) == 0
