"""Runs of the table services, on their schedule or by hand: checks all tables and runs due tasks one by one.

Rules:

1. The table that was maintained longest ago comes first, by the tables' own histories; so the next run starts with what
   a budget left undone. A table with a failure goes after the others while this process lives.
2. Before each task everything is checked again: whether it may start (a stop, the lease, a load in progress), the
   window, the budget. A task that has started is finished.
3. An error of one table is reported, and does not affect the others; the rest of that service's tasks for it is
   skipped.
4. A load that is due goes first, and waits for nothing: it runs in its own thread, with its own tasks. While one runs,
   no maintenance task starts, even when the load takes longer than the pass that it started in; a task that has started
   continues in the background, with one Spark task at a time. Maintenance of a table thus never keeps records from it,
   no matter how long it takes; and tasks are sized so that they do not take long.
5. On their schedule, services run while this loader may load (it holds the lease), and stop before the next task when
   it no longer may. A scheduled run outside of the window starts with the window. An interval's first run is at the
   start: the tables themselves show the due tasks, so an extra run does nothing. After an error, the next scheduled
   time is the next try.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Event
from typing import Protocol, assert_never

from structlog.typing import FilteringBoundLogger

from common import metrics as all_metrics
from common.errors import KafkaDeltaExpressError
from common.metrics import Metrics
from common.ports import Clock
from common.settings import Settings
from common.settings.services import TableServicesSettings
from common.settings.values import CRON_FIELDS
from delta_loader.maintenance.services.due import (
    NOTHING,
    Done,
    MaintenanceTask,
    Outcome,
    RunReport,
    TableRules,
    TableSnapshot,
    TaskAborted,
    TaskFailed,
    TaskReport,
    due,
)
from delta_loader.maintenance.services.facts import Service, TableFacts
from delta_loader.maintenance.services.reading import first_stream_of, rules_of, tables_of
from delta_loader.scheduling.schedule import Schedule


class ServiceWork(Protocol):
    def carry_out(self, task: MaintenanceTask, rules: TableRules) -> Outcome:
        """Carry out a task to its end; never raises for a table's errors."""

    def cancel(self) -> None:
        """End the running task, from another thread; it then results in `TaskAborted`."""


class TableInspector(Protocol):
    def read(self, url: str, rules: TableRules) -> TableFacts | None:
        """A table's facts; None when it does not exist. Raises TableError and StoreError."""


@dataclass(slots=True)
class _Progress:
    done: list[TaskReport] = field(default_factory=list)
    left: list[MaintenanceTask] = field(default_factory=list)
    stopped_by: str = ""


class TableServices:
    def __init__(
        self,
        settings: Settings,
        inspector: TableInspector,
        work: ServiceWork,
        clock: Clock,
        *,
        log: FilteringBoundLogger,
        metrics: Metrics,
        may_load: Callable[[str], bool] = lambda _app_id: True,
        now: Callable[[Settings], Settings] = lambda settings: settings,
    ) -> None:
        """Tables whose first stream this process ``may_load`` are maintained; other loaders maintain the others.

        ``now`` adds the tables that have appeared. It raises StoreError and MarkerError.
        """
        self._now = now
        self._may_load = may_load
        self._settings = settings
        self._inspector = inspector
        self._work = work
        self._clock = clock
        self._log = log
        self._metrics = metrics
        self._failed_ms: dict[str, int] = {}

    def run(
        self, may_begin: Callable[[], bool] = lambda: True, only: str | None = None, *, at_any_time: bool = False
    ) -> RunReport:
        """Run the due tasks; ``at_any_time`` ignores the window and the budget, for a manual run."""
        self._settings = self._now(self._settings)
        here = [url for url in tables_of(self._settings) if self._may_load(first_stream_of(self._settings, url))]
        urls = here if only is None else [only]
        snapshots = list(_inspected(self._settings, self._inspector, self._clock, urls))
        self._report_inspections(snapshots)
        progress, began_s = _Progress(), self._clock.monotonic_s()
        for snapshot in sorted(snapshots, key=self._maintained_ms):
            failed: set[Service] = set()
            for task in snapshot.due.tasks:
                if not progress.stopped_by:
                    progress.stopped_by = self._why_not(may_begin, began_s, at_any_time=at_any_time)
                if progress.stopped_by or task.service in failed:
                    progress.left.append(task)
                    continue
                report = self._carry_out(task, snapshot.rules)
                progress.done.append(report)
                if not isinstance(report.outcome, Done):
                    failed.add(task.service)
        return self._ended(snapshots, progress)

    def cancel(self) -> None:
        """End the running task, from another thread."""
        self._work.cancel()

    def _maintained_ms(self, snapshot: TableSnapshot) -> int:
        maintained_ms = 0 if snapshot.facts is None else snapshot.facts.maintained_ms
        return max(maintained_ms, self._failed_ms.get(snapshot.url, 0))

    def _why_not(self, may_begin: Callable[[], bool], began_s: float, *, at_any_time: bool) -> str:
        """Why no task may start now; empty when one may (rule 2)."""
        if not may_begin():
            return "stop"
        if at_any_time:
            return ""
        wanted = self._settings.table_services
        if not wanted.may_begin(datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC)):
            return "window"
        return "budget" if self._clock.monotonic_s() - began_s >= wanted.budget_s else ""

    def _carry_out(self, task: MaintenanceTask, rules: TableRules) -> TaskReport:
        began_s = self._clock.monotonic_s()
        outcome = self._work.carry_out(task, rules)
        report = TaskReport(task, outcome, self._clock.monotonic_s() - began_s)
        log = self._log.bind(table_service=task.service.value, table=task.url, duration_s=round(report.duration_s, 3))
        service = task.service.value
        self._metrics.observe(all_metrics.SERVICES_SECONDS, report.duration_s, service=service)
        match outcome:
            case Done():
                self._metrics.add(all_metrics.SERVICES_PIECES, service=service, outcome="done")
                self._metrics.add(all_metrics.SERVICES_FILES_REMOVED, outcome.files_removed, service=service)
                self._metrics.add(all_metrics.SERVICES_FILES_ADDED, outcome.files_added, service=service)
                self._metrics.add(all_metrics.SERVICES_BYTES_REMOVED, outcome.bytes_removed, service=service)
                self._metrics.add(all_metrics.SERVICES_BYTES_ADDED, outcome.bytes_added, service=service)
                log.info(
                    "table served",
                    why=task.why,
                    files_before=outcome.files_removed,
                    files_after=outcome.files_added,
                    bytes_before=outcome.bytes_removed,
                    bytes_after=outcome.bytes_added,
                )
            case TaskAborted(problem):
                self._metrics.add(all_metrics.SERVICES_PIECES, service=service, outcome="given_up")
                log.info("table service aborted; the next run tries again", problem=problem)
            case TaskFailed(problem):
                self._metrics.add(all_metrics.SERVICES_PIECES, service=service, outcome="failed")
                self._failed_ms[task.url] = self._clock.wall_ms()
                log.error("table service failed", problem=problem)
            case _:
                assert_never(outcome)
        return report

    def _report_inspections(self, snapshots: Sequence[TableSnapshot]) -> None:
        for snapshot in snapshots:
            if snapshot.failure is not None:
                self._log.error("table services not checked", table=snapshot.url, problem=snapshot.failure)
            for refused in snapshot.due.refused:
                self._log.warning(
                    "table service refused",
                    table_service=refused.service.value,
                    table=snapshot.url,
                    problem=refused.why,
                    remedy=refused.remedy,
                )

    def _ended(self, snapshots: Sequence[TableSnapshot], progress: _Progress) -> RunReport:
        for service in Service:
            count = sum(task.service is service for task in progress.left)
            self._metrics.set(all_metrics.SERVICES_LEFT, count, service=service.value)
        self._metrics.set(all_metrics.SERVICES_LAST_RUN, self._clock.wall_ms() / 1000)
        if progress.left:
            self._log.info("table services left work for the next run", pieces=len(progress.left))
        return RunReport(tuple(progress.done), tuple(snapshots), tuple(progress.left), progress.stopped_by)


def inspect_tables(
    settings: Settings, inspector: TableInspector, clock: Clock, only: str | None = None
) -> list[TableSnapshot]:
    return list(_inspected(settings, inspector, clock, [only] if only is not None else tables_of(settings)))


def _inspected(
    settings: Settings, inspector: TableInspector, clock: Clock, urls: Sequence[str]
) -> Iterator[TableSnapshot]:
    for url in urls:
        rules = rules_of(settings, url)
        try:
            facts = inspector.read(url, rules)
        except KafkaDeltaExpressError as error:
            yield TableSnapshot(url, None, rules, failure=error.problem)
            continue
        tasks_due = NOTHING if facts is None else due(facts, rules, clock.wall_ms())
        yield TableSnapshot(url, facts, rules, tasks_due)


_LOAD_LOOK_S = 0.1


class ScheduledServices:
    """Runs `TableServices` on a schedule; a job polls whether it is due."""

    def __init__(
        self,
        services: TableServices,
        settings: TableServicesSettings,
        may_run: Callable[[], bool],
        *,
        is_loading: Callable[[], bool] = lambda: False,
    ) -> None:
        """``is_loading`` is true while a load runs that outlived its pass.

        Raises ConfigError for an invalid cron line.
        """
        self._is_loading = is_loading
        self._services = services
        self._settings = settings
        self._schedule = Schedule(settings.schedule)
        self._may_run = may_run
        self._stopped = Event()
        self._free = Event()
        self._free.set()
        now, is_cron = datetime.now(UTC), len(settings.schedule.split()) == CRON_FIELDS
        self._due = self._schedule.next_after(now, now) if is_cron else now

    def close(self) -> None:
        """End the running task; the thread in `run_due` waits for it."""
        self._stopped.set()
        self._services.cancel()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """While a load runs, no task starts (rule 4)."""
        self._free.clear()
        try:
            yield
        finally:
            self._free.set()

    def run_due(self) -> None:
        now = datetime.now(UTC)
        if self._stopped.is_set() or now < self._due or not self._settings.may_begin(now) or not self._may_run():
            return
        self._due = self._schedule.next_after(now, now)
        self._services.run(self._may_begin)

    def _may_begin(self) -> bool:
        """Wait until no load runs; False when no task may start anymore (rule 5)."""
        while not self._free.is_set() or self._is_loading():
            if self._stopped.wait(_LOAD_LOOK_S):
                break
        return not self._stopped.is_set() and self._may_run()
