"""Whether the loader may start, and which streams it reports as not ready.

Rules:

1. A problem of all streams that only a person can fix (a stage that denies access, a store without conditional writes)
   ends the start with exit code 2. A stream that is not ready does not: its passes load what is compatible, and fail at
   what is not.
2. A problem that may resolve by itself, a store that does not answer, is waited for: the process stays up, reports that
   it is not ready and why, and loads nothing until every proof has succeeded. With ``--once`` the error is raised
   instead.
3. A stream that is not ready is logged, and reported by the health until a check finds it ready: a job checks it
   several times a minute. It is thus reported even while nothing is staged for it, when its passes have nothing to fail
   at.
4. Checks of several streams run in parallel, each stream's in a daemon thread: a store that does not answer delays
   neither the others nor the end of the process. At most `MOST` run at a time; an overdue one no longer counts.
5. Checks that do not finish in time are an error that may resolve by itself. They are not repeated while the first try
   still hangs.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait

from structlog.typing import FilteringBoundLogger

from common import metrics as all_metrics
from common.background import in_background
from common.backoff import Backoff
from common.errors import ConfigError, StoreError, StoreRefusedError
from common.http.pages import with_remedy
from common.metrics import Metrics
from common.remedies import CONFIG
from delta_loader.check_result import Check, Level, StreamChecks, fatal

MOST = 8


WITHIN_S = 60.0
"""Longer than the stores' own timeouts for a request."""


Checks = tuple[Check, ...]


class SideBySide:
    """Runs checks, and remembers the streams whose checks hang."""

    def __init__(self, within_s: float = WITHIN_S) -> None:
        """One stream's checks may take ``within_s``."""
        self._within_s = within_s
        self._hanging: dict[str, Future[Checks]] = {}

    def __call__(self, check: Callable[[str], Iterable[Check]], app_ids: Sequence[str]) -> dict[str, Checks]:
        """The checks of ``check`` for each stream, in order. Raises what ``check`` raises."""
        self._hanging = {app_id: future for app_id, future in self._hanging.items() if not future.done()}
        by_stream: dict[str, Checks] = {app_id: (self._silent(app_id),) for app_id in app_ids}
        waiting = [app_id for app_id in reversed(app_ids) if app_id not in self._hanging]
        running: dict[Future[Checks], tuple[str, float]] = {}
        while waiting or running:
            while waiting and len(running) < MOST:
                app_id = waiting.pop()
                checks = in_background(f"check-{app_id}", _checks, check, app_id)
                running[checks] = app_id, time.monotonic() + self._within_s
            first_s = min(until_s for _, until_s in running.values())
            done, _ = wait(running, max(0.0, first_s - time.monotonic()), FIRST_COMPLETED)
            for future in done:
                app_id, _ = running.pop(future)
                by_stream[app_id] = future.result()
            for future, (app_id, until_s) in list(running.items()):
                if until_s <= time.monotonic():
                    del running[future]
                    self._hanging[app_id] = future
        return by_stream

    def _silent(self, app_id: str) -> Check:
        return StreamChecks(app_id).error(
            "table",
            f"the stores of its tables did not respond within {self._within_s:.0f} s",
            f"check that they are available; `delta-loader check {CONFIG}` checks again, and a running loader does so "
            "by itself",
            away=True,
        )


def _checks(check: Callable[[str], Iterable[Check]], app_id: str) -> Checks:
    return tuple(check(app_id))


class ReadinessCheck:
    def __init__(
        self,
        app_ids: Sequence[str],
        *,
        scan: Callable[[], Sequence[Check]],
        check_stream: Callable[[str], Sequence[Check]],
        prove: Callable[[], None],
        log: FilteringBoundLogger,
        metrics: Metrics,
    ) -> None:
        """``scan`` checks everything, ``check_stream`` one stream; ``prove`` raises StoreError if loading is unsafe."""
        self._app_ids = app_ids
        self._check_all = scan
        self._check_stream = check_stream
        self._prove = prove
        self._log = log
        self._metrics = metrics
        self._side_by_side = SideBySide()
        self._reported: tuple[Check, ...] = ()
        self._not_ready: dict[str, Check] = {}
        self.away: str | None = None
        """The unavailable dependency that is waited for, or None."""

    @property
    def problems(self) -> tuple[str, ...]:
        """The streams that are not ready, and why. Empty when all are."""
        return tuple(
            with_remedy(f"not ready to load: {check.message}", check.remedy) for check in self._not_ready.values()
        )

    @property
    def not_ready(self) -> tuple[Check, ...]:
        return tuple(self._not_ready.values())

    def begin(self, *, once: bool, wait: Callable[[float], bool]) -> None:
        """Return when loading may start, or when ``wait`` (in seconds) says that the process is to stop.

        Raises ConfigError for rule 1, UnsafeStoreError, and StoreError when ``once`` and a dependency is unavailable.
        """
        backoff = Backoff(1.0)
        while (away := self._try()) is not None:
            if once:
                raise away
            self.away = with_remedy(away.problem, away.remedy)
            pause_s = backoff.next_s()
            self._log.warning("waiting for a store", problem=away.problem, remedy=away.remedy, again_in_s=pause_s)
            if wait(pause_s):
                return
        self.away = None

    def check_again(self) -> None:
        """Check the streams that were not ready again (rule 3)."""
        for app_id, checks in self._side_by_side(self._check_stream, tuple(self._not_ready)).items():
            check = _first_error(checks)
            if check is None:
                del self._not_ready[app_id]
                self._log.info("stream is ready to load", app_id=app_id)
            else:
                self._not_ready[app_id] = check
        self._count()

    def _count(self) -> None:
        for app_id in self._app_ids:
            self._metrics.set(all_metrics.LOADER_UNFIT, app_id in self._not_ready, app_id=app_id)

    def _try(self) -> StoreError | None:
        """The error of an unavailable dependency; None when loading may start."""
        checks = tuple(self._check_all())
        self._report(checks)
        for check in fatal(checks):
            raise ConfigError(check.message, check.remedy)
        for check in checks:
            if check.away and check.app_id is None:
                return StoreError(check.message, check.remedy)
        try:
            self._prove()
        except StoreRefusedError as error:
            raise ConfigError(error.problem, error.remedy) from error
        except StoreError as error:
            if error.exit_code != StoreError.exit_code:
                raise
            return error
        return None

    def _report(self, checks: tuple[Check, ...]) -> None:
        if checks != self._reported:
            for check in checks:
                if check.level is not Level.OK:
                    log = self._log.error if check.level is Level.ERROR else self._log.warning
                    log("preflight", check=check.name, problem=check.message, remedy=check.remedy)
        self._reported = checks
        errors = {app_id: _first_error(check for check in checks if check.app_id == app_id) for app_id in self._app_ids}
        self._not_ready = {app_id: error for app_id, error in errors.items() if error is not None}
        self._count()


def _first_error(checks: Iterable[Check]) -> Check | None:
    return next((check for check in checks if check.level is Level.ERROR), None)
