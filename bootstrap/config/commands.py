"""The commands ``config init``, ``config schema`` and ``config show``."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
import yaml

from bootstrap.config.draft import Answers, draft
from bootstrap.config.kafka_topics import sample_of, topics_of
from common.cli import ConfigArgument, JsonOption, examples, new_group, settings_from, write
from common.errors import UsageError
from common.settings.json_schema import settings_schema
from common.settings.load import parse_settings, print_settings, substituted
from common.tables.urls import require_url
from common.terminal import is_interactive, progress

app = new_group("Draft a config from a topic, print the JSON Schema, or show the settings in force.")


@app.command(
    epilog=examples(
        "kafka-delta-express config init",
        "kafka-delta-express config init --bootstrap-servers localhost:9092 --topic orders --stage-url s3://lake/stage "
        "--tables-url s3://lake/tables",
        "kafka-delta-express config init --kafka security.protocol=SASL_SSL --kafka sasl.password='${PASSWORD}' …",
    )
)
def init(
    output: Annotated[Path, typer.Argument(metavar="[FILE]", help="The file to write; - for standard output.")] = Path(
        "pipeline.yaml"
    ),
    *,
    servers: Annotated[str | None, typer.Option("--bootstrap-servers", help="Kafka brokers: host:port, …")] = None,
    topics: Annotated[list[str] | None, typer.Option("--topic", help="A topic; repeat for more.")] = None,
    stage_url: Annotated[str | None, typer.Option("--stage-url", help="The stage: s3://lake/stage")] = None,
    tables_url: Annotated[str | None, typer.Option("--tables-url", help="Folder for tables: s3://lake/tables")] = None,
    kafka: Annotated[list[str] | None, typer.Option("--kafka", metavar="KEY=VALUE", help="A Kafka property.")] = None,
    registry: Annotated[str | None, typer.Option("--schema-registry", metavar="URL", help="For framed JSON.")] = None,
    partition_by: Annotated[
        str | None, typer.Option("--partition-by", metavar="COLUMN", help="A column; '' for none; default: proposed.")
    ] = None,
    records: Annotated[int, typer.Option("--records", min=1, max=100_000, help="Messages to sample.")] = 1_000,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Sample topics and write a commented config. Asks for missing options on a terminal.

    Commits no offsets, and writes no values of records.
    """
    written = str(output) != "-"
    if written and output.exists() and not force:
        raise UsageError(f"{output} already exists", "choose another file, or use --force")
    given = _properties(kafka or [])
    given["bootstrap.servers"] = _prompted(servers or given.get("bootstrap.servers"), "--bootstrap-servers", "Kafka at")
    given = {"bootstrap.servers": given.pop("bootstrap.servers"), **given}
    properties = {key: str(substituted(value, ("kafka", key), os.environ)) for key, value in given.items()}
    chosen = topics or _chosen(topics_of(properties))
    where = _asked_url(stage_url, "--stage-url", "URL of the stage, for markers and new files (s3://lake/stage)")
    tables_root = _asked_url(tables_url, "--tables-url", "URL of the folder for tables (s3://lake/tables)")
    with progress("messages", records * len(chosen)) as advance:
        samples = [sample_of(properties, topic, records, advance) for topic in chosen]
    file = output.name if written else "pipeline.yaml"
    drafted = draft(Answers(given, where, tables_root, partition_by, file, registry), samples)
    _require_good(drafted.text, str(output))
    if written:
        output.write_text(drafted.text, encoding="utf-8")
        typer.echo(f"wrote {output}; next: stage-writer check {output}", err=True)
    else:
        write(drafted.text, nl=False)
    for line in drafted.notes:
        typer.echo(f"note: {line}", err=True)


def _properties(given: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for key, equals, _ in pairs:
        if not key or not equals:
            raise UsageError("--kafka needs KEY=VALUE", "write for example --kafka security.protocol=SASL_SSL")
    return {key: value for key, _, value in pairs}


def _prompted(value: str | None, option: str, question: str, parse: Callable[[str], str] = str) -> str:
    if value:
        return value
    if not is_interactive():
        raise UsageError(f"{option} is missing", "add it; on a terminal it is asked for")
    reply: str = typer.prompt(question, value_proc=parse, err=True)
    return reply


def _asked_url(value: str | None, option: str, question: str) -> str:
    """The value of a URL option, or the reply to a prompt. Raises UsageError for an invalid option.

    A URL with a reference is checked in the draft.
    """
    url = _prompted(value, option, question, _parsed_url)
    try:
        return _parsed_url(url)
    except typer.BadParameter as error:
        raise UsageError(f"{option}: {error.message}", "use the URL of a store, or an absolute path") from None


def _parsed_url(url: str) -> str:
    """Raises typer.BadParameter, after which a prompt asks again."""
    try:
        return url if "${" in url else require_url(url)
    except ValueError as error:
        raise typer.BadParameter(f"{url!r} {error}") from None


def _chosen(topics: Mapping[str, int]) -> list[str]:
    names = list(topics)
    if not names:
        raise UsageError("Kafka has no topics", "create one, and send some records")
    if not is_interactive():
        msg = "--topic is missing"
        raise UsageError(msg, f"Kafka has {', '.join(names[:20])}{' …' if len(names) > 20 else ''}")  # noqa: PLR2004
    for index, name in enumerate(names, start=1):
        typer.echo(f"{index:4}  {name}  ({topics[name]} partitions)", err=True)
    chosen: list[str] = typer.prompt(
        "Topics, by number or name, separated by commas", value_proc=partial(_parsed_topics, names), err=True
    )
    return chosen


def _parsed_topics(names: Sequence[str], reply: str) -> list[str]:
    """Raises typer.BadParameter, after which the prompt asks again."""
    words = [word.strip() for word in reply.split(",") if word.strip()]
    chosen = [names[int(word) - 1] if word.isdecimal() and 0 < int(word) <= len(names) else word for word in words]
    unknown = [name for name in chosen if name not in names]
    if unknown or not chosen:
        msg = f"Kafka has no topic {unknown[0]!r}; choose from the list" if unknown else "choose at least one topic"
        raise typer.BadParameter(msg)
    return chosen


def _require_good(text: str, source: str) -> None:
    """Check that the written config can be read. Raises ConfigError: answers may contradict each other."""
    # A secret is a reference by now, and its variable may not be set yet.
    names = _references(yaml.safe_load(text))
    parse_settings(text, {**dict.fromkeys(names, "x"), **os.environ}, source)


def _references(value: object) -> list[str]:
    if isinstance(value, dict):
        return [name for inner in value.values() for name in _references(inner)]
    if isinstance(value, list):
        return [name for inner in value for name in _references(inner)]
    if not isinstance(value, str):
        return []
    plain = value.replace("$${", "")
    return [part.partition("}")[0] for part in plain.split("${")[1:] if not part.startswith("file:")]


@app.command(
    epilog=examples(
        "kafka-delta-express config schema > kafka-delta-express.schema.json",
        "# the first line of a config: # yaml-language-server: $schema=kafka-delta-express.schema.json",
    )
)
def schema() -> None:
    """Print the JSON Schema of a config, which editors use for completion and descriptions of keys."""
    write(json.dumps(settings_schema(), indent=2, ensure_ascii=False))


@app.command(epilog=examples("kafka-delta-express config show pipeline.yaml"))
def show(config: ConfigArgument, *, as_json: JsonOption = False) -> None:
    """Print the settings in force, including defaults and the environment, with secrets masked."""
    text = print_settings(settings_from(config, as_written=True))
    write(json.dumps(yaml.safe_load(text), indent=2, ensure_ascii=False) if as_json else text.rstrip("\n"))
