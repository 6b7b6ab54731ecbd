"""The lease over the stage's store: reads, claims, renews and releases as lease/rules.py decides.

Rules:

1. `LoaderLease.step` is one iteration: read, act as the state requires, read again. It never raises when a store fails;
   the lease then expires by itself.
2. `LeaseThread` runs it in the background, because a Delta commit may keep the loader busy for longer than a lease.
   Only this thread uses the store; others only call `held`, which reads one immutable value and the clock.
"""

from collections.abc import Iterable, Mapping

from structlog.typing import FilteringBoundLogger

from common import metrics as all_metrics
from common.background import BackgroundLoop
from common.errors import StoreError
from common.metrics import Metrics
from common.ports import Clock, ObjectStore
from common.remedies import CONFIG
from common.stage.leases import FOLDER, Epoch, LeaseRecord, epoch_of, epoch_path, highest_epoch
from delta_loader.lease.rules import Claim, LeaseState, next_step, observed, record_of, sending, stale
from delta_loader.status.values import LeaseStatus

_TRIES = 5  # for an epoch that other loaders renew by, too
_RETRY_AFTER_BUG_S = 1.0
_CLOSE_WITHIN_S = 10.0
REMEDY = (
    f"`delta-loader check {CONFIG}` shows the store's response; a loader must be able to list, read, create and delete "
    "objects below lease/ in the stage. It then resumes by itself (runbook: DeltaLoaderLeaseNotHeld)"
)


class LoaderLease:
    """One contender. ``me`` is a name that no other process ever has."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        me: str,
        lease_s: float,
        streams: Mapping[str, Iterable[str]],
        *,
        log: FilteringBoundLogger,
        metrics: Metrics,
    ) -> None:
        """For ``streams``: by app id, their topics as the config names them. Only watches until `contend` is called."""
        self._store = store
        self._clock = clock
        self._log = log
        self._metrics = metrics
        self._state = LeaseState(
            me, lease_s, frozenset(streams), {app_id: frozenset(topics) for app_id, topics in streams.items()}
        )
        self._contending = False
        self._failing = ""
        self._released = False
        self._failing_since_s: float | None = None

    def held(self) -> frozenset[str]:
        """The streams that this process may load now."""
        return frozenset() if self._released else self._state.held(self._clock.monotonic_s())

    def contend(self) -> None:
        """From now on, take the lease whenever it is free."""
        self._contending = True

    @property
    def backoff_s(self) -> float:
        """The time after which a stream not yet acquired must have a live holder."""
        return 2 * max([self._state.lease_s, *(seen.grant.lease_s for seen in self._state.others)])

    @property
    def holder(self) -> str | None:
        """Another loader that has a stream of this one's, or this one while it has all; None if unknown."""
        state = self._state
        return min(state.elsewhere.values(), default=state.me if state.holds_grant else None)

    @property
    def elsewhere(self) -> frozenset[str]:
        """The streams that another loader has, as far as is known."""
        return frozenset(self._state.elsewhere) - self.held()

    @property
    def problem(self) -> str | None:
        """Why the holder of the lease is unknown: the store failed for a whole lease time."""
        since_s, now_s = self._failing_since_s, self._clock.monotonic_s()
        if since_s is None or now_s - since_s < self._state.lease_s:
            return None
        return (
            f"the lease in {self._store.url}/{FOLDER} has been unreachable for {now_s - since_s:.0f} s: {self._failing}"
        )

    def step(self) -> float:
        """Run one iteration; returns how many seconds to wait for the next."""
        try:
            self._observe()
            step = next_step(self._state, self._clock.monotonic_s(), contending=self._contending)
            for _ in range(_TRIES):
                if not isinstance(step, Claim):
                    break
                before = self._state.observed
                self._create(step.epoch, released=False)
                self._observe()
                step = next_step(self._state, self._clock.monotonic_s(), contending=self._contending)
                if self._state.observed == before:
                    break  # it had no effect, and no other loader's epoch was faster
            self._failing_since_s = None
        except StoreError as error:
            self._failed(error)
            step = None
        self._update_metrics()
        # A claim without effect is not repeated at once.
        return self._state.check_every_s if step is None or isinstance(step, Claim) else step.seconds

    def release(self) -> None:
        """Release the lease, so a standby does not have to wait for it to expire. Must be the last call."""
        self._released = True
        try:
            for _ in range(_TRIES):
                # A renewal whose response was lost may have the epoch of the first try.
                self._observe()
                if not self._state.holds_grant:
                    break
                self._create(self._state.next_epoch, released=True)
        except StoreError as error:
            self._failed(error)
        self._update_metrics()

    def _update_metrics(self) -> None:
        held = self.held()
        self._metrics.set(all_metrics.LOADER_LEASE_HELD, int(bool(held)))
        for app_id in self._state.streams:
            self._metrics.set(all_metrics.LOADER_STREAM_LEASE_HELD, int(app_id in held), app_id=app_id)

    def _observe(self) -> None:
        """Find the highest epoch and read it. Raises StoreError."""
        epochs = [epoch for item in self._store.list(FOLDER) if (epoch := epoch_of(item.path)) is not None]
        if not epochs:
            return
        highest, before = max(epochs), self._state
        if highest >= before.next_epoch:
            data = self._store.read(epoch_path(highest))
            if data is None:
                return  # it was just cleaned up: a higher one exists
            record = LeaseRecord.from_bytes(data, before.lease_s)
            self._state = observed(before, highest, record, self._clock.monotonic_s())
            self._log_changes(before, highest, record)
        if self._state.holds_grant:
            self._store.delete(epoch_path(epoch) for epoch in stale(epochs, highest))

    def _create(self, epoch: Epoch, *, released: bool) -> None:
        """Request an epoch; the next read shows whether it was created. Raises StoreError."""
        now_s = self._clock.monotonic_s()
        record = record_of(self._state, now_s, self._clock.wall_ms(), released=released)
        self._state = sending(self._state, epoch, now_s)
        self._store.create(epoch_path(epoch), record.to_bytes())

    def _failed(self, error: StoreError) -> None:
        if self._failing_since_s is None:
            self._failing_since_s = self._clock.monotonic_s()
        self._failing = error.problem
        self._log.warning("lease unreachable", problem=error.problem, remedy=error.remedy)

    def _log_changes(self, before: LeaseState, epoch: Epoch, record: LeaseRecord) -> None:
        now = self._state
        had, have = before.granted, now.granted
        if have - had:
            self._log.info("lease taken", epoch=epoch, streams=sorted(have - had))
        if had and not have and not self._released:
            self._log.warning("lease lost", epoch=epoch, holder=self.holder)
        held = {epoch.grant.holder for epoch in now.grants}
        for seen in before.others:
            if seen.grant.holder not in held and record.holder != now.me:
                self._log.info("lease released", epoch=epoch, holder=seen.grant.holder)
        if now.elsewhere != before.elsewhere:
            for holder in sorted(set(now.elsewhere.values())):
                streams = sorted(app_id for app_id, other in now.elsewhere.items() if other == holder)
                self._log.info("standing by", epoch=epoch, holder=holder, streams=streams)


class LeaseThread:
    """Runs a lease until closed."""

    def __init__(self, lease: LoaderLease, log: FilteringBoundLogger) -> None:
        self._lease = lease
        # without its thread a loader would wait for the lease forever
        self._loop = BackgroundLoop(
            "lease", lease.step, log, retry_after_bug_s=_RETRY_AFTER_BUG_S, finish=lease.release
        )

    def contend(self) -> None:
        """From now on, take the lease, at once if it is free."""
        self._lease.contend()
        self._loop.wake()

    def close(self) -> None:
        """Release the lease and end, without waiting for a store that does not answer."""
        self._loop.close(_CLOSE_WITHIN_S)


def lease_status(store: ObjectStore) -> LeaseStatus | None:
    """The lease's holder according to the stage; None when there never was one. Raises StoreError."""
    newest = highest_epoch(store)
    if newest is None:
        return None
    highest, item = newest
    data = store.read(item.path)
    if data is None:
        return None
    record = LeaseRecord.from_bytes(data, 0.0)
    grants = tuple((grant.holder, grant.streams) for grant in record.granted(highest))
    return LeaseStatus(record.holder, int(highest), record.released, item.modified_ms, grants)
