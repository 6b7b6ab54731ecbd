"""The clean-up on its schedule: a job of a loader that holds a lease, in the background of its loads.

Rule: it never makes a load fail. An error is logged, and the next scheduled time is the next try.
"""

from datetime import datetime

from structlog.typing import FilteringBoundLogger

from common import metrics as catalogue
from common.errors import KafkaDeltaExpressError
from common.metrics import Metrics
from common.settings import Settings
from common.settings.services import OFF
from delta_loader.maintenance.cleaning.clean import CleanUp
from delta_loader.maintenance.cleaning.rules import require_safe
from delta_loader.scheduling.schedule import Schedule


class ScheduledCleanUp:
    def __init__(self, settings: Settings, work: CleanUp, log: FilteringBoundLogger, metrics: Metrics) -> None:
        """Raises UsageError for an age that is not safe."""
        self._older_than_s = settings.loader.clean_up_older_than_s
        self._schedule = None if settings.loader.clean_up == OFF else Schedule(settings.loader.clean_up)
        if self._schedule is not None:
            require_safe(settings, self._older_than_s)
        self._work = work
        self._log = log
        self._metrics = metrics
        self._due: datetime | None = None

    def run_due(self, now: datetime) -> None:
        """Clean up if it is due; the first time is one interval after the start."""
        if self._schedule is None:
            return
        if self._due is None:
            self._due = self._schedule.next_after(now, now)
        if now < self._due:
            return
        self._due = self._schedule.next_after(now, now)
        try:
            tallies = self._work.run(self._older_than_s, remove=True)
        except KafkaDeltaExpressError as error:
            self._log.error("clean-up failed", problem=error.problem, remedy=error.remedy)
            return
        for tally in tallies:
            if tally.failure is not None:
                self._log.error("not cleaned up", url=tally.url, problem=tally.failure)
            elif tally.count:
                self._metrics.add(catalogue.LOADER_CLEANED, tally.count, what=tally.what.replace(" ", "_"))
                self._log.info(
                    "cleaned up", url=tally.url, what=tally.what, count=tally.count, size_bytes=tally.size_bytes
                )
