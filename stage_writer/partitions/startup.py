"""Starting partitions: from their assignment, or the next repair attempt, to the position they are read from.

Rules:

1. A partition waits here until its chain was read. A failed store, or a Kafka that does not return the start position,
   is tried again with growing pauses; the position in the group is kept.
2. All waiting partitions are looked up at once: one topic may have a thousand.
3. Where a stream has a topology, the state of the partition's task is restored in the background, without a time limit;
   then reading continues from the end of the chain that the state is of. If the chain has moved on meanwhile, the next
   claim is lost.
4. A partition that was revoked while its task was being restored is not restored again before that has ended: the two
   would share files on disk.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from structlog.typing import FilteringBoundLogger

from common.errors import (
    BrokerError,
    KafkaDeltaExpressError,
    MarkerError,
    NewerFormatError,
    StateError,
    StoreError,
    UnderRepairError,
)
from common.ports import Clock
from common.spans import Topic, TopicPartition
from stage_writer.partitions.partition import Restoring, StartingPartition
from stage_writer.partitions.resume_points import ResumeOutcome, ResumePoint, ResumePoints, is_other, other_topic
from stage_writer.ports import Converter, KafkaMetadata, PartitionFault, PartitionTask, Running, Workers
from stage_writer.schemas import Schemas
from stage_writer.stage.staging import ObjectStage


@dataclass(frozen=True, slots=True)
class StartedPartition:
    """Reading continues from here."""

    resume_point: ResumePoint
    converter: Converter
    task: PartitionTask | None = None


@dataclass(frozen=True, slots=True)
class UnusablePartition:
    """A partition that cannot continue; ``resume_point`` is the unusable one, None if unknown."""

    fault: PartitionFault
    converter: Converter
    resume_point: ResumePoint | None


StartupOutcome = StartedPartition | UnusablePartition | StoreError | BrokerError
"""A transient error: the partition still waits."""


class PartitionStartup:
    """The partitions whose chain must be read first."""

    def __init__(
        self,
        metadata: KafkaMetadata,
        resume_points: ResumePoints,
        schemas: Schemas,
        stage: ObjectStage,
        workers: Workers,
        *,
        clock: Clock,
        log: FilteringBoundLogger,
    ) -> None:
        self._metadata = metadata
        self._stage = stage
        self.resume_points = resume_points
        self._schemas = schemas
        self._workers = workers
        self._clock = clock
        self._log = log
        self.waiting: dict[TopicPartition, StartingPartition] = {}
        self._left: dict[TopicPartition, Running[PartitionTask]] = {}
        """Abandoned tasks that are still being restored (rule 4)."""

    def add(self, partition: TopicPartition, converter: Converter) -> None:
        self.drop(partition)
        self.waiting[partition] = StartingPartition(converter, self._clock.monotonic_s())

    def drop(self, partition: TopicPartition) -> None:
        starting = self.waiting.pop(partition, None)
        if starting is not None and starting.restoring is not None:
            self._left[partition] = starting.restoring.running

    def due_outcomes(self, among: Collection[TopicPartition] | None = None) -> dict[TopicPartition, StartupOutcome]:
        """The outcome for those that are due; with arguments, for some of them or all."""
        if not self.waiting and not self._left:
            return {}
        now_s = self._clock.monotonic_s()
        requested = self.waiting if among is None else [partition for partition in among if partition in self.waiting]
        self._close_left()
        restored = self._restored(requested)
        due = [
            partition
            for partition in requested
            if partition in self.waiting and self.waiting[partition].restoring is None and partition not in self._left
            if now_s >= self.waiting[partition].retry_at_s
        ]
        ids = topic_ids(self._metadata, {partition.topic for partition in due}, self._log)
        streams = {partition: self.waiting[partition].converter.stream for partition in due}
        if due:
            self._schemas.refresh()  # which reads in the background, while chains are read here
        resume_points = self.resume_points.of_all(streams, self._workers)
        outcomes = {
            partition: self._found(partition, ids, resume_point) for partition, resume_point in resume_points.items()
        }
        return restored | {partition: outcome for partition, outcome in outcomes.items() if outcome is not None}

    def _found(
        self, partition: TopicPartition, ids: Mapping[Topic, str | None], checked: ResumeOutcome
    ) -> StartupOutcome | None:
        """``ids`` are the topics' ids looked up just now; a missing one is looked up here."""
        starting = self.waiting[partition]
        try:
            topic_id = (ids or self._metadata.topic_ids([partition.topic])).get(partition.topic)
            if not isinstance(checked, ResumePoint):
                raise checked
            if not self._schemas.read_first(starting.converter):
                starting.retry_at_s = self._clock.monotonic_s() + starting.backoff.next_s()
                return None
        except (MarkerError, StoreError, BrokerError) as error:
            return self._failed(partition, error)
        if is_other(checked.lineage, topic_id):
            del self.waiting[partition]
            return UnusablePartition(other_topic(partition), starting.converter, checked)
        resume_point = replace(checked, lineage=replace(checked.lineage, topic_id=topic_id or checked.lineage.topic_id))
        job = starting.converter.restores(partition, resume_point.state, self._stage.states)
        if job is not None:
            starting.restoring = Restoring(resume_point, self._workers.start(job))
            return None
        del self.waiting[partition]
        return StartedPartition(resume_point, self._schemas.newest(starting.converter))

    def _failed(self, partition: TopicPartition, error: MarkerError | StoreError | BrokerError) -> StartupOutcome:
        starting = self.waiting[partition]
        if isinstance(error, MarkerError):
            del self.waiting[partition]
            return UnusablePartition(
                PartitionFault(partition, error.problem, error.remedy, _reason(error)), starting.converter, None
            )
        starting.retry_at_s = self._clock.monotonic_s() + starting.backoff.next_s()
        self._log.warning("chain not read, trying again", partition=str(partition), error=error.problem)
        return error

    def _restored(self, among: Collection[TopicPartition]) -> dict[TopicPartition, StartupOutcome]:
        """The partitions whose task is restored, or cannot be."""
        outcomes: dict[TopicPartition, StartupOutcome] = {}
        for partition in list(among):
            starting = self.waiting[partition]
            restoring = starting.restoring
            if restoring is None or not restoring.running.done():
                continue
            starting.restoring = None
            try:
                task = restoring.running.result()
            except (MarkerError, StoreError, BrokerError) as error:
                outcomes[partition] = self._failed(partition, error)
            else:
                del self.waiting[partition]
                outcomes[partition] = StartedPartition(restoring.resume_point, task, task)
        return outcomes

    def _close_left(self) -> None:
        for partition, running in list(self._left.items()):
            if running.done():
                del self._left[partition]
                with suppress(KafkaDeltaExpressError):  # no longer needed
                    running.result().close()


def _reason(error: MarkerError) -> str:
    """The fault's short label for metrics."""
    match error:
        case UnderRepairError():
            return "under_repair"
        case NewerFormatError():
            return "newer_marker"
        case StateError():
            return "state"
        case _:
            return "unreadable_marker"


def topic_ids(
    metadata: KafkaMetadata, topics: Collection[Topic], log: FilteringBoundLogger
) -> Mapping[Topic, str | None]:
    """The topics' ids; empty while Kafka does not return them."""
    try:
        return metadata.topic_ids(topics) if topics else {}
    except BrokerError as error:
        log.warning("topics not looked up", problem=error.problem)
        return {}
