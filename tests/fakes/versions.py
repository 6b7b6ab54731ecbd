"""Every version of each key's row, in plain Python: nothing here knows how the loader merges."""

from collections.abc import Iterable
from dataclasses import dataclass

from tests.fakes.events import Event, Key


@dataclass
class Version:
    value: str | None
    valid_from: int | None
    valid_to: int | None = None
    is_current: bool | None = True
    deleted: bool = False


Versions = dict["Key", list[Version]]


def replay_in_order(events: Iterable[Event], *, soft: bool) -> Versions:
    """Without a sequence: each event's time, its `sequence`, is at least that of the key's last change."""
    by_key: Versions = {}
    for event in sorted(events, key=lambda change: change.order):
        versions = by_key.setdefault(event.key, [])
        last = versions[-1] if versions and versions[-1].is_current else None
        if event.deletes and (last is None or last.deleted):
            continue
        times = [event.sequence, *(time for version in versions for time in (version.valid_from, version.valid_to))]
        valid_from = max((time for time in times if time is not None), default=None)
        if last is not None:
            last.valid_to, last.is_current = valid_from, False
        if soft or not event.deletes:
            versions.append(Version(event.value, valid_from, deleted=event.deletes))
    return {key: versions for key, versions in by_key.items() if versions}


def replay_by_sequence(events: Iterable[Event], *, soft: bool) -> Versions:
    """With a sequence, of all events at once: a timeline of each key, of which each moment has its last event."""
    timelines: dict[Key, dict[int, list[Event]]] = {}
    for event in sorted(events, key=lambda change: change.order):
        assert event.sequence is not None
        timelines.setdefault(event.key, {}).setdefault(event.sequence, []).append(event)
    by_key: Versions = {}
    for key, timeline in timelines.items():
        moments = sorted(timeline)
        for moment, following in zip(moments, [*moments[1:], None], strict=True):
            changes = timeline[moment]
            ends = changes[-1].deletes and not soft
            images = changes[-1:] if soft else [change for change in changes if not change.deletes][-1:]
            for image in images:
                until = moment if ends else following
                version = Version(image.value, moment, until, until is None, deleted=image.deletes)
                by_key.setdefault(key, []).append(version)
    return by_key
