"""Errors of librdkafka on properties while a client is created."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from common.kafka.client import refused_property

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def taking_properties() -> Iterator[None]:
    """Wrap the creation of a client in this. Raises ConfigError for a property that librdkafka rejects."""
    try:
        yield
    except KafkaException as error:
        raise refused_property(error.args[0].str()) from error
