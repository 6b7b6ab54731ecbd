"""Background checkpoints: never two of one table, only the newest that is due, and no load waits."""

import time
from collections.abc import Callable, Iterator
from threading import Event, Lock

import pytest
import structlog

from common.clock import SystemClock
from common.errors import StoreError, TableError
from common.metrics import Metrics
from delta_loader.ports import in_turn
from delta_loader.spark.checkpoint_threads import BackgroundCheckpoints, DueCheckpoint
from tests.fakes.group import HandClock
from tests.waiting import until

_LONG_S = 600.0


class Store:
    """Writes checkpoints, each of which waits for ``released``."""

    def __init__(self) -> None:
        self.written: list[tuple[str, int]] = []
        self.most: dict[str, int] = {}
        self.most_of_all = 0
        self.began = Event()
        self.released = Event()
        self._in_flight: list[str] = []
        self._lock = Lock()

    def due(self, url: str, version: int) -> DueCheckpoint:
        return DueCheckpoint(url, version, self._write(url, version))

    def _write(self, url: str, version: int) -> Callable[[], None]:
        def write() -> None:
            with self._lock:
                self._in_flight.append(url)
                self.most[url] = max(self.most.get(url, 0), self._in_flight.count(url))
                self.most_of_all = max(self.most_of_all, len(self._in_flight))
            self.began.set()
            assert self.released.wait(_LONG_S)
            with self._lock:
                self._in_flight.remove(url)
                self.written.append((url, version))

        return write


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    yield store
    store.released.set()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def checkpoints(metrics: Metrics) -> BackgroundCheckpoints:
    return BackgroundCheckpoints(SystemClock(), structlog.get_logger(), metrics, lambda _: ())


def test_only_the_newest_due_checkpoint_follows_the_running_one(
    store: Store, checkpoints: BackgroundCheckpoints
) -> None:
    checkpoints.request(store.due("a", 10))
    assert store.began.wait(_LONG_S)
    for version in (20, 30, 40):
        checkpoints.request(store.due("a", version))
    assert store.written == []
    store.released.set()
    checkpoints.finish()
    assert store.written == [("a", 10), ("a", 40)]
    assert store.most == {"a": 1}


def test_many_tables_are_queued(store: Store, checkpoints: BackgroundCheckpoints) -> None:
    for version in (10, 20):
        for number in range(20):
            checkpoints.request(store.due(f"table {number}", version))
    assert store.began.wait(_LONG_S)
    store.released.set()
    checkpoints.finish()
    assert dict(store.written) == {f"table {number}": 20 for number in range(20)}
    assert set(store.most.values()) == {1}
    assert store.most_of_all <= 2


@pytest.mark.parametrize("error", [TableError("the store is full", "make room"), ValueError("a bug")])
def test_failed_checkpoint_is_counted_and_does_not_stop_the_next(
    store: Store, checkpoints: BackgroundCheckpoints, metrics: Metrics, error: Exception
) -> None:
    def fail() -> None:
        raise error

    store.released.set()
    checkpoints.request(DueCheckpoint("a", 10, fail))
    checkpoints.request(store.due("b", 10))
    checkpoints.finish()
    checkpoints.request(store.due("a", 20))
    checkpoints.finish()
    assert sorted(store.written) == [("a", 20), ("b", 10)]
    assert 'delta_loader_checkpoints_total{outcome="failed"} 3.0' in metrics.exposition().decode()
    assert 'delta_loader_checkpoints_total{outcome="written"} 2.0' in metrics.exposition().decode()


def test_close_waits_for_the_running_checkpoint_and_starts_none(
    store: Store, checkpoints: BackgroundCheckpoints
) -> None:
    checkpoints.request(store.due("a", 10))
    assert store.began.wait(_LONG_S)
    checkpoints.request(store.due("a", 20))
    checkpoints.close(last_wait_s=0.01)  # it hangs and is abandoned
    checkpoints.request(store.due("b", 10))
    store.released.set()
    checkpoints.close(_LONG_S)
    assert store.written == [("a", 10)]


def test_finish_returns_at_once_when_stopped(store: Store, checkpoints: BackgroundCheckpoints) -> None:
    checkpoints.request(store.due("a", 10))
    checkpoints.finish(lambda: True)
    assert store.written == []


class Slow:
    """Writes checkpoints that take ten seconds each on a fake clock."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.written: list[tuple[str, int]] = []
        self.fails = 0
        """The number of next writes that fail."""
        self.tidied: list[str] = []
        self.checkpoints = BackgroundCheckpoints(self.clock, structlog.get_logger(), Metrics(), self.remove_torn)

    def remove_torn(self, url: str) -> list[str]:
        self.tidied.append(url)
        if url == "out of reach":
            raise StoreError("the store is away", "bring it back")
        return []

    def ask(self, url: str, version: int) -> None:
        def write() -> None:
            self.clock.sleep_s(10)
            if self.fails:
                self.fails -= 1
                raise TableError("no codec", "bring one")
            self.written.append((url, version))

        self.checkpoints.request(DueCheckpoint(url, version, write))

    def require(self, *written: tuple[str, int], moving_s: float = 0) -> None:
        """Wait until these are written, and no others; each check advances the clock by ``moving_s``."""
        end_s = time.monotonic() + _LONG_S
        while self.written != list(written):
            assert time.monotonic() < end_s, self.written
            self.clock.now_s += moving_s
            time.sleep(0.01)


def test_table_pauses_after_a_slow_checkpoint_without_delaying_others() -> None:
    slow = Slow()
    slow.ask("a", 10)
    slow.require(("a", 10))
    slow.ask("a", 20)
    slow.ask("b", 10)
    slow.require(("a", 10), ("b", 10))  # ten seconds later
    slow.ask("a", 30)
    slow.require(("a", 10), ("b", 10), ("a", 30), moving_s=60)
    slow.checkpoints.finish()


def test_finish_and_close_do_not_wait_for_the_pause() -> None:
    slow = Slow()
    for version in (10, 20):
        slow.ask("a", version)
        slow.checkpoints.finish()
    assert slow.written == [("a", 10), ("a", 20)]
    slow.ask("a", 30)
    slow.checkpoints.close(_LONG_S)
    assert slow.checkpoints._threads == 0, "the clock stands still, so a pausing thread would still exist"
    assert slow.written == [("a", 10), ("a", 20)]


def test_failed_checkpoint_is_retried_after_a_pause_and_torn_files_removed() -> None:
    slow = Slow()
    slow.fails = 2
    slow.ask("a", 10)
    slow.require(("a", 10), moving_s=60)
    slow.checkpoints.finish()
    assert slow.tidied == ["a"] * 5
    assert slow.checkpoints.problems == ()


def test_newer_checkpoint_replaces_a_failed_one() -> None:
    slow = Slow()
    slow.fails = 1
    slow.ask("a", 10)
    until(lambda: slow.fails == 0)
    slow.ask("a", 20)
    slow.checkpoints.finish()
    assert slow.written == [("a", 20)]


def test_repeated_checkpoint_failures_are_a_problem_until_one_is_written() -> None:
    slow = Slow()
    slow.fails = 4
    slow.ask("a", 10)
    slow.checkpoints.finish()
    assert slow.checkpoints.problems == ("3 checkpoints of a failed in a row: no codec",)
    slow.ask("a", 20)
    slow.checkpoints.finish()
    assert slow.written == [("a", 20)]
    assert not slow.checkpoints.problems


def test_torn_files_are_removed_at_start_and_an_unreachable_store_is_skipped() -> None:
    slow = Slow()
    slow.checkpoints.begin(["out of reach", "a"], in_turn)
    assert slow.tidied == ["out of reach", "a"]
    slow.ask("out of reach", 10)
    slow.checkpoints.finish()
    assert slow.written == [("out of reach", 10)]
