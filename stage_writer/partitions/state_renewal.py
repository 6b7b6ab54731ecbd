"""Writes states that are partly in Kafka topics to the stage before the topics delete them.

Rules:

1. Where records arrive, flushes take care of this (stage_writer/tasks/kept.py, rule 4). This covers partitions without
   new records: checked every minute, one after the other, in the background.
2. The files replace what the chain's last marker names; the chain does not change. A failure is logged, and retried
   after the other partitions, a minute later: the topic keeps its messages for much longer.
"""

from collections.abc import Collection
from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from common.errors import KafkaDeltaExpressError
from common.ports import Clock
from common.spans import TopicPartition
from common.stage.task_files import StateFiles
from stage_writer.partitions.partition import AssignedPartition
from stage_writer.ports import PartitionTask, Running, Workers
from stage_writer.stage.staging import ObjectStage

CHECK_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class RunningRenewal:
    partition: TopicPartition
    task: PartitionTask
    before: StateFiles
    running: Running[StateFiles]


class StateRenewal:
    def __init__(self, stage: ObjectStage, workers: Workers, clock: Clock, log: FilteringBoundLogger) -> None:
        self._stage = stage
        self._workers = workers
        self._clock = clock
        self._log = log
        self._checked_s = clock.monotonic_s()
        self._now: RunningRenewal | None = None
        self._failed: set[TopicPartition] = set()

    def step(self, assigned: Collection[AssignedPartition]) -> None:
        """Start the next renewal if one is due, and collect the result of the last."""
        if self._now is not None:
            self._end(self._now)
        elif self._clock.monotonic_s() - self._checked_s >= CHECK_EVERY_S:
            self._begin(assigned)

    def _begin(self, partitions: Collection[AssignedPartition]) -> None:
        for assigned in partitions:
            if (
                assigned.task is None
                or assigned.tail is None
                or assigned.in_flight is not None
                or not assigned.buffer.is_empty
            ):
                continue
            if assigned.partition in self._failed:
                continue
            job = assigned.task.renewal(self._stage.states, assigned.tail)
            if job is not None:
                self._log.info("state moves from a topic to the stage", partition=str(assigned.partition))
                self._now = RunningRenewal(
                    assigned.partition, assigned.task, assigned.tail.state, self._workers.start(job)
                )
                return
        self._failed.clear()
        self._checked_s = self._clock.monotonic_s()

    def _end(self, renewed: RunningRenewal) -> None:
        if not renewed.running.done():
            return
        self._now = None
        try:
            renewed.task.renewed(renewed.before, renewed.running.result())
        except KafkaDeltaExpressError as error:
            self._failed.add(renewed.partition)
            partition = str(renewed.partition)
            self._log.warning(
                "state not written to the stage, trying again", partition=partition, problem=error.problem
            )
