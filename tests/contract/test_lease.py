"""The loader's lease over real stores: a local disk and S3."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import structlog

from common.metrics import Metrics
from common.storage.store import FsspecStore
from delta_loader.lease import LoaderLease, lease_status

if TYPE_CHECKING:
    from tests.conftest import Lake

LEASE_S = 15.0


class HandClock:
    """A clock that a test moves."""

    now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return int(self.now_s * 1000)

    def sleep_s(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def contender(lake: Lake, clock: HandClock, name: str) -> LoaderLease:
    store = FsspecStore(f"{lake.url}/stage", lake.storage_options)
    lease = LoaderLease(store, clock, name, LEASE_S, log=structlog.get_logger(), metrics=Metrics())
    lease.contend()
    lease.step()
    return lease


def test_one_of_two_holds_renews_and_is_replaced_when_it_dies(lake: Lake, clock: HandClock) -> None:
    first, second = contender(lake, clock, "first"), contender(lake, clock, "second")
    store = FsspecStore(f"{lake.url}/stage", lake.storage_options)
    for _ in range(20):
        assert (first.held(), second.held()) == (True, False)
        clock.sleep_s(LEASE_S / 3)
        first.step()
        second.step()
    status = lease_status(store)
    assert status is not None
    assert (status.holder, status.epoch, status.released) == ("first", 21, False)
    assert len(list(store.list("lease/"))) == 2

    clock.sleep_s(LEASE_S)  # the first one does nothing any more
    assert not first.held()
    second.step()
    assert second.held()

    first.step()
    assert (first.held(), first.holder) == (False, "second")


def test_a_released_lease_goes_to_the_next_at_its_next_look(lake: Lake, clock: HandClock) -> None:
    first, second = contender(lake, clock, "first"), contender(lake, clock, "second")
    first.release()
    assert not first.held()
    status = lease_status(FsspecStore(f"{lake.url}/stage", lake.storage_options))
    assert status is not None
    assert (status.holder, status.released) == ("first", True)
    second.step()
    assert second.held()


def test_a_folder_that_somebody_emptied_is_filled_again(lake: Lake, clock: HandClock) -> None:
    first, second = contender(lake, clock, "first"), contender(lake, clock, "second")
    store = FsspecStore(f"{lake.url}/stage", lake.storage_options)
    store.delete([one.path for one in store.list("lease/")])
    second.step()
    assert not second.held()
    clock.sleep_s(LEASE_S / 3)
    first.step()
    second.step()
    assert (first.held(), second.held()) == (True, False)


def test_nobody_ever_held_it(lake: Lake) -> None:
    assert lease_status(FsspecStore(f"{lake.url}/stage", lake.storage_options)) is None
