"""A task's time, and its schedule.

Rules:

1. Stream time is the highest time of the messages that were processed. A message that fails does not count.
2. A punctuation's times are as in Kafka Streams: by stream time at 0 (so with the first record) and then at multiples
   of its interval; by wall clock an interval after the clock is first read. An overdue punctuation is called once.
3. Those that are due at once are called in the order of their times, and at one time in the order of scheduling.
4. `Timers.times` is enough to resume: punctuations are identified by their node and their number there.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from stage_writer.topologies.stores import TaskStores

Punctuator = Callable[[int], None]


class PunctuationType(StrEnum):
    """The time that triggers a punctuation."""

    STREAM_TIME = "stream_time"
    """The highest time of the task's records: driven by data, with the same result when the data is read again."""

    WALL_CLOCK_TIME = "wall_clock_time"
    """The machine's clock, read when the task is given records."""


Heap = list[tuple[int, int, "Timer"]]
Journal = list[tuple["Timer", bool]]
Saved = tuple[Heap, list[bool]]
Name = tuple[str, int]
"""The name of a node, and the index of the punctuation among the node's."""


NEVER_MS = 2**63
"""A time after the last possible time of a message."""
NO_TIME_MS = -1


@dataclass(slots=True, eq=False)
class Timer:
    """A scheduled punctuation."""

    name: Name
    interval_ms: int
    callback: Punctuator
    journal: Journal
    """Records changes: the timer, and whether it was cancelled before (a new timer counts as cancelled)."""
    cancelled: bool = False

    def cancel(self) -> None:
        """Stop calling the callback."""
        if not self.cancelled:
            self.journal.append((self, False))
            self.cancelled = True


@dataclass(slots=True)
class Timers:
    journal: Journal = field(default_factory=list)
    """Timers scheduled and cancelled in this message."""
    heap: Heap = field(default_factory=list)
    """For each timer: when it is due next, its number, and the timer itself."""
    numbers: int = 0

    @property
    def next_ms(self) -> int:
        return self.heap[0][0] if self.heap else NEVER_MS

    def schedule(self, name: Name, interval_ms: int, callback: Punctuator, first_ms: int) -> Timer:
        timer = Timer(name, interval_ms, callback, self.journal)
        heapq.heappush(self.heap, (first_ms, self.numbers, timer))
        self.numbers += 1
        self.journal.append((timer, True))
        return timer

    def due(self, now_ms: int) -> Iterator[Timer]:
        """The due punctuations, each scheduled again after its call (rules 2 and 3)."""
        while self.next_ms <= now_ms:
            at_ms, number, timer = heapq.heappop(self.heap)
            if timer.cancelled:
                continue
            yield timer
            if not timer.cancelled:
                following = at_ms + ((now_ms - at_ms) // timer.interval_ms + 1) * timer.interval_ms
                heapq.heappush(self.heap, (following, number, timer))

    def times(self) -> dict[Name, int]:
        return {timer.name: due_ms for due_ms, _, timer in self.heap if not timer.cancelled}

    def set_times(self, times: Mapping[Name, int], offset_ms: int = 0) -> None:
        """Set the due times of known timers; shift the others by as much."""
        self.heap = [(times.get(timer.name, due_ms + offset_ms), number, timer) for due_ms, number, timer in self.heap]
        heapq.heapify(self.heap)

    def saved(self) -> Saved:
        return list(self.heap), [timer.cancelled for _, _, timer in self.heap]

    def restore(self, saved: Saved) -> None:
        self.heap = list(saved[0])
        for (_, _, timer), cancelled in zip(*saved, strict=True):
            timer.cancelled = cancelled


class TaskClock:
    __slots__ = ("_wall_times", "journal", "stream", "stream_time_ms", "wall", "wall_clock_ms")

    def __init__(self) -> None:
        self.journal: Journal = []
        """Timers scheduled and cancelled in this message; cleared when a message begins."""
        self.stream_time_ms = NO_TIME_MS
        self.wall_clock_ms = NO_TIME_MS
        self.stream = Timers(self.journal)
        self.wall = Timers(self.journal)
        self._wall_times: Mapping[Name, int] = {}

    def set_wall_clock(self, wall_clock_ms: int) -> None:
        if self.wall_clock_ms == NO_TIME_MS:
            self.wall.set_times(self._wall_times, wall_clock_ms)
        self.wall_clock_ms = wall_clock_ms

    def resume(self, stream_time_ms: int, stream: Mapping[Name, int], wall: Mapping[Name, int]) -> None:
        """Continue from a previous task's timers; wall-clock times wait until the clock is first read."""
        self.stream_time_ms = stream_time_ms
        self.stream.set_times(stream)
        self._wall_times = wall

    def undo(self, stream_time_ms: int) -> None:
        """Undo the message; this was the time before it."""
        self.stream_time_ms = stream_time_ms
        for timer, cancelled in reversed(self.journal):
            timer.cancelled = cancelled
        self.journal.clear()

    def saved(self) -> tuple[int, Saved, Saved]:
        return self.stream_time_ms, self.stream.saved(), self.wall.saved()

    def restore(self, saved: tuple[int, Saved, Saved]) -> None:
        self.stream_time_ms, stream, wall = saved
        self.stream.restore(stream)
        self.wall.restore(wall)
        self.journal.clear()


TASK_STORE = "__task"
_STREAM_TIME, _STREAM, _WALL = "stream_time_ms", "stream_punctuations", "wall_punctuations"


class ClockMemory:
    """Keeps the clock in the task's own store."""

    def __init__(self, stores: TaskStores) -> None:
        self._store = stores.store(TASK_STORE)
        self._kept: dict[str, Any] = {}

    def recall(self, clock: TaskClock) -> None:
        """Set the clock, whose schedule is complete already, to the stored times."""
        self._kept = {name: self._store.get(name) for name in (_STREAM_TIME, _STREAM, _WALL)}
        time_ms = self._kept[_STREAM_TIME]
        clock.resume(NO_TIME_MS if time_ms is None else time_ms, _times(self._kept[_STREAM]), _times(self._kept[_WALL]))

    def keep(self, clock: TaskClock) -> None:
        now = {_STREAM_TIME: clock.stream_time_ms, _STREAM: _listed(clock.stream), _WALL: _listed(clock.wall)}
        for name, value in now.items():
            if value != self._kept[name] and (value or self._kept[name]):
                self._store.put(name, value)
                self._kept[name] = value


def _listed(timers: Timers) -> list[list[Any]]:
    return sorted([node, ordinal, at_ms] for (node, ordinal), at_ms in timers.times().items())


def _times(kept: list[list[Any]] | None) -> dict[tuple[str, int], int]:
    return {(node, ordinal): at_ms for node, ordinal, at_ms in kept or ()}
