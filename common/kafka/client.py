"""What the programs' Kafka clients have in common. It imports no client: not every installation has one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from common.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from common.settings.section import Option


QUIET = logging.getLogger("librdkafka")
"""Swallows what librdkafka would print: what matters of it comes as an error, or through ``error_cb``."""
QUIET.addHandler(logging.NullHandler())
QUIET.propagate = False


class Described(Protocol):
    """A client's description of a topic."""

    topic_id: object


def client_properties(kafka: Mapping[str, Option]) -> dict[str, Option]:
    """The properties that every kind of client takes; librdkafka would warn about a consumer's own."""
    consumer_only = ("fetch.", "queued.", "isolation.", "partition.assignment", "session.", "heartbeat.", "max.poll.")
    group_only = ("group.", "auto.offset", "enable.partition.eof", "check.crcs")
    return {key: value for key, value in kafka.items() if not key.startswith((*consumer_only, *group_only))}


def refused_property(reason: str) -> ConfigError:
    """Librdkafka took none of the properties, because of one."""
    msg = f"kafka: librdkafka refuses a property: {reason}"
    return ConfigError(msg, "mend the key below kafka; librdkafka's CONFIGURATION.md has them all")


def topic_id(described: Described) -> str | None:
    """A topic's id; None from a broker that is too old to have them, which says zero."""
    text = str(described.topic_id)
    return None if described.topic_id is None or not text.strip("A=") else text
