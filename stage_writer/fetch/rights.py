"""This user's permissions in Kafka, as the brokers report them: for ``stage-writer check``.

Rule: a writer needs READ on its topics and READ on its group (docs/security.md); in Kafka READ includes DESCRIBE. The
answer of a broker without an authorizer counts as all permissions.
"""

import time
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, ConsumerGroupDescription, TopicDescription

from common.errors import ConfigError
from common.kafka.client import QUIET, client_properties, result_of
from common.kafka.errors import broker_error, remedy
from common.settings import Settings

_TIMEOUT_S = 10.0
_AGAIN_S = 0.2
_SOON = (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR)
_NOT_THERE = (KafkaError.GROUP_ID_NOT_FOUND, KafkaError.UNKNOWN_TOPIC_OR_PART)
_DENIALS = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED)


def require_rights(settings: Settings, topics: Collection[str]) -> None:
    """Raise ConfigError for a topic or the group that this user may not read, and BrokerError."""
    if not topics:
        return
    admin = AdminClient(client_properties(settings.kafka), logger=QUIET)
    servers, group = str(settings.kafka["bootstrap.servers"]), settings.writer.group_id
    names = TopicCollection(sorted(topics))
    futures = admin.describe_topics(names, include_authorized_operations=True, request_timeout=_TIMEOUT_S)
    for topic, future in futures.items():
        with _errors(f"describe the topic {topic}", servers, topic):
            if not _may_read(future):
                msg = f"this user is not allowed to read the topic {topic!r}"
                raise ConfigError(msg, remedy("TOPIC_AUTHORIZATION_FAILED", "", topic))
    with _errors(f"describe the consumer group {group}", servers, group):
        if not _of_a_group(admin, group):
            msg = f"this user is not allowed to read the consumer group {group!r} (writer.group_id)"
            raise ConfigError(msg, remedy("GROUP_AUTHORIZATION_FAILED", "", group))


def refused_topics(admin: AdminClient, topics: Collection[str]) -> set[str]:
    """The topics among these that this user may not read. Raises KafkaException."""
    if not topics:
        return set()
    names = TopicCollection(sorted(topics))
    futures = admin.describe_topics(names, include_authorized_operations=True, request_timeout=_TIMEOUT_S)
    return {topic for topic, future in futures.items() if not _may_read(future)}


@contextmanager
def _errors(what: str, servers: str, user_of: str) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise broker_error(what, servers, error.args[0], user_of=user_of) from error


def _of_a_group(admin: AdminClient, group: str) -> bool:
    """A cluster without any groups creates its offsets topic now, which takes a moment."""
    deadline_s = time.monotonic() + _TIMEOUT_S
    while True:
        futures = admin.describe_consumer_groups(
            [group], include_authorized_operations=True, request_timeout=_TIMEOUT_S
        )
        try:
            return _may_read(futures[group])
        except KafkaException as error:
            if error.args[0].code() not in _SOON or time.monotonic() > deadline_s:
                raise
            time.sleep(_AGAIN_S)


def _may_read(future: Future[TopicDescription] | Future[ConsumerGroupDescription]) -> bool:
    try:
        allowed = result_of(future, _TIMEOUT_S).authorized_operations
    except KafkaException as error:
        code = error.args[0].code()
        if code in _DENIALS:
            return False
        if code in _NOT_THERE:
            return True  # reports no permissions; newer brokers report this for a group that never existed
        raise
    return allowed is None or not allowed or AclOperation.READ in allowed
