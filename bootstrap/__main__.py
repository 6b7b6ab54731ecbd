"""The command ``bootstrap``: says where chains begin, and carries out the operator's repairs."""

import json
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from bootstrap import view
from bootstrap.config.commands import app as config_app
from bootstrap.markers.chains import to_stage_again
from bootstrap.markers.commands import app as markers_app
from bootstrap.markers.inspection import ChainInspector, PartitionFilter, files_of
from bootstrap.plans.plan import RefusedPartition, StreamPlan
from bootstrap.plans.repair import plan_skip
from bootstrap.plans.sources import parse_source
from bootstrap.work import Work
from common.cli import ConfigArgument, JsonOption, PrintConfigOption, echo, examples, new_app, run, settings_from
from common.clock import SystemClock
from common.errors import ExitCode, UsageError
from common.remedies import CONFIG
from common.settings import Settings
from common.sizes import counted
from common.spans import MAX_POSITION, Position
from common.tables.commit_metadata import Decision
from common.terminal import progress

app = new_app(
    "Choose where the chains of done markers begin, and repair them.",
    "bootstrap plan pipeline.yaml --from latest",
    "bootstrap write pipeline.yaml --from latest",
    "bootstrap rewind pipeline.yaml --topic orders --partition 0 --to 4711",
)
app.add_typer(markers_app, name="markers")
app.add_typer(config_app, name="config")

FromOption = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="SOURCE",
        help="earliest, latest, a time such as 2026-03-01T00:00:00Z, group:NAME (a consumer group's commits), delta "
        "(the table's own txn actions), the path of a file with positions by partition, or seek_offsets:PATH, a "
        "kafka-delta-ingest file with the last offsets.",
    ),
]
StreamOption = Annotated[
    str | None, typer.Option("--stream", metavar="APP_ID", help="Only this stream; by default all of the config.")
]
_TOPIC = typer.Option("--topic", help="The Kafka topic.")
_PARTITION = typer.Option("--partition", min=0, help="The Kafka partition.")
_TO = typer.Option("--to", metavar="OFFSET", min=0, max=MAX_POSITION, help="The next offset to stage.")
YesOption = Annotated[bool, typer.Option("--yes", help="Apply the plan; without --yes it is only shown.")]
TakeOverOption = Annotated[
    int | None,
    typer.Option("--take-over", metavar="NUMBER", help="Take over an unfinished repair whose process is gone."),
]


@app.command(
    epilog=examples(
        "bootstrap plan pipeline.yaml --from 2026-03-01T00:00:00Z",
        "bootstrap plan pipeline.yaml --from group:old-job --stream orders --json",
    )
)
def plan(
    *,
    config: ConfigArgument,
    source: FromOption,
    stream: StreamOption = None,
    as_json: JsonOption = False,
    print_config: PrintConfigOption = False,
) -> None:
    """Show where the chain of each Kafka partition would begin, and the marker for it. Changes nothing."""
    work = Work(settings_from(config, print_config=print_config), SystemClock())
    plans = work.plan(parse_source(source), stream)
    _show(plans, as_json=as_json, written=False)
    if any(
        isinstance(partition.outcome, RefusedPartition) for stream_plan in plans for partition in stream_plan.partitions
    ):
        raise typer.Exit(ExitCode.HELD)


@app.command(
    epilog=examples("bootstrap write pipeline.yaml --from delta", "bootstrap write pipeline.yaml --from positions.yaml")
)
def write(
    *,
    config: ConfigArgument,
    source: FromOption,
    stream: StreamOption = None,
    as_json: JsonOption = False,
    take_over: TakeOverOption = None,
    print_config: PrintConfigOption = False,
) -> None:
    """Create the markers of the plan. If a partition already has a marker, it is refused and nothing is written."""
    work = Work(settings_from(config, print_config=print_config), SystemClock(), take_over=take_over)
    plans = work.plan(parse_source(source), stream)
    made = work.write(plans)
    _show(plans, as_json=as_json, written=True)
    if not as_json:
        echo(f"\n{counted(made, 'marker')} {'was' if made == 1 else 'were'} created.")


@app.command(
    epilog=examples(
        "bootstrap skip pipeline.yaml --topic orders --partition 0 --to 4711",
        "bootstrap skip pipeline.yaml --topic orders --partition 0 --to 4711 --yes",
    )
)
def skip(
    *,
    config: ConfigArgument,
    topic: Annotated[str, _TOPIC],
    partition: Annotated[int, _PARTITION],
    to: Annotated[int, _TO],
    yes: YesOption = False,
    take_over: TakeOverOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give up the positions before OFFSET: fill the gap that holds a partition, or extend the chain."""
    work = Work(settings_from(config), SystemClock(), take_over=take_over)
    decided = work.repair(topic, partition, lambda state, author: plan_skip(state, Position(to), author))
    if yes:
        work.skip(decided)
    echo((view.skip_as_json if as_json else view.skip_as_text)(decided, done=yes))


@app.command(
    epilog=examples(
        "bootstrap rewind pipeline.yaml --topic orders --partition 0 --to 4000 --yes",
        "bootstrap rewind pipeline.yaml --all-held",
        "bootstrap rewind pipeline.yaml --all-held --topic orders --yes",
    )
)
def rewind(
    *,
    config: ConfigArgument,
    topic: Annotated[str | None, _TOPIC] = None,
    partition: Annotated[int | None, _PARTITION] = None,
    to: Annotated[int | None, _TO] = None,
    all_held: Annotated[
        bool,
        typer.Option(
            "--all-held",
            help="Rewind every partition of the config, or of --topic, that is held by a gap, an unreadable "
            "marker or a missing data file.",
        ),
    ] = False,
    yes: YesOption = False,
    take_over: TakeOverOption = None,
    below_table: Annotated[
        bool, typer.Option("--below-table", help="Also stage records again that the table already has.")
    ] = False,
    give_up: Annotated[bool, typer.Option("--give-up", help="Give up the records that Kafka no longer has.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Stage records again from OFFSET on: move the later markers into the stage's folder stray/."""
    settings = settings_from(config)
    work = Work(settings, SystemClock(), take_over=take_over)
    if all_held:
        if partition is not None or to is not None or below_table or give_up:
            msg = "--all-held determines partitions and positions by itself, and gives nothing up"
            raise UsageError(msg, "remove --partition, --to, --below-table and --give-up, or remove --all-held")
        _rewind_held(work, settings, topic, yes=yes, as_json=as_json)
        return
    if topic is None or partition is None or to is None:
        msg = "rewind needs --topic, --partition and --to, or --all-held"
        raise UsageError(msg, f"`bootstrap rewind {CONFIG} --all-held` shows its plan")
    decided = work.plan_rewind(topic, partition, Position(to), below_table=below_table, give_up=give_up)
    flags = [*(["--below-table"] if below_table else []), *(["--give-up"] if give_up else [])]
    late = work.rewind(decided, flags) if yes else ()
    echo((view.rewind_as_json if as_json else view.rewind_as_text)(decided, late, done=yes))


def _rewind_held(work: Work, settings: Settings, topic: str | None, *, yes: bool, as_json: bool) -> None:
    """Rewind every held partition for which that is the remedy."""
    inspector = ChainInspector(settings)
    chains = inspector.chains(PartitionFilter(topic, None))
    with progress("data files", files_of(chains)) as advance:
        starts = to_stage_again(inspector.findings(chains, files=True, advance=advance))
    plans = work.plan_rewinds(starts)
    done = [(plan, work.rewind(plan) if yes else ()) for plan in plans]
    if as_json:
        rewinds = [json.loads(view.rewind_as_json(plan, late, done=yes)) for plan, late in done]
        echo(json.dumps({"done": yes, "rewinds": rewinds}, indent=2))
        return
    for plan, late in done:
        echo(f"{plan.partition}\n{view.rewind_as_text(plan, late, done=yes)}\n")
    if not plans:
        echo("No partition is held for a reason that a rewind repairs.")


@app.command(
    epilog=examples(
        "bootstrap accept pipeline.yaml --stream orders --replay",
        "bootstrap accept pipeline.yaml --stream orders --go-on --yes",
    )
)
def accept(
    *,
    config: ConfigArgument,
    stream: Annotated[str, typer.Option("--stream", metavar="APP_ID", help="The stream that waits.")],
    replay: Annotated[bool, typer.Option("--replay", help="Load again the records that its tables lost.")] = False,
    go_on: Annotated[bool, typer.Option("--go-on", help="Accept its tables as they are.")] = False,
    give_up: Annotated[
        bool, typer.Option("--give-up", help="With --replay: give up the records that Kafka no longer has.")
    ] = False,
    yes: YesOption = False,
    take_over: TakeOverOption = None,
    as_json: JsonOption = False,
) -> None:
    """Resume a stream whose table was restored, replaced or created again, or lost its positions."""
    if replay == go_on:
        msg = "accept needs either --replay or --go-on"
        raise UsageError(msg, "--replay loads the lost records again; --go-on accepts the table as it is")
    work = Work(settings_from(config), SystemClock(), take_over=take_over)
    decision = Decision.REPLAY if replay else Decision.GO_ON
    accepting, plans = work.accept(stream, decision, give_up=give_up, do_it=yes)
    echo((view.accept_as_json if as_json else view.accept_as_text)(accepting, plans, done=yes))


@app.command(
    epilog=examples(
        "bootstrap restart pipeline.yaml --topic orders --yes",
        "bootstrap restart pipeline.yaml --topic orders --partition 0 --at 4000 --yes",
    )
)
def restart(
    *,
    config: ConfigArgument,
    topic: Annotated[str, _TOPIC],
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Only this Kafka partition; by default all of the topic.")
    ] = None,
    yes: YesOption = False,
    take_over: TakeOverOption = None,
    give_up: Annotated[
        bool, typer.Option("--give-up", help="Also give up records of the old topic that are staged and not loaded.")
    ] = False,
    at: Annotated[
        int | None,
        typer.Option(
            "--at",
            min=0,
            metavar="OFFSET",
            help="Where the new chain begins. For a topic that lost records (topic_truncated): the first offset at "
            "which Kafka has other records than were staged. For other_stream and other_topic: the first offset "
            "to load; by default the table's position, or Kafka's first offset.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Start new chains for a topic that was deleted and created again, or that is new to the table.

    Moves the old markers into the stage's folder stray/. For partitions that
    `delta-loader status` shows as held by other_stream or other_topic,
    it lets the table take this topic too, under separate positions.
    """
    if at is not None and partition is None:
        raise UsageError("--at is an offset of one Kafka partition", "add --partition")
    work = Work(settings_from(config), SystemClock(), take_over=take_over)
    plans = work.plan_restart(
        topic,
        partition,
        give_up=give_up,
        at=None if at is None else Position(at),
        say=lambda line: echo(line, err=True),
    )
    if yes:
        work.restart(plans, [*(["--give-up"] if give_up else []), *([] if at is None else [f"--at {at}"])])
    echo((view.restarts_as_json if as_json else view.restarts_as_text)(plans, done=yes))


def _show(plans: Sequence[StreamPlan], *, as_json: bool, written: bool) -> None:
    echo(view.plans_as_json(plans, written=written) if as_json else view.plans_as_text(plans))


def main() -> None:
    sys.exit(run(app))


if __name__ == "__main__":
    main()
