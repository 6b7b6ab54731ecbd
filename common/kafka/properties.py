"""What librdkafka says of properties while a client is made of them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from common.kafka.client import refused_property

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def taking_properties() -> Iterator[None]:
    """Around the making of a client. Raises ConfigError, for a property that librdkafka refuses."""
    try:
        yield
    except KafkaException as error:
        raise refused_property(error.args[0].str()) from error
