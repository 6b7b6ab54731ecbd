"""The loop's periodic checks and reports, next to reading and flushing.

Rules:

1. Topics are checked periodically, so that status and health report a recreated one before anything is flushed.
2. A rewind is noticed at the next claim. A partition without new records makes none, so the marker that it continues
   from, or the origin of a chain without a marker, is checked periodically; at most one partition per round, because
   the store may be slow.
"""

from collections.abc import Collection

from common.errors import StoreError
from common.settings import Stream
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

    def run(self) -> None:
        self._check_new_topics()
        self._check_quiet()
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
