"""Whether this process can still rely on its last contact with the consumer group.

Rules:

1. The loop signals each round. A silence longer than the group's session timeout means that the process did not run (it
   was stopped, or its machine was): the group may have given its partitions to others.
2. After such a silence nothing may be claimed before the end of a poll that started a third of a session later: that is
   enough for a heartbeat and its response, which that poll has processed. A poll that started earlier proves nothing;
   it can return what was fetched before, and may have been delayed by a callback (a revoke that flushes).
3. Without this the chain is just as safe: a late claim loses, or is a stray. This avoids strays.

It holds no clock: the caller passes the time. Flush threads read it; only the loop changes it.
"""

from dataclasses import dataclass

_HEARD_AFTER = 1 / 3
"""The share of a session after which a member has heard from its group."""


@dataclass(slots=True)
class Freshness:
    session_s: float
    """After a silence this long the group may have removed this member."""
    last_sign_s: float | None = None
    in_doubt_until_s: float | None = None
    """The end of a poll that starts then or later ends the doubt, or None."""

    def sign(self, now_s: float) -> None:
        """The loop is running."""
        if self._is_silent(now_s):
            self.in_doubt_until_s = now_s + self.session_s * _HEARD_AFTER
        self.last_sign_s = now_s

    def polled(self, began_s: float, now_s: float) -> None:
        """The loop is running, and since ``began_s`` the group's callbacks have been served."""
        if self.last_sign_s is None:
            self.last_sign_s = began_s  # the process may have been stopped during its first poll, too
        self.sign(now_s)
        if self.in_doubt_until_s is not None and began_s >= self.in_doubt_until_s:
            self.in_doubt_until_s = None

    def is_fresh(self, now_s: float) -> bool:
        """Whether a claim may be made now."""
        return self.in_doubt_until_s is None and not self._is_silent(now_s)

    def _is_silent(self, now_s: float) -> bool:
        return self.last_sign_s is not None and now_s - self.last_sign_s > self.session_s
