"""Writes checkpoints that are due in threads of its own, so that no commit waits for one.

Rules:

1. Never two of one table at once. While one is written, only the newest that is due after it is kept: a checkpoint has
   all that an older one has.
2. At most `_MOST_THREADS` are written at once; the other tables wait in line. A thread ends when nothing is in line.
3. A table whose checkpoint took long rests: of its time at most a fifth goes into checkpoints. One of a million files
   takes minutes of CPU time, and on some tables each is due before the last has ended.
4. One that fails is logged and counted, and no more: the log has all that the table is, and the next is due soon.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from threading import Condition, Thread
from typing import TYPE_CHECKING, Protocol

from common import metrics as catalogue
from common.errors import KafkaDeltaExpressError

if TYPE_CHECKING:
    from collections.abc import Callable

    from structlog.typing import FilteringBoundLogger

    from common.metrics import Metrics
    from common.ports import Clock

_MOST_THREADS = 2
_LAST_WAIT_S = 10.0
_LOOK_S = 0.1
_RESTS_FOR = 4.0
"""Times what its last checkpoint took (rule 3)."""
_LOOK_AT_RESTING_S = 1.0


@dataclass(frozen=True, slots=True)
class DueCheckpoint:
    """A checkpoint to be written."""

    url: str
    version: int
    write: Callable[[], None]
    """Raises TableError."""


class Checkpoints(Protocol):
    """Takes checkpoints that are due; never raises for what becomes of one."""

    def ask(self, due: DueCheckpoint, /) -> None:
        """Have it written now or soon."""


def _a_thread(work: Callable[[], None]) -> Thread:
    return Thread(target=work, name="checkpoints")


class CheckpointsBeside:
    """`Checkpoints` of one loader, with threads."""

    def __init__(
        self,
        clock: Clock,
        log: FilteringBoundLogger,
        metrics: Metrics,
        new_thread: Callable[[Callable[[], None]], Thread] = _a_thread,
    ) -> None:
        """Starts nothing yet."""
        self._clock = clock
        self._log = log
        self._metrics = metrics
        self._new_thread = new_thread
        self._changed = Condition()
        self._due: dict[str, DueCheckpoint] = {}
        self._written: set[str] = set()
        """The tables whose checkpoint is being written."""
        self._rests_until_s: dict[str, float] = {}
        self._threads = 0
        self._resting = 0
        """The threads that wait until a table has rested."""
        self._finishing = False
        self._closed = False

    def ask(self, due: DueCheckpoint) -> None:
        """Have it written (rule 1)."""
        with self._changed:
            if self._closed:
                return
            self._due[due.url] = due
            self._changed.notify_all()
            if due.url in self._written or self._resting or self._threads == _MOST_THREADS:
                return  # a thread is there that takes it
            self._threads += 1
        thread = self._new_thread(self._work)
        thread.daemon = True  # a store that hangs does not keep the process from ending
        thread.start()

    def finish(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Wait until all that are due are written, without a rest, or until it is stopped."""
        with self._changed:
            self._finishing = True
            self._changed.notify_all()
            while self._threads and not stopped():
                self._changed.wait(_LOOK_S)
            self._finishing = False

    def close(self, last_wait_s: float = _LAST_WAIT_S) -> None:
        """Begin none any more; those under way are waited for, but not for long: a half one is nobody's."""
        end_s = time.monotonic() + last_wait_s
        with self._changed:
            self._closed = True
            self._due.clear()
            self._changed.notify_all()
            while self._threads and time.monotonic() < end_s:
                self._changed.wait(_LOOK_S)
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
                began_s = self._clock.monotonic_s()
                try:
                    self._write(due)
                finally:
                    ended_s = self._clock.monotonic_s()
                    self._changed.acquire()
                    self._rests_until_s[due.url] = ended_s + _RESTS_FOR * (ended_s - began_s)
                    self._written.remove(due.url)
            self._threads -= 1
            self._changed.notify_all()

    def _write(self, due: DueCheckpoint) -> None:
        log, began_s = self._log.bind(table=due.url, version=due.version), self._clock.monotonic_s()
        try:
            due.write()
        except Exception as error:  # noqa: BLE001 - a bug, too, costs this checkpoint and no load
            problem = error.problem if isinstance(error, KafkaDeltaExpressError) else f"{type(error).__name__}: {error}"
            self._metrics.add(catalogue.LOADER_CHECKPOINTS, outcome="failed")
            log.warning("checkpoint failed", problem=problem)
            return
        seconds = self._clock.monotonic_s() - began_s
        self._metrics.add(catalogue.LOADER_CHECKPOINTS, outcome="written")
        self._metrics.observe(catalogue.LOADER_CHECKPOINT_SECONDS, seconds)
        log.info("checkpoint", seconds=round(seconds, 3))
