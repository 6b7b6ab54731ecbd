"""The loader's periodic and requested background work, as jobs, so its main loop does no I/O.

Rules:

1. Each run of a job has its own thread. A run that hangs, as when its store does not answer, delays no other job, no
   load, and not the main loop.
2. A job never runs twice at a time. A time that passes while it runs is skipped.
3. An exception fails the run and is logged; the next time is the next try.
4. Threads are daemons: a hanging thread does not keep the process from ending, and `close` waits for a bounded time.
5. A job that runs for longer than `LONG_S`, or the limit given for it, is reported with its name and time
   (`long_running`).
6. Intervals are by the monotonic clock: a date that is set back delays no job.
7. Other kinds of loops have their own threads: the lease, whose steps decide when the next is due, before the jobs
   start and after they end; the listener of the control topic, which is always in a poll; the watch of Kafka's ends,
   which the writer, without jobs, has as well; the streams' turns and checkpoints, whose threads keep Spark's
   thread-local state.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from common.background import BackgroundLoop
from common.ports import Clock
from common.remedies import CONFIG

LONG_S = 900.0
REMEDY = (
    f"no load waits for it; `delta-loader check {CONFIG}` says whether the stores of the stage and the tables respond"
)
_CLOSE_WITHIN_S = 10.0
_POLL_S = 0.05
_RETRY_AFTER_BUG_S = 1.0
_IDLE_S = 3600.0


@dataclass(slots=True)
class _Job:
    run: Callable[[], None]
    every_s: float | None
    long_s: float
    due_s: float | None = None
    """None until it is requested."""
    since_s: float | None = None
    """When the run in progress began."""


class Jobs:
    def __init__(self, clock: Clock, log: FilteringBoundLogger) -> None:
        self._clock = clock
        self._log = log
        self._jobs: dict[str, _Job] = {}
        self._loop: BackgroundLoop | None = None

    def add(self, name: str, work: Callable[[], None], *, every_s: float | None = None, long_s: float = LONG_S) -> None:
        """Run ``work`` at intervals, the first time after one; without an interval whenever `soon` is called.

        A run of more than ``long_s`` is reported (rule 5).
        """

        def run() -> None:
            try:
                work()
            except Exception:  # noqa: BLE001 - a bug, or a dependency's: it costs this run, and nothing else
                self._log.exception("unexpected exception", part=name)
            finally:
                self._jobs[name].since_s = None

        self._jobs[name] = _Job(run, every_s, long_s)

    def soon(self, name: str) -> None:
        """Run a job now; does nothing while it runs, before `start` or after `close`."""
        if self._loop is not None:
            self._jobs[name].due_s = self._clock.monotonic_s()
            self._loop.wake()

    def start(self) -> None:
        now_s = self._clock.monotonic_s()
        for job in self._jobs.values():
            job.due_s = None if job.every_s is None else now_s + job.every_s
        self._loop = BackgroundLoop("jobs", self._begin_due, self._log, retry_after_bug_s=_RETRY_AFTER_BUG_S)

    def close(self, last_wait_s: float = _CLOSE_WITHIN_S) -> None:
        """Start no more runs; wait for those in progress, but not for long. May be called twice."""
        end_s = time.monotonic() + last_wait_s
        if self._loop is not None:
            self._loop.close(_CLOSE_WITHIN_S)
        while self._running() and time.monotonic() < end_s:
            time.sleep(_POLL_S)
        for name in sorted(self._running()):
            self._log.warning("stopping although a job hangs", job=name)

    @property
    def long_running(self) -> tuple[str, ...]:
        """Jobs that have been running for long, and for how long."""
        now_s = self._clock.monotonic_s()
        return tuple(
            f"the job {name!r} has been running for {now_s - since_s:.0f} s"
            for name, since_s in sorted(self._running().items())
            if now_s - since_s > self._jobs[name].long_s
        )

    def _running(self) -> dict[str, float]:
        since = ((name, job.since_s) for name, job in self._jobs.items())
        return {name: since_s for name, since_s in since if since_s is not None}

    def _begin_due(self) -> float:
        """A step of the loop: starts due jobs; returns the seconds until the next one is due."""
        now_s = self._clock.monotonic_s()
        for name, job in self._jobs.items():
            if job.due_s is None or job.due_s > now_s:
                continue
            job.due_s = None if job.every_s is None else now_s + job.every_s
            if job.since_s is None:
                job.since_s = now_s
                threading.Thread(target=job.run, name=f"job-{name}", daemon=True).start()
        return min((job.due_s - now_s for job in self._jobs.values() if job.due_s is not None), default=_IDLE_S)
