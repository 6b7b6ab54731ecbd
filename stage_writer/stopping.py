"""How a writer that is asked to stop ends within `revoke_timeout`, even if user code or the store blocks.

Rules:

1. Nothing new is converted. A conversion in progress gets half of the time, and is then interrupted between two
   messages: its partitions are dropped, as on a revoke, and the next writer reads them again from the chain's end.
2. Buffered records get the rest of the time for their flush.
3. The user's code, or a request to the store, may not return. If a step is not over by then, the process is ended:
   nothing unsealed counts, so nothing is lost or doubled. Threads that still wait then do not keep it from ending
   (`common.cli.end_process`).
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from structlog.typing import FilteringBoundLogger

_STUCK_REMEDY = (
    "check whether the store answers, and what a topology's code waits for; nothing is lost, the next writer reads "
    "from the chain's end"
)


class ConversionInterruptedError(Exception):
    """The writer is stopping, and the conversion's share of the time is over."""


class StartingExit:
    """Ends a writer that is asked to stop while it starts: nothing runs yet that it would have to wait for.

    Code in C (DuckDB) that was interrupted raises an error of its own instead of the handler's `SystemExit`.
    """

    __slots__ = ("_code", "_is_asked")

    def __init__(self, code: int) -> None:
        self._code = code
        self._is_asked = False

    def ask(self) -> None:
        """Call this in a signal handler. Raises SystemExit."""
        self._is_asked = True
        self.end_if_asked()

    def end_if_asked(self) -> None:
        """Raises SystemExit where it was asked to stop."""
        if self._is_asked:
            raise SystemExit(self._code)

    @contextmanager
    def instead_of_errors(self) -> Iterator[None]:
        """Errors caused by the interruption are not reported."""
        try:
            yield
        except Exception:
            self.end_if_asked()
            raise


class Stopping:
    __slots__ = ("_end_s", "_monotonic_s", "_within_s", "is_on", "is_stepping")

    def __init__(self, monotonic_s: Callable[[], float], within_s: float) -> None:
        """``within_s`` is `revoke_timeout`, in seconds."""
        self._monotonic_s = monotonic_s
        self._within_s = within_s
        self._end_s = 0.0
        self.is_on = False
        self.is_stepping = False
        """Whether the writer's loop is in a round, or in its last report; False while it flushes the rest."""

    def begin(self) -> None:
        """Start stopping. Safe to call from a signal handler and any thread; only the first call counts."""
        if not self.is_on:
            self._end_s = self._monotonic_s() + self._within_s
            self.is_on = True

    def require_time(self) -> None:
        """Raises ConversionInterruptedError when a conversion's time is over (rule 1)."""
        if self.is_on and self._monotonic_s() >= self._end_s - self._within_s / 2:
            raise ConversionInterruptedError

    def at_most(self, deadline_s: float) -> float:
        """The given deadline, or the deadline for stopping if that is earlier (rule 2)."""
        return min(deadline_s, self._end_s) if self.is_on else deadline_s

    @contextmanager
    def step(self) -> Iterator[None]:
        self.is_stepping = True
        try:
            yield
        finally:
            self.is_stepping = False


NEVER_STOPPING = Stopping(lambda: 0.0, 0.0)
"""For conversions outside a writer: never stops."""


def end_when_stuck(
    after_s: float, is_stuck: Callable[[], bool], log: FilteringBoundLogger, end: Callable[[int], object] = os._exit
) -> threading.Timer:
    """Exit the process with 1 if it is stuck when the time is over (rule 3); returns immediately."""

    def end_if_stuck() -> None:
        if is_stuck():
            log.error("stopped in the middle of a step", waited_s=after_s, remedy=_STUCK_REMEDY)
            end(1)

    timer = threading.Timer(after_s, end_if_stuck)
    timer.daemon = True
    timer.start()
    return timer
