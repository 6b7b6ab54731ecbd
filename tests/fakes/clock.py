"""A clock whose time passes only while somebody waits."""

from common.clock import SystemClock


class IdleClock(SystemClock):
    """The date is the machine's; the seconds are those that were slept."""

    def __init__(self) -> None:
        self._slept_s = 0.0

    def monotonic_s(self) -> float:
        return self._slept_s

    def sleep_s(self, seconds: float) -> None:
        self._slept_s += seconds
