"""The loop's periodic checks and reports, next to reading and flushing.

Rules:

1. Topics are checked periodically, so that status and health report a recreated one before anything is flushed.
2. A rewind is noticed at the next claim. A partition without new records makes none, so the marker that it continues
   from, or the origin of a chain without a marker, is checked periodically; at most one partition per round, because
   the store may be slow.
3. A rewind may end the chain at the very marker that a partition continues from. No claim shows that, and what the
   partition claims no longer belongs to the chain (common/stage/chain_origins.py, rule 7). The chains' origins are
   therefore listed periodically, at most one topic per round.
"""

from collections.abc import Collection

from common.errors import StoreError
from common.settings import Stream
from common.spans import Topic
from stage_writer.assignment import AssignedPartitions
from stage_writer.changelog.watch import TopicWatch
from stage_writer.partitions.idle_reports import IdleReporter
from stage_writer.partitions.resume_points import is_other
from stage_writer.partitions.startup import topic_ids
from stage_writer.partitions.state_renewal import StateRenewal
from stage_writer.ports import KafkaMetadata, Workers
from stage_writer.runtime import Runtime
from stage_writer.schemas import Schemas
from stage_writer.stage.staging import ObjectStage

LOOK_AT_TOPICS_S = 30.0
LOOK_AT_QUIET_S = 60.0
LIST_ORIGINS_S = 60.0


class Background:
    def __init__(
        self,
        assignment: AssignedPartitions,
        streams: Collection[Stream],
        *,
        metadata: KafkaMetadata,
        stage: ObjectStage,
        workers: Workers,
        schemas: Schemas,
        changelogs: TopicWatch,
        runtime: Runtime,
    ) -> None:
        self._assignment = assignment
        self._metadata = metadata
        self._stage = stage
        self._schemas = schemas
        self._changelogs = changelogs
        self._clock, self._log = runtime.clock, runtime.log
        self._idle_reporter = IdleReporter(
            metadata, stage, runtime.clock, runtime.log, streams, report_hidden=runtime.telemetry.note_hidden
        )
        self._state_renewal = StateRenewal(stage, workers, runtime.clock, runtime.log)
        self._topics_checked_at_s = runtime.clock.monotonic_s()
        self._origins_listed_at_s: dict[Topic, float] = {}

    def run(self) -> None:
        self._check_new_topics()
        self._check_quiet()
        self._check_origins()
        self._idle_reporter.report(self._assignment.by_partition.values(), self._assignment.held)
        self._changelogs.check()
        self._state_renewal.step(self._assignment.by_partition.values())
        self._schemas.refresh()

    def report_idle(self) -> None:
        self._idle_reporter.report(self._assignment.by_partition.values(), self._assignment.held, now=True)

    def _check_new_topics(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._topics_checked_at_s < LOOK_AT_TOPICS_S:
            return
        self._topics_checked_at_s = now_s
        assigned = list(self._assignment.by_partition.values())
        ids = topic_ids(self._metadata, {each.partition.topic for each in assigned}, self._log)
        for each in assigned:
            if is_other(each.lineage, ids.get(each.partition.topic)):
                self._assignment.topic_recreated(each)

    def _check_quiet(self) -> None:
        """Check whether the chain of a partition with nothing to claim was rewound (rule 2)."""
        now_s = self._clock.monotonic_s()
        assigned = self._assignment.by_partition.values()
        quiet = [each for each in assigned if each.in_flight is None and each.buffer.is_empty]
        oldest = min(quiet, key=lambda each: each.checked_at_s, default=None)
        if oldest is None or now_s - oldest.checked_at_s < LOOK_AT_QUIET_S:
            return
        oldest.checked_at_s = now_s
        try:
            is_there = oldest.continues(self._stage)
        except StoreError as error:
            self._log.warning("chain not read", partition=str(oldest.partition), problem=error.problem)
            return
        if not is_there:
            self._log.warning("chain moved", partition=str(oldest.partition))
            self._assignment.restart(oldest)

    def _check_origins(self) -> None:
        """Check whether a partition's chain was rewound since it was read (rule 3)."""
        now_s = self._clock.monotonic_s()
        assigned = list(self._assignment.by_partition.values())
        topics = {each.partition.topic for each in assigned}
        listed_at_s = {topic: self._origins_listed_at_s.get(topic, now_s) for topic in topics}
        self._origins_listed_at_s = listed_at_s
        topic = min(topics, key=lambda topic: listed_at_s[topic], default=None)
        if topic is None or now_s - listed_at_s[topic] < LIST_ORIGINS_S:
            return
        listed_at_s[topic] = now_s
        try:
            newest = self._stage.chains.newest_origins(topic)
        except StoreError as error:
            self._log.warning("chain origins not listed", topic=topic, problem=error.problem)
            return
        for each in assigned:
            if newest.get(each.partition, 0) > each.lineage.origin:
                self._log.warning("chain moved", partition=str(each.partition))
                self._assignment.restart(each)
