"""The results of passes: the newest of each stream, the last commits, counts since the start, and the last failures.

`UnfinishedStreams` are those whose turns have begun and not ended: their progress, and which of them hang.

Rules:

1. The loader's thread writes them at the end of a pass and others read them at any time. Each value is replaced, never
   changed, so a reader sees what one pass found.
2. A stream's last failure is noted in the stage (common/stage/failures.py), for other processes to report. A stream
   that loads costs one read in the life of a process, and a stream that fails at most one write per minute. A stage
   that fails to read or write the note changes nothing about the load.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from structlog.typing import FilteringBoundLogger

from common import metrics as all_metrics
from common.errors import KafkaDeltaExpressError
from common.metrics import Metrics
from common.pages.model import Event
from common.ports import Clock, ObjectStore
from common.spans import TopicPartition
from common.stage.failures import LastFailure, failure_path, last_failure
from delta_loader.load.report import StreamReport
from delta_loader.plan.chain_positions import PartitionProgress
from delta_loader.plan.held import Held

_EVENTS = 50


@dataclass(frozen=True, slots=True)
class StreamStats:
    app_id: str
    seen: Mapping[TopicPartition, PartitionProgress]
    """From the last pass that got that far."""
    held: Mapping[TopicPartition, Held]
    failure: KafkaDeltaExpressError | None = None
    failures: int = 0
    """Consecutive failures."""
    version: int | None = None
    valid_through_ms: int | None = None
    left_out: int = 0
    refreshed_s: float | None = None
    """When ``seen`` was read, by the monotonic clock; None before the first time."""
    is_current: bool = False
    """Whether ``seen`` is from the last pass."""
    is_known: bool = False
    """Whether a pass over it has finished."""


class LoadStats:
    def __init__(self, app_ids: Iterable[str]) -> None:
        self.entries: Mapping[str, StreamStats] = {app_id: StreamStats(app_id, {}, {}) for app_id in app_ids}
        self.events: Sequence[Event] = ()
        """The newest first."""
        self.dead_letters: Mapping[tuple[str, str], int] = {}
        """By stream and class."""
        self.rows = 0

    def recall(self, app_id: str, failure: KafkaDeltaExpressError) -> None:
        """Record the failure of a load before this process; it is reported until a pass of this process replaces it."""
        self.entries = {**self.entries, app_id: replace(self.entries[app_id], failure=failure, failures=1)}

    def record_pass(self, reports: Iterable[StreamReport]) -> None:
        entries, counts = dict(self.entries), Counter(self.dead_letters)
        events = list(self.events)
        for report in reports:
            entries[report.app_id] = _entry(entries[report.app_id], report)
            counts.update({(report.app_id, error_class): count for error_class, count in report.dead_letters.items()})
            events += report.events
            self.rows += report.rows
        self.entries, self.dead_letters = entries, counts
        self.events = sorted(events, key=lambda event: -event.time_ms)[:_EVENTS]


def _entry(before: StreamStats, report: StreamReport) -> StreamStats:
    failed = report.failure is not None
    return replace(
        before,
        is_known=True,
        is_current=bool(report.seen) or not failed,
        seen=report.seen or before.seen,
        refreshed_s=report.refreshed_s if report.seen or not failed else before.refreshed_s,
        held=dict(report.held),
        failure=report.failure,
        failures=(before.failures if before.is_known else 0) + 1 if failed else 0,
        version=before.version if report.version is None else report.version,
        valid_through_ms=before.valid_through_ms if report.valid_through_ms is None else report.valid_through_ms,
        left_out=report.left_out if report.seen else before.left_out,
    )


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
        self._metrics.set(all_metrics.LOADER_UNFINISHED, len(self._streams))
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
