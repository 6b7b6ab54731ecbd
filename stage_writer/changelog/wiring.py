"""The changelog of a process, from its settings.

Rule: topics that are written to are checked before anything is read, so that an unsuitable one is refused at startup.
If Kafka is unreachable then, it is checked again before the first write; and all of them every minute (watch.py).
"""

from collections.abc import Collection, Iterator

from structlog.typing import FilteringBoundLogger

from common.errors import BrokerError
from common.kafka.rights import Right
from common.metrics import Metrics
from common.ports import Clock
from common.settings import Settings
from common.sizes import counted
from common.spans import Topic
from stage_writer.changelog.changelog import TopicChangelog
from stage_writer.changelog.kafka import KafkaChangelogs
from stage_writer.changelog.watch import NO_WATCH, ChangelogWatch, TopicWatch
from stage_writer.threads import ThreadWorkers

_RIGHTS = (Right.WRITE, Right.READ)


def changelog_of(
    settings: Settings, unsuitable: Collection[str], *, clock: Clock, log: FilteringBoundLogger, metrics: Metrics
) -> TopicChangelog:
    """Reads from any topic, and writes to the settings' topics. Raises ConfigError for an unsuitable topic.

    ``unsuitable`` collects those that become unsuitable later.
    """
    topics = _topics(settings)
    for topic in _written(settings):
        try:
            topics.require_suitable(topic, _RIGHTS)
        except BrokerError as error:
            log.warning("changelog topic not checked", topic=topic, problem=error.problem)
    return TopicChangelog(topics, clock, metrics, unsuitable=unsuitable)


def watch_of(
    settings: Settings, unsuitable: set[str], *, clock: Clock, log: FilteringBoundLogger, metrics: Metrics
) -> TopicWatch:
    """Checks the topics of the settings periodically, and updates ``unsuitable``."""
    written = _written(settings)
    if not written:
        return NO_WATCH
    workers = ThreadWorkers(1)  # a client of its own: while brokers are silent a check takes seconds, and blocks others
    require = _topics(settings).require_suitable
    return ChangelogWatch(require, written, unsuitable, workers, clock=clock, log=log, metrics=metrics)


def checked_changelogs(settings: Settings) -> Iterator[str]:
    """The report on each topic. Raises ConfigError and BrokerError."""
    topics = _topics(settings)
    for topic in _written(settings):
        yield f"ok: {topic} stores state changes, in {counted(topics.require_suitable(topic, _RIGHTS), 'partition')}"


def _topics(settings: Settings) -> KafkaChangelogs:
    return KafkaChangelogs(settings.kafka, settings.writer.group_id, settings.writer.state_keep_s)


def _written(settings: Settings) -> list[Topic]:
    return sorted({Topic(stream.state_changelog) for stream in settings.streams if stream.state_changelog is not None})
