"""Errors of librdkafka on properties while a client is created."""

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaException

from common.kafka.client import refused_property


@contextmanager
def taking_properties() -> Iterator[None]:
    """Wrap the creation of a client in this. Raises ConfigError for a property that librdkafka rejects."""
    try:
        yield
    except KafkaException as error:
        raise refused_property(error.args[0].str()) from error
