"""Change events and the table that they result in, in plain Python, independent of how the loader merges."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

Key = tuple[object, ...]


@dataclass(frozen=True)
class Event:
    topic: str
    partition: int
    offset: int
    key: Key
    """(None, None) for an event that deletes all rows."""
    value: str | None
    deletes: bool
    sequence: int | None = None
    row: int = 0
    """The index among the rows of its message."""

    @property
    def place(self) -> tuple[str, int, int]:
        return self.topic, self.partition, self.offset

    @property
    def order(self) -> tuple[str, int, int, int]:
        return *self.place, self.row


@dataclass
class Row:
    value: str | None = None
    sequence: int | None = None
    deleted: bool = False
    offset: int | None = None
    """The offset of the event that set the value."""


Table = dict[Key, Row]


Place = tuple[str, int, int]
Forbids = Callable[[Row], bool]
"""Which rows a table refuses, for any key."""


def replay(
    table: Table,
    load: Iterable[Event],
    *,
    sequenced: bool,
    soft: bool,
    forbids: Forbids = lambda _row: False,
    patches: bool = False,
) -> set[Place]:
    """Apply a load's events one by one, in Kafka's order. Returns the places of those that the table forbids.

    An upsert is refused for its row, also where it would not have counted; a soft delete only where there is no row,
    for the one that it would have made. ``patches``: an upsert without a value leaves that of its row.
    """
    highest: dict[Key, int] = {}  # also of rows that were deleted, until the load ends
    refused: set[Place] = set()
    for event in _with_each_key(sorted(load, key=lambda event: event.order), table):
        row, sequence = table.get(event.key), event.sequence if sequenced else None
        made = Row(None, sequence, deleted=True) if event.deletes else Row(event.value, sequence, offset=event.offset)
        if forbids(made) and (not event.deletes or (soft and row is None)):
            refused.add(event.place)
            continue
        known = [other for other in (highest.get(event.key), row.sequence if row else None) if other is not None]
        if sequenced and event.sequence is not None and known and event.sequence < max(known):
            continue
        if sequenced and (event.sequence is not None or known):
            highest[event.key] = max([*known, *([event.sequence] if event.sequence is not None else [])])
        if not event.deletes:
            if patches and made.value is None and row is not None and not row.deleted:
                made.value = row.value
            table[event.key] = made
        elif not soft:
            table.pop(event.key, None)
        else:
            row = table.setdefault(event.key, Row())
            row.deleted = True
            if sequenced:
                row.sequence = highest.get(event.key, row.sequence)
    return refused


OF_ALL: Key = (None, None)


def _with_each_key(load: Iterable[Event], table: Table) -> Iterator[Event]:
    """The events, where each deletion of all rows is replaced by a delete of each existing key."""
    for event in load:
        if event.key == OF_ALL:
            yield from [replace(event, key=key) for key, row in table.items() if not row.deleted]
        else:
            yield event
