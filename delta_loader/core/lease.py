"""Which of several loaders loads: a lease in the stage, decided here without I/O and without a wall clock.

Rules:

1. The lease is a chain of epochs, each an object made by exclusive create. The highest one says who holds the lease,
   or that its holder let it go. One below the highest says nothing: a late request may make it anew after it was
   cleaned away.
2. A holder renews by making the next epoch each third of the lease time. What it made is good for one lease time from
   the moment at which it *first sent* the request, whenever that arrived.
3. A contender makes the next epoch when it has seen the same one for its holder's whole lease time, by the contender's
   own monotonic clock. No moment of one machine is ever compared with one of another. An epoch is seen after it was
   sent, so a holder's time is over before its successor's begins.
4. The answer to a create is not asked for. After each one the highest epoch is looked at, and that is the truth,
   whatever was lost, refused or doubled on the way.
5. Safety never rests on the lease: a process may be stopped between asking whether it holds it and a commit. The txn
   actions decide then (docs/guarantees.md, G4). The lease saves work and conflicts.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NewType

if TYPE_CHECKING:
    from collections.abc import Iterable

Epoch = NewType("Epoch", int)
FOLDER = "lease/loader/"
_PATH = re.compile(re.escape(FOLDER) + r"(\d{20})\.lease")
_RENEWALS = 3  # in a lease time: two may fail
_LOOKS = 10  # in a lease time


def epoch_path(epoch: Epoch) -> str:
    """Where an epoch lies below the stage."""
    return f"{FOLDER}{epoch:020}.lease"


def epoch_of(path: str) -> Epoch | None:
    """The inverse of `epoch_path`; None for any other path."""
    match = _PATH.fullmatch(path)
    return None if match is None else Epoch(int(match[1]))


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """What an epoch says."""

    holder: str
    """A name that no other process ever has."""
    released: bool
    """Whether the holder lets the lease go with this epoch."""
    lease_s: float
    created_ms: int
    """By the holder's wall clock; for people only."""

    def to_bytes(self) -> bytes:
        """The object's content."""
        fields = {
            "version": 1,
            "holder": self.holder,
            "released": self.released,
            "lease_s": self.lease_s,
            "created_ms": self.created_ms,
        }
        return json.dumps(fields).encode()

    @classmethod
    def from_bytes(cls, data: bytes, otherwise_s: float) -> LeaseRecord:
        """The inverse; what cannot be read is somebody's, and is waited for as ``otherwise_s`` says."""
        try:
            found = json.loads(data)
            record = cls(
                str(found["holder"]), found["released"] is True, float(found["lease_s"]), int(found["created_ms"])
            )
        except (ValueError, TypeError, KeyError):
            return cls("unknown", released=False, lease_s=otherwise_s, created_ms=0)
        return record if 0 < record.lease_s < math.inf else replace(record, lease_s=otherwise_s)


@dataclass(frozen=True, slots=True)
class Seen:
    """The highest epoch that was ever seen, and since when."""

    epoch: Epoch
    record: LeaseRecord
    since_s: float


@dataclass(frozen=True, slots=True)
class Sent:
    """The epoch last asked for, and when it first was."""

    epoch: Epoch
    first_s: float


@dataclass(frozen=True, slots=True)
class LeaseState:
    """What one contender knows. Times are its own monotonic clock's."""

    me: str
    lease_s: float
    seen: Seen | None = None
    sent: Sent | None = None
    held_until_s: float | None = None
    """None while it is known that another one holds the lease, or nobody."""

    def held(self, now_s: float) -> bool:
        """Whether the lease is this contender's now (rules 2 and 3)."""
        return self.held_until_s is not None and now_s < self.held_until_s

    @property
    def is_mine(self) -> bool:
        """Whether the highest epoch is this contender's, be its time over or not."""
        return self.seen is not None and self.seen.record.holder == self.me and not self.seen.record.released

    @property
    def next_epoch(self) -> Epoch:
        """The one to ask for."""
        return Epoch(1 if self.seen is None else self.seen.epoch + 1)

    @property
    def look_every_s(self) -> float:
        """How long to wait between two looks."""
        return self.lease_s / _LOOKS


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again after this time."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Claim:
    """Ask for this epoch, and look."""

    epoch: Epoch


def next_step(state: LeaseState, now_s: float, *, contending: bool) -> Wait | Claim:
    """What to do now. Who is not ``contending`` yet only watches, so that it knows how long an epoch has stood."""
    if state.is_mine:
        due_s = now_s if state.held_until_s is None else state.held_until_s - state.lease_s * (1 - 1 / _RENEWALS)
    elif state.seen is None or state.seen.record.released:
        due_s = now_s
    else:
        due_s = state.seen.since_s + state.seen.record.lease_s
    if due_s <= now_s and (contending or state.is_mine):
        return Claim(state.next_epoch)
    if state.is_mine:
        return Wait(due_s - now_s)
    return Wait(min(state.look_every_s, due_s - now_s) if due_s > now_s else state.look_every_s)


def sending(state: LeaseState, epoch: Epoch, now_s: float) -> LeaseState:
    """The state just before an epoch is asked for. A second request for the same epoch counts from the first."""
    if state.sent is not None and state.sent.epoch == epoch:
        return state
    return replace(state, sent=Sent(epoch, now_s))


def observed(state: LeaseState, epoch: Epoch, record: LeaseRecord, now_s: float) -> LeaseState:
    """The state after ``epoch`` was found to be the highest; ``now_s`` is a moment after that."""
    if state.seen is not None and epoch <= state.seen.epoch:
        return state
    state = replace(state, seen=Seen(epoch, record, now_s))
    if not state.is_mine or state.sent is None or state.sent.epoch != epoch:
        return replace(state, held_until_s=None)
    return replace(state, held_until_s=state.sent.first_s + state.lease_s)


def stale(epochs: Iterable[Epoch], highest: Epoch) -> list[Epoch]:
    """What the holder of the highest may delete. The one before stays: somebody may be about to read it."""
    return sorted(epoch for epoch in epochs if epoch < highest - 1)
