"""The loader's loop: a pass over each stream, and what became of it.

Rules:

1. The loader has no state of its own: each pass over a stream begins with what is there (delta_loader/streams/load.py).
2. One stream that fails, or one Kafka partition that is held, never stops the others. A failure is never silent: it
   is logged, counted, and after `FAILURES_TO_RED` passes in a row the service's health says so.
3. Time, names and parallel work come from ports. Nothing here starts a thread or asks a clock.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common import metrics as catalogue
from common.errors import KafkaDeltaExpressError
from delta_loader.streams.load import StreamLoad
from delta_loader.streams.report import StreamReport

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from structlog.typing import FilteringBoundLogger

    from common.metrics import Metrics
    from common.ports import Clock
    from common.settings import LoaderSettings, Stream
    from delta_loader.ports import ColumnAdder, DeltaTables, NewId, OpenStore, ParallelMap
    from delta_loader.replace import Replacements
    from delta_loader.stage import Stage
    from delta_loader.went_back import Looked

FAILURES_TO_RED = 3


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything that the service reaches the world through."""

    stage: Stage
    tables: DeltaTables
    open_store: OpenStore
    parallel: ParallelMap
    clock: Clock
    new_id: NewId
    log: FilteringBoundLogger
    metrics: Metrics
    replacements: Replacements | None = None
    """None where nobody can ask for any."""
    columns: ColumnAdder | None = None
    """None where no table gains any."""


class LoaderService:
    """Loads streams; `run_pass` is one turn of the loop."""

    def __init__(self, streams: Sequence[Stream], settings: LoaderSettings, ports: Ports) -> None:
        """Touches nothing yet."""
        self._streams = streams
        self._settings = settings
        self._ports = ports
        self._failures: dict[str, int] = {stream.app_id: 0 for stream in streams}
        self._problems: dict[str, str] = {}
        self._passes = 0
        self._looked: Looked = {}
        self._held: dict[str, dict[str, int]] = {}
        """How many Kafka partitions the last pass over a stream held, by reason."""

    def run_pass(
        self, stop: Callable[[], bool] = lambda: False, app_ids: Collection[str] | None = None
    ) -> list[StreamReport]:
        """Load everything that is loadable now, or of some streams only.

        ``stop`` is asked between commits; a commit under way is finished.
        """
        started_s = self._ports.clock.monotonic_s()
        streams = [stream for stream in self._streams if app_ids is None or stream.app_id in app_ids]
        reports = [self._run_stream(stream, stop) for stream in streams if not stop()]
        self._passes += 1
        self._tell_pass(reports, self._ports.clock.monotonic_s() - started_s)
        return reports

    def warm_up(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Look at every table and change nothing, so that a pass that comes later need not pay for a first look."""
        for url in (url for stream in self._streams for url in stream.tables):
            if stop():
                return
            try:
                self._ports.tables.state(url)
            except KafkaDeltaExpressError as error:
                self._ports.log.debug("a table cannot be looked at", table=url, problem=error.problem)  # a pass tells

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the service is not healthy: streams that failed again and again. Empty when all is well."""
        return tuple(
            f"stream {app_id} failed {count} times in a row: {self._problems[app_id]}"
            for app_id, count in self._failures.items()
            if count >= FAILURES_TO_RED
        )

    @property
    def ready(self) -> bool:
        """Whether a first pass is done."""
        return self._passes > 0

    def _run_stream(self, stream: Stream, stop: Callable[[], bool]) -> StreamReport:
        report = StreamReport(stream.app_id)
        try:
            StreamLoad(stream, self._settings, self._ports, report, self._looked).run(stop)
        except KafkaDeltaExpressError as error:
            self._failed(report, error)
        except Exception as error:
            # A bug, or a dependency that raises what it should not: it may cost this stream's turn and no other's.
            self._ports.log.exception("unexpected exception", app_id=stream.app_id)
            problem = f"unexpected {type(error).__name__}: {error}"
            self._failed(report, KafkaDeltaExpressError(problem, "report it with the log; the next run tries again"))
        else:
            self._failures[stream.app_id] = 0
        return report

    def _failed(self, report: StreamReport, error: KafkaDeltaExpressError) -> None:
        report.failure = error
        self._failures[report.app_id] += 1
        self._problems[report.app_id] = error.problem
        self._ports.log.error(
            "stream failed",
            app_id=report.app_id,
            problem=error.problem,
            remedy=error.remedy,
            failures_in_a_row=self._failures[report.app_id],
        )

    def _tell_pass(self, reports: Sequence[StreamReport], duration_s: float) -> None:
        metrics, failed = self._ports.metrics, any(report.failure for report in reports)
        metrics.add(catalogue.LOADER_RUNS, outcome="failure" if failed else "success")
        metrics.observe(catalogue.LOADER_RUN_SECONDS, duration_s)
        for app_id, count in self._failures.items():
            metrics.set(catalogue.LOADER_FAILURES, count, app_id=app_id)
        if not any(self._failures.values()):
            metrics.set(catalogue.LOADER_LAST_SUCCESS, self._ports.clock.wall_ms() / 1000)
        metrics.forget(catalogue.LOADER_HELD)
        self._held |= {report.app_id: dict(Counter(one.reason for one in report.held.values())) for report in reports}
        for app_id, counts in self._held.items():
            for reason, count in counts.items():
                metrics.set(catalogue.LOADER_HELD, count, app_id=app_id, reason=reason)
