"""Flushes in progress: started, tried again, and finished with one of five outcomes.

Rules:

1. A partition has at most one flush in progress; what arrives meanwhile waits in the next buffer.
2. A failed store is tried again with growing pauses while the member stays in the group; when it fails for too long,
   the service ends with the error (stage_writer/assignment.py).
3. An unavailable broker is waited for without a limit, as reading does.
"""

from collections.abc import Callable, Collection
from typing import assert_never

from common import metrics as all_metrics
from common.errors import BrokerError, StoreError
from common.spans import TopicPartition
from stage_writer.assignment import AssignedPartitions
from stage_writer.partitions.buffers import Buffers
from stage_writer.partitions.claim_guards import ClaimGuards
from stage_writer.partitions.flush_decision import FlushReason
from stage_writer.partitions.partition import AssignedPartition, InFlightFlush
from stage_writer.ports import (
    FlushOutcome,
    Incompatible,
    LostClaim,
    OtherTopic,
    Outdated,
    Postponed,
    Sealed,
    Workers,
)
from stage_writer.runtime import POLL_S, Runtime
from stage_writer.stage.staging import ObjectStage


class Flushes:
    """Called from the loop's thread; the jobs run elsewhere."""

    def __init__(
        self,
        assignment: AssignedPartitions,
        *,
        stage: ObjectStage,
        workers: Workers,
        buffers: Buffers,
        guards: ClaimGuards,
        sealed: Callable[[AssignedPartition, Sealed], None],
        runtime: Runtime,
    ) -> None:
        """``sealed`` is called after each flush that has its marker."""
        self._assignment = assignment
        self._stage = stage
        self._workers = workers
        self._buffers = buffers
        self._guards = guards
        self._on_sealed = sealed
        self._runtime = runtime
        self._clock, self._log = runtime.clock, runtime.log

    def start(self, assigned: AssignedPartition, reason: FlushReason) -> None:
        """Flush a partition's buffer, and begin the next one; nothing while it is empty or being flushed (rule 1)."""
        if assigned.buffer.is_empty or assigned.in_flight is not None:
            return
        try:
            job = assigned.flush_job(self._stage, self._guards.of(assigned))
        except Exception as error:  # noqa: BLE001 - assignment.py, rule 4
            self._assignment.unexpected(assigned, error)
            return
        arrow_bytes = assigned.buffer.arrow_bytes
        assigned.in_flight = InFlightFlush(
            job, reason, self._clock.monotonic_s(), self._workers.start(job.run), arrow_bytes
        )
        self._buffers.begin_next(assigned)

    def retry(self) -> None:
        """Run the jobs again whose pause is over."""
        now_s = self._clock.monotonic_s()
        for assigned in self._assignment.by_partition.values():
            in_flight = assigned.in_flight
            if in_flight is not None and in_flight.running is None and now_s >= in_flight.retry_at_s:
                in_flight.running = self._workers.start(in_flight.job.run)

    def finish(self) -> None:
        """Act on the outcome of each job that has ended."""
        for assigned in list(self._assignment.by_partition.values()):
            in_flight = assigned.in_flight
            if in_flight is None or in_flight.running is None or not in_flight.running.done():
                continue
            try:
                outcome = in_flight.running.result()
            except (StoreError, BrokerError) as error:
                self._try_later(assigned.partition, in_flight, error)
            except Exception as error:  # noqa: BLE001 - assignment.py, rule 4
                self._assignment.unexpected(assigned, error)
            else:
                self._assignment.outage.ended(assigned.partition)
                self._finished(assigned, in_flight, outcome)

    def _finished(self, assigned: AssignedPartition, in_flight: InFlightFlush, outcome: FlushOutcome) -> None:
        match outcome:
            case Sealed():
                assigned.in_flight = None
                self._sealed(assigned, in_flight, outcome)
            case LostClaim():
                self._runtime.metrics.add(all_metrics.WRITER_LOST_CLAIMS, topic=assigned.partition.topic)
                self._log.warning("claim lost", partition=str(assigned.partition))
                self._assignment.restart(assigned)
            case Outdated():
                self._log.warning("flush outdated", partition=str(assigned.partition))
                self._assignment.restart(assigned)
            case Postponed():
                in_flight.running, in_flight.retry_at_s = None, self._clock.monotonic_s() + POLL_S
            case OtherTopic():
                self._assignment.topic_recreated(assigned)
            case Incompatible():
                self._assignment.incompatible(assigned, outcome)
            case _:
                assert_never(outcome)

    def _sealed(self, assigned: AssignedPartition, in_flight: InFlightFlush, sealed: Sealed) -> None:
        seconds, app_id = self._clock.monotonic_s() - in_flight.began_s, assigned.converter.stream.app_id
        self._buffers.flushed(app_id, in_flight.arrow_bytes, sealed.size_bytes)
        self._runtime.telemetry.sealed(app_id, sealed, in_flight.reason, seconds)
        self._on_sealed(assigned, sealed)
        if sealed.chain_moved:
            self._log.warning("chain moved", partition=str(assigned.partition))
            self._assignment.restart(assigned)
            return
        assigned.tail, assigned.checked_at_s = sealed.tail, self._clock.monotonic_s()
        if assigned.task is not None:
            assigned.task.sealed(sealed.tail.state)
        if assigned.outlet is not None:
            assigned.outlet.sealed(sealed.tail.outboxes)

    def _try_later(self, partition: TopicPartition, in_flight: InFlightFlush, error: StoreError | BrokerError) -> None:
        if isinstance(error, StoreError):  # rule 3
            self._assignment.outage.failed(partition, error)
        pause_s = in_flight.backoff.next_s()
        in_flight.running, in_flight.retry_at_s = None, self._clock.monotonic_s() + pause_s
        self._log.warning("flush failed, trying again", error=error.problem, retry_in_s=pause_s)

    def flush_within(self, leaving: Collection[AssignedPartition], reason: FlushReason, seconds: float) -> None:
        """Flush and wait until everything is sealed or the time is up."""
        deadline_s = self._clock.monotonic_s() + seconds
        while True:
            self._guards.sign()
            self.finish()
            self.retry()
            waiting = [
                assigned for assigned in leaving if self._assignment.by_partition.get(assigned.partition) is assigned
            ]
            for assigned in waiting:
                self.start(assigned, reason)
            unfinished = [assigned.in_flight for assigned in waiting if assigned.in_flight is not None]
            left_s = self._runtime.stopping.at_most(deadline_s) - self._clock.monotonic_s()
            if not unfinished or left_s <= 0:
                return
            if running := [in_flight.running for in_flight in unfinished if in_flight.running is not None]:
                self._workers.wait(running, left_s)
            else:
                self._clock.sleep_s(min(left_s, POLL_S))
