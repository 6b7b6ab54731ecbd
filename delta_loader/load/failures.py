"""Keeps the last failure of each stream in the stage (common/stage/failures.py), for other processes to report.

Rule: a stream that loads costs one read in the life of a process, and a stream that fails at most one write per minute.
A stage that fails to read or write the note changes nothing about the load.
"""

from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

from common.errors import KafkaDeltaExpressError
from common.ports import Clock, ObjectStore
from common.stage.failures import LastFailure, failure_path, last_failure

_AGAIN_MS = 60_000


class FailureNotes:
    """The notes of one loader. Each stream is handled by one thread at a time."""

    def __init__(self, store: ObjectStore, clock: Clock, log: FilteringBoundLogger) -> None:
        self._store = store
        self._clock = clock
        self._log = log
        self._known: dict[str, LastFailure | None] = {}
        """The stage's note for each stream; a stream is missing until its note was read."""

    def last(self, app_id: str) -> LastFailure | None:
        """The failure noted in the stage, read once."""
        if app_id not in self._known:
            self._try(lambda: self._known.update({app_id: last_failure(self._store, app_id)}))
        return self._known.get(app_id)

    def failed(self, app_id: str, error: KafkaDeltaExpressError) -> None:
        now_ms, before = self._clock.wall_ms(), self._known.get(app_id)
        note = LastFailure(now_ms, error.problem, error.remedy, error.exit_code)
        if before is not None and before.problem == note.problem and now_ms - before.failed_ms < _AGAIN_MS:
            return
        self._try(lambda: self._store.write(failure_path(app_id), note.to_bytes()))
        self._known[app_id] = note

    def succeeded(self, app_id: str) -> None:
        if self.last(app_id) is not None:
            self._try(lambda: self._store.delete([failure_path(app_id)]))
            self._known[app_id] = None

    def _try(self, change: Callable[[], object]) -> None:
        try:
            change()
        except KafkaDeltaExpressError as error:
            self._log.debug("failure not recorded", problem=error.problem)
