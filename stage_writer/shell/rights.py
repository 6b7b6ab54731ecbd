"""What this user may do in Kafka, as the brokers say it: for ``stage-writer check``.

Rule: a writer needs READ on its topics and READ on its group (docs/security.md); in Kafka READ includes DESCRIBE. What
a broker without an authorizer says is taken as everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient

from common.errors import ConfigError
from common.kafka import QUIET, client_properties
from common.kafka_errors import remedy

if TYPE_CHECKING:
    from collections.abc import Collection
    from concurrent.futures import Future

    from confluent_kafka.admin import ConsumerGroupDescription, TopicDescription

    from common.settings import Settings

_TIMEOUT_S = 10.0
_DENIALS = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED)


def require_rights(settings: Settings, topics: Collection[str]) -> None:
    """Raise ConfigError for a topic or the group that this user may not read. Raises KafkaException."""
    admin = AdminClient(client_properties(settings.kafka), logger=QUIET)
    if topics:
        described = admin.describe_topics(
            TopicCollection(sorted(topics)), include_authorized_operations=True, request_timeout=_TIMEOUT_S
        )
        for topic, topic_answer in described.items():
            if not _may_read(topic_answer):
                msg = f"this user may not read the topic {topic!r}"
                raise ConfigError(msg, remedy("TOPIC_AUTHORIZATION_FAILED", "", topic))
    group = settings.writer.group_id
    groups = admin.describe_consumer_groups([group], include_authorized_operations=True, request_timeout=_TIMEOUT_S)
    if not _may_read(groups[group]):
        msg = f"this user may not read the consumer group {group!r} (writer.group_id)"
        raise ConfigError(msg, remedy("GROUP_AUTHORIZATION_FAILED", "", group))


def _may_read(answer: Future[TopicDescription] | Future[ConsumerGroupDescription]) -> bool:
    try:
        allowed = answer.result(_TIMEOUT_S + 1).authorized_operations
    except KafkaException as error:
        code = error.args[0].code()
        if code in _DENIALS:
            return False
        if code == KafkaError.GROUP_ID_NOT_FOUND:
            return True  # which says nothing of rights; newer brokers say so of a group that has never been
        raise
    return allowed is None or not allowed or AclOperation.READ in allowed
