"""The table services on their schedule: a job, next to the loads.

Rules:

1. A load that is due goes first, and waits for nothing: it runs in its own thread, with tasks of its own. While one
   runs, no piece begins, even when the load takes longer than the pass that it began in; one that has begun goes on in
   the background, with one Spark task at a time. So nothing that a table needs can keep records from it, however long
   it takes; and a piece is cut so that it does not take long.
2. They run while this loader may load (it holds the lease), and stop before the next piece when it no longer may.
3. A run whose time lies outside of the window begins with the window. An interval's first run comes with the start:
   what is due is told by the tables, so one run too many does nothing.
4. What goes wrong is logged, and the next time is the next try.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Event
from typing import TYPE_CHECKING

from common.settings.values import CRON_FIELDS
from delta_loader.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from common.settings.services import TableServicesSettings
    from delta_loader.table_services.runs import TableServices

_LOAD_LOOK_S = 0.1


class ScheduledServices:
    """Runs `TableServices`, now and then; a job asks it again and again whether it is time."""

    def __init__(
        self,
        services: TableServices,
        settings: TableServicesSettings,
        may_run: Callable[[], bool],
        *,
        is_loading: Callable[[], bool] = lambda: False,
    ) -> None:
        """Nothing runs yet. ``is_loading`` is true while a load runs that outlived its pass.

        Raises ConfigError for a cron line that is none.
        """
        self._is_loading = is_loading
        self._services = services
        self._settings = settings
        self._schedule = Schedule(settings.schedule, "table_services.schedule")
        self._may_run = may_run
        self._stopped = Event()
        self._free = Event()
        self._free.set()
        now, is_cron = datetime.now(UTC), len(settings.schedule.split()) == CRON_FIELDS
        self._due = self._schedule.next_after(now, now) if is_cron else now

    def close(self) -> None:
        """End what runs; who runs `look` waits for it."""
        self._stopped.set()
        self._services.cancel()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """While a load runs: no piece begins (rule 1)."""
        self._free.clear()
        try:
            yield
        finally:
            self._free.set()

    def look(self) -> None:
        """Do what is due, if it is time for that."""
        now = datetime.now(UTC)
        if self._stopped.is_set() or now < self._due or not self._settings.may_begin(now) or not self._may_run():
            return
        self._due = self._schedule.next_after(now, now)
        self._services.run(self._may_begin)

    def _may_begin(self) -> bool:
        """Wait until no load runs; False when it is over (rule 2)."""
        while not self._free.is_set() or self._is_loading():
            if self._stopped.wait(_LOAD_LOOK_S):
                break
        return not self._stopped.is_set() and self._may_run()
