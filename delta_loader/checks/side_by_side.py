"""Runs the checks of several streams in parallel: a store that does not answer delays only its own streams.

Rules:

1. Each stream's checks have a daemon thread. A hanging thread delays neither the others nor the end of the process.
2. At most `MOST` run at a time; an overdue one no longer counts.
3. Checks that do not finish in time are an error that may resolve by itself. They are not repeated while the first try
   still hangs.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait

from common.background import in_background
from common.remedies import CONFIG
from delta_loader.check_result import Check, StreamChecks

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
