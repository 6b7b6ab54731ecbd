"""The commands ``clean`` and ``services``.

``clean`` removes unreferenced objects, a dry run unless ``--yes``, without Spark. ``services`` shows past maintenance
of the tables and due tasks; with ``--run`` it carries them out, with Spark.
"""

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
from common.settings.stores import stage_store, table_stores
from common.settings.values import parse_duration_s
from common.stage.topic_owners import StageTopicOwners
from common.terminal import progress
from delta_loader.commands.parts import parallel_requests, stage_of, table_named
from delta_loader.maintenance.cleaning.clean import CleanUp
from delta_loader.maintenance.cleaning.rules import as_json as to_json
from delta_loader.maintenance.cleaning.rules import as_text
from delta_loader.maintenance.services.due import MaintenanceTask, TaskFailed
from delta_loader.maintenance.services.facts import Service
from delta_loader.maintenance.services.reading import FactsReader, tables_of
from delta_loader.maintenance.services.runs import TableServices, inspect_tables
from delta_loader.maintenance.services.view import run_to_json, run_to_text, tables_to_json, tables_to_text
from delta_loader.ports import ParallelMap

if TYPE_CHECKING:
    from delta_loader.maintenance.services.spark import SparkServices


def clean(
    config: ConfigArgument,
    *,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="AGE", help="Keep younger objects; default: loader.clean_up_older_than."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them; without --yes they are only listed.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove unreferenced data files, stray markers and unfinished uploads."""
    settings = settings_from(config)
    StageTopicOwners(settings, stage_store(settings), make=False).read_all()
    try:
        age_s = settings.loader.clean_up_older_than_s if older_than is None else parse_duration_s(older_than)
    except ValueError as error:
        raise UsageError(f"--older-than {older_than!r} {error}", "write for example --older-than 7d") from None
    with parallel_requests() as parallel, progress("objects") as advance:
        work = CleanUp(settings, table_stores(settings), parallel, advance)
        tallies = work.run(age_s, remove=yes)
    echo(to_json(tallies, age_s, done=yes) if as_json else as_text(tallies, age_s, done=yes))
    raise typer.Exit(ExitCode.FAILED if any(tally.failure for tally in tallies) else ExitCode.DONE)


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
        off = ", or table services are off for its stream"
        only = None if table is None else table_named(settings, table, tables_of(settings), off)
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
