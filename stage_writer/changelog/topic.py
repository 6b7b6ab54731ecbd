"""Whether a topic keeps changes of tasks' states for as long as they are needed.

Rules:

1. A marker may name any of the messages. So the topic must not be compacted, which keeps only the last message of a
   key; and only time may delete messages, because a size limit ignores markers.
2. A state depends on messages for at most half of ``writer.state_keep``: then a snapshot of it is written to the stage
   (stage_writer/tasks/kept.py, stage_writer/partitions/state_renewal.py). The topic has to keep them for twice
   ``writer.state_keep``, so that writers may be stopped, and markers that were put aside may be put back, meanwhile.
"""

from collections.abc import Collection, Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from common.errors import ConfigError
from common.kafka.client import result_of
from common.kafka.rights import Right, described, require_right
from common.spans import Topic
from stage_writer.changelog.changelog import MESSAGE_BYTES

_LEAST_KEEP_S = 60.0


def snapshot_after_s(keep_s: float) -> float:
    """The age at which a state that is partly in a topic is written to the stage."""
    return max(keep_s, _LEAST_KEEP_S) / 2


def retention_s(keep_s: float) -> float:
    return 2 * max(keep_s, _LEAST_KEEP_S)


_TIMEOUT_S = 10.0
LEAST_MESSAGE_BYTES = 2 * MESSAGE_BYTES


def partitions_of(admin: AdminClient, topic: Topic, rights: Collection[Right] = ()) -> int:
    """How many partitions a topic has.

    Raises ConfigError for a missing topic, or without the required permissions; and KafkaException.
    """
    try:
        described_topic = described(admin, topic)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise _not_there(topic) from error
        if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            msg = f"this user is not allowed to describe the topic {topic!r} (state_changelog)"
            raise ConfigError(msg, f"allow this user to READ, WRITE and DESCRIBE_CONFIGS the topic {topic}") from error
        raise
    for right in rights:
        require_right(described_topic, "state_changelog", topic, right)
    return len(described_topic.partitions)


def require_suitable(admin: AdminClient, topic: Topic, keep_s: float) -> None:
    """Raises ConfigError for a topic that does not keep its messages long enough, and KafkaException."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    (future,) = admin.describe_configs([resource], request_timeout=_TIMEOUT_S).values()
    try:
        entries = result_of(future, _TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            msg = f"this user is not allowed to read the configuration of the topic {topic!r} (state_changelog)"
            raise ConfigError(msg, f"allow this user to DESCRIBE_CONFIGS the topic {topic}") from error
        raise
    configs = {name: str(entry.value) for name, entry in entries.items()}
    problem = suitability_problem(topic, configs, keep_s)
    if problem is not None:
        raise problem


def suitability_problem(topic: Topic, has: Mapping[str, str], keep_s: float) -> ConfigError | None:
    least_ms = int(retention_s(keep_s) * 1000)
    if has.get("cleanup.policy", "delete") != "delete":
        why = "compaction would remove changes that markers refer to"
        return _refused(topic, "cleanup.policy", has["cleanup.policy"], why, "delete")
    if int(has.get("retention.bytes", -1)) != -1:
        why = "a size limit would remove changes that markers refer to"
        return _refused(topic, "retention.bytes", has["retention.bytes"], why, "-1")
    if 0 <= int(has.get("retention.ms", -1)) < least_ms:
        why = f"with writer.state_keep of {keep_s:g} s it has to keep changes for at least {retention_s(keep_s):g} s"
        return _refused(topic, "retention.ms", has["retention.ms"], why, f"{least_ms} or more, or to -1")
    if int(has.get("max.message.bytes", LEAST_MESSAGE_BYTES)) < LEAST_MESSAGE_BYTES:
        why = f"changes are sent in messages of up to {MESSAGE_BYTES} bytes"
        return _refused(topic, "max.message.bytes", has["max.message.bytes"], why, f"{LEAST_MESSAGE_BYTES} or more")
    return None


def _refused(topic: Topic, key: str, value: str, why: str, wanted: str) -> ConfigError:
    problem = f"state_changelog names the topic {topic!r}, which has {key}={value}: {why}"
    return ConfigError(problem, f"set the topic's {key} to {wanted}, or name another topic")


def _not_there(topic: Topic) -> ConfigError:
    problem = f"state_changelog names the topic {topic!r}, which does not exist in Kafka"
    remedy = "create it with cleanup.policy=delete and as many partitions as the stream's topics, or correct the name"
    return ConfigError(problem, remedy)
