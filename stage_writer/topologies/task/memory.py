"""Keeps a task's time in its state, so that a restored task continues as if it had never stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stage_writer.topologies.task.clock import NO_TIME_MS

if TYPE_CHECKING:
    from stage_writer.topologies.stores import Stores
    from stage_writer.topologies.task.clock import TaskClock, Timers

TASK_STORE = "__task"
"""The key-value store that each task has for its own use."""
_STREAM_TIME, _STREAM, _WALL = "stream_time_ms", "stream_punctuations", "wall_punctuations"


class ClockMemory:
    """Keeps the clock in the task's own store."""

    def __init__(self, stores: Stores) -> None:
        self._store = stores.store(TASK_STORE)
        self._kept: dict[str, Any] = {}

    def recall(self, clock: TaskClock) -> None:
        """Set the clock, whose schedule is complete already, to the stored times."""
        self._kept = {name: self._store.get(name) for name in (_STREAM_TIME, _STREAM, _WALL)}
        time_ms = self._kept[_STREAM_TIME]
        clock.resume(NO_TIME_MS if time_ms is None else time_ms, _times(self._kept[_STREAM]), _times(self._kept[_WALL]))

    def keep(self, clock: TaskClock) -> None:
        """Store what has changed."""
        now = {_STREAM_TIME: clock.stream_time_ms, _STREAM: _listed(clock.stream), _WALL: _listed(clock.wall)}
        for name, value in now.items():
            if value != self._kept[name] and (value or self._kept[name]):
                self._store.put(name, value)
                self._kept[name] = value


def _listed(timers: Timers) -> list[list[Any]]:
    return sorted([node, ordinal, at_ms] for (node, ordinal), at_ms in timers.times().items())


def _times(kept: list[list[Any]] | None) -> dict[tuple[str, int], int]:
    return {(node, ordinal): at_ms for node, ordinal, at_ms in kept or ()}
