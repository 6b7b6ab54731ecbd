"""Whether this process may still believe what its consumer group last told it.

Rules:

1. The loop gives a sign whenever it comes round. A longer silence than the group's session means that the process did
   not run (it was stopped, or its machine was): the group may have given its partitions to others.
2. After such a silence nothing may be claimed before the end of a poll that began a third of a session later: that is
   time enough for a heartbeat and its answer, which that poll has served. One that began before proves nothing; it can
   return what was fetched before, and have been held up by what it served (a revoke that flushes).
3. Without this the chain is as safe: a late claim loses, or is a stray. It keeps strays from being made.

It holds no clock: whoever asks says what time it is. Flush threads read it; the loop alone changes it.
"""

from __future__ import annotations

from dataclasses import dataclass

_HEARD_AFTER = 1 / 3
"""Share of a session after which a member has heard from its group."""


@dataclass(slots=True)
class Freshness:
    """The loop's signs of life."""

    session_s: float
    """After so much silence the group may have let this member go."""
    last_sign_s: float | None = None
    in_doubt_until_s: float | None = None
    """The end of a poll that begins then or later ends the doubt; None while there is none."""

    def sign(self, now_s: float) -> None:
        """The loop runs."""
        if self._is_silent(now_s):
            self.in_doubt_until_s = now_s + self.session_s * _HEARD_AFTER
        self.last_sign_s = now_s

    def polled(self, began_s: float, now_s: float) -> None:
        """The loop runs, and since ``began_s`` the group's callbacks have been served."""
        self.sign(now_s)
        if self.in_doubt_until_s is not None and began_s >= self.in_doubt_until_s:
            self.in_doubt_until_s = None

    def is_fresh(self, now_s: float) -> bool:
        """Whether a claim may be made now."""
        return self.in_doubt_until_s is None and not self._is_silent(now_s)

    def _is_silent(self, now_s: float) -> bool:
        return self.last_sign_s is not None and now_s - self.last_sign_s > self.session_s
