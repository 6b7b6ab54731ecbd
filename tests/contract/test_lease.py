"""The loader's lease on real stores: a local disk and S3."""

import json

import pytest
import structlog

from common.metrics import Metrics
from common.stage.leases import Epoch, epoch_path
from common.storage.store import FsspecStore
from delta_loader.lease.holder import LoaderLease, lease_status
from tests.conftest import Lake
from tests.fakes.group import HandClock

LEASE_S = 15.0


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def contender(lake: Lake, clock: HandClock, name: str, streams: str = "orders") -> LoaderLease:
    store = FsspecStore(f"{lake.url}/stage", lake.storage_options)
    topics = {app_id: [app_id] for app_id in streams.split()}
    lease = LoaderLease(store, clock, name, LEASE_S, topics, log=structlog.get_logger(), metrics=Metrics())
    lease.contend()
    lease.step()
    return lease


def held(*leases: LoaderLease) -> list[str]:
    return [" ".join(sorted(lease.held())) for lease in leases]


def test_one_of_two_loaders_holds_and_renews_and_is_replaced_when_it_dies(lake: Lake, clock: HandClock) -> None:
    first, second = contender(lake, clock, "first"), contender(lake, clock, "second")
    store = FsspecStore(f"{lake.url}/stage", lake.storage_options)
    for _ in range(20):
        assert held(first, second) == ["orders", ""]
        clock.sleep_s(LEASE_S / 3)
        first.step()
        second.step()
    status = lease_status(store)
    assert status is not None
    assert (status.holder, status.epoch, status.released) == ("first", 21, False)
    assert len(list(store.list("lease/"))) == 2

    clock.sleep_s(LEASE_S)  # the first loader stops renewing
    assert not first.held()
    second.step()
    assert second.held()

    first.step()
    assert (held(first), first.holder) == ([""], "second")


def test_released_lease_goes_to_the_next_loader_at_once(lake: Lake, clock: HandClock) -> None:
    first, second = contender(lake, clock, "first"), contender(lake, clock, "second")
    first.release()
    assert not first.held()
    status = lease_status(FsspecStore(f"{lake.url}/stage", lake.storage_options))
    assert status is not None
    assert (status.holder, status.released) == ("first", True)
    second.step()
    assert second.held()


def test_emptied_lease_folder_is_filled_by_the_holder(lake: Lake, clock: HandClock) -> None:
    first, second = contender(lake, clock, "first"), contender(lake, clock, "second")
    store = FsspecStore(f"{lake.url}/stage", lake.storage_options)
    store.delete([item.path for item in store.list("lease/")])
    second.step()
    assert not second.held()
    clock.sleep_s(LEASE_S / 3)
    first.step()
    second.step()
    assert held(first, second) == ["orders", ""]


def test_lease_status_is_none_before_any_lease(lake: Lake) -> None:
    assert lease_status(FsspecStore(f"{lake.url}/stage", lake.storage_options)) is None


def test_loaders_of_different_streams_wait_only_for_shared_streams(lake: Lake, clock: HandClock) -> None:
    orders, returns = contender(lake, clock, "first", "orders"), contender(lake, clock, "second", "returns")
    both = contender(lake, clock, "third", "orders returns payments")  # a rolling update that adds a stream
    for _ in range(20):
        assert held(orders, returns, both) == ["orders", "returns", "payments"]
        assert both.elsewhere == {"orders", "returns"}
        clock.sleep_s(LEASE_S / 3)
        for lease in (orders, returns, both):
            lease.step()
    status = lease_status(FsspecStore(f"{lake.url}/stage", lake.storage_options))
    assert status is not None
    of = {"first": "orders", "second": "returns", "third": "payments"}
    assert dict(status.grants) == {holder: frozenset({stream}) for holder, stream in of.items()}
    assert status.unheld(["orders", "refunds"]) == ["refunds"]

    orders.release()
    both.step()
    assert held(orders, both) == ["", "orders payments"]

    for _ in range(4):  # the second loader dies
        clock.sleep_s(LEASE_S / 3)
        both.step()
    assert held(both) == ["orders payments returns"]
    returns.step()
    assert held(returns) == [""]
    assert returns.elsewhere == {"returns"}


def test_loaders_of_an_older_release_and_new_ones_wait_for_each_other(lake: Lake, clock: HandClock) -> None:
    store = FsspecStore(f"{lake.url}/stage", lake.storage_options)

    def older(epoch: int, *, released: bool) -> None:
        """The lease of a release that had one lease for all streams."""
        fields = {"version": 1, "holder": "older", "released": released, "lease_s": LEASE_S, "created_ms": 0}
        store.create(epoch_path(Epoch(epoch)), json.dumps(fields).encode())

    older(1, released=False)
    first, second = contender(lake, clock, "first", "orders"), contender(lake, clock, "second", "returns")
    for epoch in (2, 3):
        assert held(first, second) == ["", ""]
        assert first.elsewhere == {"orders"}
        clock.sleep_s(LEASE_S / 3)
        older(epoch, released=False)
        first.step()
        second.step()
    older(4, released=True)
    first.step()
    second.step()
    assert held(first, second) == ["orders", "returns"]

    first.release()
    status = lease_status(store)
    assert status is not None
    assert (status.holder, status.released) == ("second", False), "an older release would take every stream"
    second.release()
    status = lease_status(store)
    assert status is not None
    assert status.released
