"""Detects that so many of a stream's records become dead letters that its config is probably wrong. Pure.

Rules:

1. The share is over the stream's newest records, about `WINDOW_RECORDS` of them: old records do not hide a producer's
   change. Tombstones and filtered records count among them.
2. A few dead letters raise no alarm in a stream that has just started: there have to be `LEAST` of them, or only dead
   letters.
3. An alarm ends when the share has fallen to half of what raises it, so a share near the limit is reported once.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

WINDOW_RECORDS = 10_000
LEAST = 10


@dataclass(frozen=True, slots=True)
class DeadLetterShare:
    records: int
    dead_letters: Mapping[str, int]
    """By error class."""

    @property
    def total(self) -> int:
        return sum(self.dead_letters.values())

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return self.total / self.records if self.records else 0.0

    def passes(self, alarm: float | None) -> bool:
        """Whether that is an alarm (rule 2); ``alarm`` is the share that raises one, None to disable it."""
        is_much = self.total >= LEAST or self.total == self.records
        return alarm is not None and self.total > 0 and is_much and self.share >= alarm

    @property
    def sentence(self) -> str:
        classes = ", ".join(f"{name} {count:,}" for name, count in Counter(self.dead_letters).most_common())
        return f"{self.total:,} of the last {self.records:,} records are dead letters ({classes})"


class AlarmChange(Enum):
    RAISED = "raised"
    ENDED = "ended"


@dataclass(slots=True)
class _Stream:
    window: deque[DeadLetterShare] = field(default_factory=deque)
    records: int = 0
    dead_letters: Counter[str] = field(default_factory=Counter)

    def add(self, batch: DeadLetterShare) -> DeadLetterShare:
        self.window.append(batch)
        self.records += batch.records
        self.dead_letters.update(batch.dead_letters)
        while self.records - self.window[0].records >= WINDOW_RECORDS:
            oldest = self.window.popleft()
            self.records -= oldest.records
            self.dead_letters.subtract(oldest.dead_letters)
        return DeadLetterShare(self.records, dict(+self.dead_letters))


class DeadLetterAlarms:
    def __init__(self, alarm: float | None) -> None:
        """``alarm`` is the share that raises one, None to disable it."""
        self._alarm = alarm
        self._streams: dict[str, _Stream] = {}
        self.raised: dict[str, DeadLetterShare] = {}
        """The alarms that have not ended, by app_id, with the newest share. Safe to read from any thread."""

    def share(self, app_id: str) -> float:
        stream = self._streams.get(app_id)
        return DeadLetterShare(stream.records, stream.dead_letters).share if stream is not None else 0.0

    def add(self, app_id: str, records: int, dead_letters: Mapping[str, int]) -> AlarmChange | None:
        """Count a batch of a stream."""
        if self._alarm is None or not records:
            return None
        newest = self._streams.setdefault(app_id, _Stream()).add(DeadLetterShare(records, dead_letters))
        was_raised = app_id in self.raised
        if newest.passes(self._alarm) or (was_raised and newest.share > self._alarm / 2):
            self.raised = {**self.raised, app_id: newest}
            return None if was_raised else AlarmChange.RAISED
        if was_raised:
            self.raised = {name: share for name, share in self.raised.items() if name != app_id}
            return AlarmChange.ENDED
        return None
