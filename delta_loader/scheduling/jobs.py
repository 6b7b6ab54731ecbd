"""The loader's scheduled and requested background work, as APScheduler jobs, so its main loop does no I/O.

Rules:

1. Each run of a job has its own thread. A run that hangs, as when its store does not answer, delays no other job, no
   load, and not the main loop.
2. A job never runs twice at a time. A time that passes while it runs is skipped.
3. An exception fails the run and is logged; the next scheduled time is the next try.
4. Threads are daemons: one that hangs does not keep the process from ending, and `close` waits for a bounded time.
5. A job that runs for longer than `LONG_S`, or the limit given for it, is reported with its name and time
   (`long_running`).
6. Other kinds of loops have their own threads: the lease, whose steps decide when the next is due, before the jobs
   start and after they end; the listener of the control topic, which is always in a poll; the watch of Kafka's ends,
   which the writer, without jobs, has as well; the streams' turns and checkpoints, whose threads keep Spark's
   thread-local state.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from apscheduler.executors.base import BaseExecutor, run_job
from apscheduler.job import Job
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger
from structlog.typing import FilteringBoundLogger

from common.ports import Clock
from common.remedies import CONFIG

LONG_S = 900.0
REMEDY = (
    f"no load waits for it; `delta-loader check {CONFIG}` says whether the stores of the stage and the tables respond"
)
_CLOSE_WITHIN_S = 10.0
_POLL_S = 0.05


class _OwnThreads(BaseExecutor):  # type: ignore[misc,unused-ignore]
    """A daemon thread for each run: APScheduler's own pool has threads that Python waits for when it exits."""

    def _do_submit_job(self, job: Job, run_times: list[datetime]) -> None:
        def run() -> None:
            self._run_job_success(job.id, run_job(job, job._jobstore_alias, run_times, self._logger.name))  # noqa: SLF001 - as APScheduler's executors do

        threading.Thread(target=run, name=f"job-{job.id}", daemon=True).start()


class Jobs:
    def __init__(self, clock: Clock, log: FilteringBoundLogger) -> None:
        self._clock = clock
        self._log = log
        self._running: dict[str, float] = {}
        self._long_s: dict[str, float] = {}
        quiet = logging.getLogger(
            "delta_loader.scheduling.jobs"
        )  # APScheduler warns each time that a job is still running
        quiet.disabled = True
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            logger=quiet,
            executors={"default": _OwnThreads()},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )

    def add(self, name: str, work: Callable[[], None], *, every_s: float | None = None, long_s: float = LONG_S) -> None:
        """Run ``work`` at intervals, the first time after one; without an interval whenever `soon` is called.

        A run of more than ``long_s`` is reported (rule 5).
        """
        self._long_s[name] = long_s

        def run() -> None:
            self._running[name] = self._clock.monotonic_s()
            try:
                work()
            except Exception:  # noqa: BLE001 - a bug, or a dependency's: it costs this run, and nothing else
                self._log.exception("unexpected exception", part=name)
            finally:
                del self._running[name]

        trigger = IntervalTrigger(seconds=every_s or _NEVER_S, timezone=UTC)
        self._scheduler.add_job(run, trigger, id=name)

    def soon(self, name: str) -> None:
        """Run a job now; does nothing while it runs, before `start` or after `close`."""
        if self._scheduler.running and name not in self._running:
            self._scheduler.modify_job(name, next_run_time=datetime.now(UTC))

    def start(self) -> None:
        self._scheduler.start()

    def close(self, last_wait_s: float = _CLOSE_WITHIN_S) -> None:
        """Start no more runs; wait for those in progress, but not for long. May be called twice."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)
        end_s = time.monotonic() + last_wait_s
        while self._running and time.monotonic() < end_s:
            time.sleep(_POLL_S)
        for name in sorted(self._running):
            self._log.warning("stopping although a job hangs", job=name)

    @property
    def long_running(self) -> tuple[str, ...]:
        """Jobs that have been running for long, and for how long."""
        now_s = self._clock.monotonic_s()
        return tuple(
            f"the job {name!r} has been running for {now_s - since_s:.0f} s"
            for name, since_s in sorted(self._running.copy().items())
            if now_s - since_s > self._long_s[name]
        )


_NEVER_S = 10 * 365 * 86_400.0
"""The interval of jobs that run only on request."""
