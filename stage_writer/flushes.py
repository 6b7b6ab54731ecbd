"""Flushes in progress: started, tried again, and finished with one of five outcomes.

Rules:

1. A partition has at most one flush in progress; what arrives meanwhile waits in the next buffer.
2. A failed store is tried again with growing pauses while the member stays in the group; when it fails for too long,
   the service ends with the error (stage_writer/assignment.py).
3. An unavailable broker is waited for without a limit, as reading does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from common import metrics as catalogue
from common.errors import BrokerError, StoreError
from stage_writer.partitions.partition import InFlightFlush
from stage_writer.ports import Incompatible, LostClaim, OtherTopic, Outdated, Postponed, Sealed
from stage_writer.runtime import POLL_S

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from stage_writer.assignment import AssignedPartitions
    from stage_writer.partitions.buffers import Buffers
    from stage_writer.partitions.claim_guards import ClaimGuards
    from stage_writer.partitions.flush_decision import FlushReason
    from stage_writer.partitions.partition import AssignedPartition
    from stage_writer.ports import FlushOutcome, Workers, WriterStage
    from stage_writer.runtime import Runtime


class Flushes:
    """Called from the loop's thread; the jobs run elsewhere."""

    def __init__(
        self,
        assignment: AssignedPartitions,
        *,
        stage: WriterStage,
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

    def start(self, owned: AssignedPartition, reason: FlushReason) -> None:
        """Flush a partition's buffer, and begin the next one; nothing while it is empty or being flushed (rule 1)."""
        if owned.buffer.is_empty or owned.flight is not None:
            return
        try:
            job = owned.flush_job(self._stage, self._guards.of(owned))
        except Exception as error:  # noqa: BLE001 - assignment.py, rule 4
            self._assignment.unexpected(owned, error)
            return
        arrow_bytes = owned.buffer.arrow_bytes
        owned.flight = InFlightFlush(job, reason, self._clock.monotonic_s(), self._workers.start(job.run), arrow_bytes)
        self._buffers.begin_next(owned)

    def retry(self) -> None:
        """Run the jobs again whose pause is over."""
        now_s = self._clock.monotonic_s()
        for owned in self._assignment.owned.values():
            flight = owned.flight
            if flight is not None and flight.running is None and now_s >= flight.retry_at_s:
                flight.running = self._workers.start(flight.job.run)

    def finish(self) -> None:
        """Act on the outcome of each job that has ended."""
        for owned in list(self._assignment.owned.values()):
            flight = owned.flight
            if flight is None or flight.running is None or not flight.running.done():
                continue
            try:
                outcome = flight.running.result()
            except (StoreError, BrokerError) as error:
                self._try_later(flight, error)
            except Exception as error:  # noqa: BLE001 - assignment.py, rule 4
                self._assignment.unexpected(owned, error)
            else:
                self._assignment.outage.ended()
                self._finished(owned, flight, outcome)

    def _finished(self, owned: AssignedPartition, flight: InFlightFlush, outcome: FlushOutcome) -> None:
        match outcome:
            case Sealed():
                owned.flight = None
                self._sealed(owned, flight, outcome)
            case LostClaim():
                self._runtime.metrics.add(catalogue.WRITER_LOST_CLAIMS, topic=owned.partition.topic)
                self._log.warning("claim lost", partition=str(owned.partition))
                self._assignment.restart(owned)
            case Outdated():
                self._log.warning("flush outdated", partition=str(owned.partition))
                self._assignment.restart(owned)
            case Postponed():
                flight.running, flight.retry_at_s = None, self._clock.monotonic_s() + POLL_S
            case OtherTopic():
                self._assignment.topic_recreated(owned)
            case Incompatible():
                self._assignment.incompatible(owned, outcome)
            case _:
                assert_never(outcome)

    def _sealed(self, owned: AssignedPartition, flight: InFlightFlush, sealed: Sealed) -> None:
        seconds, app_id = self._clock.monotonic_s() - flight.began_s, owned.converter.stream.app_id
        self._buffers.flushed(app_id, flight.arrow_bytes, sealed.size_bytes)
        self._runtime.telemetry.sealed(app_id, sealed, flight.reason, seconds)
        self._on_sealed(owned, sealed)
        if sealed.chain_moved:
            self._log.warning("chain moved", partition=str(owned.partition))
            self._assignment.restart(owned)
            return
        owned.tail, owned.looked_at_s = sealed.tail, self._clock.monotonic_s()
        if owned.task is not None:
            owned.task.sealed(sealed.tail.state)
        if owned.outlet is not None:
            owned.outlet.sealed(sealed.tail.outboxes)

    def _try_later(self, flight: InFlightFlush, error: StoreError | BrokerError) -> None:
        if isinstance(error, StoreError):  # rule 3
            self._assignment.outage.failed(error)
        pause_s = flight.backoff.next_s()
        flight.running, flight.retry_at_s = None, self._clock.monotonic_s() + pause_s
        self._log.warning("flush failed, trying again", error=error.problem, retry_in_s=pause_s)

    def flush_within(self, leaving: Collection[AssignedPartition], reason: FlushReason, seconds: float) -> None:
        """Flush and wait until everything is sealed or the time is over."""
        deadline_s = self._clock.monotonic_s() + seconds
        while True:
            self._guards.sign()
            self.finish()
            self.retry()
            waiting = [owned for owned in leaving if self._assignment.owned.get(owned.partition) is owned]
            for owned in waiting:
                self.start(owned, reason)
            flights = [owned.flight for owned in waiting if owned.flight is not None]
            left_s = self._runtime.stopping.at_most(deadline_s) - self._clock.monotonic_s()
            if not flights or left_s <= 0:
                return
            if running := [flight.running for flight in flights if flight.running is not None]:
                self._workers.wait(running, left_s)
            else:
                self._clock.sleep_s(min(left_s, POLL_S))
