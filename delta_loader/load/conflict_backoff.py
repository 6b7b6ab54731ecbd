"""Retries commits that conflict with other writers' commits, with increasing pauses.

Rules:

1. After a first conflict the commit is retried at once: another writer's change of the table is a single event. From
   the second conflict in a row on, another program is writing in a loop, so there is a pause. It is up to twice as long
   as the previous one. Its length is random, because two loaders in lockstep would conflict forever.
2. It is a failure only after many conflicts *and* a long time. A loop of ALTER TABLE during loads may well win ten
   times in a row within a few seconds, and a load that waits some seconds longer does no harm.
3. Nothing waits once a stop is requested.
4. Randomness comes from unique names, so a simulation can control it.
"""

from collections.abc import Callable
from zlib import crc32

from common.ports import Clock
from delta_loader.ports import NewId

CONFLICTS_TO_FAILURE = 10
SECONDS_TO_FAILURE = 60.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_POLL_S = 0.1  # how long a stop may go unnoticed


class ConflictBackoff:
    """Counts one stream's consecutive conflicts, and pauses between them."""

    def __init__(self, clock: Clock, new_id: NewId) -> None:
        self._clock = clock
        self._new_id = new_id
        self._since_s = 0.0
        self.conflicts = 0
        """Consecutive conflicts."""

    def reset(self) -> None:
        """Record a successful commit."""
        self.conflicts = 0

    def wait(self, stop: Callable[[], bool]) -> bool:
        """Count a conflict and pause; False when there were too many (rule 2)."""
        if not self.conflicts:
            self._since_s = self._clock.monotonic_s()
        self.conflicts += 1
        lasted_s = self._clock.monotonic_s() - self._since_s
        if self.conflicts > CONFLICTS_TO_FAILURE and lasted_s >= SECONDS_TO_FAILURE:
            return False
        until_s = self._clock.monotonic_s() + self._pause_s()
        while (left_s := until_s - self._clock.monotonic_s()) > 0 and not stop():
            self._clock.sleep_s(min(left_s, _POLL_S))
        return True

    def _pause_s(self) -> float:
        if self.conflicts == 1:
            return 0.0
        longest_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self.conflicts, 20))
        chance = crc32(self._new_id().encode()) / 2**32
        return longest_s * (0.5 + chance / 2)
