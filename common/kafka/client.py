"""The shared parts of the programs' Kafka clients: properties, and timeouts for operations that have none.

Rules:

1. Closing waits until the brokers have responded to requests in progress, a commit for example, or until they are known
   to be gone; a broker that accepts connections and does not respond is neither, for minutes. So a thread closes, and
   the caller waits for a bounded time. A close that is not done by then is left running: it ends when the brokers
   respond, or with the process.
2. A DNS lookup cannot be interrupted, so closing takes as long as the system's resolver.
3. An admin request is answered within its timeout. This does not rely on the client to enforce it.
"""

import logging
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import TopicDescription

from common.background import in_background
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


CLOSE_WITHIN_S = 10.0
_GRACE_S = 1.0
Answer = TypeVar("Answer")


def close_within(consumer: Consumer, seconds: float = CLOSE_WITHIN_S) -> bool:
    """Close it. Returns whether that ended in time (rules 1 and 2). The consumer's callbacks run in another thread.

    Raises the errors of closing, or of a callback.
    """
    closing = in_background("close-consumer", consumer.close)
    done, _ = wait([closing], seconds)
    if done:
        closing.result()
    return bool(done)


def result_of(future: Future[Answer], timeout_s: float) -> Answer:
    """The result of a request with that timeout. Raises KafkaException, also after the timeout (rule 3)."""
    try:
        return future.result(timeout_s + _GRACE_S)
    except TimeoutError as error:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from error  # noqa: SLF001 - librdkafka's own code
