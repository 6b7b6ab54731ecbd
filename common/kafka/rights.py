"""Whether a topic in the settings exists, and may be written or read: for ``check`` of both services.

A broker without an authorizer counts as granting all permissions. The check creates nothing.
"""

from collections.abc import Mapping
from enum import Enum

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, TopicDescription

from common.errors import ConfigError
from common.kafka.client import QUIET, client_properties, result_of, taking_properties
from common.kafka.errors import LastClientError, broker_error
from common.settings.section import Option

_TIMEOUT_S = 10.0


class Right(Enum):
    READ = AclOperation.READ
    WRITE = AclOperation.WRITE


def require_topic(kafka: Mapping[str, Option], key: str, topic: str, right: Right) -> None:
    """Raise ConfigError for a topic, given by ``key``, that is missing or not permitted; and BrokerError."""
    client_error, servers = LastClientError(), str(kafka["bootstrap.servers"])
    with taking_properties():
        admin = AdminClient({**client_properties(kafka), "error_cb": client_error.record}, logger=QUIET)
    try:
        described_topic = described(admin, topic)
    except KafkaException as error:
        fault = error.args[0]
        if fault.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            msg = f"{key} names {topic!r}, which does not exist in Kafka at {servers}"
            raise ConfigError(msg, f"create the topic (one partition is enough), or fix {key}") from error
        if fault.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise _not_allowed(key, topic, right) from error
        admin.poll(0)  # delivers librdkafka's connection events
        raise broker_error(f"describe the topic {topic}", servers, fault, client_error) from error
    require_right(described_topic, key, topic, right)


def described(admin: AdminClient, topic: str) -> TopicDescription:
    """A topic's description, including this user's permissions. Raises KafkaException."""
    names = TopicCollection([topic])
    described_topics = admin.describe_topics(names, include_authorized_operations=True, request_timeout=_TIMEOUT_S)
    return result_of(described_topics[topic], _TIMEOUT_S)


def require_right(described_topic: TopicDescription, key: str, topic: str, right: Right) -> None:
    """Raise ConfigError for a described topic without the permission."""
    allowed = described_topic.authorized_operations
    if allowed and right.value not in allowed:
        raise _not_allowed(key, topic, right)


def _not_allowed(key: str, topic: str, right: Right) -> ConfigError:
    msg = f"this user may not {right.name.lower()} the topic {topic!r} ({key})"
    return ConfigError(msg, f"allow this user to {right.name} the topic {topic}")
