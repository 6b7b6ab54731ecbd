"""``delta-loader services``: past maintenance of the tables, and due tasks; ``--run`` does it now, with Spark."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from common.cli import ConfigArgument, JsonOption, echo, settings_from
from common.clock import SystemClock
from common.errors import ExitCode, UsageError
from common.logs import set_up_logs
from common.metrics import Metrics
from common.settings import Settings
from common.settings.stores import table_stores
from delta_loader.commands.parts import parallel_requests, stage_of, table_named
from delta_loader.maintenance.services.due import MaintenanceTask, TaskFailed
from delta_loader.maintenance.services.facts import Service
from delta_loader.maintenance.services.reading import FactsReader, tables_of
from delta_loader.maintenance.services.runs import TableServices, inspect_tables
from delta_loader.maintenance.services.view import run_to_json, run_to_text, tables_to_json, tables_to_text
from delta_loader.ports import ParallelMap

if TYPE_CHECKING:
    from delta_loader.maintenance.services.spark import SparkServices


def services(
    config: ConfigArgument,
    *,
    table: Annotated[str | None, typer.Option("--table", metavar="URL", help="Only this table.")] = None,
    run: Annotated[bool, typer.Option("--run", help="Run what is due now, ignoring window and budget.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Also ask Spark which files a due VACUUM would delete.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the last OPTIMIZE, VACUUM, checkpoint and statistics of each table, and what is due; or run it now."""
    if run and dry_run:
        raise UsageError("--run and --dry-run contradict each other", "use --dry-run first, then --run")
    settings = settings_from(config)
    log = set_up_logs(settings.logs, "delta-loader")
    with ExitStack() as stack:
        inspector = facts_reader(settings, stack.enter_context(parallel_requests()))
        only = None if table is None else _known(settings, table)
        if run:
            parts = TableServices(
                settings, inspector, _spark(settings, stack), SystemClock(), log=log, metrics=Metrics()
            )
            report = parts.run(only=only, at_any_time=True)
            echo(json.dumps(run_to_json(report), indent=2) if as_json else run_to_text(report))
            failed = any(isinstance(task.outcome, TaskFailed) for task in report.tasks)
            failed = failed or any(snapshot.failure for snapshot in report.snapshots)
            raise typer.Exit(ExitCode.FAILED if failed else ExitCode.DONE)
        snapshots = inspect_tables(settings, inspector, SystemClock(), only)
        echo(json.dumps(tables_to_json(snapshots), indent=2) if as_json else tables_to_text(snapshots))
        vacuums = [task for snapshot in snapshots for task in snapshot.due.tasks if task.service is Service.VACUUM]
        if dry_run and vacuums:
            _list_vacuums(vacuums, _spark(settings, stack))
    raise typer.Exit(ExitCode.FAILED if any(snapshot.failure for snapshot in snapshots) else ExitCode.DONE)


def facts_reader(settings: Settings, parallel: ParallelMap) -> FactsReader:
    return FactsReader(settings, stage_of(settings, parallel), table_stores(settings), parallel, SystemClock())


def _known(settings: Settings, url: str) -> str:
    tables = tables_of(settings)
    table_url = table_named(settings, url, tables)
    if table_url is None:
        msg = f"--table {url} is not a table of this config, or table services are off for its stream"
        raise UsageError(msg, f"use one of {', '.join(tables)}")
    return table_url


def _spark(settings: Settings, stack: ExitStack) -> SparkServices:
    # Spark is needed only for ``--run``.
    from delta_loader.maintenance.services.spark import SparkServices  # noqa: PLC0415
    from delta_loader.spark.log_store import prove_log_stores  # noqa: PLC0415
    from delta_loader.spark.session import build_session  # noqa: PLC0415

    spark = build_session(settings)
    stack.callback(spark.stop)
    prove_log_stores(spark, tables_of(settings), table_stores(settings))
    return SparkServices(spark)


def _list_vacuums(tasks: list[MaintenanceTask], work: SparkServices) -> None:
    for task in tasks:
        echo(f"{task.url}: vacuum: {work.dry_run(task)}", err=True)
