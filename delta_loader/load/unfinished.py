"""Streams whose turns have begun and not ended: their progress, and which of them hang."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from common import metrics as catalogue
from common.metrics import Metrics
from common.ports import Clock
from delta_loader.load.report import StreamReport

STUCK_S = 900.0
_FIRST_LOG_S = 30.0


@dataclass(slots=True)
class _Unfinished:
    """A stream whose turn is running or waiting for its next slice."""

    report: StreamReport
    since_s: float
    """When the turn started, or last made progress that a pass saw."""
    log_at_s: float
    """When it is reported next."""
    log_after_s: float = _FIRST_LOG_S
    """Doubles with each report: a first load of hours is no news every half minute."""
    progress: int = 0
    """`StreamReport.progress` at ``since_s``."""


class UnfinishedStreams:
    """Streams are begun and report progress in their own threads; all else is called by the loader's loop."""

    def __init__(self, clock: Clock, log: FilteringBoundLogger, metrics: Metrics) -> None:
        self._clock = clock
        self._log = log
        self._metrics = metrics
        self._streams: dict[str, _Unfinished] = {}

    def __contains__(self, app_id: str) -> bool:
        return app_id in self._streams

    def __len__(self) -> int:
        return len(self._streams)

    def begin(self, app_id: str) -> StreamReport:
        """The report of a stream's turn, also in its later slices."""
        now_s = self._clock.monotonic_s()
        return self._streams.setdefault(app_id, _Unfinished(StreamReport(app_id), now_s, now_s + _FIRST_LOG_S)).report

    def progress(self, app_id: str) -> int:
        stream = self._streams.get(app_id)
        return 0 if stream is None else stream.report.progress

    def take_ended(self, app_ids: Iterable[str], running: Collection[str]) -> list[StreamReport]:
        """The reports of those of ``app_ids`` that are not ``running`` any more, in that order; each once."""
        ended = [app_id for app_id in app_ids if app_id in self._streams and app_id not in running]
        return [self._streams.pop(app_id).report for app_id in ended]

    @property
    def stuck(self) -> tuple[str, ...]:
        """Streams that hang, and for how long."""
        now_s = self._clock.monotonic_s()
        return tuple(
            f"stream {app_id} has made no progress for {now_s - stream.since_s:.0f} s"
            for app_id, stream in self._streams.copy().items()
            if now_s - stream.since_s > STUCK_S and stream.report.progress == stream.progress
        )

    def report_long_turns(self) -> None:
        """Report the streams whose turns continue while others have their next pass."""
        now_s = self._clock.monotonic_s()
        self._metrics.set(catalogue.LOADER_UNFINISHED, len(self._streams))
        for app_id, stream in self._streams.copy().items():
            if stream.report.progress != stream.progress:
                stream.progress, stream.since_s = stream.report.progress, now_s
            if now_s < stream.log_at_s:
                continue
            stream.log_after_s *= 2
            stream.log_at_s = now_s + stream.log_after_s
            self._log.warning(
                "load still running",
                app_id=app_id,
                commits=stream.report.commits,
                seconds_since_progress=round(now_s - stream.since_s),
            )
