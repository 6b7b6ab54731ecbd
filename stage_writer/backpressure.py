"""Starts the flushes that are due, and pauses the partitions that must not be read now (flush_decision.py decides)."""

from collections.abc import Callable

from common import metrics as all_metrics
from stage_writer.assignment import AssignedPartitions
from stage_writer.partitions.flush_decision import BackpressureState, FlushLimits, FlushReason, decide
from stage_writer.partitions.partition import AssignedPartition
from stage_writer.partitions.pauses import Pauses
from stage_writer.ports import RecordSource
from stage_writer.runtime import Runtime


class Backpressure:
    def __init__(
        self,
        assignment: AssignedPartitions,
        limits: FlushLimits,
        source: RecordSource,
        pauses: Pauses,
        runtime: Runtime,
    ) -> None:
        self.limits = limits
        self._assignment = assignment
        self._source = source
        self._pauses = pauses
        self._own_limits: dict[str, FlushLimits] = {}
        self._metrics, self._clock, self._log = runtime.metrics, runtime.clock, runtime.log
        self.is_full = False
        """Whether nothing is read at all, because the bound on memory is exceeded."""

    @property
    def current(self) -> BackpressureState:
        """The partitions that are not read now. Safe to read from any thread."""
        assigned = list(self._assignment.by_partition.values())
        return BackpressureState(frozenset(each.partition for each in assigned if each.paused), self.is_full)

    def apply(self, start_flush: Callable[[AssignedPartition, FlushReason], None], *, conversion_waits: bool) -> None:
        """Start due flushes, pause and resume; with ``conversion_waits`` nothing more is read."""
        assigned = self._assignment.by_partition
        stats = [each.buffer_stats(self._limits_of(each)) for each in assigned.values()]
        decision = decide(stats, self.limits, self._clock.monotonic_s(), self.current)
        for flush in decision.flushes:
            start_flush(assigned[flush.partition], flush.reason)
        state = decision.backpressure
        paused = frozenset(assigned) if conversion_waits else self._pauses.among(assigned.values())
        state = BackpressureState(state.paused | paused, state.is_full)  # what was read is flushed on time
        self._pause(state, sum(each.memory_bytes + each.flushing_bytes for each in stats))

    def _limits_of(self, assigned: AssignedPartition) -> FlushLimits:
        stream = assigned.converter.stream
        flush_limits = self._own_limits.get(stream.app_id)
        if flush_limits is None:
            flush_limits = self._own_limits[stream.app_id] = self.limits.of(stream)
        return flush_limits

    def _pause(self, state: BackpressureState, used_bytes: int) -> None:
        """Pause the partitions that must wait, and resume the others."""
        self._metrics.set(all_metrics.WRITER_BUFFERED_BYTES, used_bytes)
        self._metrics.set(all_metrics.WRITER_PAUSED, len(state.paused))
        if state.is_full != self.is_full:
            self._log.info("reading pauses" if state.is_full else "reading resumed", buffered_bytes=used_bytes)
        self.is_full = state.is_full
        changed = [
            each for each in self._assignment.by_partition.values() if each.paused != (each.partition in state.paused)
        ]
        freed = [each for each in changed if each.paused]
        for assigned in changed:
            assigned.paused = not assigned.paused
        if paused := {each.partition for each in changed if each.paused}:
            self._metrics.add(all_metrics.WRITER_PAUSES, len(paused))
            self._source.pause(paused)
        self._pauses.read_again(freed)
        if resumed := {assigned.partition for assigned in freed if assigned.wait is None}:
            self._source.resume(resumed)
