"""The pauses of one process's streams (common/stage/paused.py).

Rule: a process reads the pauses before its first step, and again every `REFRESH_EVERY_S`. Until they were read once,
everything counts as paused, also where one stream is paused or resumed meanwhile; while the stage cannot be read, what
was read last counts.
"""

from collections.abc import Collection, Mapping
from threading import Lock

from structlog.typing import FilteringBoundLogger

from common.errors import StoreError
from common.metrics import Metric, Metrics
from common.ports import Clock, ObjectStore
from common.stage.paused import FOLDER, Pause, StreamPart, pause, pause_of, pause_path, resume

REFRESH_EVERY_S = 5.0


class PausedStreams:
    """Safe to use from any thread."""

    def __init__(
        self,
        store: ObjectStore,
        part: StreamPart,
        app_ids: Collection[str],
        *,
        clock: Clock,
        log: FilteringBoundLogger,
        metrics: Metrics,
        metric: Metric,
    ) -> None:
        """``metric`` is 1 for each paused stream."""
        self._store = store
        self._part = part
        self.app_ids = tuple(app_ids)
        self._clock = clock
        self._log = log
        self._metrics = metrics
        self._metric = metric
        self._lock = Lock()
        self._pauses: Mapping[str, Pause] | None = None
        self._resumed: set[str] = set()

    @property
    def pauses(self) -> Mapping[str, Pause]:
        return self._pauses or {}

    def is_paused(self, app_id: str) -> bool:
        pauses = self._pauses
        return pauses is None or app_id in pauses

    def refresh(self) -> None:
        with self._lock:
            known = self._pauses or {}
            listed = {item.path for item in self._store.list(f"{FOLDER}/{self._part}/")}
            pauses: dict[str, Pause] = {}
            for app_id in self.app_ids:
                if pause_path(self._part, app_id) in listed:
                    pause = known.get(app_id) or pause_of(self._store, self._part, app_id)
                    pauses |= {} if pause is None else {app_id: pause}
            self._set_pauses(pauses)

    def run(self) -> None:
        """Like `refresh`, as a job: where the stage is away, it is logged."""
        try:
            self.refresh()
        except StoreError as error:
            self._log.warning("the pauses of streams cannot be read", problem=error.problem, remedy=error.remedy)

    def pause(self, app_id: str, by: str) -> Pause:
        with self._lock:
            made = pause(self._store, Pause(app_id, self._part, self._clock.wall_ms(), by))
            if self._pauses is not None:  # until they are read, those of other streams are unknown
                self._set_pauses({**self._pauses, app_id: made})
            return made

    def resume(self, app_id: str) -> bool:
        """Resume a stream; returns whether it was paused. Raises StoreError."""
        with self._lock:
            was_paused = resume(self._store, self._part, app_id)
            if self._pauses is not None:
                self._set_pauses(
                    {paused_id: stream_pause for paused_id, stream_pause in self._pauses.items() if paused_id != app_id}
                )
            return was_paused

    def take_resumed(self) -> frozenset[str]:
        """The streams whose pause has ended since the last call."""
        with self._lock:
            taken, self._resumed = frozenset(self._resumed), set()
            return taken

    @property
    def notes(self) -> tuple[str, ...]:
        """A line for each pause, for the health page."""
        return tuple(f"{app_id}: {pause.text} → {pause.remedy}" for app_id, pause in sorted(self.pauses.items()))

    def _set_pauses(self, pauses: Mapping[str, Pause]) -> None:
        before, self._pauses = self._pauses, pauses
        for app_id in pauses.keys() - (before or {}).keys():
            self._log.warning("stream paused", app_id=app_id, part=self._part.value, by=pauses[app_id].by)
        ended = (before or {}).keys() - pauses.keys()
        self._resumed |= ended
        for app_id in ended:
            self._log.warning("stream resumed", app_id=app_id, part=self._part.value)
        if before is None or pauses.keys() != before.keys():
            for app_id in self.app_ids:
                self._metrics.set(self._metric, int(app_id in pauses), app_id=app_id)
