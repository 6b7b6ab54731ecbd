"""Change events of records with elements, and what a table is after them; nothing here knows how the loader merges."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.fakes.events import Key, Row

Records = dict[int, dict[Key, Row]]
"""The rows of each record, by the keys of its elements."""
OF_ALL = -1
"""The record of an event that deletes all rows."""


@dataclass(frozen=True)
class RecordEvent:
    partition: int
    offset: int
    record: int
    elements: Mapping[Key, str] = field(default_factory=dict)
    """All that the record has then; empty for a delete."""
    sequence: int | None = None

    @property
    def place(self) -> tuple[str, int, int]:
        return "one", self.partition, self.offset


def replay_records(records: Records, load: Iterable[RecordEvent], *, sequenced: bool, soft: bool) -> None:
    """Apply a load's events one by one, in Kafka's order."""
    highest: dict[int, int] = {}  # also of records without rows, until the load ends
    for event in sorted(load, key=lambda event: event.place):
        of_all = event.record == OF_ALL
        for record in list(records) if of_all else [event.record]:
            rows = records.setdefault(record, {})
            sequence = event.sequence if sequenced else None
            known = [highest.get(record), *(row.sequence for row in rows.values())]
            known_highest = max((earlier for earlier in known if earlier is not None), default=None)
            if sequence is not None and known_highest is not None and sequence < known_highest:
                continue
            if sequenced and (sequence is not None or known_highest is not None):
                highest[record] = max(each for each in (sequence, known_highest) if each is not None)
            for name in [name for name in rows if name not in event.elements]:
                if not soft:
                    del rows[name]
                elif not rows[name].deleted:
                    rows[name].deleted = True
                    rows[name].sequence = sequence if sequence is not None else rows[name].sequence
            for name, value in event.elements.items():
                rows[name] = Row(value, sequence, offset=event.offset)
    for record in [record for record, rows in records.items() if not rows]:
        del records[record]
