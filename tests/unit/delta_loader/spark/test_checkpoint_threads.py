"""Checkpoints beside the loads: never two of one table, only the newest that is due, and nobody waits."""

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

_LONG_S = 60.0


class Store:
    """Writes checkpoints, each of which waits until it is let go."""

    def __init__(self) -> None:
        self.written: list[tuple[str, int]] = []
        self.most: dict[str, int] = {}
        self.most_of_all = 0
        self.began = Event()
        self.let_go = Event()
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
            assert self.let_go.wait(_LONG_S)
            with self._lock:
                self._in_flight.remove(url)
                self.written.append((url, version))

        return write


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    yield store
    store.let_go.set()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def checkpoints(metrics: Metrics) -> BackgroundCheckpoints:
    return BackgroundCheckpoints(SystemClock(), structlog.get_logger(), metrics, lambda _: ())


def test_only_the_newest_that_is_due_follows_the_one_under_way(
    store: Store, checkpoints: BackgroundCheckpoints
) -> None:
    checkpoints.ask(store.due("a", 10))
    assert store.began.wait(_LONG_S)
    for version in (20, 30, 40):
        checkpoints.ask(store.due("a", version))
    assert store.written == []
    store.let_go.set()
    checkpoints.finish()
    assert store.written == [("a", 10), ("a", 40)]
    assert store.most == {"a": 1}


def test_many_tables_wait_in_line(store: Store, checkpoints: BackgroundCheckpoints) -> None:
    for version in (10, 20):
        for number in range(20):
            checkpoints.ask(store.due(f"table {number}", version))
    assert store.began.wait(_LONG_S)
    store.let_go.set()
    checkpoints.finish()
    assert dict(store.written) == {f"table {number}": 20 for number in range(20)}
    assert set(store.most.values()) == {1}
    assert store.most_of_all <= 2


@pytest.mark.parametrize("error", [TableError("the store is full", "make room"), ValueError("a bug")])
def test_one_that_fails_is_tried_again_and_counted_and_the_next_is_written(
    store: Store, checkpoints: BackgroundCheckpoints, metrics: Metrics, error: Exception
) -> None:
    def fail() -> None:
        raise error

    store.let_go.set()
    checkpoints.ask(DueCheckpoint("a", 10, fail))
    checkpoints.ask(store.due("b", 10))
    checkpoints.finish()
    checkpoints.ask(store.due("a", 20))
    checkpoints.finish()
    assert sorted(store.written) == [("a", 20), ("b", 10)]
    assert 'delta_loader_checkpoints_total{outcome="failed"} 3.0' in metrics.exposition().decode()
    assert 'delta_loader_checkpoints_total{outcome="written"} 2.0' in metrics.exposition().decode()


def test_an_end_waits_for_what_is_under_way_and_begins_nothing(
    store: Store, checkpoints: BackgroundCheckpoints
) -> None:
    checkpoints.ask(store.due("a", 10))
    assert store.began.wait(_LONG_S)
    checkpoints.ask(store.due("a", 20))
    checkpoints.close(last_wait_s=0.01)  # it hangs, and is left
    checkpoints.ask(store.due("b", 10))
    store.let_go.set()
    checkpoints.close(_LONG_S)
    assert store.written == [("a", 10)]


def test_who_is_stopped_waits_no_more(store: Store, checkpoints: BackgroundCheckpoints) -> None:
    checkpoints.ask(store.due("a", 10))
    checkpoints.finish(lambda: True)
    assert store.written == []


class Slow:
    """Writes checkpoints that take ten seconds each, by a clock that nobody else moves."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.written: list[tuple[str, int]] = []
        self.fails = 0
        """How many of the next fail."""
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

        self.checkpoints.ask(DueCheckpoint(url, version, write))

    def require(self, *written: tuple[str, int], moving_s: float = 0) -> None:
        """Wait until these are written, and nothing else; the clock goes on by so much with each look."""
        end_s = time.monotonic() + _LONG_S
        while self.written != list(written):
            assert time.monotonic() < end_s, self.written
            self.clock.now_s += moving_s
            time.sleep(0.01)


def test_a_table_rests_after_one_that_took_long_and_no_other_table_waits_for_that() -> None:
    slow = Slow()
    slow.ask("a", 10)
    slow.require(("a", 10))
    slow.ask("a", 20)
    slow.ask("b", 10)
    slow.require(("a", 10), ("b", 10))  # ten seconds later
    slow.ask("a", 30)
    slow.require(("a", 10), ("b", 10), ("a", 30), moving_s=60)
    slow.checkpoints.finish()


def test_nothing_rests_when_all_are_to_be_written_and_an_end_waits_for_no_rest() -> None:
    slow = Slow()
    for version in (10, 20):
        slow.ask("a", version)
        slow.checkpoints.finish()
    assert slow.written == [("a", 10), ("a", 20)]
    slow.ask("a", 30)
    slow.checkpoints.close(_LONG_S)
    assert slow.checkpoints._threads == 0, "by a clock that stands still, a thread that rests is still there"
    assert slow.written == [("a", 10), ("a", 20)]


def test_one_that_failed_is_tried_again_after_a_rest_and_what_is_torn_goes_before_and_after() -> None:
    slow = Slow()
    slow.fails = 2
    slow.ask("a", 10)
    slow.require(("a", 10), moving_s=60)
    slow.checkpoints.finish()
    assert slow.tidied == ["a"] * 5
    assert slow.checkpoints.problems == ()


def test_a_newer_one_takes_the_place_of_one_that_failed() -> None:
    slow = Slow()
    slow.fails = 1
    slow.ask("a", 10)
    until(lambda: slow.fails == 0)
    slow.ask("a", 20)
    slow.checkpoints.finish()
    assert slow.written == [("a", 20)]


def test_a_table_whose_checkpoints_failed_again_and_again_is_a_problem_until_one_is_written() -> None:
    slow = Slow()
    slow.fails = 4
    slow.ask("a", 10)
    slow.checkpoints.finish()
    assert slow.checkpoints.problems == ("3 checkpoints of a failed in a row: no codec",)
    slow.ask("a", 20)
    slow.checkpoints.finish()
    assert slow.written == [("a", 20)]
    assert not slow.checkpoints.problems


def test_what_is_torn_is_looked_for_when_a_loader_starts_and_a_store_that_is_away_stops_nothing() -> None:
    slow = Slow()
    slow.checkpoints.begin(["out of reach", "a"], in_turn)
    assert slow.tidied == ["out of reach", "a"]
    slow.ask("out of reach", 10)
    slow.checkpoints.finish()
    assert slow.written == [("out of reach", 10)]
