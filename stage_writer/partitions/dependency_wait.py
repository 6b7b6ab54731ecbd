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

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from common.http.pages import with_remedy

if TYPE_CHECKING:
    from collections.abc import Collection

    from structlog.typing import FilteringBoundLogger

    from common.ports import Clock
    from stage_writer.decode.dependency import Dependency
    from stage_writer.partitions.partition import AssignedPartition
    from stage_writer.ports import RecordSource

GIVE_UP_AFTER_S = 240.0


class DependencyWaits:
    """What to do with the partitions that wait."""

    def __init__(self, source: RecordSource, clock: Clock, log: FilteringBoundLogger) -> None:
        self._source = source
        self._clock = clock
        self._log = log

    def begin(self, owned: AssignedPartition, wait: Dependency) -> None:
        owned.wait, owned.waits_since_s = wait, self._clock.monotonic_s()
        self._source.pause([owned.partition])
        log = self._log.info if wait.is_routine else self._log.warning
        log("partition waits", partition=str(owned.partition), problem=wait.error.problem)

    def resume_ready(self, ours: Collection[AssignedPartition], *, is_patient: bool) -> None:
        """Resume those that can continue, but for what is paused for another reason. Raises rule 3's error."""
        for owned in ours:
            wait = owned.wait
            if wait is None:
                continue
            if wait.is_over() and (owned.buffer.is_empty or not wait.changes_columns):
                owned.wait = None
                self._source.seek(owned.partition, owned.buffer.end)
                if not owned.paused:
                    self._source.resume([owned.partition])
                self._log.info("partition resumed", partition=str(owned.partition), position=owned.buffer.end)
            elif not is_patient and self._clock.monotonic_s() - owned.waits_since_s > GIVE_UP_AFTER_S:
                raise wait.error


def problems(ours: Collection[AssignedPartition]) -> tuple[str, ...]:
    """What is waited for although it is due, as text for operators. Safe to call from any thread."""
    waits = [wait for owned in ours if (wait := owned.wait) is not None and not wait.is_routine]
    counts = Counter(with_remedy(wait.error.problem, wait.error.remedy) for wait in waits)
    return tuple(f"{count} partition(s) wait: {problem}" for problem, count in sorted(counts.items()))
