"""The commands ``markers ls``, ``markers show`` and ``markers verify``."""

import json
from typing import Annotated

import typer

from bootstrap.markers import view
from bootstrap.markers.chains import PartitionChain, Severity
from bootstrap.markers.inspection import ChainInspector, PartitionFilter, files_of
from bootstrap.plans.state import StagedMarker
from common.cli import ConfigArgument, JsonOption, echo, examples, new_group, settings_from
from common.clock import SystemClock
from common.errors import ExitCode, UsageError
from common.remedies import CONFIG
from common.stage.markers import MarkerName
from common.terminal import progress

app = new_group("Inspect the chains of done markers: what is staged, and whether it is complete. Changes nothing.")

TopicOption = Annotated[str | None, typer.Option("--topic", help="Only this Kafka topic.")]
PartitionOption = Annotated[int | None, typer.Option("--partition", min=0, help="Only this Kafka partition.")]


@app.command(
    epilog=examples(
        "kafka-delta-express markers ls pipeline.yaml",
        "kafka-delta-express markers ls pipeline.yaml --topic orders --partition 0",
        "kafka-delta-express markers ls pipeline.yaml --json | jq '.chains[] | select(.problems != [])'",
    )
)
def ls(
    config: ConfigArgument, *, topic: TopicOption = None, partition: PartitionOption = None, as_json: JsonOption = False
) -> None:
    """List the chains, one per line; with --topic and --partition, the markers."""
    inspector = ChainInspector(settings_from(config))
    chains = inspector.chains(PartitionFilter(topic, partition))
    now_ms = SystemClock().wall_ms()
    in_full = topic is not None and partition is not None
    if as_json:
        records = [
            view.summary_record(chain) | ({"chain": view.marker_records(chain)} if in_full else {}) for chain in chains
        ]
        echo(json.dumps({"chains": records, "problems": [*inspector.problems, *inspector.misnamed]}, indent=2))
        return
    shown = [view.chain_as_text(chain, now_ms) for chain in chains] if in_full and chains else None
    echo("\n\n".join(shown) if shown else view.chains_as_text(chains, now_ms))
    for problem in (*inspector.problems, *inspector.misnamed):
        echo(f"warning: {problem}", err=True)


@app.command(
    epilog=examples(
        "kafka-delta-express markers show pipeline.yaml --topic orders --partition 0 --at 41",
        "kafka-delta-express markers show pipeline.yaml done/orders/0/00000000000000000041.done --json",
    )
)
def show(
    config: ConfigArgument,
    path: Annotated[str | None, typer.Argument(metavar="[PATH]", help="The marker's path below the stage.")] = None,
    *,
    topic: TopicOption = None,
    partition: PartitionOption = None,
    at: Annotated[int | None, typer.Option("--at", metavar="OFFSET", min=0, help="An offset in its span.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show one decoded marker, by its path or by an offset that it covers."""
    name = _named(path, topic, partition, at)
    inspector = ChainInspector(settings_from(config))
    topic_partition = name.topic_partition
    chains = inspector.chains(PartitionFilter(topic_partition.topic, topic_partition.partition))
    shown = [
        (chain, staged)
        for chain in chains
        for staged in chain.staged
        if staged.name == name or (path is None and _covers(staged, name))
    ]
    if not shown:
        msg = f"no marker of {topic_partition} {'has that name' if path else f'covers {name.start}'}"
        raise UsageError(
            msg,
            f"see `bootstrap markers ls {CONFIG} --topic {name.topic_partition.topic} "
            f"--partition {name.topic_partition.partition}`",
        )
    for chain, staged in shown:
        echo(view.marker_as_json(staged) if as_json else view.marker_as_text(chain, staged))


def _covers(staged: StagedMarker, name: MarkerName) -> bool:
    marker = staged.marker
    return marker is not None and marker.span.start <= name.start < marker.span.end


def _named(path: str | None, topic: str | None, partition: int | None, at: int | None) -> MarkerName:
    """The requested marker's name; for an offset, the name of a marker that would start there."""
    by_place = topic is not None and partition is not None and at is not None
    if path is not None and (topic, partition, at) == (None, None, None):
        name = MarkerName.parse(path)
        if name is not None:
            return name
    elif path is None and topic is not None and partition is not None and at is not None:
        name = MarkerName.parse(f"done/{topic}/{partition}/{at}.done")
        if name is not None:
            return name
    what = f"{path!r} is not the path of a marker" if path is not None and not by_place else "show needs one marker"
    raise UsageError(what, "use its path, done/<topic>/<partition>/<start>.done, or --topic, --partition and --at")


@app.command(
    epilog=examples(
        "kafka-delta-express markers verify pipeline.yaml",
        "kafka-delta-express markers verify pipeline.yaml --topic orders --no-files",
    )
)
def verify(
    config: ConfigArgument,
    *,
    topic: TopicOption = None,
    partition: PartitionOption = None,
    files: Annotated[bool, typer.Option("--files/--no-files", help="Read the footer of each data file.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Prove that chains are unbroken and that files are as their markers say. Exit code 3 for a fault.

    Compares size, row count and offsets of each file, from its footer. To prove rows, use `delta-loader verify`.
    """
    inspector = ChainInspector(settings_from(config))
    chains: list[PartitionChain] = inspector.chains(PartitionFilter(topic, partition))
    count = files_of(chains) if files else 0
    with progress("data files", count) as advance:
        findings = list(inspector.findings(chains, files=files, advance=advance))
    for problem in (*inspector.problems, *inspector.misnamed):
        echo(f"warning: {problem}", err=True)
    shown = view.findings_as_json if as_json else view.findings_as_text
    echo(shown(findings, len(chains), count))
    faulty = inspector.misnamed or any(finding.severity is Severity.FAULT for finding in findings)
    raise typer.Exit(ExitCode.HELD if faulty else ExitCode.FAILED if inspector.problems else ExitCode.DONE)
