"""Periodically reads the ends of Kafka's partitions, in the background, for metrics and the status page.

Rules:

1. The ends are for operators: no service depends on them. A failure to read them is logged once, and the read is
   retried. Without an HTTP server, nothing is read.
2. Each time, one request reads the ends of all partitions. A topic that fails does not affect the others. Its failure
   is logged once, until it succeeds again.
"""

from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet

from confluent_kafka import IsolationLevel, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from structlog.typing import FilteringBoundLogger

from common.background import BackgroundLoop
from common.kafka.client import QUIET, client_properties, result_of
from common.kafka.errors import words
from common.lagging.history import EndHistory
from common.ports import Clock
from common.settings.section import Option
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.merged import inputs_of, with_chains

EVERY_S = 10.0
_TIMEOUT_S = 5.0
_CLOSE_WITHIN_S = 1.0


class KafkaEnds:
    """The ends of partitions, as read_committed consumers see them."""

    def __init__(self, properties: Mapping[str, Option], log: FilteringBoundLogger) -> None:
        self._properties = client_properties(properties)
        self._admin: AdminClient | None = None
        self._log = log
        self._refused: AbstractSet[Topic] = frozenset()

    def __call__(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        """The ends of the partitions for which Kafka responds in time.

        Raises KafkaException, also if Kafka is unreachable.
        """
        inputs = {partition for topic_partition in partitions for partition in inputs_of(topic_partition)}
        return with_chains(self.offsets(inputs, OffsetSpec.latest()), partitions)

    @property
    def admin(self) -> AdminClient:
        """The client, created on first use. Raises KafkaException."""
        if self._admin is None:
            self._admin = AdminClient({**self._properties, "log_level": 0}, logger=QUIET)
        return self._admin

    def offsets(self, partitions: Collection[TopicPartition], which: OffsetSpec) -> dict[TopicPartition, Position]:
        """Positions of the partitions of topics for which Kafka responds, in one request.

        Raises KafkaException if there are none.
        """
        known, refused = query_offsets(self.admin, partitions, which)
        if refused and not known:
            raise next(iter(refused.values()))
        self._report({partition.topic for partition in partitions}, refused)
        return known

    def _report(self, topics: Collection[Topic], refused: Mapping[Topic, KafkaException]) -> None:
        for topic, error in refused.items():
            if topic not in self._refused:
                problem = words(error.args[0])
                remedy = f"check that the topic is there, and allow this user to Describe it: {topic}"
                self._log.warning(
                    "ends of a topic not read, its lag is unknown", topic=topic, problem=problem, remedy=remedy
                )
        self._refused = (self._refused - set(topics)) | refused.keys()


def query_offsets(
    admin: AdminClient, partitions: Collection[TopicPartition], which: OffsetSpec
) -> tuple[dict[TopicPartition, Position], dict[Topic, KafkaException]]:
    """The positions of partitions of topics, by one request with its own timeout; and the errors of the others."""
    known: dict[TopicPartition, Position] = {}
    refused: dict[Topic, KafkaException] = {}
    wanted = {KafkaPartition(partition.topic, int(partition.partition)): which for partition in partitions}
    if not wanted:
        return known, refused
    results = admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_TIMEOUT_S)
    for request, result in results.items():
        try:
            position = Position(int(result_of(result, _TIMEOUT_S).offset))
        except KafkaException as error:  # a missing topic does not affect the others
            refused[Topic(request.topic)] = error
        else:
            known[TopicPartition(Topic(request.topic), Partition(request.partition))] = position
    return known, refused


class EndWatch:
    """A thread that keeps a history of ends until closed."""

    def __init__(
        self,
        ends: Callable[[Collection[TopicPartition]], Mapping[TopicPartition, Position]],
        wanted: Callable[[], Collection[TopicPartition]],
        report: Callable[[], None],
        *,
        history: EndHistory,
        clock: Clock,
        log: FilteringBoundLogger,
    ) -> None:
        """Reads the ends of ``wanted``, and then calls ``report``, whether or not that succeeded."""
        self._ends = ends
        self._wanted = wanted
        self._report = report
        self._history = history
        self._clock = clock
        self._log = log
        self._answers = True
        # a bug here may cost figures and nothing else
        self._loop = BackgroundLoop("kafka-ends", self._step, log, retry_after_bug_s=EVERY_S)

    def close(self) -> None:
        """Stop; does not wait for a request in progress."""
        self._loop.close(_CLOSE_WITHIN_S)

    def refresh(self) -> None:
        partitions = self._wanted()
        self._history.retain(partitions)
        try:
            self._history.observe(self._ends(partitions), self._clock.monotonic_s())
            self._answers = True
        except KafkaException as error:
            if self._answers:
                self._log.warning("ends of Kafka's partitions not read, lag is unknown", problem=words(error.args[0]))
            self._answers = False
        self._report()

    def _step(self) -> float:
        self.refresh()
        return EVERY_S
