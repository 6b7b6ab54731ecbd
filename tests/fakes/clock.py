"""A clock that advances only by sleeping."""

from common.clock import SystemClock


class IdleClock(SystemClock):
    """The date is the machine's; the monotonic time is the sum of all sleeps."""

    def __init__(self) -> None:
        self._slept_s = 0.0

    def monotonic_s(self) -> float:
        return self._slept_s

    def sleep_s(self, seconds: float) -> None:
        self._slept_s += seconds
