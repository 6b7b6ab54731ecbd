"""A new chain is planned only once no loader adds to the table under the stream's former app_id."""

from dataclasses import replace

import pytest

from bootstrap.apply.loaders import require_no_loader
from common.errors import UsageError
from common.stage.leases import Epoch, Grant, LeaseRecord, epoch_path
from common.storage.store import FsspecStore
from tests.fakes.clock import IdleClock

OLD = {"orders-v1": frozenset({"orders"})}


class Lease:
    """An in-memory stage's lease, which its loader renews ``renewals`` times."""

    def __init__(self, url: str, *grants: Grant, renewals: int = 0) -> None:
        self.store = FsspecStore(url)
        self.clock = IdleClock()
        self.messages: list[str] = []
        self._grants = grants
        self._renewals = renewals
        self._put(1)

    def check(self) -> None:
        sleep = self.clock.sleep_s

        def slept(seconds: float) -> None:
            sleep(seconds)
            epoch = 2 + int(self.clock.monotonic_s() // 10)
            if epoch - 2 in range(1, self._renewals + 1):
                self._put(epoch)

        self.clock.sleep_s = slept  # type: ignore[method-assign]
        require_no_loader(self.store, self.clock, 30.0, OLD, say=self.messages.append)

    def _put(self, epoch: int) -> None:
        grants = tuple(
            Grant(
                grant.holder,
                grant.streams,
                grant.lease_s,
                Epoch(epoch) if self._renewals else grant.renewed,
                grant.topics,
            )
            for grant in self._grants
        )
        record = LeaseRecord("loader-1", released=not grants, lease_s=30.0, created_ms=0, grants=grants)
        self.store.create(epoch_path(Epoch(epoch)), record.to_bytes())


def granted(streams: frozenset[str] | None, topics: dict[str, frozenset[str]] | None = None) -> Grant:
    return Grant("loader-1", streams, 30.0, Epoch(1), topics or {})


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return f"memory://live_loaders/{request.node.name}"


def test_renewing_loader_is_refused_without_waiting_longer(url: str) -> None:
    lease = Lease(url, granted(frozenset({"orders-v1", "other"}), dict(OLD)), renewals=1)
    with pytest.raises(UsageError, match="loader-1 still loads the stream orders-v1") as error:
        lease.check()
    assert error.value.remedy.startswith("stop it")
    assert lease.clock.monotonic_s() < 30, "it did not wait for the whole lease time"


def test_dead_loader_is_waited_for_until_its_lease_ends(url: str) -> None:
    lease = Lease(url, granted(frozenset({"orders-v1"}), dict(OLD)))
    lease.check()
    assert lease.clock.monotonic_s() == 30
    assert lease.messages == ["waiting up to 30 s to learn whether the loader loader-1 still runs"]
    lease.check()
    assert lease.clock.monotonic_s() == 60, "each command waits by itself"


def test_longest_lease_is_waited_for(url: str) -> None:
    grant = granted(frozenset({"orders-v1"}))
    lease = Lease(url, grant, replace(grant, holder="loader-2", lease_s=60.0))
    lease.check()
    assert lease.clock.monotonic_s() == 60


@pytest.mark.parametrize(
    ("grant", "waits"),
    [
        (granted(None), True),
        (granted(frozenset({"orders-v1"})), True),
        (granted(frozenset({"orders-v1"}), {"orders-v1": frozenset({"^ord.*"})}), True),
        (granted(frozenset({"orders-v1"}), {"orders-v1": frozenset({"orders", "returns"})}), True),
        (granted(frozenset({"orders-v1"}), {"orders-v1": frozenset({"returns"})}), False),
        (granted(frozenset({"orders-v2"})), False),
    ],
    ids=["older-release", "any-topic", "pattern", "one-of-its-topics", "other-topic", "new-stream"],
)
def test_only_loaders_of_the_topic_under_the_former_app_id_count(url: str, grant: Grant, *, waits: bool) -> None:
    lease = Lease(url, grant)
    lease.check()
    assert bool(lease.clock.monotonic_s()) is waits


def test_no_wait_without_a_lease(url: str) -> None:
    lease = Lease(url)
    lease.check()
    assert (lease.clock.monotonic_s(), lease.messages) == (0, [])
