"""The table services on their schedule: a job, in the background of the loads.

Rules:

1. A load that is due goes first, and waits for nothing: it runs in its own thread, with its own tasks. While one runs,
   no maintenance task starts, even when the load takes longer than the pass that it started in; a task that has started
   continues in the background, with one Spark task at a time. Maintenance of a table thus never keeps records from it,
   no matter how long it takes; and tasks are sized so that they do not take long.
2. They run while this loader may load (it holds the lease), and stop before the next task when it no longer may.
3. A scheduled run outside of the window starts with the window. An interval's first run is at the start: the tables
   themselves show the due tasks, so an extra run does nothing.
4. An error is logged, and the next scheduled time is the next try.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Event

from common.settings.cron import CRON_FIELDS
from common.settings.services import TableServicesSettings
from delta_loader.maintenance.services.runs import TableServices
from delta_loader.scheduling.schedule import Schedule

_LOAD_LOOK_S = 0.1


class ScheduledServices:
    """Runs `TableServices` on a schedule; a job polls whether it is due."""

    def __init__(
        self,
        services: TableServices,
        settings: TableServicesSettings,
        may_run: Callable[[], bool],
        *,
        is_loading: Callable[[], bool] = lambda: False,
    ) -> None:
        """``is_loading`` is true while a load runs that outlived its pass.

        Raises ConfigError for an invalid cron line.
        """
        self._is_loading = is_loading
        self._services = services
        self._settings = settings
        self._schedule = Schedule(settings.schedule)
        self._may_run = may_run
        self._stopped = Event()
        self._free = Event()
        self._free.set()
        now, is_cron = datetime.now(UTC), len(settings.schedule.split()) == CRON_FIELDS
        self._due = self._schedule.next_after(now, now) if is_cron else now

    def close(self) -> None:
        """End the running task; the thread in `look` waits for it."""
        self._stopped.set()
        self._services.cancel()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """While a load runs, no task starts (rule 1)."""
        self._free.clear()
        try:
            yield
        finally:
            self._free.set()

    def run_due(self) -> None:
        now = datetime.now(UTC)
        if self._stopped.is_set() or now < self._due or not self._settings.may_begin(now) or not self._may_run():
            return
        self._due = self._schedule.next_after(now, now)
        self._services.run(self._may_begin)

    def _may_begin(self) -> bool:
        """Wait until no load runs; False when no task may start anymore (rule 2)."""
        while not self._free.is_set() or self._is_loading():
            if self._stopped.wait(_LOAD_LOOK_S):
                break
        return not self._stopped.is_set() and self._may_run()
