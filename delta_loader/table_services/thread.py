"""The table services on their schedule: in a thread of their own, beside the loads.

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
from threading import Event, Thread
from typing import TYPE_CHECKING

from common.settings.values import CRON_FIELDS
from delta_loader.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from structlog.typing import FilteringBoundLogger

    from common.settings.services import TableServicesSettings
    from delta_loader.table_services.runs import TableServices

_LOOK_S = 1.0
_LOAD_LOOK_S = 0.1
_END_S = 30.0


class ServicesThread:
    """Runs `TableServices`, now and then."""

    def __init__(
        self,
        services: TableServices,
        settings: TableServicesSettings,
        may_run: Callable[[], bool],
        log: FilteringBoundLogger,
        *,
        is_loading: Callable[[], bool] = lambda: False,
    ) -> None:
        """Nothing runs before `start`. ``is_loading`` is true while a load runs that outlived its pass.

        Raises ConfigError for a cron line that is none.
        """
        self._is_loading = is_loading
        self._services = services
        self._settings = settings
        self._schedule = Schedule(settings.schedule, "table_services.schedule")
        self._may_run = may_run
        self._log = log
        self._stopped = Event()
        self._free = Event()
        self._free.set()
        self._thread = Thread(target=self._loop, name="table-services", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End what runs, and wait for it."""
        self._stopped.set()
        self._services.cancel()
        self._thread.join(_END_S)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """While a load runs: no piece begins (rule 1)."""
        self._free.clear()
        try:
            yield
        finally:
            self._free.set()

    def _loop(self) -> None:
        log, is_cron = self._log, len(self._settings.schedule.split()) == CRON_FIELDS
        now = datetime.now(UTC)
        due = self._schedule.next_after(now, now) if is_cron else now
        while not self._stopped.wait(_LOOK_S):
            now = datetime.now(UTC)
            if now < due or not self._settings.may_begin(now) or not self._may_run():
                continue
            due = self._schedule.next_after(now, now)
            try:
                self._services.run(self._may_begin)
            except Exception:  # a bug, or a dependency's: it costs this run, and no load
                log.exception("table services failed")

    def _may_begin(self) -> bool:
        """Wait until no load runs; False when it is over (rule 2)."""
        while not self._free.is_set() or self._is_loading():
            if self._stopped.wait(_LOAD_LOOK_S):
                break
        return not self._stopped.is_set() and self._may_run()
