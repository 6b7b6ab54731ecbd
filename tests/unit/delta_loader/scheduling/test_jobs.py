"""What the loader does by the clock or by request: each job in its own thread, never twice at once."""

import threading
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from common.clock import SystemClock
from delta_loader.scheduling.jobs import LONG_S, Jobs

PATIENCE_S = 600.0


class Store:
    def __init__(self) -> None:
        self.asked, self.answers = threading.Semaphore(0), threading.Event()
        self.threads: set[int] = set()

    def ask(self) -> None:
        self.threads.add(threading.get_ident())
        self.asked.release()
        assert self.answers.wait(PATIENCE_S)

    def is_asked(self) -> bool:
        return self.asked.acquire(timeout=PATIENCE_S)


class Clock(SystemClock):
    ahead_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def jobs(clock: Clock) -> Iterator[Jobs]:
    jobs = Jobs(clock, structlog.get_logger())
    yield jobs
    jobs.close()


def test_hanging_job_is_reported_and_delays_neither_other_jobs_nor_the_stop(jobs: Jobs, clock: Clock) -> None:
    hanging, well = Store(), Store()
    well.answers.set()
    jobs.add("clean-up", hanging.ask)
    jobs.add("news", well.ask, every_s=0.01)
    jobs.start()
    jobs.soon("clean-up")
    assert hanging.is_asked()
    assert all(well.is_asked() for _ in range(3))
    assert list(jobs.long_running) == []
    clock.ahead_s += LONG_S + 1
    assert [text.partition(" for ")[0] for text in jobs.long_running] == ["the job 'clean-up' has been running"]
    with capture_logs() as logs:
        jobs.close(last_wait_s=0.0)
    assert [line["job"] for line in logs if line["event"] == "stopping although a job hangs"] == ["clean-up"]
    assert threading.get_ident() not in hanging.threads | well.threads
    hanging.answers.set()


def test_job_never_runs_twice_at_once(jobs: Jobs) -> None:
    store, other = Store(), Store()
    other.answers.set()
    jobs.add("checks", store.ask, every_s=0.01)
    jobs.add("news", other.ask, every_s=0.01)
    jobs.start()
    assert store.is_asked()
    for _ in range(5):
        jobs.soon("checks")
        assert other.is_asked()
    assert not store.asked.acquire(blocking=False)
    store.answers.set()
    assert store.is_asked(), "and again after that"


def test_exception_ends_the_run_but_not_the_job(jobs: Jobs) -> None:
    tried = threading.Semaphore(0)

    def fail() -> None:
        tried.release()
        raise RuntimeError("a bug")

    with capture_logs() as logs:
        jobs.add("checks", fail, every_s=0.01)
        jobs.start()
        assert all(tried.acquire(timeout=PATIENCE_S) for _ in range(3))
    assert {(line["event"], line.get("part")) for line in logs} == {("unexpected exception", "checks")}


def test_jobs_run_only_between_start_and_close(jobs: Jobs) -> None:
    store = Store()
    store.answers.set()
    jobs.add("checks", store.ask)
    jobs.soon("checks")
    jobs.start()
    jobs.close()
    jobs.soon("checks")
    jobs.close()
    assert store.threads == set()


def test_intervals_use_the_monotonic_clock(jobs: Jobs, clock: Clock) -> None:
    hourly, requested = Store(), Store()
    hourly.answers.set()
    requested.answers.set()
    jobs.add("checks", hourly.ask, every_s=3600.0)
    jobs.add("news", requested.ask)
    jobs.start()
    clock.ahead_s += 3600.0
    jobs.soon("news")
    assert requested.is_asked()
    assert hourly.is_asked()
