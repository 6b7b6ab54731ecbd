"""The commands ``dead-letters list``, ``dead-letters export`` and ``dead-letters replay``."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from common.cli import ConfigArgument, JsonOption, echo, examples, new_group, settings_from, stage_writer_command
from common.errors import UsageError
from common.remedies import CONFIG
from common.settings import Settings
from common.settings.stores import table_stores
from common.terminal import progress
from delta_loader.dead_letters.filters import DeadLetterFilter, as_json, as_text, moment_ms, selected
from delta_loader.inspect.verify.verify import chosen

if TYPE_CHECKING:
    from delta_loader.dead_letters.reading import StoredDeadLetters

_OF_THE_WRITER = "duckdb"
"""A package of the extra `stage-writer`; its own modules are always installed."""

app = new_group("Count and export dead letters, and load them after a fix.")

StreamOption = Annotated[str | None, typer.Option("--stream", metavar="APP_ID", help="Only this stream.")]
ClassOption = Annotated[str | None, typer.Option("--class", metavar="CLASS", help="Only this class, e.g. wrong_type.")]
TopicOption = Annotated[str | None, typer.Option("--topic", help="Only this Kafka topic, or one stream's chain of it.")]
PartitionOption = Annotated[int | None, typer.Option("--partition", min=0, help="Only this Kafka partition.")]
FromOption = Annotated[int | None, typer.Option("--from", metavar="OFFSET", min=0, help="The first offset.")]
ToOption = Annotated[int | None, typer.Option("--to", metavar="OFFSET", min=1, help="The offset after the last.")]
SinceOption = Annotated[str | None, typer.Option("--since", metavar="TIME", help="From this time: 2026-03-01T00:00Z")]
UntilOption = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Before this time.")]


class ExportFormat(StrEnum):
    NDJSON = "ndjson"
    PARQUET = "parquet"


def _dead_letters(settings: Settings, wanted: DeadLetterFilter, stack: ExitStack) -> StoredDeadLetters:
    # Spark is needed only to read tables, and for nothing else when this command line starts.
    from delta_loader.dead_letters.reading import StoredDeadLetters  # noqa: PLC0415
    from delta_loader.spark.session import build_session  # noqa: PLC0415

    streams, wanted = selected(chosen(settings, wanted.app_id), wanted)
    spark = build_session(settings)
    stack.callback(spark.stop)
    return StoredDeadLetters(spark, table_stores(settings), streams, wanted)


@app.command(
    "list",
    epilog=examples(
        "delta-loader dead-letters list pipeline.yaml",
        "delta-loader dead-letters list pipeline.yaml --since 2026-03-01T00:00:00Z --class wrong_type --show-values",
    ),
)
def list_dead_letters(
    config: ConfigArgument,
    *,
    stream: StreamOption = None,
    error_class: ClassOption = None,
    topic: TopicOption = None,
    partition: PartitionOption = None,
    start: FromOption = None,
    end: ToOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    show_values: Annotated[
        bool, typer.Option("--show-values", help="Also show one record of each group, with its bytes.")
    ] = False,
    as_json_: JsonOption = False,
) -> None:
    """Count dead letters by class, topic and reason, with an example offset of each.

    Reasons are shown without record values unless --show-values is given.
    """
    settings = settings_from(config)
    span = (moment_ms("--since", since), moment_ms("--until", until))
    with ExitStack() as stack:
        dead_letters = _dead_letters(
            settings, DeadLetterFilter(stream, error_class, topic, partition, start, end, *span), stack
        )
        groups, missing = dead_letters.groups(with_values=show_values), dead_letters.missing()
    echo(as_json(groups) if as_json_ else as_text(groups, missing))


@app.command(
    epilog=examples(
        "delta-loader dead-letters export pipeline.yaml letters.ndjson --topic orders",
        "delta-loader dead-letters export pipeline.yaml letters.parquet --format parquet --class malformed",
    )
)
def export(
    config: ConfigArgument,
    output: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write; - for standard output.")],
    *,
    file_format: Annotated[
        ExportFormat, typer.Option("--format", help="JSON lines with base64, or Parquet with the table's columns.")
    ] = ExportFormat.NDJSON,
    stream: StreamOption = None,
    error_class: ClassOption = None,
    topic: TopicOption = None,
    partition: PartitionOption = None,
    start: FromOption = None,
    end: ToOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
) -> None:
    """Write dead letters with their bytes and offsets to a file, ordered by offset."""
    settings = settings_from(config)
    span = (moment_ms("--since", since), moment_ms("--until", until))
    with ExitStack() as stack:
        dead_letters = _dead_letters(
            settings, DeadLetterFilter(stream, error_class, topic, partition, start, end, *span), stack
        )
        count = _export(dead_letters, output, file_format, stack)
    echo(f"{count:,} dead letters", err=True)


def _export(dead_letters: StoredDeadLetters, output: Path, file_format: ExportFormat, stack: ExitStack) -> int:
    from delta_loader.dead_letters.reading import write_ndjson, write_parquet  # noqa: PLC0415 - needs Spark

    try:
        file = sys.stdout.buffer if str(output) == "-" else stack.enter_context(output.open("wb"))
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}", "choose another file") from None
    write = write_ndjson if file_format is ExportFormat.NDJSON else write_parquet
    advance = stack.enter_context(progress("dead letters"))
    return write(file, dead_letters.rows(), advance)


@app.command(
    epilog=examples(
        "delta-loader dead-letters replay pipeline.yaml --class expression_failed",
        "delta-loader dead-letters replay pipeline.yaml --class expression_failed --yes",
    )
)
def replay(
    config: ConfigArgument,
    *,
    stream: StreamOption = None,
    error_class: ClassOption = None,
    topic: TopicOption = None,
    partition: PartitionOption = None,
    start: FromOption = None,
    end: ToOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Apply the plan; without --yes it is only shown.")] = False,
) -> None:
    """Decode dead letters again with the current config, and load those that are valid now, once.

    The bytes come from the dead-letter table, so Kafka does not need them.
    `stage-writer replay --letters` decodes them and must be installed here;
    the loader replaces them in its next run.
    """
    settings = settings_from(config)
    if importlib.util.find_spec(_OF_THE_WRITER) is None:
        msg = "the stage writer, which decodes dead letters, is not installed here"
        remedy = (
            f"run `delta-loader dead-letters export {CONFIG} letters.parquet --format parquet` here, and there "
            f"`stage-writer replay {CONFIG} --letters letters.parquet`"
        )
        raise UsageError(msg, remedy)
    span = (moment_ms("--since", since), moment_ms("--until", until))
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dead-letters-"))
        file = Path(folder) / "letters.parquet"
        dead_letters = _dead_letters(
            settings, DeadLetterFilter(stream, error_class, topic, partition, start, end, *span), stack
        )
        with ExitStack() as writing:
            count = _export(dead_letters, file, ExportFormat.PARQUET, writing)
        if not count:
            echo("No dead letters; nothing to replay.")
            return
        # A separate process, because the services share only the code in common/.
        command = [*stage_writer_command(), "replay", str(config), "--letters", str(file)]
        done = subprocess.run([*command, *(["--yes"] if yes else [])], check=False)  # noqa: S603 - our own program
    raise typer.Exit(done.returncode)
