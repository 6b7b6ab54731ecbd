"""A loader's lease: every transition and its formats; and over a stage on a disk, step by step and as a thread."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from common.errors import StoreError
from common.metrics import Metrics
from common.ports import CreateOutcome, StoredObject
from common.settings import Settings
from common.stage.leases import FOLDER, Epoch, Grant, LeaseRecord, epoch_of, epoch_path
from common.storage.store import FsspecStore
from delta_loader.lease.holder import LeaseThread, LoaderLease, lease_status
from delta_loader.lease.rules import Claim, LeaseState, Sent, Wait, next_step, observed, record_of, sending, stale
from delta_loader.status.values import LeaseStatus, StreamStatus, to_json, to_text
from tests.builders import required, settings_of
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
    more_topics: Sequence[str] = (),
) -> LoaderLease:
    log, topics = structlog.get_logger(), {stream: [stream, *more_topics] for stream in streams.split()}
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


def test_grant_counts_from_before_its_request(store: Store, clock: HandClock) -> None:
    """Another loader may see the epoch as soon as the store has it, even if its response takes long."""
    store.before_create = lambda _: clock.sleep_s(5)
    loader = holder(store, "first", clock)
    clock.sleep_s(LEASE_S - 5 - 1)
    assert loader.held() == ORDERS
    clock.sleep_s(1)
    assert loader.held() == frozenset()


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


def test_stream_that_another_loader_takes_over_is_there_once_the_own_grant_ends(store: Store, clock: HandClock) -> None:
    loader, other = holder(store, "me", clock), contender(store, "other", clock, more_topics=["orders_eu"])
    other.contend()
    other.step()
    loader.step()
    assert (loader.held(), loader.elsewhere) == (ORDERS, frozenset())
    clock.sleep_s(LEASE_S)
    assert (loader.held(), loader.elsewhere) == (frozenset(), ORDERS)


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
    store: Store, clock: HandClock, threads: list[LeaseThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delta_loader.lease.holder._CLOSE_WITHIN_S", 600.0)
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


NEW = LeaseState("me", LEASE_S, ORDERS)


def record(*grants: Grant, lease_s: float = LEASE_S) -> LeaseRecord:
    return LeaseRecord(grants[0].holder if grants else "me", not grants, lease_s, 1_700_000_000_000, grants)


def grant(holder: str, epoch: int, streams: frozenset[str] | None = ORDERS, *, lease_s: float = LEASE_S) -> Grant:
    return Grant(holder, streams, lease_s, Epoch(epoch))


def older(holder: str, *, released: bool = False, lease_s: float = LEASE_S) -> LeaseRecord:
    """A record of an older release, which had one lease for all streams."""
    return LeaseRecord(holder, released, lease_s, 1_700_000_000_000)


def holding(epoch: int = 1, sent_s: float = 100.0, seen_s: float = 101.0, state: LeaseState = NEW) -> LeaseState:
    made = record(grant("me", epoch, state.streams))
    return observed(sending(state, Epoch(epoch), sent_s), Epoch(epoch), made, seen_s)


def watching(epoch: int = 7, seen_s: float = 100.0, lease_s: float = LEASE_S) -> LeaseState:
    return observed(NEW, Epoch(epoch), record(grant("other", epoch, lease_s=lease_s)), seen_s)


def of_topics(holder: str, *topics: str, epoch: int = 7) -> Grant:
    return replace(grant(holder, epoch), topics={"orders": frozenset(topics)})


def step(state: LeaseState, now_s: float, *, contending: bool = True) -> Wait | Claim:
    return next_step(state, now_s, contending=contending)


def test_unclaimed_lease_is_taken_at_once() -> None:
    assert step(NEW, 0.0) == Claim(Epoch(1))


def test_loader_that_does_not_contend_only_watches() -> None:
    assert step(NEW, 0.0, contending=False) == Wait(1.5)
    assert step(watching(), 1000.0, contending=False) == Wait(1.5)
    state = LeaseState("me", LEASE_S, BOTH)
    state = observed(state, Epoch(7), record(grant("a", 7), grant("b", 7, RETURNS, lease_s=60.0)), 100.0)
    assert step(state, 115.0, contending=False) == Wait(1.5), "an expired grant delays nothing"


def test_claim_that_was_only_sent_is_not_held() -> None:
    assert not sending(NEW, Epoch(1), 100.0).held(100.0)


def test_lease_expires_counting_from_when_its_request_was_sent() -> None:
    state = holding(sent_s=100.0, seen_s=110.0)
    assert state.held(110.0)
    assert state.held(114.9)
    assert not state.held(115.0)


def test_holder_renews_after_a_third_of_the_lease() -> None:
    state = holding(sent_s=100.0)
    assert step(state, 101.0) == Wait(4.0)
    assert step(state, 105.0) == Claim(Epoch(2))
    renewed = observed(sending(state, Epoch(2), 105.0), Epoch(2), record(grant("me", 2)), 105.5)
    assert renewed.held(119.9)
    assert not renewed.held(120.0)


def test_renewal_in_progress_keeps_the_lease() -> None:
    assert sending(holding(sent_s=100.0), Epoch(2), 105.0).held(114.0)


def test_repeated_claim_counts_from_its_first_request() -> None:
    # The first request may have arrived, and other loaders may count from it.
    state = sending(sending(holding(sent_s=100.0), Epoch(2), 105.0), Epoch(2), 113.0)
    assert state.sent == Sent(Epoch(2), 105.0)
    assert not observed(state, Epoch(2), record(grant("me", 2)), 113.5).held(120.0)


def test_expired_holder_claims_the_next_epoch() -> None:
    state = holding(sent_s=100.0)
    assert step(state, 500.0) == Claim(Epoch(2))


def test_stale_holder_gives_way_to_a_higher_epoch() -> None:
    state = observed(holding(sent_s=100.0), Epoch(9), record(grant("other", 9)), 104.0)
    assert not state.held(104.0)
    assert step(state, 104.0) == Wait(1.5)
    assert step(state, 119.0) == Claim(Epoch(10))


def test_standby_waits_a_full_lease_after_it_saw_the_epoch() -> None:
    state = watching(seen_s=100.0)
    assert step(state, 100.0) == Wait(1.5)
    assert step(state, 114.5) == Wait(0.5)
    assert step(state, 115.0) == Claim(Epoch(8))
    again = observed(state, Epoch(8), record(grant("other", 8)), 112.0)
    assert step(again, 115.0) == Wait(1.5)


def test_seeing_the_same_epoch_does_not_restart_the_wait() -> None:
    assert observed(watching(seen_s=100.0), Epoch(7), record(grant("other", 7)), 114.0) == watching(seen_s=100.0)


def test_epoch_that_was_read_keeps_its_content() -> None:
    """Another reading of it may be torn."""
    torn = LeaseRecord.from_bytes(b"", LEASE_S)
    assert observed(holding(5), Epoch(5), torn, 102.0) == holding(5)


def test_lower_epoch_is_ignored() -> None:
    assert observed(watching(), Epoch(3), record(grant("me", 3)), 110.0) == watching()
    assert observed(holding(5), Epoch(4), record(grant("other", 4)), 102.0) == holding(5)


def test_standby_waits_for_the_holders_lease_time() -> None:
    assert step(watching(seen_s=100.0, lease_s=60.0), 159.0) == Wait(1.0)
    assert step(watching(seen_s=100.0, lease_s=60.0), 160.0) == Claim(Epoch(8))
    assert step(watching(seen_s=100.0, lease_s=3.0), 103.0) == Claim(Epoch(8))


def test_released_lease_is_claimed_at_the_next_step() -> None:
    state = observed(watching(), Epoch(8), record(), 101.0)
    assert step(state, 101.0) == Claim(Epoch(9))


def test_released_lease_is_not_held() -> None:
    state = observed(sending(holding(), Epoch(2), 102.0), Epoch(2), record(), 102.0)
    assert not state.holds_grant
    assert not state.held(102.0)


@pytest.mark.parametrize("before", [NEW, holding(sent_s=99.0, seen_s=99.5)])
def test_own_epoch_from_an_earlier_process_is_not_held_and_may_be_succeeded(before: LeaseState) -> None:
    state = observed(before, Epoch(4), record(grant("me", 4)), 100.0)
    assert not state.held(100.0)
    assert step(state, 100.0) == Claim(Epoch(5))


def test_only_streams_without_another_holder_are_claimed() -> None:
    state = observed(LeaseState("me", LEASE_S, BOTH), Epoch(7), record(grant("other", 7)), 100.0)
    assert step(state, 100.0) == Claim(Epoch(8))
    made = record_of(state, 100.0, 0)
    assert made.grants == (grant("me", 8, RETURNS), grant("other", 7))
    assert (made.holder, made.released) == ("me", False)
    state = observed(sending(state, Epoch(8), 100.0), Epoch(8), made, 100.5)
    assert (state.held(101.0), state.elsewhere) == (RETURNS, {"orders": "other"})
    assert step(state, 101.0) == Wait(1.5), "a stream of another loader may become free at any time"


def test_loader_of_other_streams_does_not_delay_a_claim() -> None:
    state = observed(NEW, Epoch(7), record(grant("other", 7, RETURNS)), 100.0)
    assert (state.others, state.elsewhere, step(state, 100.0)) == ((), {}, Claim(Epoch(8)))


def test_epoch_of_another_loader_neither_renews_nor_ends_a_grant() -> None:
    state = observed(holding(1, sent_s=100.0), Epoch(2), record(grant("other", 2, RETURNS), grant("me", 1)), 104.0)
    assert state.held(114.9) == ORDERS
    assert not state.held(115.0)
    assert step(state, 105.0) == Claim(Epoch(3))


def test_renewal_that_lost_its_epoch_keeps_the_current_grant() -> None:
    renewing = sending(holding(1, sent_s=100.0), Epoch(2), 105.0)
    state = observed(renewing, Epoch(2), record(grant("other", 2, RETURNS), grant("me", 1)), 105.5)
    assert state.held(114.9) == ORDERS
    assert not state.held(115.0)


def test_record_carries_the_longest_lease_time_for_older_releases() -> None:
    state = observed(NEW, Epoch(7), record(grant("other", 7, RETURNS, lease_s=60.0)), 100.0)
    assert record_of(state, 100.0, 0).lease_s == 60.0
    state = observed(NEW, Epoch(7), record(grant("other", 7, RETURNS, lease_s=3.0)), 100.0)
    assert record_of(state, 100.0, 0).lease_s == LEASE_S


def test_grant_copied_into_another_epoch_keeps_aging() -> None:
    state = observed(watching(7, seen_s=100.0), Epoch(8), record(grant("more", 8, RETURNS), grant("other", 7)), 112.0)
    assert step(state, 114.0) == Wait(1.0)
    assert step(state, 115.0) == Claim(Epoch(9))
    assert record_of(state, 115.0, 0).grants == (grant("me", 9), grant("more", 8, RETURNS))


def test_release_keeps_the_grants_of_other_loaders() -> None:
    state = observed(holding(1), Epoch(2), record(grant("other", 2, RETURNS), grant("me", 1)), 104.0)
    left = record_of(state, 105.0, 0, released=True)
    assert (left.grants, left.holder, left.released) == ((grant("other", 2, RETURNS),), "other", False)
    last = record_of(holding(1), 105.0, 0, released=True)
    assert (last.grants, last.holder, last.released) == ((), "me", True)


def test_holder_of_an_older_release_blocks_all_streams() -> None:
    state = observed(NEW, Epoch(7), older("other"), 100.0)
    assert state.elsewhere == {"orders": "other"}
    assert step(state, 114.5) == Wait(0.5)
    renewed = observed(state, Epoch(8), older("other"), 112.0)
    assert step(renewed, 115.0) == Wait(1.5)
    assert step(renewed, 127.0) == Claim(Epoch(9))
    assert step(observed(state, Epoch(8), older("other", released=True), 101.0), 101.0) == Claim(Epoch(9))


def test_only_epochs_before_the_last_two_are_stale() -> None:
    assert stale([Epoch(5), Epoch(2), Epoch(4), Epoch(3)], Epoch(5)) == [2, 3]


def test_epoch_path_round_trips() -> None:
    assert epoch_path(Epoch(12)) == "lease/loader/00000000000000000012.lease"
    assert epoch_of(epoch_path(Epoch(12))) == 12
    assert epoch_of("lease/loader/12.lease") is None
    assert epoch_of("done/orders/0/00000000000000000012.done") is None


def test_lease_record_round_trips() -> None:
    for written in (
        older("a"),
        older("b", released=True, lease_s=2.5),
        record(),
        record(grant("a", 3), grant("b", 2, None)),
    ):
        assert LeaseRecord.from_bytes(written.to_bytes(), 1.0) == written


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'{"holder": "a"}', b"\xff"])
def test_unreadable_lease_counts_as_held(data: bytes) -> None:
    lease_record = LeaseRecord.from_bytes(data, 15.0)
    assert lease_record == LeaseRecord("unknown", released=False, lease_s=15.0, created_ms=0)


@pytest.mark.parametrize("lease_s", [0.0, -1.0, float("inf"), float("nan")])
def test_invalid_lease_time_is_replaced(lease_s: float) -> None:
    assert LeaseRecord.from_bytes(older("a", lease_s=lease_s).to_bytes(), 15.0) == older("a", lease_s=15.0)


def test_short_lease_time_is_kept() -> None:
    assert LeaseRecord.from_bytes(older("a", lease_s=0.5).to_bytes(), 15.0) == older("a", lease_s=0.5)


def test_record_is_written_as_version_1() -> None:
    assert json.loads(record().to_bytes())["version"] == 1


def test_status_shows_the_lease_holders() -> None:
    grants = (("host-1", ORDERS), ("host-2", RETURNS))
    lease = LeaseStatus("host-1", 12, released=False, renewed_ms=1_767_225_600_000, grants=grants[:1])
    assert to_text([], lease) == "loader: host-1 (renewed its lease at 2026-01-01T00:00:00+00:00, epoch 12)\n"
    assert to_json([], lease) == {
        "lease": {
            "holder": "host-1",
            "last_holder": "host-1",
            "epoch": 12,
            "renewed_ms": 1_767_225_600_000,
            "holders": [{"holder": "host-1", "streams": ["orders"]}],
            "unheld": [],
        },
        "streams": [],
    }
    assert lease.unheld(["orders", "payments"]) == ["payments"]
    assert replace(lease, grants=(("of an older release", None),)).unheld(["payments"]) == []
    streams = [StreamStatus(app_id, "s3://lake/t", None, None, ()) for app_id in ("orders", "payments")]
    text = to_text(streams, replace(lease, grants=grants))
    assert "  host-1 loads orders\n  host-2 loads returns\n  no loader holds the lease of payments → " in text
    released = replace(lease, released=True)
    assert "released its lease" in to_text([], released)
    assert '"holder": None' in str(to_json([], released)).replace("'", '"')
    assert to_json([]) == {"lease": None, "streams": []}


def settings(lease: str) -> Settings:
    return settings_of(
        {"app_id": "a", "topics": ["t"], "table": "memory://t", "columns": "a INT"},
        folder="memory:/",
        loader={"lease": lease},
    )


def test_lease_time_is_zero_or_long_enough_to_renew() -> None:
    assert settings("0s").loader.lease_s == 0
    assert settings("1s").loader.lease_s == 1
    with pytest.raises(ValueError, match="too short to be renewed"):
        settings("500ms")


@pytest.mark.parametrize(
    ("mine", "theirs", "is_free"),
    [
        (["orders"], ["orders"], False),
        (["orders"], ["orders", "orders_eu"], False),
        (["orders", "orders_eu"], ["orders"], True),
        (["orders_eu"], ["orders"], True),
    ],
)
def test_app_id_with_a_topic_the_holder_does_not_read_is_free(
    mine: list[str], theirs: list[str], *, is_free: bool
) -> None:
    state = replace(NEW, topics={"orders": frozenset(mine)})
    state = observed(state, Epoch(7), record(of_topics("other", *theirs)), 100.0)
    assert state.free(101.0) == (ORDERS if is_free else frozenset())
    assert state.elsewhere == ({} if is_free else {"orders": "other"})
    assert isinstance(step(state, 101.0), Claim) is is_free


def test_grant_without_topics_covers_any_topics() -> None:
    state = observed(
        replace(NEW, topics={"orders": frozenset({"orders_eu"})}), Epoch(7), record(grant("other", 7)), 1.0
    )
    assert not state.free(2.0)


def test_grant_records_the_topics_of_its_streams() -> None:
    made = record_of(replace(NEW, topics={"orders": frozenset({"b", "a"})}), 1.0, 0)
    assert made.grants == (replace(grant("me", 1), topics={"orders": frozenset({"a", "b"})}),)
    assert LeaseRecord.from_bytes(made.to_bytes(), 1.0) == made
    assert b'"topics"' not in record(grant("me", 1)).to_bytes()
