"""Whether a service is paused by request.

Rules:

1. A pause applies to one process until it ends: a restart clears it, and other processes are unaffected. It is for
   short maintenance of a store; for a longer break, stop the service. One stream is paused in the stage, for all
   processes and across restarts (common/stage/paused.py).
2. It is not a problem: the health page has a note and stays healthy, because a monitor would otherwise restart the
   service, and so end the pause.
"""

from structlog.typing import FilteringBoundLogger

from common.metrics import Metric, Metrics
from common.ports import Clock
from common.sizes import time_text


class Pausing:
    """Set from one thread, read from another."""

    def __init__(self, clock: Clock, log: FilteringBoundLogger, metrics: Metrics, metric: Metric) -> None:
        """``metric`` is 1 while it lasts."""
        self._clock = clock
        self._log = log
        self._metrics = metrics
        self._metric = metric
        self.since_ms: int | None = None
        metrics.set(metric, 0)

    @property
    def is_on(self) -> bool:
        return self.since_ms is not None

    @property
    def notes(self) -> tuple[str, ...]:
        since_ms = self.since_ms
        return () if since_ms is None else (f"paused since {time_text(since_ms)}; POST /resume ends it",)

    def pause(self) -> None:
        if self.since_ms is None:
            self.since_ms = self._clock.wall_ms()
            self._metrics.set(self._metric, 1)
            self._log.warning("paused by request")

    def resume(self) -> None:
        if self.since_ms is not None:
            self.since_ms = None
            self._metrics.set(self._metric, 0)
            self._log.warning("resumed by request")
