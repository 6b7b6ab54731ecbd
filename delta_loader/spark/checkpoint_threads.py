"""Writes checkpoints that are due in its own threads, so no commit waits for one.

Rules:

1. Never two checkpoints of one table at once. While one is written, only the newest that becomes due is kept: a
   checkpoint contains everything that an older checkpoint does.
2. At most `_MOST_THREADS` are written at once; the other tables wait in line. A thread ends when nothing is in line.
3. A table whose checkpoint took long rests: at most a fifth of its time goes into checkpoints. A checkpoint of a
   million files takes minutes of CPU time, and on some tables each is due before the last has ended.
4. A failed checkpoint is logged and counted, and retried at most `MOST_TRIES` times: the log is complete without it,
   and the next is due soon. A table with that many failures in a row is a problem in the loader's health.
5. Torn files are removed before a checkpoint is written, because it may have the same name, and after a failed one
   (common/tables/log_files.py). When a loader starts, it removes those of a dead loader.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from threading import Condition, Thread
from typing import Protocol

from structlog.typing import FilteringBoundLogger

from common import metrics as all_metrics
from common.errors import KafkaDeltaExpressError
from common.metrics import Metrics
from common.ports import Clock
from delta_loader.ports import ParallelMap

MOST_TRIES = 3
"""For one checkpoint, and for failures in a row before the health reports it (rule 4)."""
FAILING_REMEDY = (
    "nothing is lost, but each read of the table takes longer; see `checkpoint failed` in the loader's log: the store's"
    " rights and space, spark.driver.memory, and a scratch folder that Java may execute from (java.io.tmpdir)"
)
_MOST_THREADS = 2
_LAST_WAIT_S = 10.0
_POLL_S = 0.1
_RESTS_FOR = 4.0
"""Times the duration of its last checkpoint (rule 3)."""
_LOOK_AT_RESTING_S = 1.0
_RETRY_AFTER_S = 30.0


@dataclass(frozen=True, slots=True)
class DueCheckpoint:
    url: str
    version: int
    write: Callable[[], None]
    """Raises TableError."""
    tries: int = 0


RemoveTorn = Callable[[str], Collection[str]]
"""Removes torn files of a table's checkpoints; returns their paths. Raises TableError and StoreError."""


class Checkpoints(Protocol):
    """Accepts checkpoints that are due; never raises if writing one fails."""

    def request(self, due: DueCheckpoint, /) -> None:
        """Have a checkpoint written now or soon."""


def _new_thread(work: Callable[[], None]) -> Thread:
    return Thread(target=work, name="checkpoints")


class BackgroundCheckpoints:
    """`Checkpoints` of one loader, with threads."""

    def __init__(
        self,
        clock: Clock,
        log: FilteringBoundLogger,
        metrics: Metrics,
        remove_torn: RemoveTorn,
        new_thread: Callable[[Callable[[], None]], Thread] = _new_thread,
    ) -> None:
        self._clock = clock
        self._log = log
        self._metrics = metrics
        self._remove_torn = remove_torn
        self._new_thread = new_thread
        self._changed = Condition()
        self._due: dict[str, DueCheckpoint] = {}
        self._written: set[str] = set()
        """The tables whose checkpoint is being written."""
        self._rests_until_s: dict[str, float] = {}
        self._failures: dict[str, tuple[int, str]] = {}
        """By table, the number of failures in a row and the last one's problem."""
        self._threads = 0
        self._resting = 0
        """How many threads wait until a table has rested."""
        self._finishing = False
        self._closed = False

    def request(self, due: DueCheckpoint) -> None:
        """Have a checkpoint written (rule 1)."""
        with self._changed:
            if self._closed:
                return
            self._due[due.url] = due
            self._changed.notify_all()
            if due.url in self._written or self._resting or self._threads == _MOST_THREADS:
                return  # an existing thread takes it
            self._threads += 1
        thread = self._new_thread(self._work)
        thread.daemon = True  # a store that hangs does not keep the process from ending
        thread.start()

    @property
    def problems(self) -> tuple[str, ...]:
        """The tables whose checkpoints failed repeatedly, each with its problem."""
        return tuple(
            f"{count} checkpoints of {url} failed in a row: {problem}"
            for url, (count, problem) in sorted(self._failures.copy().items())
            if count >= MOST_TRIES
        )

    def begin(self, urls: Collection[str], parallel: ParallelMap) -> None:
        """Remove torn files that a loader that died left in the logs of these tables."""
        parallel(self._tidy, urls)

    def finish(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Wait until all due checkpoints are written, without rests, or until stopped."""
        with self._changed:
            self._finishing = True
            self._changed.notify_all()
            while self._threads and not stopped():
                self._changed.wait(_POLL_S)
            self._finishing = False

    def close(self, last_wait_s: float = _LAST_WAIT_S) -> None:
        """Start no more; wait for those in progress, but not for long: readers ignore an incomplete checkpoint."""
        end_s = time.monotonic() + last_wait_s
        with self._changed:
            self._closed = True
            self._due.clear()
            self._changed.notify_all()
            while self._threads and time.monotonic() < end_s:
                self._changed.wait(_POLL_S)
            left = sorted(self._written)
        for url in left:
            self._log.warning("stopping while a checkpoint is written", table=url)

    def _waiting(self) -> list[DueCheckpoint]:
        return [due for url, due in self._due.items() if url not in self._written]

    def _is_rested(self, due: DueCheckpoint) -> bool:
        return self._finishing or self._clock.monotonic_s() >= self._rests_until_s.get(due.url, float("-inf"))

    def _work(self) -> None:
        with self._changed:
            while waiting := self._waiting():
                due = next(filter(self._is_rested, waiting), None)
                if due is None:
                    self._resting += 1
                    self._changed.wait(_LOOK_AT_RESTING_S)
                    self._resting -= 1
                    continue
                del self._due[due.url]
                self._written.add(due.url)
                self._changed.release()
                began_s, written = self._clock.monotonic_s(), False
                try:
                    written = self._write(due)
                finally:
                    ended_s = self._clock.monotonic_s()
                    self._changed.acquire()
                    rest_s = _RESTS_FOR * (ended_s - began_s)
                    self._rests_until_s[due.url] = ended_s + (rest_s if written else max(rest_s, _RETRY_AFTER_S))
                    self._written.remove(due.url)
                    if not written and due.tries + 1 < MOST_TRIES and not self._closed:
                        self._due.setdefault(due.url, replace(due, tries=due.tries + 1))
            self._threads -= 1
            self._changed.notify_all()

    def _write(self, due: DueCheckpoint) -> bool:
        """Write a checkpoint; returns whether it exists now."""
        log, began_s = self._log.bind(table=due.url, version=due.version), self._clock.monotonic_s()
        self._tidy(due.url)
        try:
            due.write()
        except Exception as error:  # noqa: BLE001 - a bug, too, costs this checkpoint and no load
            problem = _problem_of(error)
            failures = self._failures.get(due.url, (0, ""))[0] + 1
            self._failures[due.url] = failures, problem
            self._metrics.add(all_metrics.LOADER_CHECKPOINTS, outcome="failed")
            log.warning("checkpoint failed", problem=problem, failures_in_a_row=failures)
            self._tidy(due.url)
            return False
        self._failures.pop(due.url, None)
        seconds = self._clock.monotonic_s() - began_s
        self._metrics.add(all_metrics.LOADER_CHECKPOINTS, outcome="written")
        self._metrics.observe(all_metrics.LOADER_CHECKPOINT_SECONDS, seconds)
        log.info("checkpoint", seconds=round(seconds, 3))
        return True

    def _tidy(self, url: str) -> None:
        """Remove torn files (rule 5). Readers skip those that cannot be removed now."""
        try:
            for path in self._remove_torn(url):
                self._log.warning("torn checkpoint removed", table=url, path=path)
        except Exception as error:  # noqa: BLE001 - a bug, too, costs no checkpoint and no load
            remedy = getattr(error, "remedy", "")
            self._log.warning(
                "torn checkpoints cannot be removed", table=url, problem=_problem_of(error), remedy=remedy
            )


def _problem_of(error: Exception) -> str:
    return error.problem if isinstance(error, KafkaDeltaExpressError) else f"{type(error).__name__}: {error}"
