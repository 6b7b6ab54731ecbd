"""The check that a flush job makes right before it claims, in its own thread.

Rules:

1. No record of a topic that was deleted and recreated gets into the old one's chain, although Kafka's client keeps
   reading: nothing is claimed without a check of the topic's id *after* its records were read.
2. Nothing is claimed by a process that the group may have given up (freshness.py), or for a partition that was
   revoked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stage_writer.partitions.freshness import Freshness

if TYPE_CHECKING:
    from collections.abc import Mapping

    from common.ports import Clock
    from common.spans import TopicPartition
    from stage_writer.partitions.partition import AssignedPartition
    from stage_writer.partitions.topic_monitor import TopicMonitor
    from stage_writer.ports import ClaimGuard


class ClaimGuards:
    """The guards of one writer's jobs."""

    def __init__(
        self, assigned: Mapping[TopicPartition, AssignedPartition], topics: TopicMonitor, clock: Clock, session_s: float
    ) -> None:
        """``assigned`` are the writer's partitions at any time; ``session_s`` is the group's session timeout."""
        self._assigned = assigned
        self._topics = topics
        self._clock = clock
        self._freshness = Freshness(session_s)

    def polled(self, began_s: float) -> None:
        """A poll that started at ``began_s`` has served the group."""
        self._freshness.polled(began_s, self._clock.monotonic_s())

    def sign(self) -> None:
        """The loop is running."""
        self._freshness.sign(self._clock.monotonic_s())

    def of(self, owned: AssignedPartition) -> ClaimGuard:
        """The guard of a job that flushes what was read of this partition until now."""

        def is_ours() -> bool:
            is_assigned = self._assigned.get(owned.partition) is owned
            return is_assigned and self._freshness.is_fresh(self._clock.monotonic_s())

        return self._topics.guard(owned.partition, owned.lineage, self._clock.monotonic_s(), is_ours)
