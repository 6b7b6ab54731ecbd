"""Tells a loader that waits for markers which streams have new ones (common/news.py), once a second at most.

Rules:

1. The first flush after a quiet second is told at once; those of the next second together, when it is over.
2. A failure is of no consequence; it is tried again half a minute later, so that a store that is slow to fail does not
   hold the writer up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.errors import StoreError
from common.news import TELL_EVERY_S

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from common.ports import Clock
    from stage_writer.ports import Stage

_AFTER_A_FAILURE_S = 30.0


class NewsBearer:
    """One writer's news."""

    def __init__(self, stage: Stage, clock: Clock, log: FilteringBoundLogger, *, wanted: bool) -> None:
        """Without being ``wanted`` it tells nothing."""
        self._stage = stage
        self._clock = clock
        self._log = log
        self._wanted = wanted
        self._untold: set[str] = set()
        self._not_before_s = clock.monotonic_s()

    def sealed(self, app_id: str) -> None:
        """A stream has a new marker."""
        if self._wanted:
            self._untold.add(app_id)

    def tell(self, *, at_once: bool = False) -> None:
        """Tell what is untold, if it is time; ``at_once`` is for the end of the service."""
        now_s = self._clock.monotonic_s()
        if not self._untold or (now_s < self._not_before_s and not at_once):
            return
        try:
            for app_id in sorted(self._untold):
                self._stage.tell_news(app_id)
                self._untold.discard(app_id)
        except StoreError as error:
            self._log.debug("news not told", problem=error.problem)
            self._not_before_s = now_s + _AFTER_A_FAILURE_S
        else:
            self._not_before_s = now_s + TELL_EVERY_S
