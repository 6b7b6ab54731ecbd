"""Whether a service is paused by request.

Rules:

1. A pause is of one process and of its life: a restart forgets it, and another process knows nothing of it. It is for
   minutes at a table or a store; who wants no work for longer stops the service.
2. It is no problem: the health says so in a note and stays well, or whoever watches would restart the service, and so
   end the pause.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from common.metrics import Metric, Metrics
    from common.ports import Clock


class Pausing:
    """Said from one thread, asked from another."""

    def __init__(self, clock: Clock, log: FilteringBoundLogger, metrics: Metrics, metric: Metric) -> None:
        """``metric`` is 1 while it lasts."""
        self._clock = clock
        self._log = log
        self._metrics = metrics
        self._metric = metric
        self._since_ms: int | None = None
        metrics.set(metric, 0)

    @property
    def is_on(self) -> bool:
        """Whether to rest now."""
        return self._since_ms is not None

    @property
    def since_ms(self) -> int | None:
        """When it began; None while there is none."""
        return self._since_ms

    @property
    def notes(self) -> tuple[str, ...]:
        """What the health says of it."""
        since_ms = self._since_ms
        if since_ms is None:
            return ()
        moment = datetime.fromtimestamp(since_ms / 1000, UTC).isoformat(timespec="seconds")
        return (f"paused since {moment}; POST /resume ends it",)

    def pause(self) -> None:
        """Rest from now on."""
        if self._since_ms is None:
            self._since_ms = self._clock.wall_ms()
            self._metrics.set(self._metric, 1)
            self._log.warning("paused by request")

    def resume(self) -> None:
        """Go on."""
        if self._since_ms is not None:
            self._since_ms = None
            self._metrics.set(self._metric, 0)
            self._log.warning("resumed by request")
