"""The loader's loop: passes over the streams, and their results.

Rules:

1. The loader has no state of its own: each pass over a stream starts from the stage and the tables
   (delta_loader/load/stream_load.py).
2. A stream that fails, or a Kafka partition that is held, never stops the others. A failure is never silent: it is
   logged and counted, and after `FAILURES_TO_RED` passes in a row the service's health reports it.
3. Streams take turns, several at a time (scheduling/stream_scheduler.py). A stream still running when a pass ends,
   as when a commit hangs, is reported with the pass in which it ends; without progress for long it makes health
   red.
4. Time, names and parallel work come from ports. Nothing here starts a thread or reads a clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common import metrics as all_metrics
from common.errors import HeldError, KafkaDeltaExpressError
from common.http.pages import with_remedy
from common.remedies import CONFIG
from common.settings import LoaderSettings, Stream
from common.settings.pace import loader_of
from delta_loader.load.load_stats import FailureNotes, LoadStats, UnfinishedStreams
from delta_loader.load.report import LoadReporter, StreamReport
from delta_loader.load.rollback import ExaminedTables
from delta_loader.load.stream_load import StreamLoad
from delta_loader.plan.held import FOUND_BY_LOADS
from delta_loader.ports import AnotherIsDue, never
from delta_loader.tables.valid_through import moment_text

if TYPE_CHECKING:
    from delta_loader.load.ports import Ports

FAILURES_TO_RED = 3
STUCK_REMEDY = (
    f"`delta-loader check {CONFIG}` says whether the store of its table responds; if it does, restart this loader: "
    "nothing is loaded twice, and nothing is lost"
)


@dataclass(frozen=True, slots=True)
class _StreamWork:
    """The streams' turns in one pass: `delta_loader.ports.StreamWork`."""

    load: Callable[[str, Callable[[], bool]], None]
    stop: Callable[[], bool]
    unfinished: UnfinishedStreams

    def run(self, app_id: str, should_yield: Callable[[], bool], /) -> bool:
        yielded = False

        def ends() -> bool:
            nonlocal yielded
            yielded = yielded or should_yield()
            return yielded or self.stop()

        if not self.stop():
            self.load(app_id, ends)
        return yielded and not self.stop()

    def progress(self, app_id: str, /) -> object:
        return self.unfinished.progress(app_id)


class LoaderService:
    """Loads streams; `run_pass` is one iteration of the loop."""

    def __init__(self, streams: Sequence[Stream], settings: LoaderSettings, ports: Ports) -> None:
        self._streams = {stream.app_id: stream for stream in streams}
        self._settings = settings
        self._ports = ports
        self._failures: dict[str, int] = {stream.app_id: 0 for stream in streams}
        self._problems: dict[str, str] = {}
        self._passes = 0
        self._examined: ExaminedTables = {}
        self.unfinished = UnfinishedStreams(ports.clock, ports.log, ports.metrics)
        self._notes = FailureNotes(ports.stage.store, ports.clock, ports.log)
        self.stats = LoadStats(stream.app_id for stream in streams)
        self._passing = False
        self.last_success_s: float | None = None
        """When no stream was left failing, by the wall clock; None before the first time."""
        self._held: dict[str, dict[str, int]] = {}
        """How many Kafka partitions the last pass over a stream held, by reason."""

    def recall(self) -> None:
        """Report failures that another process recorded, until a pass replaces them."""
        for app_id in self._streams:
            last = self._notes.last(app_id)
            if last is not None:
                problem = f"{last.problem} (at {moment_text(last.failed_ms)}, before this loader started)"
                self.stats.recall(app_id, KafkaDeltaExpressError(problem, last.remedy))

    def run_pass(
        self,
        stop: Callable[[], bool] = lambda: False,
        app_ids: Collection[str] | None = None,
        *,
        to_the_end: bool = False,
        another_is_due: AnotherIsDue = never,
    ) -> list[StreamReport]:
        """Load everything that is loadable now and not another loader's, or only some streams.

        Returns the reports of streams that have ended since. ``stop`` is checked between commits; a commit in progress
        is finished. With ``to_the_end`` no stream is left running. ``another_is_due`` says when another pass is due:
        this one then does not wait for all of its streams.
        """
        started_s = self._ports.clock.monotonic_s()
        self._passing = True
        self._ports.metrics.set(all_metrics.LOADER_LOADING, 1)
        work = _StreamWork(self._load, stop, self.unfinished)
        among = self._streams if app_ids is None else app_ids
        wanted = tuple(app_id for app_id in self._streams if app_id in among and self._ports.may_load(app_id))
        unfinished = self._ports.run_streams(work, wanted, to_the_end=to_the_end, another_is_due=another_is_due)
        reports = [report for report in self._ended(unfinished) if not report.is_refresh]
        self._passes += 1
        self._ports.metrics.set(all_metrics.LOADER_LOADING, 0)
        self._passing = False
        self._log_pass(reports, self._ports.clock.monotonic_s() - started_s)
        self.unfinished.report_long_turns()
        return reports

    def collect(self) -> list[StreamReport]:
        """Reports of streams of earlier passes that have ended since the last call."""
        if not self.unfinished:
            return []
        work = _StreamWork(self._load, lambda: True, self.unfinished)
        reports = self._ended(self._ports.run_streams(work, ()))
        loads = [report for report in reports if not report.is_refresh]
        if loads:
            self._update_streams(loads)
        return loads

    def _ended(self, unfinished: frozenset[str]) -> list[StreamReport]:
        reports = self.unfinished.take_ended(self._streams, unfinished)
        self.stats.record_pass(reports)
        return reports

    def _load(self, app_id: str, stop: Callable[[], bool]) -> None:
        """Run one turn of a stream, or another slice of one."""
        report = self.unfinished.begin(app_id)
        report.begin()
        self._run_stream(self._streams[app_id], report, lambda: stop() or not self._ports.may_load(app_id))
        self._update_valid_through(report)

    def inspect(self, app_ids: Collection[str]) -> None:
        """Inspect streams that another loader loads; `collect` returns what was found.

        A standby thus knows how far they are, and a later load does not start with a first read. Each stream has a
        thread, as for a load, and waits for no other.
        """
        wanted = tuple(app_id for app_id in self._streams if app_id in app_ids and app_id not in self.unfinished)
        if wanted:
            work = _StreamWork(self._inspect, lambda: False, self.unfinished)
            self._ports.run_streams(work, wanted, another_is_due=lambda _unfinished: True)

    def _inspect(self, app_id: str, _stop: Callable[[], bool]) -> None:
        report = self.unfinished.begin(app_id)
        report.is_refresh = True
        try:
            self._new_load(self._streams[app_id], report).inspect()
        except KafkaDeltaExpressError as error:
            report.failure = error
            self._ports.log.warning(
                "stream of another loader not inspected", app_id=app_id, problem=error.problem, remedy=error.remedy
            )
        except Exception:
            self._ports.log.exception("unexpected exception", app_id=app_id)

    def _update_valid_through(self, report: StreamReport) -> None:
        if self._ports.valid_through is None:
            return
        try:
            self._ports.valid_through.update(report)
        except Exception:  # a bug here or in a dependency: it never makes a load fail
            self._ports.log.exception("unexpected exception", app_id=report.app_id)

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the service is not healthy: streams that failed repeatedly, or hang. Empty when it is healthy."""
        failed = [
            f"stream {app_id} failed {count} times in a row: {self._problems[app_id]}"
            for app_id, count in self._failures.items()
            if count >= FAILURES_TO_RED
        ]
        return (*failed, *(with_remedy(text, STUCK_REMEDY) for text in self.unfinished.stuck))

    @property
    def is_loading(self) -> bool:
        """Whether a pass is in progress, or a stream of an earlier one."""
        return self._passing or bool(self.unfinished)

    @property
    def ready(self) -> bool:
        """Whether a first pass has finished."""
        return self._passes > 0

    def _run_stream(self, stream: Stream, report: StreamReport, stop: Callable[[], bool]) -> None:
        try:
            while not self._new_load(stream, report).run(stop):
                self._ports.log.info("tables have appeared", app_id=stream.app_id)
        except KafkaDeltaExpressError as error:
            self._failed(report, error)
        except Exception as error:
            # A bug, or a dependency that raises what it should not: it may cost this stream's turn and no other's.
            self._ports.log.exception("unexpected exception", app_id=stream.app_id)
            problem = f"unexpected {type(error).__name__}: {error}"
            self._failed(report, KafkaDeltaExpressError(problem, "report it with the log; the next run tries again"))
        else:
            self._failures[stream.app_id] = 0
            held = [reason for reason in report.held.values() if reason.reason in FOUND_BY_LOADS]
            if held:  # status, which loads nothing, could not report it otherwise
                self._notes.failed(stream.app_id, HeldError(held[0].problem, held[0].remedy))
            else:
                self._notes.succeeded(stream.app_id)

    def _new_load(self, stream: Stream, report: StreamReport) -> StreamLoad:
        known = self._ports.stage.appeared(stream)
        return StreamLoad(known, loader_of(self._settings, known), self._ports, report, self._examined)

    def _failed(self, report: StreamReport, error: KafkaDeltaExpressError) -> None:
        report.failure = error
        if not report.seen:  # an old lag would look like a current one
            reporter = LoadReporter(report, self._ports.log, self._ports.metrics, self._ports.clock)
            for partition in self.stats.entries[report.app_id].seen:
                reporter.forget(partition)
        self._notes.failed(report.app_id, error)
        self._failures[report.app_id] += 1
        self._problems[report.app_id] = with_remedy(error.problem, error.remedy)
        self._ports.log.error(
            "stream failed",
            app_id=report.app_id,
            problem=error.problem,
            remedy=error.remedy,
            failures_in_a_row=self._failures[report.app_id],
        )

    def _log_pass(self, reports: Sequence[StreamReport], duration_s: float) -> None:
        metrics, failed = self._ports.metrics, any(report.failure for report in reports)
        metrics.add(all_metrics.LOADER_RUNS, outcome="failure" if failed else "success")
        metrics.observe(all_metrics.LOADER_RUN_SECONDS, duration_s)
        self._update_streams(reports)

    def _update_streams(self, reports: Sequence[StreamReport]) -> None:
        metrics = self._ports.metrics
        for app_id, count in self._failures.items():
            metrics.set(all_metrics.LOADER_FAILURES, count, app_id=app_id)
        if reports and not any(self._failures.values()):
            self.last_success_s = self._ports.clock.wall_ms() / 1000
            metrics.set(all_metrics.LOADER_LAST_SUCCESS, self.last_success_s)
        metrics.forget(all_metrics.LOADER_HELD)
        self._held |= {report.app_id: dict(Counter(held.reason for held in report.held.values())) for report in reports}
        for app_id, counts in self._held.items():
            for reason, count in counts.items():
                metrics.set(all_metrics.LOADER_HELD, count, app_id=app_id, reason=reason)
