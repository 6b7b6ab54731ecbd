"""How soon a stream is loaded again when writers tell of new markers.

Rules:

1. Loads of one stream that news asks for begin at least ``60 s / max_commits_per_minute`` apart. The first after a
   quiet time begins at once, so what is rare is loaded soon, and what never ends is loaded at an even pace.
2. A stream that failed is tried again by itself, after a pause that doubles up to a minute, with or without news. While
   it is at it, only news asks for another load.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True, slots=True)
class Pace:
    """What is known of one stream; times are of a steady clock."""

    spacing_s: float
    began_s: float | None = None
    """When its last load began."""
    has_news: bool = False
    failures: int = 0
    ended_s: float = 0.0
    """When its last load ended."""

    def told(self) -> Pace:
        """There are new markers."""
        return replace(self, has_news=True)

    def begun(self, now_s: float) -> Pace:
        """A load begins, which sees all that was told of."""
        return replace(self, began_s=now_s, has_news=False)

    def ended(self, now_s: float, *, failed: bool) -> Pace:
        """The load has ended."""
        return replace(self, ended_s=now_s, failures=self.failures + 1 if failed else 0)

    @property
    def due_s(self) -> float | None:
        """When to load next; None while nothing asks for it."""
        if self.failures and (self.began_s is None or self.began_s <= self.ended_s):
            return self.ended_s + min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self.failures - 1, 10))
        if not self.has_news:
            return None
        return 0.0 if self.began_s is None else self.began_s + self.spacing_s
