"""Exponential backoff: each pause is twice as long as the one before, up to a maximum."""


class Backoff:
    """The pauses between attempts of one operation that is retried until it succeeds."""

    def __init__(self, first_s: float = 0.5, longest_s: float = 30.0) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s

    def next_s(self) -> float:
        pause_s = self._next_s
        self._next_s = min(pause_s * 2, self._longest_s)
        return pause_s

    def reset(self) -> None:
        self._next_s = self._first_s
