"""``delta-loader``: the wiring of the real parts, and nothing else."""

from __future__ import annotations

import json
import signal
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from threading import Event
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from common.cli import ConfigArgument, PrintConfigOption, new_app, settings_from
from common.cli import run as run_app
from common.errors import TableError
from common.http_server import Health, HttpServer, service_pages
from common.logs import set_up_logs
from common.metrics import Metrics
from common.ports import SystemClock
from common.store import FsspecStore
from delta_loader.core.status import to_json, to_text
from delta_loader.schedule import Schedule, wait_until
from delta_loader.service import LoaderService, Ports, StreamReport
from delta_loader.shell.kafka import BrokerEnds
from delta_loader.stage import Stage
from delta_loader.status import stream_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import FrameType

    from structlog.typing import FilteringBoundLogger

    from common.ports import ObjectStore
    from common.settings import Settings
    from delta_loader.ports import OpenStore, ParallelMap

_THREADS = 32  # requests to object stores at a time: they wait, and do not compute
Item = TypeVar("Item")
Result = TypeVar("Result")

app = new_app("Loads what the stage writers staged into Delta tables.")


@app.command()
def run(
    config: ConfigArgument,
    *,
    once: Annotated[bool, typer.Option("--once", help="Load all that is loadable now, and exit.")] = False,
    print_config: PrintConfigOption = False,
) -> None:
    """Load on the schedule; or load all that is loadable now, and exit 0."""
    settings = settings_from(config, print_config=print_config)
    schedule = Schedule(settings.loader.schedule)
    log = set_up_logs(settings.logs, "delta-loader")
    with ExitStack() as stack:
        service, alive = _service(settings, log, stack)
        stopped = _stop_on_signals(log)
        if once:
            reports = service.run_pass(stopped.is_set)
            typer.echo(_summary(reports))
            raise typer.Exit(int(any(report.failure for report in reports)))
        _run_on_schedule(service, schedule, stopped, alive)
    log.info("stopped")


@app.command()
def status(
    config: ConfigArgument,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for machines.")] = False,
    print_config: PrintConfigOption = False,
) -> None:
    """Per stream and Kafka partition: staged to, loaded to, lag, held and why."""
    settings = settings_from(config, print_config=print_config)
    with ThreadPoolExecutor(_THREADS) as pool:
        stage = Stage(FsspecStore(settings.stage.url, settings.stage.storage_options), _parallel(pool))
        ends, opener = BrokerEnds(settings), _opener(settings)
        streams = [stream_status(stream, stage, opener, ends) for stream in settings.streams]
    typer.echo(json.dumps(to_json(streams), indent=2) if as_json else to_text(streams).rstrip("\n"))
    raise typer.Exit(int(any(stream.failure for stream in streams)))


def _service(
    settings: Settings, log: FilteringBoundLogger, stack: ExitStack
) -> tuple[LoaderService, Callable[[], bool]]:
    """The service over Spark, fsspec and a thread pool, which ``stack`` closes; and whether Spark is alive."""
    # Spark is needed to load and for nothing else: `status` answers without it.
    from delta_loader.shell.delta import SparkDeltaTables  # noqa: PLC0415
    from delta_loader.shell.log_store import prove_log_stores  # noqa: PLC0415
    from delta_loader.shell.spark import build_session  # noqa: PLC0415

    parallel = _parallel(stack.enter_context(ThreadPoolExecutor(_THREADS)))
    stage = Stage(FsspecStore(settings.stage.url, settings.stage.storage_options), parallel)
    metrics, clock = Metrics(), SystemClock()
    holder: list[LoaderService] = []
    if settings.loader.http is not None:
        server = HttpServer(settings.loader.http, service_pages("delta-loader", *_health(holder), metrics.exposition))
        stack.callback(server.close)
        log.info("serving", port=server.port)
    log.info("starting spark")
    spark = build_session(settings)
    stack.callback(spark.stop)
    opener = _opener(settings)
    prove_log_stores(spark, (url for stream in settings.streams for url in (stream.table, stream.dead_letters)), opener)
    tables = SparkDeltaTables(spark, clock)
    ports = Ports(
        stage=stage,
        tables=tables,
        open_store=opener,
        parallel=parallel,
        clock=clock,
        new_id=lambda: str(uuid.uuid4()),
        log=log,
        metrics=metrics,
    )
    holder.append(LoaderService(settings.streams, settings.loader, ports))
    return holder[0], tables.alive


def _health(holder: Sequence[LoaderService]) -> tuple[Callable[[], Health], Callable[[], Health]]:
    """Health and readiness of the service to come."""
    waiting = Health(("starting",))
    return (
        lambda: Health(holder[0].problems) if holder else Health(),
        lambda: waiting if not holder or not holder[0].ready else Health(holder[0].problems),
    )


def _run_on_schedule(service: LoaderService, schedule: Schedule, stopped: Event, alive: Callable[[], bool]) -> None:
    """Load now and at each time of the schedule, until stopped. Raises TableError when Spark is gone."""
    due = True
    while due:
        began = datetime.now(UTC)
        service.run_pass(stopped.is_set)
        if not alive():
            msg = "the Spark process is gone"
            raise TableError(msg, "have the loader restarted; if memory killed it, give spark.driver.memory more")
        due = wait_until(schedule.next_after(began, datetime.now(UTC)), stopped)


def _stop_on_signals(log: FilteringBoundLogger) -> Event:
    """An event that SIGTERM and SIGINT set; a second signal ends the process as if there were no handler."""
    stopped = Event()

    def stop(number: int, _frame: FrameType | None) -> None:
        log.info("stopping after the commit under way", signal=signal.Signals(number).name)
        signal.signal(number, signal.SIG_DFL)
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return stopped


def _opener(settings: Settings) -> OpenStore:
    """Stores below tables' URLs, each opened once."""
    stores: dict[str, ObjectStore] = {}

    def open_store(url: str) -> ObjectStore:
        if url not in stores:
            stores[url] = FsspecStore(url, settings.stage.storage_options)
        return stores[url]

    return open_store


def _parallel(pool: ThreadPoolExecutor) -> ParallelMap:
    def parallel(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        return list(pool.map(function, items))

    return parallel


def _summary(reports: Sequence[StreamReport]) -> str:
    lines = []
    for report in reports:
        end = "failed" if report.failure else "done"
        lines.append(f"{report.app_id}: {end}, {report.commits} commits, {report.files} files, {report.rows} rows")
        lines += [f"  {source} is held ({reason.reason}): {reason.problem}" for source, reason in report.held.items()]
        if report.failure:
            lines.append(f"  {report.failure}")
    return "\n".join(lines)


def main() -> None:
    """The entry point of the package."""
    sys.exit(run_app(app))


if __name__ == "__main__":
    main()
