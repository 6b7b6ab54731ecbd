"""``delta-loader``: its commands, and the wiring of the real parts of ``run``; the others are in ``commands/``."""

from __future__ import annotations

import os
import signal
import socket
import time
import uuid
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from structlog.typing import FilteringBoundLogger

from common import metrics as all_metrics
from common.cli import (
    ConfigArgument,
    JsonOption,
    PrintConfigOption,
    echo,
    end_process,
    examples,
    new_app,
    settings_from,
)
from common.cli import run as run_app
from common.clock import SystemClock
from common.errors import ExitCode, TableError
from common.http.pages import Pausing
from common.logs import set_up_logs
from common.metrics import Metrics
from common.pause_commands import add_pause_commands, paused_streams
from common.settings import Settings
from common.settings.stores import stage_store, table_stores
from common.stage.appeared_routes import with_appeared
from common.stage.notifications import NOTIFICATIONS
from common.stage.paused import StreamPart
from common.stage.paused_streams import REFRESH_EVERY_S
from delta_loader.checks.readiness import ReadinessCheck
from delta_loader.commands.dead_letters import app as dead_letters_app
from delta_loader.commands.inspection import check, explain, status, verify
from delta_loader.commands.parts import THREADS, OwnPools, preflight_of, stage_of, tables_of
from delta_loader.commands.summary import as_json as summary_as_json
from delta_loader.commands.summary import as_text as summary_as_text
from delta_loader.commands.upkeep import clean, services
from delta_loader.lease.holder import LeaseThread, LoaderLease
from delta_loader.loader import Loader
from delta_loader.maintenance.cleaning.clean import CleanUp, ScheduledCleanUp
from delta_loader.maintenance.services.reading import FactsReader
from delta_loader.maintenance.services.runs import ScheduledServices, TableServices
from delta_loader.ports import ParallelMap
from delta_loader.scheduling.jobs import LONG_S, Jobs
from delta_loader.scheduling.listening import Listener
from delta_loader.scheduling.load_trigger import LoadTrigger, stream_triggers
from delta_loader.scheduling.notifications import (
    ControlTopicNotifications,
    Notifications,
    PolledNotifications,
    StoredNotifications,
)
from delta_loader.service import LoaderService
from delta_loader.web.serving import LoaderServing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_INSPECT_OTHERS_EVERY_S = 30.0
"""How often a stream that another loader loads is inspected."""
_CHECKS_EVERY_S = 15.0
_CLEAN_UP_LOOK_EVERY_S = 30.0
_SPARK_CHECK = "Spark"
_SPARK_LOOK_EVERY_S = 5.0
_MAINTENANCE_LOOK_EVERY_S = 1.0
_POLL_S = 0.1  # how long a change of the lease may go unnoticed within the process

app = new_app(
    "Load staged files into Delta tables.",
    "delta-loader check pipeline.yaml",
    "delta-loader run pipeline.yaml",
    "delta-loader status pipeline.yaml",
    "delta-loader verify pipeline.yaml --kafka",
)


@app.command(epilog=examples("delta-loader run pipeline.yaml", "delta-loader run pipeline.yaml --once --json"))
def run(
    config: ConfigArgument,
    *,
    once: Annotated[bool, typer.Option("--once", help="Load everything that can be loaded now, and exit.")] = False,
    as_json: JsonOption = False,
    print_config: PrintConfigOption = False,
) -> None:
    """Load on the schedule until stopped; or with --once, load everything that can be loaded now, and exit."""
    settings = settings_from(config, print_config=print_config)
    log = set_up_logs(settings.logs, "delta-loader")
    with ExitStack() as stack:
        stopped = Event()
        _stop_on_signals(stopped, log)
        loader = _loader(settings, log, stack, stopped, once=once)
        if stopped.is_set():
            raise typer.Exit(ExitCode.FAILED if once else ExitCode.DONE)
        if loader.lease_thread is not None:
            loader.lease_thread.contend()
            stack.callback(loader.lease_thread.close)  # before Spark stops, which takes a while
        stack.callback(loader.end_streams)
        if once:
            _wait_for_lease_once(loader, stopped, log)
            reports = loader.service.run_pass(stopped.is_set, to_the_end=True)
            loader.checkpoints.finish(stopped.is_set)
            loader.readiness_check.check_again()
            echo((summary_as_json if as_json else summary_as_text)(reports, loader.readiness_check.problems))
            for note in loader.paused.notes:
                echo(note, err=True)
            codes = [
                *(report.exit_code for report in reports),
                *(check.exit_code for check in loader.readiness_check.not_ready),
            ]
            codes += [ExitCode.HELD] if loader.paused.pauses else []
            raise typer.Exit(ExitCode.most_significant([*codes, *([ExitCode.FAILED] if stopped.is_set() else [])]))
        loader.jobs.start()
        try:
            _run(loader, stopped)
        except Exception:
            # A stream's thread starts with a call to Java, which raises arbitrary exceptions once the JVM is gone.
            loader.jobs.soon(_SPARK_CHECK)
            if loader.spark_stopped.wait(2 * _SPARK_LOOK_EVERY_S):
                _require_spark(loader)
            raise
    log.info("stopped")


# After `run`: help lists the commands in this order.
for command, calls in (
    (check, ("delta-loader check pipeline.yaml",)),
    (status, ("delta-loader status pipeline.yaml", "delta-loader status pipeline.yaml --json")),
    (verify, ("delta-loader verify pipeline.yaml", "delta-loader verify pipeline.yaml --stream orders --kafka --json")),
    (
        explain,
        (
            "delta-loader explain pipeline.yaml --version 12",
            "delta-loader explain pipeline.yaml --topic orders --partition 0 --offset 4711",
        ),
    ),
    (services, ("delta-loader services pipeline.yaml", "delta-loader services pipeline.yaml --run")),
    (clean, ("delta-loader clean pipeline.yaml --older-than 7d", "delta-loader clean pipeline.yaml --yes")),
):
    app.command(epilog=examples(*calls))(command)
add_pause_commands(app, StreamPart.LOADING)
app.add_typer(dead_letters_app, name="dead-letters")


def _loader(settings: Settings, log: FilteringBoundLogger, stack: ExitStack, stopped: Event, *, once: bool) -> Loader:
    """The service over Spark, fsspec and a thread pool, all of which ``stack`` closes; it watches the lease.

    It is ready to load, unless a signal has set ``stopped`` in the meantime.
    """
    # Spark is needed only to load: `status` works without it.
    from delta_loader.spark.delta import SparkDeltaTables  # noqa: PLC0415
    from delta_loader.wiring import spark_checkpoints, spark_ports, spark_scheduler  # noqa: PLC0415

    metrics, clock, parallel = Metrics(), SystemClock(), OwnPools(THREADS)
    stack.callback(parallel.close)
    clean_up = ScheduledCleanUp(settings, CleanUp(settings, table_stores(settings), parallel), log, metrics)
    jobs = Jobs(clock, log)
    paused = paused_streams(settings, StreamPart.LOADING, log, metrics)
    serving = LoaderServing(Pausing(clock, log, metrics, all_metrics.LOADER_PAUSED_BY_REQUEST), paused)
    serving.serve(settings, stack, log=log, metrics=metrics)
    # The lease is watched from here on, so that the time in which Spark starts counts.
    lease, lease_thread = _lease(settings, log, metrics, stack)
    spark = _start_spark(settings, log, stack, stopped)
    stack.callback(jobs.close)
    readiness_check = _readiness_check(settings, spark, parallel, log, metrics)
    serving.readiness_check = readiness_check
    readiness_check.begin(once=once, wait=stopped.wait)
    (paused.refresh if once else paused.run)()
    checkpoints = spark_checkpoints(spark, clock, table_stores(settings), log=log, metrics=metrics)
    stack.callback(checkpoints.close)
    checkpoints.begin(tables_of(settings), parallel)
    tables = SparkDeltaTables(spark, clock, settings.stage.url, checkpoints)
    streams = spark_scheduler(spark, settings.loader.parallel_streams)

    def may_load(app_id: str) -> bool:
        return (once or lease is None or app_id in lease.held()) and not paused.is_paused(app_id)

    ports = spark_ports(settings, spark, tables, parallel, log=log, metrics=metrics)
    ports = replace(ports, run_streams=streams, may_load=may_load)
    service = LoaderService(settings.streams, settings.loader, ports)
    service.recall()
    control = None if once else _listener(settings, stack, log=log, metrics=metrics)
    notifications = _notifications(settings, control, jobs, may_load, log)
    trigger = LoadTrigger(stream_triggers(settings), serving.requests, clock, metrics, notifications)
    stack.callback(trigger.give_up)
    serving.loader = Loader(
        service,
        Event(),
        lease,
        lease_thread,
        readiness_check,
        pausing=serving.pausing,
        paused=paused,
        trigger=trigger,
        streams=streams,
        checkpoints=checkpoints,
        jobs=jobs,
        control=control,
    )
    if not once:
        _add_jobs(serving.loader, clean_up, tables.alive)
        serving.loader = _with_services(settings, spark, parallel, serving.loader, stack, log=log, metrics=metrics)
    return serving.loader


def _listener(settings: Settings, stack: ExitStack, *, log: FilteringBoundLogger, metrics: Metrics) -> Listener | None:
    """The control topic's listener, already started, which ``stack`` closes; or None. Raises ConfigError."""
    topic, app_ids = settings.loader.control_topic, [stream.app_id for stream in settings.streams]
    listener = None if topic is None else Listener(settings.kafka, topic, app_ids, log=log, metrics=metrics)
    if listener is not None:
        stack.callback(listener.close)
    return listener


def _notifications(
    settings: Settings, control: Listener | None, jobs: Jobs, may_load: Callable[[str], bool], log: FilteringBoundLogger
) -> Notifications | None:
    """Writers' notifications, for which a job checks the stage; None if no stream is loaded by them."""
    waiting = [stream.app_id for stream in settings.streams_on_marker]
    if not waiting:
        return None
    store = stage_store(settings)
    stored = StoredNotifications(store, waiting, log, may_load)
    polled = PolledNotifications(stored, SystemClock(), lambda: jobs.soon(NOTIFICATIONS))
    jobs.add(NOTIFICATIONS, polled.fetch)
    return polled if control is None else ControlTopicNotifications(control, polled, SystemClock())


def _start_spark(settings: Settings, log: FilteringBoundLogger, stack: ExitStack, stopped: Event) -> SparkSession:
    """Spark, which ``stack`` stops."""
    from delta_loader.spark.session import build_session  # noqa: PLC0415 - see _loader

    log.info("starting spark")
    spark = build_session(settings)
    stack.callback(_stop_spark, spark)
    if not stopped.is_set():
        _stop_on_signals(stopped, log)  # again: Spark installs its own handler
    return spark


def _with_services(
    settings: Settings,
    spark: SparkSession,
    parallel: ParallelMap,
    loader: Loader,
    stack: ExitStack,
    *,
    log: FilteringBoundLogger,
    metrics: Metrics,
) -> Loader:
    """The loader with a job that maintains the tables of the streams that it loads, if the settings have services."""
    from delta_loader.maintenance.services.spark import SparkServices  # noqa: PLC0415 - see _loader

    if not settings.table_services.is_on:
        return loader
    stage, clock = stage_of(settings, parallel), SystemClock()
    services = TableServices(
        settings,
        FactsReader(settings, stage, table_stores(settings), parallel, clock),
        SparkServices(spark),
        clock,
        log=log,
        metrics=metrics,
        may_load=lambda app_id: app_id in loader.loaded_here and not loader.paused.is_paused(app_id),
        now=lambda settings: with_appeared(settings, stage.store),
    )
    wanted = settings.table_services
    scheduled = ScheduledServices(services, wanted, loader.may_serve, is_loading=loader.streams.is_running)
    stack.callback(scheduled.close)
    loader.jobs.add(
        "maintenance", scheduled.run_due, every_s=_MAINTENANCE_LOOK_EVERY_S, long_s=wanted.budget_s + LONG_S
    )
    return replace(loader, services=scheduled)


def _readiness_check(
    settings: Settings, spark: SparkSession, parallel: ParallelMap, log: FilteringBoundLogger, metrics: Metrics
) -> ReadinessCheck:
    """The checks before the first load, repeated for streams that are not ready."""
    from delta_loader.spark.log_store import prove_log_stores  # noqa: PLC0415 - see _loader
    from delta_loader.wiring import catalog_checks  # noqa: PLC0415 - the same

    return ReadinessCheck(
        [stream.app_id for stream in settings.streams],
        scan=lambda: [*preflight_of(settings, parallel).checks(), *catalog_checks(settings, spark)],
        check_stream=lambda app_id: [
            *preflight_of(settings, parallel).stream_checks(app_id),
            *catalog_checks(settings, spark, app_id),
        ],
        prove=lambda: prove_log_stores(spark, tables_of(settings), table_stores(settings)),
        log=log,
        metrics=metrics,
    )


def _add_jobs(loader: Loader, clean_up: ScheduledCleanUp, spark_is_alive: Callable[[], bool]) -> None:

    def clean() -> None:
        if loader.may_serve():
            clean_up.run_due(datetime.now(UTC))

    def check_spark() -> None:
        if not spark_is_alive():
            loader.spark_stopped.set()

    loader.jobs.add("readiness checks", loader.readiness_check.check_again, every_s=_CHECKS_EVERY_S)
    loader.jobs.add("pauses", loader.paused.run, every_s=REFRESH_EVERY_S)
    loader.jobs.add("clean-up", clean, every_s=_CLEAN_UP_LOOK_EVERY_S)
    loader.jobs.add(_SPARK_CHECK, check_spark, every_s=_SPARK_LOOK_EVERY_S)


def _lease(
    settings: Settings, log: FilteringBoundLogger, metrics: Metrics, stack: ExitStack
) -> tuple[LoaderLease, LeaseThread] | tuple[None, None]:
    """The lease, if the settings have one, and the thread that runs it, which ``stack`` closes."""
    if not settings.loader.lease_s:
        return None, None
    me = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    # A separate store, so a slow upload of the loader's does not delay a renewal.
    store = stage_store(settings)
    streams = {stream.app_id: stream.topics for stream in settings.streams}
    lease = LoaderLease(store, SystemClock(), me, settings.loader.lease_s, streams, log=log, metrics=metrics)
    thread = LeaseThread(lease, log)
    stack.callback(thread.close)
    return lease, thread


def _run(loader: Loader, stopped: Event) -> None:
    """Load now, and whenever it is due again, until stopped; streams that another loader loads are only inspected.

    Does no I/O: streams are loaded and inspected in their own threads, all else is done by jobs (scheduling/jobs.py).
    Raises TableError when Spark is gone.
    """

    def stop() -> bool:
        return stopped.is_set() or loader.pausing.is_on or not loader.may_load()

    here: frozenset[str] = frozenset()
    check_at_s = time.monotonic()
    while not stopped.is_set():
        _require_spark(loader)
        before, here = here, loader.loaded_here
        if here - before:
            loader.trigger.begin_again()
        resumed = loader.paused.take_resumed()
        if resumed:
            loader.trigger.begin_again(resumed)
        elsewhere = loader.loaded_elsewhere | (here & loader.paused.pauses.keys())
        if elsewhere and time.monotonic() >= check_at_s:
            loader.service.inspect(elsewhere)
            check_at_s = time.monotonic() + _INSPECT_OTHERS_EVERY_S
        if not here:
            loader.trigger.give_up()
        due_load = loader.trigger.next(datetime.now(UTC), paused=loader.pausing.is_on) if here else None
        if due_load is None:
            loader.trigger.collected(loader.service.collect())
            (stopped.wait if loader.control is None else loader.control.wait)(_POLL_S)
            continue
        with loader.loading():
            reports = loader.service.run_pass(stop, due_load.app_ids, another_is_due=loader.trigger.another_is_due)
        loader.trigger.ended(due_load, reports, datetime.now(UTC), cut_short=stop())


def _wait_for_lease_once(loader: Loader, stopped: Event, log: FilteringBoundLogger) -> None:
    """Wait for the lease of all streams until their holders have been seen alive long enough to count as live.

    Then this pass runs concurrently with the holders', which is just as safe (lease/rules.py, rule 7): ``run --once``
    promises that everything is loaded when it ends.
    """
    began_s = time.monotonic()
    streams = loader.service.stats.entries.keys()
    while loader.lease is not None and loader.lease.held() < streams and not stopped.wait(_POLL_S):
        if time.monotonic() - began_s > loader.lease.backoff_s:
            log.warning("loading although another loader holds the lease", holder=loader.lease.holder)
            return


def _stop_spark(spark: SparkSession) -> None:
    """End Java. If it is already gone, its gateway's sockets raise, which would hide why this program ends."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - see _loader

    with suppress(Py4JError, OSError):
        spark.stop()


def _require_spark(loader: Loader) -> None:
    if loader.spark_stopped.is_set():
        msg = "the Spark process has ended"
        raise TableError(msg, "restart the loader; if it ran out of memory, raise spark.driver.memory")


def _stop_on_signals(stopped: Event, log: FilteringBoundLogger) -> None:
    """Make SIGTERM and SIGINT set the event; a second signal ends the process as if there were no handler."""

    def stop(number: int, _frame: FrameType | None) -> None:
        log.info("stopping after the current commit", signal=signal.Signals(number).name)
        signal.signal(number, signal.SIG_DFL)
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def main() -> None:
    # PySpark warns on each import; the loader does not use pandas.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    end_process(run_app(app))


if __name__ == "__main__":
    main()
