"""Periodic checks of the topics with changes of states: their retention may have been shortened.

Rules:

1. A topic that no longer keeps its messages long enough is reported while that is so: in the log when it starts and
   when it ends, among the notes, and by a metric. Tasks' changes in that topic are written to the stage meanwhile, and
   nothing more goes to the topic (stage_writer/tasks/kept.py, rule 4).
2. A failed check proves nothing about a topic. The next one follows a minute later.
"""

from collections.abc import Callable, Collection

from structlog.typing import FilteringBoundLogger

from common import metrics as all_metrics
from common.errors import BrokerError, ConfigError
from common.metrics import Metrics
from common.ports import Clock
from common.spans import Topic
from stage_writer.ports import Running, Workers

CHECK_EVERY_S = 60.0

TopicProblems = dict["Topic", ConfigError | None]
"""The problem of each topic that answered."""


class TopicWatch:
    """The topic checks of the writer's loop. This class is for a writer that writes to no topics."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Problems that an operator must know. Safe to call from any thread."""
        return ()

    def check(self) -> None:
        """Check, if that is due; never waits."""


NO_WATCH = TopicWatch()


class ChangelogWatch(TopicWatch):
    def __init__(
        self,
        require_suitable: Callable[[Topic], object],
        topics: Collection[Topic],
        unsuitable: set[str],
        workers: Workers,
        *,
        clock: Clock,
        log: FilteringBoundLogger,
        metrics: Metrics,
    ) -> None:
        """Updates ``unsuitable``, which the topics' writers read; the topics have been checked once already.

        ``require_suitable`` raises ConfigError for a topic that is not suitable, and BrokerError.
        """
        self._require_suitable = require_suitable
        self._topics = topics
        self._unsuitable = unsuitable
        self._workers = workers
        self._clock = clock
        self._log = log
        self._metrics = metrics
        self._checked_s = clock.monotonic_s()
        self._now: Running[TopicProblems] | None = None
        self._problems: dict[Topic, ConfigError] = {}
        for topic in topics:
            metrics.set(all_metrics.WRITER_CHANGELOG_FIT, 1, topic=topic)

    @property
    def notes(self) -> tuple[str, ...]:
        problems = self._problems.copy().values()
        return tuple(
            f"{error.problem}; until then, states are stored in the stage: {error.remedy}" for error in problems
        )

    def check(self) -> None:
        """Start a check, if it is due, and collect the result of the last."""
        if self._now is not None:
            self._end(self._now)
        elif self._clock.monotonic_s() - self._checked_s >= CHECK_EVERY_S:
            self._now = self._workers.start(self._problems_now)

    def _end(self, running: Running[TopicProblems]) -> None:
        if not running.done():
            return
        self._now = None
        self._checked_s = self._clock.monotonic_s()
        for topic, error in running.result().items():
            before = self._problems.get(topic)
            if error is not None and (before is None or before.problem != error.problem):
                self._log.error("changelog topic not usable", topic=topic, problem=error.problem, remedy=error.remedy)
            if error is None and before is not None:
                self._log.info("changelog topic usable again", topic=topic)
            self._metrics.set(all_metrics.WRITER_CHANGELOG_FIT, int(error is None), topic=topic)
            if error is None:
                self._problems.pop(topic, None)
                self._unsuitable.discard(topic)
            else:
                self._problems[topic] = error
                self._unsuitable.add(topic)

    def _problems_now(self) -> TopicProblems:
        """The check, in the background; leaves out topics for which Kafka does not answer."""
        config_errors: TopicProblems = {}
        for topic in self._topics:
            try:
                self._require_suitable(topic)
                config_errors[topic] = None
            except ConfigError as error:
                config_errors[topic] = error
            except BrokerError:
                continue
        return config_errors
