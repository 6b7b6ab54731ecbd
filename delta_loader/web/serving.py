"""The loader's pages and calls, from the moment at which its process starts Spark."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from structlog.typing import FilteringBoundLogger

from common.clock import SystemClock
from common.http.pages import Health, Pausing, pausing_calls, service_pages, with_remedy
from common.http.server import HttpServer, Page, Routes, json_page, text_page
from common.lagging.history import EndHistory
from common.lagging.watch import EndWatch
from common.metrics import Metrics
from common.pages.assets import status_pages
from common.pages.problems import held_problems
from common.settings import Settings
from common.settings.stores import stage_store
from common.stage.paused_streams import PausedStreams
from delta_loader.checks.readiness import ReadinessCheck
from delta_loader.lease.holder import REMEDY as LEASE_REMEDY
from delta_loader.load.report import StreamReport
from delta_loader.loader import Loader
from delta_loader.ports import in_turn
from delta_loader.scheduling.jobs import REMEDY as JOB_REMEDY
from delta_loader.scheduling.load_trigger import RequestQueue
from delta_loader.spark.checkpoint_threads import FAILING_REMEDY
from delta_loader.stage.reading import Stage
from delta_loader.status.kafka import KafkaRefresher
from delta_loader.web.view import LoaderView, WritersView

_CONFLICT = 409
WAIT_S = 600.0
"""How long ``POST /load?wait=1`` waits at most."""


@dataclass(slots=True)
class LoaderServing:
    pausing: Pausing
    paused: PausedStreams
    requests: RequestQueue = field(default_factory=RequestQueue)
    readiness_check: ReadinessCheck | None = None
    """Set once Spark has started."""
    loader: Loader | None = None
    """Set once it is ready to load."""
    view: LoaderView | None = None
    """Set once something is served."""

    def serve(self, settings: Settings, stack: ExitStack, *, log: FilteringBoundLogger, metrics: Metrics) -> None:
        """Start to serve, if the settings have it; ``stack`` closes it. Raises ConfigError."""
        if settings.loader.http is None:
            return
        metrics.with_process()
        clock, history = SystemClock(), EndHistory()
        store = stage_store(settings)
        refresher = KafkaRefresher(settings, clock, Stage(store, in_turn), log)
        writers = WritersView(settings.streams, history, refresher.answers, settings.writer.flush_after_s)
        view = LoaderView(settings.streams, lambda: self.loader, history, writers, clock=clock, metrics=metrics)
        self.view = view
        routes = self.routes(metrics, settings.loader.http_token, view)
        server = HttpServer(settings.loader.http, routes, settings.loader.http_hosts)
        stack.callback(server.close)
        watch = EndWatch(refresher, lambda: view.watched, view.refresh, history=history, clock=clock, log=log)
        stack.callback(watch.close)
        log.info("serving", port=server.port)

    def routes(self, metrics: Metrics, token: str | None, view: LoaderView) -> Routes:
        pages = service_pages("delta-loader", self.health, self.readiness, metrics.exposition)
        pages |= status_pages(view.status)
        return Routes(pages, {**pausing_calls(self.pausing, self.paused), "/load": self.load}, token)

    def health(self) -> Health:
        if self.loader is None:
            return Health(notes=(*self.pausing.notes, *self.paused.notes))
        lease = self.loader.lease
        unleased = None if lease is None else lease.problem
        problems = [*self.loader.service.problems, *self.loader.readiness_check.problems]
        problems += [with_remedy(text, FAILING_REMEDY) for text in self.loader.checkpoints.problems]
        if unleased is not None:
            problems.append(with_remedy(unleased, LEASE_REMEDY))
        unheard = self.loader.control_problem
        notes = []
        if unheard is not None:
            late = f"{unheard.problem}; until then the loader finds new markers by listing the stage"
            notes.append(with_remedy(late, unheard.remedy))
        notes += [with_remedy(text, JOB_REMEDY) for text in self.loader.jobs.long_running]
        return Health(tuple(problems), (*self.pausing.notes, *self.paused.notes, *notes, *self._held(self.loader)))

    def _held(self, loader: Loader) -> Iterator[str]:
        """Held partitions and writers' problems: no reason to report the loader as unhealthy, or to restart it."""
        problems = [problem for entry in loader.service.stats.entries.values() for problem in held_problems(entry.held)]
        if self.view is not None:
            problems += [problem for writers in self.view.of_writers().values() for problem in writers.problems()]
        for problem in problems:
            also = f", and {problem.also} more of this kind" if problem.also else ""
            yield with_remedy(f"{problem.title}{also}: {problem.problem}", problem.remedy)

    def readiness(self) -> Health:
        """Whether the process loads, or could: a rolling replacement waits until the new loader is on standby."""
        loader = self.loader
        if loader is None or (loader.may_load() and not loader.service.ready and not self.pausing.is_on):
            away = None if self.readiness_check is None else self.readiness_check.away
            return Health(("starting", *([away] if away is not None else [])))
        return self.health()

    def load(self, query: Mapping[str, str]) -> Page:
        """``POST /load``: requests a load of everything, now; with ``wait=1`` the response comes when it has ended."""
        refusal = self._refusal()
        if refusal is not None:
            return refusal
        request = self.requests.ask()
        if query.get("wait", "0") in {"0", ""}:
            return json_page(202, {"asked": True})
        reports = request.wait(WAIT_S)
        if reports is None:
            return text_page(503, "the load was stopped, or takes longer than this call waits; see the status\n")
        failed = any(report.failure for report in reports)
        loader, ended = self.loader, {report.app_id for report in reports}
        left = [] if loader is None else [app_id for app_id in sorted(loader.loaded_here) if app_id not in ended]
        paused = [app_id for app_id in left if self.paused.is_paused(app_id)]
        unfinished = [app_id for app_id in left if app_id not in paused]
        answer_json = {"streams": [_report_json(report) for report in reports], "at_it": unfinished, "paused": paused}
        return json_page(500 if failed else 200, answer_json)

    def _refusal(self) -> Page | None:
        if self.loader is None:
            return text_page(503, "starting\n")
        if self.pausing.is_on:
            return text_page(_CONFLICT, "paused; POST /resume first\n")
        if not self.loader.may_load():
            holder = self.loader.lease.holder if self.loader.lease is not None else None
            return text_page(_CONFLICT, f"standby; ask the loader that holds the lease: {holder or 'no loader yet'}\n")
        return None


def _report_json(report: StreamReport) -> Mapping[str, object]:
    failure = report.failure
    return {
        "app_id": report.app_id,
        "commits": report.commits,
        "files": report.files,
        "rows": report.rows,
        "held": report.held_json,
        "failure": None if failure is None else {"problem": failure.problem, "remedy": failure.remedy},
    }
