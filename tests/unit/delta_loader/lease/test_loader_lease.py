"""A loader's lease over a stage on a disk, step by step and as a thread: what it does, logs and reports."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from common.errors import StoreError
from common.metrics import Metrics
from common.ports import CreateOutcome, StoredObject
from common.stage.leases import FOLDER, Epoch, Grant, LeaseRecord, epoch_path
from common.storage.store import FsspecStore
from delta_loader.lease.holder import LeaseThread, LoaderLease, lease_status
from tests.builders import required
from tests.fakes.group import HandClock
from tests.waiting import until

LEASE_S = 15.0
ORDERS, RETURNS = frozenset({"orders"}), frozenset({"returns"})
BOTH = ORDERS | RETURNS


class Store(FsspecStore):
    """A store on a disk whose requests are counted, and that fails on request."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.folder = folder
        self.calls: Counter[str] = Counter()
        self.failure: Exception | None = None
        self.shows_objects = self.has_content = True
        self.before_create: Callable[[str], object] = lambda _: None

    def list(self, prefix: str) -> Iterator[StoredObject]:
        self._call("list")
        return super().list(prefix) if self.shows_objects else iter(())

    def read(self, path: str) -> bytes | None:
        return super().read(path) if self.has_content else None

    def create(self, path: str, data: bytes) -> CreateOutcome:
        self._call("create")
        self.before_create(path)
        return super().create(path, data)

    def _call(self, name: str) -> None:
        self.calls[name] += 1
        if self.failure is not None:
            raise self.failure


def away(problem: str = "it is away") -> StoreError:
    return StoreError(problem, "wait")


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def contender(
    store: Store,
    name: str,
    clock: HandClock,
    streams: str = "orders",
    *,
    lease_s: float = LEASE_S,
    metrics: Metrics | None = None,
) -> LoaderLease:
    log, topics = structlog.get_logger(), {stream: [stream] for stream in streams.split()}
    return LoaderLease(store, clock, name, lease_s, topics, log=log, metrics=metrics or Metrics())


def holder(store: Store, name: str, clock: HandClock, streams: str = "orders", lease_s: float = LEASE_S) -> LoaderLease:
    lease = contender(store, name, clock, streams, lease_s=lease_s)
    lease.contend()
    lease.step()
    return lease


def gauges(metrics: Metrics) -> dict[str, float]:
    lines = metrics.exposition().decode().splitlines()
    parts = (line.rpartition(" ") for line in lines if line.startswith("delta_loader_"))
    return {name: float(value) for name, _, value in parts}


def epochs(store: Store) -> list[str]:
    return sorted(path.name for path in (store.folder / FOLDER).iterdir())


def test_loader_only_watches_until_it_contends(store: Store, clock: HandClock) -> None:
    loader = contender(store, "first", clock)
    loader.step()
    assert (loader.held(), loader.holder) == (frozenset(), None)
    loader.contend()
    loader.step()
    assert (loader.held(), loader.holder) == (ORDERS, "first")


def test_step_returns_the_delay_until_the_next(store: Store, clock: HandClock) -> None:
    loader = contender(store, "first", clock)
    assert loader.step() == LEASE_S / 10
    loader.contend()
    assert loader.step() == LEASE_S / 3
    clock.sleep_s(1)
    assert loader.step() == LEASE_S / 3 - 1


def test_only_the_holder_deletes_stale_epochs(store: Store, clock: HandClock) -> None:
    first, second = holder(store, "first", clock), contender(store, "second", clock)
    for _ in range(3):
        clock.sleep_s(LEASE_S / 3)
        first.step()
    low = epoch_path(Epoch(1))
    store.create(low, b"a late request")
    second.step()
    assert len(epochs(store)) == 3
    first.step()
    assert len(epochs(store)) == 2


def test_released_lease_is_not_held_even_when_the_store_is_unreachable(store: Store, clock: HandClock) -> None:
    loader = holder(store, "first", clock)
    store.failure = away()
    with capture_logs() as logs:
        loader.release()
    assert loader.held() == frozenset()
    assert [(line["event"], line["problem"]) for line in logs] == [("lease unreachable", "it is away")]


def test_release_writes_one_epoch_and_a_standby_writes_none(store: Store, clock: HandClock) -> None:
    first, second = holder(store, "first", clock), holder(store, "second", clock)
    store.calls.clear()
    second.release()
    assert store.calls["create"] == 0
    first.release()
    assert store.calls["create"] == 1


def test_backoff_is_twice_the_longest_lease(store: Store, clock: HandClock) -> None:
    holder(store, "other", clock, lease_s=60.0)
    loader, stranger = contender(store, "me", clock), contender(store, "stranger", clock, "returns")
    assert loader.backoff_s == 30.0
    loader.step()
    stranger.step()
    assert (loader.backoff_s, stranger.backoff_s) == (120.0, 30.0)


def test_first_of_several_holders_by_name_is_reported(store: Store, clock: HandClock) -> None:
    for name, stream in (("b", "orders"), ("a", "returns")):
        holder(store, name, clock, stream)
    loader = contender(store, "me", clock, "orders returns")
    loader.step()
    assert (loader.holder, loader.elsewhere) == ("a", BOTH)


def test_claim_missing_from_a_listing_is_not_repeated_at_once(store: Store, clock: HandClock) -> None:
    loader = contender(store, "first", clock)
    loader.contend()
    store.shows_objects = False
    assert loader.step() == LEASE_S / 10
    assert (store.calls["create"], loader.held()) == (1, frozenset())
    store.shows_objects = True
    loader.step()
    assert (store.calls["create"], loader.held()) == (1, ORDERS)


def test_claim_lost_to_a_loader_of_other_streams_is_repeated_at_once(store: Store, clock: HandClock) -> None:
    loader, faster = contender(store, "first", clock), iter(range(1, 3))
    loader.contend()

    def is_faster(_: str) -> None:
        if (epoch := next(faster, None)) is not None:
            grants = (Grant("other", RETURNS, LEASE_S, Epoch(epoch)),)
            record = LeaseRecord("other", released=False, lease_s=LEASE_S, created_ms=0, grants=grants)
            store.write(epoch_path(Epoch(epoch)), record.to_bytes())

    store.before_create = is_faster
    loader.step()
    assert (store.calls["create"], loader.held()) == (3, ORDERS)


def test_epoch_deleted_after_its_listing_is_ignored(store: Store, clock: HandClock) -> None:
    holder(store, "other", clock)
    store.has_content = False
    loader = contender(store, "me", clock)
    loader.step()
    assert loader.holder is None
    assert lease_status(store) is None


def test_store_failing_for_a_whole_lease_is_a_problem_until_it_recovers(store: Store, clock: HandClock) -> None:
    loader = holder(store, "first", clock)
    store.failure = away("the first failure")
    assert loader.step() == LEASE_S / 10
    assert problem(loader) is None
    clock.sleep_s(LEASE_S - 1)
    store.failure = away("the last failure")
    loader.step()
    assert problem(loader) is None
    clock.sleep_s(1)
    assert problem(loader) == f"the lease in {store.url}/lease/loader/ has been unreachable for 15 s: the last failure"
    store.failure = None
    loader.step()
    assert problem(loader) is None


def problem(loader: LoaderLease) -> str | None:
    return loader.problem


def test_gauges_show_the_held_streams(store: Store, clock: HandClock) -> None:
    metrics = Metrics()
    holder(store, "other", clock, "returns")
    loader = contender(store, "me", clock, "orders returns", metrics=metrics)
    names = (
        "delta_loader_lease_held",
        *(f'delta_loader_stream_lease_held{{app_id="{app_id}"}}' for app_id in sorted(BOTH)),
    )
    loader.step()
    assert gauges(metrics) == dict(zip(names, (0, 0, 0), strict=True))
    loader.contend()
    loader.step()
    assert gauges(metrics) == dict(zip(names, (1, 1, 0), strict=True))
    loader.release()
    assert gauges(metrics) == dict(zip(names, (0, 0, 0), strict=True))


def test_each_change_of_the_lease_is_logged_once_by_each_loader(store: Store, clock: HandClock) -> None:
    def events(act: Callable[[], object]) -> list[tuple[object, ...]]:
        with capture_logs() as logs:
            act()
        return [(line["event"], line["epoch"], line.get("holder"), line.get("streams")) for line in logs]

    first, second = contender(store, "first", clock), contender(store, "second", clock, "orders returns")
    first.contend()
    assert events(first.step) == [("lease taken", 1, None, ["orders"])]
    assert events(first.step) == []
    assert events(second.step) == [("standing by", 1, "first", ["orders"])]
    second.contend()
    assert events(second.step) == [("lease taken", 2, None, ["returns"])]
    clock.sleep_s(LEASE_S / 3)
    assert events(first.step) == []
    assert events(second.step) == []
    clock.sleep_s(LEASE_S)
    assert events(second.step) == [("lease taken", 5, None, ["orders"])]
    assert events(first.step) == [("lease lost", 5, "second", None), ("standing by", 5, "second", ["orders"])]
    assert events(second.release) == []
    assert events(first.step) == [("lease released", 6, "second", None), ("lease taken", 7, None, ["orders"])]


@pytest.fixture
def threads() -> Iterator[list[LeaseThread]]:
    made: list[LeaseThread] = []
    yield made
    for thread in made:
        thread.close()


def test_lease_thread_contends_on_request_and_releases_on_close(
    store: Store, clock: HandClock, threads: list[LeaseThread]
) -> None:
    metrics = Metrics()
    lease = contender(store, "me", clock, lease_s=36_000.0, metrics=metrics)
    thread = LeaseThread(lease, structlog.get_logger())
    threads.append(thread)
    until(lambda: len(gauges(metrics)) > 1)
    (running,) = (thread for thread in threading.enumerate() if thread.name == "lease")
    assert running.daemon, "a hanging store does not keep the process alive"
    thread.contend()
    until(lease.held)
    threading.Event().wait(0.1)  # A thread that does not wait would list again and again.
    assert store.calls["list"] <= 3, "it waits until the next step is due"
    store.before_create = lambda _: threading.Event().wait(0.1)
    thread.close()
    status = required(lease_status(store))
    assert status.released
    assert not running.is_alive()


def test_unexpected_exception_does_not_end_the_lease_thread(
    store: Store, clock: HandClock, threads: list[LeaseThread]
) -> None:
    store.failure = RuntimeError("a bug")
    lease = contender(store, "me", clock)
    with capture_logs() as logs:
        thread = LeaseThread(lease, structlog.get_logger())
        threads.append(thread)
        until(lambda: logs)
        store.failure = None
        thread.contend()
        until(lease.held)
    assert (logs[0]["event"], logs[0]["part"]) == ("unexpected exception", "lease")
