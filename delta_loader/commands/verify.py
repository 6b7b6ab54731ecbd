"""``delta-loader verify``: proves the tables from their logs, their offset columns and, with --kafka, Kafka."""

import json
from contextlib import ExitStack
from dataclasses import replace
from typing import Annotated

import typer

from common.cli import ConfigArgument, JsonOption, echo, settings_from
from common.errors import ExitCode, StoreError
from common.settings import Settings
from common.settings.overlap import may_share
from common.settings.stores import stage_store, table_stores
from common.stage.topic_owners import StageTopicOwners
from common.terminal import progress
from delta_loader.commands.parts import parallel_requests
from delta_loader.inspect.verify.verify import chosen, verifier_of
from delta_loader.inspect.verify.view import to_json, to_text


def _learn_owners(settings: Settings) -> None:
    """Know whose chains are whose. Rights on the stage are needed only where streams may share a topic."""
    try:
        StageTopicOwners(settings, stage_store(settings), make=False).read_all()
    except StoreError as error:
        if may_share(settings.streams):
            raise
        echo(f"the stage was not read, so no topic is taken as shared between streams: {error.problem}", err=True)


def verify(
    config: ConfigArgument,
    *,
    stream: Annotated[str | None, typer.Option("--stream", metavar="APP_ID", help="Only this stream.")] = None,
    kafka: Annotated[bool, typer.Option("--kafka", help="Compare with every record that Kafka has.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Prove from the tables that each record is there once and none is missing. Exit code 3 for a fault."""
    settings = settings_from(config)
    _learn_owners(settings)
    streams = chosen(settings, stream)
    with ExitStack() as stack:
        parallel = stack.enter_context(parallel_requests())
        verifier = verifier_of(settings, stack, table_stores(settings), parallel, with_kafka=kafka)
        advance = stack.enter_context(progress("partitions"))
        reports = [replace(verifier, advance=advance).verify(stream) for stream in streams]
    echo(json.dumps(to_json(reports), indent=2) if as_json else to_text(reports))
    codes = [ExitCode.FAILED for report in reports if report.failure is not None]
    codes += [ExitCode.HELD for report in reports if report.faults]
    raise typer.Exit(ExitCode.most_significant(codes))
