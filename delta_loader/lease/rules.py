"""Decides which loader loads which streams: a lease in the stage, without I/O and without a wall clock.

Rules:

1. The lease is a chain of epochs, each an object made by exclusive create. The highest one says which loader loads
   which streams (its grants); no stream is in two grants. A lower epoch means nothing: a late request may create it
   again after it was cleaned up.
2. A loader takes or renews its grant by creating the next epoch, copying the other loaders' grants unchanged. It renews
   every third of the lease time. A grant is valid for one lease time from the moment at which the epoch that renewed it
   was *first sent*, regardless of when that arrived.
3. To another loader, a grant has expired once that loader has seen the same renewal of it for its holder's whole lease
   time, by its own monotonic clock. Times of different machines are never compared. An epoch is seen after it was sent,
   so a holder's time ends before its successor's starts.
4. The response to a create is ignored. After each create the highest epoch is read, and that is the truth, no matter
   what was lost, refused or duplicated on the way.
5. A loader takes every stream of its config that is in no live loader's grant, and only those: loaders of different
   streams never wait for one another. A loader keeps a stream for as long as it renews. A
   grant names the topics of its streams: a config that reads another topic under the same app_id has another stream.
   (A loader whose topics include all of a grant's takes it over.)
6. An epoch of an older release has no grants. Its holder may load any stream, so all streams wait for it; and an older
   release, which reads only the name of the highest epoch's maker, waits for as long as any loader has a grant.
7. Safety never rests on the lease: a process may be paused between the check that it holds the lease and a commit. The
   txn actions decide then (docs/internals/guarantees.md, G4). The lease saves work and conflicts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from common.stage.leases import Epoch, Grant, LeaseRecord

_RENEWALS = 3  # per lease time: two may fail
_CHECKS = 10  # per lease time


@dataclass(frozen=True, slots=True)
class Sent:
    """The last epoch requested, and when it was first requested."""

    epoch: Epoch
    first_s: float


@dataclass(frozen=True, slots=True)
class ObservedGrant:
    """A grant of the highest epoch, and the time since which this renewal of it has been seen."""

    grant: Grant
    since_s: float

    @property
    def over_s(self) -> float:
        """When it expires, if it is another loader's (rule 3)."""
        return self.since_s + self.grant.lease_s


@dataclass(frozen=True, slots=True)
class LeaseState:
    """One contender's knowledge. Times are from its own monotonic clock."""

    me: str
    lease_s: float
    streams: frozenset[str]
    topics: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The topics of its streams, by app id."""
    observed: Epoch | None = None
    """The highest epoch seen so far."""
    grants: tuple[ObservedGrant, ...] = ()
    sent: Sent | None = None
    held_until_s: float | None = None
    """None while this contender is known to have no grant."""

    def held(self, now_s: float) -> frozenset[str]:
        """The streams that this contender holds now (rules 2 and 3)."""
        return self.granted if self.held_until_s is not None and now_s < self.held_until_s else frozenset()

    @property
    def own_grant(self) -> Grant | None:
        """This contender's grant in the highest epoch, expired or not."""
        return next((seen.grant for seen in self.grants if seen.grant.holder == self.me), None)

    @property
    def granted(self) -> frozenset[str]:
        """The streams of this contender's grant in the highest epoch, expired or not."""
        return (self.own_grant.streams if self.own_grant else None) or frozenset()

    @property
    def holds_grant(self) -> bool:
        return self.own_grant is not None

    @property
    def others(self) -> tuple[ObservedGrant, ...]:
        """The grants of other loaders that include a stream of this contender."""
        return tuple(
            seen
            for seen in self.grants
            if seen.grant.holder != self.me and any(self._is_in(seen.grant, app_id) for app_id in self.streams)
        )

    @property
    def elsewhere(self) -> dict[str, str]:
        """The holder of each stream that another loader has, as far as is known."""
        return {
            app_id: seen.grant.holder
            for seen in self.others
            for app_id in self.streams
            if self._is_in(seen.grant, app_id)
        }

    def free(self, now_s: float) -> frozenset[str]:
        """The streams that no other live loader has (rule 5)."""
        living = [seen.grant for seen in self.others if now_s < seen.over_s]
        return frozenset(app_id for app_id in self.streams if not any(self._is_in(grant, app_id) for grant in living))

    def _is_in(self, grant: Grant, app_id: str) -> bool:
        return grant.has(app_id, self.topics.get(app_id, frozenset()))

    @property
    def next_epoch(self) -> Epoch:
        return Epoch(1 if self.observed is None else self.observed + 1)

    @property
    def check_every_s(self) -> float:
        """The interval at which the highest epoch is read."""
        return self.lease_s / _CHECKS


@dataclass(frozen=True, slots=True)
class Wait:
    """Read the highest epoch again after this time."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Claim:
    """Request this epoch, then read the highest one."""

    epoch: Epoch


def next_step(state: LeaseState, now_s: float, *, contending: bool) -> Wait | Claim:
    """The next action. While not ``contending``, the loader only watches, so it knows how long a grant has stood."""
    free = state.free(now_s)
    if contending and free - state.granted:
        return Claim(state.next_epoch)
    waits_s = []
    if state.holds_grant:
        due_s = now_s if state.held_until_s is None else state.held_until_s - state.lease_s * (1 - 1 / _RENEWALS)
        if due_s <= now_s:
            return Claim(state.next_epoch)
        waits_s.append(due_s - now_s)
    if free != state.streams:  # another loader has some: its grant may end at any time
        overs_s = (seen.over_s - now_s for seen in state.others if seen.over_s > now_s)
        waits_s += [state.check_every_s, *overs_s]
    return Wait(min(waits_s, default=state.check_every_s))


def record_of(state: LeaseState, now_s: float, created_ms: int, *, released: bool = False) -> LeaseRecord:
    """The next epoch's content if this contender makes it (rules 2 and 5); ``released``: it gives up its streams."""
    living = [seen.grant for seen in state.grants if seen.grant.holder != state.me and now_s < seen.over_s]
    wanted = frozenset() if released else state.free(now_s)
    topics = {app_id: of for app_id, of in state.topics.items() if app_id in wanted}
    own = [Grant(state.me, wanted, state.lease_s, state.next_epoch, topics)] if wanted else []
    grants = (*own, *living)
    return LeaseRecord(
        holder=grants[0].holder if grants else state.me,
        released=not grants,
        lease_s=max((grant.lease_s for grant in grants), default=state.lease_s),
        created_ms=created_ms,
        grants=grants,
    )


def sending(state: LeaseState, epoch: Epoch, now_s: float) -> LeaseState:
    """The state just before an epoch is requested. A repeated request for the same epoch counts from the first."""
    if state.sent is not None and state.sent.epoch == epoch:
        return state
    return replace(state, sent=Sent(epoch, now_s))


def observed(state: LeaseState, epoch: Epoch, record: LeaseRecord, now_s: float) -> LeaseState:
    """The state after ``epoch`` was found to be the highest; ``now_s`` is a time after that."""
    if state.observed is not None and epoch <= state.observed:
        return state
    since_s = {(seen.grant.holder, seen.grant.renewed): seen.since_s for seen in state.grants}
    grants = tuple(
        ObservedGrant(grant, since_s.get((grant.holder, grant.renewed), now_s)) for grant in record.granted(epoch)
    )
    before, state = state.own_grant, replace(state, observed=epoch, grants=grants)
    own, sent = state.own_grant, state.sent
    if own is not None and sent is not None and own.renewed == sent.epoch:
        return replace(state, held_until_s=sent.first_s + state.lease_s)
    if own is not None and before is not None and own.renewed == before.renewed:
        return state  # another loader's epoch copied it unchanged
    return replace(state, held_until_s=None)


def stale(epochs: Iterable[Epoch], highest: Epoch) -> list[Epoch]:
    """The epochs that a holder may delete. The one before the highest stays: another loader may be reading it."""
    return sorted(epoch for epoch in epochs if epoch < highest - 1)
