"""``delta-loader check``: checks everything that loading needs before it is needed."""

import json
from collections.abc import Iterator
from contextlib import ExitStack

import typer

from common.cli import ConfigArgument, JsonOption, echo, settings_from
from common.errors import KafkaDeltaExpressError
from common.logs import set_up_logs
from common.settings import Settings
from common.settings.stores import table_stores
from delta_loader.check_result import Check, Level, checks_as_json, checks_as_text, exit_code
from delta_loader.checks.preflight import failed
from delta_loader.commands.parts import parallel_requests, preflight_of, tables_of


def check(config: ConfigArgument, *, as_json: JsonOption = False) -> None:
    """Check everything that loading needs: the stage, Spark, the log store, rights, tables, catalogs, Kafka.

    Exit code 1 if something is unavailable, 2 for a wrong setting or right, 3 if a table is not compatible.
    """
    settings = settings_from(config)
    set_up_logs(settings.logs, "delta-loader")
    with ExitStack() as stack:
        parallel = stack.enter_context(parallel_requests())
        checks = [*preflight_of(settings, parallel).checks(), *_spark_checks(settings, stack)]
    echo(json.dumps(checks_as_json(checks), indent=2) if as_json else checks_as_text(checks))
    raise typer.Exit(exit_code(checks))


def _spark_checks(settings: Settings, stack: ExitStack) -> Iterator[Check]:
    """Whether Spark starts, and Delta's log store refuses to overwrite a commit."""
    # Spark is needed only to load, and for nothing else when this command line starts.
    from delta_loader.spark.log_store import prove_log_stores  # noqa: PLC0415
    from delta_loader.spark.session import build_session  # noqa: PLC0415
    from delta_loader.wiring import catalog_checks  # noqa: PLC0415

    try:
        spark = build_session(settings)
        stack.callback(spark.stop)
        yield Check("spark", Level.OK, f"version {spark.version} starts with its jars")
        prove_log_stores(spark, tables_of(settings), table_stores(settings))
        yield Check("log", Level.OK, "two loaders cannot write the same commit")
        yield from catalog_checks(settings, spark)
    except KafkaDeltaExpressError as error:
        yield failed("spark", error)
