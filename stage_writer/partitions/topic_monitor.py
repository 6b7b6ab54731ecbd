"""The ids of topics, looked up after a given moment.

A flush needs its topic's id as of after its last record was read (claim_guards.py, rule 1). Of a thousand flushes that
start together, the first one's answer serves them all: an id that was looked up after a record was read is that
record's topic's, or a different one, because ids are never reused.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from stage_writer.partitions.resume_points import is_other
from stage_writer.ports import ClaimVerdict, OtherTopic

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from common.ports import Clock
    from common.spans import Topic, TopicPartition
    from stage_writer.chain_end import Lineage
    from stage_writer.ports import ClaimGuard


class KnowsTopics(Protocol):
    """Looks up topic ids, such as a `stage_writer.ports.RecordSource`."""

    def topic_ids(self, topics: Collection[Topic]) -> Mapping[Topic, str | None]:
        """The id of each topic that exists; None from a broker without topic ids. Safe to call from any thread."""


class TopicMonitor:
    """Called by flush jobs, in their own threads."""

    def __init__(self, source: KnowsTopics, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[Topic, tuple[float, str | None]] = {}

    def guard(
        self, partition: TopicPartition, lineage: Lineage, read_until_s: float, is_ours: Callable[[], bool]
    ) -> ClaimGuard:
        """The guard of a job that flushes what was read of a partition until a moment of the monotonic clock."""

        def guard() -> ClaimVerdict | OtherTopic:
            found = None if lineage.topic_id is None else self.since(partition.topic, read_until_s)
            if found is not None and is_other(lineage, found):
                return OtherTopic(found)
            return ClaimVerdict.CLAIM if is_ours() else ClaimVerdict.WAIT

        return guard

    def since(self, topic: Topic, moment_s: float) -> str | None:
        """The topic's id, looked up after a moment of the monotonic clock; None when it has none.

        Raises BrokerError.
        """
        with self._lock:
            asked_s, known = self._known.get(topic, (moment_s, None))
        if asked_s > moment_s:
            return known
        asked_s = self._clock.monotonic_s()
        found = self._source.topic_ids([topic]).get(topic)
        with self._lock:
            if asked_s >= self._known.get(topic, (asked_s, None))[0]:
                self._known[topic] = (asked_s, found)
        return found
