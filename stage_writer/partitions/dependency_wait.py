"""Partitions whose messages cannot be converted yet: their schemas, or the columns for them, are not known.

Rules:

1. The loop does not block. Such a partition is paused, what was read of it is dropped, and it is read again from its
   buffer's end when it can continue. So no memory is held for it, and other partitions, flushes and the group are
   unaffected.
2. While it waits, the end that Kafka reports for it does not count: records before that end were dropped.
3. A long-running writer waits until the dependency is available, and its health page reports what it waits for. A run
   that is to catch up and exit gives up after a while, with the error.
4. All rows of a file have the same columns. Where messages wait for other columns, what is buffered is flushed first.
"""

from collections import Counter
from collections.abc import Collection

from structlog.typing import FilteringBoundLogger

from common.http.pages import with_remedy
from common.ports import Clock
from common.sizes import counted
from stage_writer.decode.dependency import Dependency
from stage_writer.partitions.partition import AssignedPartition
from stage_writer.ports import RecordSource

GIVE_UP_AFTER_S = 240.0


class DependencyWaits:
    def __init__(self, source: RecordSource, clock: Clock, log: FilteringBoundLogger) -> None:
        self._source = source
        self._clock = clock
        self._log = log

    def begin(self, assigned: AssignedPartition, wait: Dependency) -> None:
        assigned.wait, assigned.waits_since_s = wait, self._clock.monotonic_s()
        self._source.pause([assigned.partition])
        log = self._log.info if wait.is_expected else self._log.warning
        log("partition waits", partition=str(assigned.partition), problem=wait.error.problem)

    def resume_ready(self, ours: Collection[AssignedPartition], *, is_patient: bool) -> None:
        """Resume those that can continue, but for what is paused for another reason. Raises rule 3's error."""
        for assigned in ours:
            wait = assigned.wait
            if wait is None:
                continue
            if wait.is_over() and (assigned.buffer.is_empty or not wait.changes_columns):
                assigned.wait = None
                self._source.seek(assigned.partition, assigned.buffer.end)
                if not assigned.paused:
                    self._source.resume([assigned.partition])
                self._log.info("partition resumed", partition=str(assigned.partition), position=assigned.buffer.end)
            elif not is_patient and self._clock.monotonic_s() - assigned.waits_since_s > GIVE_UP_AFTER_S:
                raise wait.error


def problems(ours: Collection[AssignedPartition]) -> tuple[str, ...]:
    """Overdue dependencies, as text for operators. Safe to call from any thread."""
    waits = [wait for assigned in ours if (wait := assigned.wait) is not None and not wait.is_expected]
    counts = Counter(with_remedy(wait.error.problem, wait.error.remedy) for wait in waits)
    return tuple(f"{counted(count, 'partition')} waiting: {problem}" for problem, count in sorted(counts.items()))
