"""Change events, and what a table is after them, in plain Python: nothing here knows how the loader merges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

Key = tuple[object, ...]


@dataclass(frozen=True)
class Event:
    """One event of a key."""

    topic: str
    partition: int
    offset: int
    key: Key
    value: str | None
    deletes: bool
    sequence: int | None = None

    @property
    def place(self) -> tuple[str, int, int]:
        return self.topic, self.partition, self.offset


@dataclass
class Row:
    """What a table has for a key."""

    value: str | None = None
    sequence: int | None = None
    deleted: bool = False
    offset: int | None = None
    """Of the event that gave it its value."""


Table = dict[Key, Row]


def replay(table: Table, load: Iterable[Event], *, sequenced: bool, soft: bool) -> None:
    """Apply a load's events one by one, in Kafka's order."""
    highest: dict[Key, int] = {}  # also of rows that were deleted, until the load ends
    for event in sorted(load, key=lambda event: event.place):
        row = table.get(event.key)
        known = [at for at in (highest.get(event.key), row.sequence if row else None) if at is not None]
        if sequenced and event.sequence is not None and known and event.sequence < max(known):
            continue
        if sequenced and (event.sequence is not None or known):
            highest[event.key] = max([*known, *([event.sequence] if event.sequence is not None else [])])
        if not event.deletes:
            table[event.key] = Row(event.value, event.sequence if sequenced else None, offset=event.offset)
        elif not soft:
            table.pop(event.key, None)
        else:
            row = table.setdefault(event.key, Row())
            row.deleted = True
            if sequenced:
                row.sequence = highest.get(event.key, row.sequence)
