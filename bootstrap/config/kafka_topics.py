"""Reads the list of topics, and some of their newest messages. Joins no group and commits nothing."""

from collections.abc import Callable, Iterator, Mapping

from bootstrap.config.sample import TopicSample, sampled
from common.errors import BrokerError, UsageError
from common.kafka.reader import KafkaReader
from common.settings.section import Option
from common.spans import Position, Span

_TIMEOUT_S = 10.0
_AT_A_TIME = 500
_GROUP = "kafka-delta-express-config"


def topics_of(kafka: Mapping[str, Option]) -> dict[str, int]:
    """The topics and how many partitions each has, without Kafka's own. Raises BrokerError, ConfigError."""
    reader = KafkaReader({**kafka, "group.id": _GROUP}, timeout_s=_TIMEOUT_S)
    try:
        topics = reader.topics()
    except BrokerError as error:
        raise type(error)(error.problem, f"{error.remedy}; give it with --kafka KEY=VALUE") from error
    finally:
        reader.close()
    return {
        name: len(topic.partitions)
        for name, topic in sorted(topics.items())
        if topic.error is None and not name.startswith(("__", "_schemas", "_confluent"))
    }


def sample_of(kafka: Mapping[str, Option], topic: str, most: int, advance: Callable[[int], None]) -> TopicSample:
    """The newest messages of each partition. Raises BrokerError, and UsageError for a topic without any."""
    reader = KafkaReader({**kafka, "group.id": _GROUP}, _AT_A_TIME)
    try:
        partitions = reader.partitions(topic)
        if not partitions:
            raise UsageError(f"Kafka has no topic {topic!r}", "correct --topic; without it the topics are listed")
        per_partition = max(1, -(-most // len(partitions)))

        def values() -> Iterator[tuple[bytes | None, bytes | None]]:
            for partition in partitions:
                low, high = reader.ends(partition)
                if low == high:
                    continue
                for messages in reader.messages(partition, Span(Position(max(low, high - per_partition)), high)):
                    advance(len(messages))
                    yield from ((message.value(), message.key()) for message in messages)

        sample = sampled(topic, len(partitions), values())
    finally:
        reader.close()
    if not sample.records.fields:
        what = "no messages" if not sample.messages else f"no JSON object among {sample.messages:,} messages"
        msg = f"the topic {topic!r} has {what}, so no columns can be inferred"
        raise UsageError(msg, "send some records first, or write streams[].columns by hand")
    return sample
