"""The changelog of a process, by its settings.

Rule: topics that are written to are looked at before anything is read, so that one that does not do is refused at
start. Where Kafka is away then, it is looked at again before the first write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.errors import BrokerError
from common.kafka.rights import Right, require_topic
from common.spans import Topic
from stage_writer.changelog.changelog import TopicChangelog
from stage_writer.changelog.kafka import KafkaChangelogs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from structlog.typing import FilteringBoundLogger

    from common.ports import Clock
    from common.settings import Settings


def changelog_of(settings: Settings, clock: Clock, log: FilteringBoundLogger) -> TopicChangelog:
    """Reads from any topic, and writes to those of the settings. Raises ConfigError for one that does not do."""
    topics = KafkaChangelogs(settings.kafka, settings.writer.group_id, settings.writer.state_keep_s)
    for topic in _written(settings):
        try:
            _look_at(settings, topics, topic)
        except BrokerError as error:
            log.warning("changelog topic not looked at", topic=topic, problem=error.problem)
    return TopicChangelog(topics, clock)


def checked_changelogs(settings: Settings) -> Iterator[str]:
    """What to say of each topic. Raises ConfigError and BrokerError."""
    topics = KafkaChangelogs(settings.kafka, settings.writer.group_id, settings.writer.state_keep_s)
    for topic in _written(settings):
        yield f"ok: {topic} keeps changes of states, in {_look_at(settings, topics, topic)} partition(s)"


def _look_at(settings: Settings, topics: KafkaChangelogs, topic: Topic) -> int:
    count = topics.require_fit(topic)
    for right in (Right.WRITE, Right.READ):
        require_topic(settings.kafka, "state_changelog", topic, right)
    return count


def _written(settings: Settings) -> list[Topic]:
    return sorted({Topic(one.state_changelog) for one in settings.streams if one.state_changelog is not None})
