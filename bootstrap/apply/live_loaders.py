"""Waits until no loader loads a topic under another app_id: it would add to what a new chain is planned from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.errors import UsageError
from common.stage.leases import current_grants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from common.ports import Clock, ObjectStore
    from common.stage.leases import Epoch, Grant

_LOOKS = 10  # per lease time


def require_no_loader(
    store: ObjectStore,
    clock: Clock,
    lease_s: float,
    streams: Mapping[str, frozenset[str]],
    *,
    say: Callable[[str], None],
) -> None:
    """Return once no loader holds the lease of one of ``streams`` (topics by app_id). Raises StoreError.

    Raises UsageError when a loader renews its lease meanwhile, or takes one. A lease that is not renewed for its whole
    time has expired (delta_loader/lease/rules.py, rule 3); until then this waits.
    """
    began_s = clock.monotonic_s()
    first = _grants(store, lease_s, streams)
    waits_s = max((grant.lease_s for grant in first.values()), default=0.0)
    if first:
        holders = ", ".join(sorted({grant.holder for grant in first.values()}))
        say(f"waiting up to {waits_s:.0f} s to learn whether the loader {holders} still runs")
    while (now := _grants(store, lease_s, streams)) and clock.monotonic_s() - began_s < waits_s:
        renewed = next((grant for key, grant in now.items() if key not in first), None)
        if renewed is not None:
            loads = ", ".join(sorted(app_id for app_id in streams if renewed.has(app_id, frozenset())))
            msg = f"the loader {renewed.holder} still loads the stream {loads}: what it adds would be loaded twice"
            raise UsageError(msg, "stop it, or restart it with the config as it is now; then run this command again")
        clock.sleep_s(waits_s / _LOOKS)


def _grants(
    store: ObjectStore, lease_s: float, streams: Mapping[str, frozenset[str]]
) -> dict[tuple[str, Epoch], Grant]:
    """The grants that include one of the streams, by holder and renewal."""
    grants = (grant for grant in current_grants(store, lease_s) if _includes(grant, streams.items()))
    return {(grant.holder, grant.renewed): grant for grant in grants}


def _includes(grant: Grant, streams: Iterable[tuple[str, frozenset[str]]]) -> bool:
    """Whether a stream is in it. A topic that is given by a pattern may be any."""
    for app_id, topics in streams:
        named = grant.topics.get(app_id, topics)
        if grant.has(app_id, frozenset()) and any(topic in topics or topic.startswith("^") for topic in named):
            return True
    return False
