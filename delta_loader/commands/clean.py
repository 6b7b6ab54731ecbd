"""``delta-loader clean``: removes unreferenced objects; a dry run unless ``--yes``. Needs no Spark."""

from typing import Annotated

import typer

from common.cli import ConfigArgument, JsonOption, echo, settings_from
from common.errors import ExitCode, UsageError
from common.settings.stores import stage_store, table_stores
from common.settings.values import parse_duration_s
from common.stage.topic_owners import StageTopicOwners
from common.terminal import progress
from delta_loader.commands.parts import parallel_requests
from delta_loader.maintenance.cleaning.clean import CleanUp
from delta_loader.maintenance.cleaning.rules import as_json as to_json
from delta_loader.maintenance.cleaning.rules import as_text


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
