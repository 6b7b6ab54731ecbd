"""The shared parts of the programs' Kafka clients."""

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import KafkaException
from confluent_kafka.admin import TopicDescription

from common.errors import ConfigError
from common.settings.section import Option

QUIET = logging.getLogger("librdkafka")
"""Discards librdkafka's own output: what matters arrives as an error, or through ``error_cb``."""
QUIET.addHandler(logging.NullHandler())
QUIET.propagate = False

_FILE = re.compile(r"\b((?:ssl|https)\.[a-z.]+\.location) failed")


def client_properties(kafka: Mapping[str, Option]) -> dict[str, Option]:
    """The properties that every kind of client accepts; librdkafka would warn about a consumer's own."""
    consumer_only = ("fetch.", "queued.", "isolation.", "partition.assignment", "session.", "heartbeat.", "max.poll.")
    group_only = ("group.", "auto.offset", "enable.partition.eof", "check.crcs")
    return {key: value for key, value in kafka.items() if not key.startswith((*consumer_only, *group_only))}


def refused_property(reason: str) -> ConfigError:
    """The error for properties that librdkafka rejects; ``reason`` is its own text."""
    msg = f"kafka: librdkafka refuses a property: {reason}"
    file = _FILE.search(reason)
    if file is not None:  # OpenSSL's part of it is only numbers
        password = (
            "" if file[1].startswith("ssl.ca") else ", and that kafka.ssl.key.password opens it where it is locked"
        )
        return ConfigError(msg, f"check that the file of kafka.{file[1]} is there, may be read and is PEM{password}")
    return ConfigError(msg, "fix the key below kafka; librdkafka's CONFIGURATION.md has them all")


def topic_id(described: TopicDescription) -> str | None:
    """A topic's id; None from a broker without topic ids, which returns zero."""
    text = str(described.topic_id)
    return None if described.topic_id is None or not text.strip("A=") else text


@contextmanager
def taking_properties() -> Iterator[None]:
    """Wrap the creation of a client in this. Raises ConfigError for a property that librdkafka rejects."""
    try:
        yield
    except KafkaException as error:
        raise refused_property(error.args[0].str()) from error
