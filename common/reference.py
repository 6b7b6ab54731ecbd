"""Writes the reference pages from the settings and the catalog of metrics.

docs/configuration.md and docs/config.schema.json are the settings, docs/metrics.md is the catalog.

``python -m common.reference`` writes them, ``--check`` exits with 1 when one is stale. Rule: everything these pages say
about a key or a metric is written once, where it is declared (common/settings/model.py, common/metrics.py).
"""

import json
import sys
import types
import typing
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
import yaml
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from common.cli import run
from common.metrics import ALL_METRICS, Metric
from common.settings import Settings
from common.settings.json_schema import settings_schema
from common.settings.section import fields_of, model_in
from common.settings.services import parse_window
from common.settings.values import (
    bytes_text,
    check_address,
    check_host_name,
    check_http_token,
    check_load_schedule,
    check_schedule,
    duration_text,
    parse_bytes,
    parse_duration_s,
    parse_start,
    parse_workers,
)

EXAMPLE = """\
kafka:                                  # librdkafka properties, passed through
  bootstrap.servers: localhost:9092
stage:
  url: s3://lake/stage                  # any fsspec URL: file, s3, gs, abfs, memory
  storage_options: {}                   # passed to fsspec
writer:
  group_id: kafka_delta_express
  flush_after: 60s                      # allowed latency
  flush_bytes: 128MiB                   # of Parquet, per Kafka partition
  flush_records: 1000000
  memory: 1GiB                          # for all buffers; reading pauses above it
  http: 127.0.0.1:8080
loader:
  schedule: 15m                         # an interval, or a cron line
  marker_retention: 24h                 # settled markers are kept this long (the last of each partition always)
  http: 127.0.0.1:8081
  spark: {spark.master: "local[*]"}     # passed to the SparkSession
streams:
  - app_id: web_requests
    topics: [web_requests]              # names, or one ^regex
    table: s3://lake/tables/web_requests
    columns: "meta STRUCT<producer: STRUCT<timestamp: STRING>>, method STRING, session_id STRING, status INT, \
url STRING, uuid STRING"
    derive: {date: "substr(meta.producer.timestamp, 1, 10)"}   # SQL expressions over the record's fields and kafka.*
    partition_by: [date]
    start: earliest
    dead_letters: s3://lake/tables/web_requests_dead_letters   # the default: the table's URL + _dead_letters
"""

_HEAD = "<!-- Written by `python -m common.reference`; change the sentences where they are declared. -->\n\n"
_INTRODUCTION = f"""\
# Configuration

One YAML file serves the stage writers, the loader and the bootstrap tool. Unknown keys are refused, and so is a key
given twice. `stage-writer check CONFIG` validates it; `kafka-delta-express config show CONFIG` prints the settings in
force, with secrets masked. `kafka-delta-express config init` drafts one from a topic's records. Editors complete and
explain keys by [config.schema.json](config.schema.json) if a config begins with `# yaml-language-server: $schema=` and
its path (`kafka-delta-express config schema` prints it).

```yaml
{EXAMPLE}```

A value may hold `${{NAME}}`, which is replaced by an environment variable, and `${{file:PATH}}`, which is replaced by a
file's text without its closing line break; `$${{` stands for `${{`. Such a value is printed as it is in the config. A
value under a key that sounds secret is never printed ([security.md](security.md#secrets)).

The URL of the stage or of a table is an absolute path (`/data/orders`, `file:///data/orders`) or that of a store
(`s3://lake/orders`, `gs://`, `abfss://`, `hdfs://`…), taken literally: `{{…}}` is not a placeholder. Any other text is
refused, with the URL that was probably meant.

Durations are a number and a unit (`ms`, `s`, `m`, `h`, `d`, `w`), sizes a number and a unit (`kB`, `MB`, `GB`, `TB`,
`KiB`, `MiB`, `GiB`, `TiB`). A start is `earliest`, `latest`, a time such as `2026-03-01T00:00:00Z` or `1772323200000`
(milliseconds since 1970), or positions such as `{{0: 120, 1: 340}}` or `{{orders: {{0: 120}}}}`; a position is the next
offset wanted.
"""
_METRICS_INTRODUCTION = """\
# Metrics

Each service serves these at `/metrics` of its `http` address, in Prometheus' text format. Times are in seconds, sizes
in bytes; a counter's name ends in `_total`.
"""
_READERS = {
    parse_duration_s: "duration",
    parse_bytes: "size",
    check_schedule: "schedule",
    check_load_schedule: "schedule or `on-marker`",
    check_address: "host:port or null",
    check_host_name: "host name",
    check_http_token: "text or null",
    parse_start: "start",
    parse_window: "part of the day or null",
    parse_workers: "whole number or `auto`",
}
_PLAIN = {str: "text", int: "whole number", float: "number", bool: "`true` or `false`", object: "any value"}
_SERVICES = {"stage_writer": "Stage writer", "delta_loader": "Delta loader"}


def configuration_page() -> str:
    sections = "\n".join(_section(name, field) for name, field in Settings.model_fields.items())
    return f"{_HEAD}{_INTRODUCTION}\n{sections}"


def metrics_page() -> str:
    tables = "\n".join(
        f"## {title}\n\n| metric | kind | labels | meaning |\n| --- | --- | --- | --- |\n"
        + "".join(_metric_row(metric) for metric in ALL_METRICS if metric.name.startswith(prefix))
        for prefix, title in _SERVICES.items()
    )
    return f"{_HEAD}{_METRICS_INTRODUCTION}\n{tables}"


def _section(name: str, field: FieldInfo) -> str:
    model = model_in(field.annotation)
    listed = name == "streams"
    head = f"## {name}\n\n{field.description} {'Required.' if field.is_required() else ''}".rstrip() + "\n"
    if model is None:
        examples = "".join(f"\nExample: `{_flow(example)}`\n" for example in field.examples or [])
        return f"{head}{examples}"
    prefix = f"{name}[]." if listed else f"{name}."
    rows = "".join(_rows(prefix, model))
    return f"{head}\n| key | type | default | meaning |\n| --- | --- | --- | --- |\n{rows}"


def _rows(prefix: str, model: type[BaseModel]) -> Iterator[str]:
    """One row for each setting, those of sections within sections too."""
    for key, field in fields_of(model):
        inner = model_in(field.annotation)
        by_name = typing.get_origin(field.annotation) is dict  # a section for each name
        if inner is None or by_name or field.default is None:  # an optional section has a row of its own
            yield _setting_row(prefix, key, field)
        if inner is not None:
            yield from _rows(f"{prefix}{key}.{'*.' if by_name else ''}", inner)


def _setting_row(prefix: str, key: str, field: FieldInfo) -> str:
    meaning = field.description or ""
    meaning += "".join(f" Example: `{_flow(example)}`." for example in field.examples or [])
    return f"| `{prefix}{key}` | {_type_words(field)} | {_default_words(field)} | {_cell(meaning)} |\n"


def _metric_row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind.value} | {labels} | {_cell(metric.sentence)} |\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _reader(field: FieldInfo) -> str | None:
    return _reader_among(field.metadata)


def _reader_among(metadata: Sequence[object]) -> str | None:
    for item in metadata:
        if isinstance(item, BeforeValidator):
            return next((words for function, words in _READERS.items() if function is item.func), None)
    return None


def _type_words(field: FieldInfo) -> str:
    return _reader(field) or _annotation_words(field.annotation)


def _annotation_words(annotation: object) -> str:
    if isinstance(annotation, type) and (annotation in _PLAIN or issubclass(annotation, BaseModel)):
        return _PLAIN.get(annotation, "section")
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return " or ".join(f"`{word}`" for word in annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _reader_among(arguments[1:]) or _annotation_words(arguments[0])
    if origin is tuple:
        return f"list of {_annotation_words(arguments[0])}"
    if origin is dict:
        return "map"
    if origin in (types.UnionType, typing.Union):
        words = [_annotation_words(argument) for argument in arguments if argument is not type(None)]
        return " or ".join([*words, "null"] if type(None) in arguments else words)
    raise TypeError(f"the reference has no words for {annotation!r}")


def _default_words(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default: object = field.get_default(call_default_factory=True, validated_data={})
    reader = _reader(field)
    if default is PydanticUndefined or default == "":
        return "see there"
    if reader == "duration" and isinstance(default, float):
        default = duration_text(default)
    elif reader == "size" and isinstance(default, int):
        default = bytes_text(default)
    elif isinstance(default, StrEnum):
        default = default.value
    return f"`{_flow(default)}`"


def _flow(value: object) -> str:
    plain = list(value) if isinstance(value, tuple) else value
    text = yaml.safe_dump(plain, default_flow_style=True, width=10_000, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def pages() -> dict[str, str]:
    return {
        "configuration.md": configuration_page(),
        "config.schema.json": json.dumps(settings_schema(), indent=1, ensure_ascii=False) + "\n",
        "metrics.md": metrics_page(),
    }


app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def write_reference(
    *,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit with 1 when a page is stale.")] = False,
    docs: Annotated[Path, typer.Option("--docs", help="The folder of the pages.")] = Path("docs"),
) -> None:
    """Write the reference pages."""
    stale = [name for name, text in pages().items() if not _holds(docs / name, text)]
    if check:
        for name in stale:
            typer.echo(f"{docs / name} is stale; run `python -m common.reference`", err=True)
        raise typer.Exit(int(bool(stale)))
    docs.mkdir(exist_ok=True)
    for name in stale:
        (docs / name).write_text(pages()[name], encoding="utf-8")
        typer.echo(f"wrote {docs / name}")


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(run(app))
