"""The epochs of the loaders' lease: objects in the stage that say which loader loads which streams.

Who may create one, and when a grant expires: delta_loader/lease/rules.py.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NewType

from common.ports import ObjectStore, StoredObject

Epoch = NewType("Epoch", int)
FOLDER = "lease/loader/"
_PATH = re.compile(re.escape(FOLDER) + r"(\d{20})\.lease")


def epoch_path(epoch: Epoch) -> str:
    return f"{FOLDER}{epoch:020}.lease"


def epoch_of(path: str) -> Epoch | None:
    match = _PATH.fullmatch(path)
    return None if match is None else Epoch(int(match[1]))


@dataclass(frozen=True, slots=True)
class Grant:
    holder: str
    """A name that no other process ever has."""
    streams: frozenset[str] | None
    """None means any stream: an older release, which does not name its streams, wrote it."""
    lease_s: float
    renewed: Epoch
    topics: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By app id, as the loader's config names them; any topic of a stream without an entry."""

    def has(self, app_id: str, topics: frozenset[str]) -> bool:
        return self.streams is None or (app_id in self.streams and topics <= self.topics.get(app_id, topics))


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    holder: str
    """The maker, or a loader that has a grant; older releases read this."""
    released: bool
    """Whether no loader has a grant."""
    lease_s: float
    """The longest lease time of a grant."""
    created_ms: int
    """By its maker's wall clock; informational only."""
    grants: tuple[Grant, ...] | None = None
    """None in an epoch of an older release."""

    def to_bytes(self) -> bytes:
        fields: dict[str, object] = {
            "version": 1,
            "holder": self.holder,
            "released": self.released,
            "lease_s": self.lease_s,
            "created_ms": self.created_ms,
        }
        if self.grants is not None:
            fields["grants"] = [
                {
                    "holder": grant.holder,
                    "streams": None if grant.streams is None else sorted(grant.streams),
                    "lease_s": grant.lease_s,
                    "renewed": grant.renewed,
                    **({"topics": _sorted(grant.topics)} if grant.topics else {}),
                }
                for grant in self.grants
            ]
        return json.dumps(fields).encode()

    @classmethod
    def from_bytes(cls, data: bytes, otherwise_s: float) -> LeaseRecord:
        """The inverse. Unreadable content counts as another loader's, with a lease time of ``otherwise_s``."""
        try:
            fields = json.loads(data)
            grants = fields.get("grants")
            record = cls(
                str(fields["holder"]),
                fields["released"] is True,
                _lease_s(fields["lease_s"], otherwise_s),
                int(fields["created_ms"]),
                None if grants is None else tuple(_grant(grant, otherwise_s) for grant in grants),
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            return cls("unknown", released=False, lease_s=otherwise_s, created_ms=0)
        return record

    def granted(self, epoch: Epoch) -> tuple[Grant, ...]:
        """The grants of the epoch with this content (rule 6)."""
        if self.grants is not None:
            return self.grants
        return () if self.released else (Grant(self.holder, None, self.lease_s, epoch),)


def _grant(grant: dict[str, object], otherwise_s: float) -> Grant:
    streams = grant["streams"]
    named = frozenset(map(str, streams)) if isinstance(streams, list) else None
    topics = grant.get("topics")
    return Grant(
        str(grant["holder"]),
        named,
        _lease_s(grant["lease_s"], otherwise_s),
        Epoch(int(str(grant["renewed"]))),
        {str(app_id): frozenset(map(str, of)) for app_id, of in topics.items()} if isinstance(topics, dict) else {},
    )


def _sorted(topics: Mapping[str, frozenset[str]]) -> dict[str, list[str]]:
    return {app_id: sorted(of) for app_id, of in sorted(topics.items())}


def _lease_s(value: object, otherwise_s: float) -> float:
    lease_s = float(str(value))
    return lease_s if 0 < lease_s < math.inf else otherwise_s


def highest_epoch(store: ObjectStore) -> tuple[Epoch, StoredObject] | None:
    """The highest epoch and its object; None when there never was one. Raises StoreError."""
    epochs = {epoch: item for item in store.list(FOLDER) if (epoch := epoch_of(item.path)) is not None}
    return max(epochs.items(), default=None, key=lambda item: item[0])


def current_grants(store: ObjectStore, otherwise_s: float) -> tuple[Grant, ...]:
    """The grants of the highest epoch, expired or not; ``otherwise_s`` as in `LeaseRecord`. Raises StoreError."""
    while True:
        newest = highest_epoch(store)
        if newest is None:
            return ()
        highest, item = newest
        data = store.read(item.path)
        if data is not None:  # else a higher one was created since, and this one cleaned up
            return LeaseRecord.from_bytes(data, otherwise_s).granted(highest)
