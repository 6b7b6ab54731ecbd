"""What the loader does when its commits meet other writers' commits: it tries again, and pauses more and more.

Rules:

1. A first conflict is tried again at once: a foreign writer's change of the table is a single event. From the second in
   a row on there is a pause, each up to twice as long as the one before it, because somebody is writing in a loop, and
   of a length by chance, because two loaders that keep step would meet forever.
2. It is a failure only after many conflicts *and* a long time: a loop of ALTER TABLE beside the loader may well win ten
   times running within a few seconds, and a load that waits some seconds longer is no news.
3. Nothing waits while a stop is asked for.
4. Chance comes from names that nobody else has, so that a simulation decides about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Callable

    from common.ports import Clock
    from delta_loader.ports import NewId

CONFLICTS_TO_FAILURE = 10
SECONDS_TO_FAILURE = 60.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_LOOK_S = 0.1  # how long a stop may go unnoticed


class ConflictBackoff:
    """Counts one stream's conflicts in a row, and pauses between them."""

    def __init__(self, clock: Clock, new_id: NewId) -> None:
        """No conflict yet."""
        self._clock = clock
        self._new_id = new_id
        self._since_s = 0.0
        self.conflicts = 0
        """In a row."""

    def reset(self) -> None:
        """A commit was made."""
        self.conflicts = 0

    def wait(self, stop: Callable[[], bool]) -> bool:
        """Count a conflict and pause; False when it was one too many (rule 2)."""
        if not self.conflicts:
            self._since_s = self._clock.monotonic_s()
        self.conflicts += 1
        lasted_s = self._clock.monotonic_s() - self._since_s
        if self.conflicts > CONFLICTS_TO_FAILURE and lasted_s >= SECONDS_TO_FAILURE:
            return False
        until_s = self._clock.monotonic_s() + self._pause_s()
        while (left_s := until_s - self._clock.monotonic_s()) > 0 and not stop():
            self._clock.sleep_s(min(left_s, _LOOK_S))
        return True

    def _pause_s(self) -> float:
        if self.conflicts == 1:
            return 0.0
        longest_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self.conflicts, 20))
        chance = crc32(self._new_id().encode()) / 2**32
        return longest_s * (0.5 + chance / 2)
