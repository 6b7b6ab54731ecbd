"""How soon a stream is loaded again when writers notify the loader of new markers.

Rules:

1. Loads of one stream that notifications request start at least ``60 s / max_commits_per_minute`` apart. The first
   after a quiet time starts at once, so rare records are loaded soon, and a constant flow is loaded at an even pace.
2. A stream that failed is retried by itself, after a pause that doubles up to a minute, with or without notifications.
   While it is loading, only a notification requests another load.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True, slots=True)
class Pace:
    """The load times of one stream, on a monotonic clock."""

    spacing_s: float
    began_s: float | None = None
    """When its last load started."""
    is_notified: bool = False
    failures: int = 0
    ended_s: float = 0.0

    def notified(self) -> Pace:
        return replace(self, is_notified=True)

    def begun(self, now_s: float) -> Pace:
        """A load starts, which sees everything notified so far."""
        return replace(self, began_s=now_s, is_notified=False)

    def ended(self, now_s: float, *, failed: bool) -> Pace:
        return replace(self, ended_s=now_s, failures=self.failures + 1 if failed else 0)

    @property
    def due_s(self) -> float | None:
        """When to load next; None while no load is requested."""
        if self.failures and (self.began_s is None or self.began_s <= self.ended_s):
            return self.ended_s + min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self.failures - 1, 10))
        if not self.is_notified:
            return None
        return 0.0 if self.began_s is None else self.began_s + self.spacing_s
