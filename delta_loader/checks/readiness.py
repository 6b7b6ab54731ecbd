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
"""

from collections.abc import Callable, Iterable, Sequence

from structlog.typing import FilteringBoundLogger

from common import metrics as catalogue
from common.backoff import Backoff
from common.errors import ConfigError, StoreError, StoreRefusedError
from common.http.pages import with_remedy
from common.metrics import Metrics
from delta_loader.check_result import Check, Level, fatal
from delta_loader.checks.side_by_side import SideBySide


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
            self._metrics.set(catalogue.LOADER_UNFIT, app_id in self._not_ready, app_id=app_id)

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
