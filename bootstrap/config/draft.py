"""A commented config, from a sample. Pure.

Rules:

1. The text can be read by `common.settings.load` and passes ``stage-writer check``.
2. Each choice that the user may want to change has a comment next to it. Guesses are comments, not settings.
3. A secret is never written: the value of a key that sounds secret becomes a reference to an environment variable.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import wrap

import yaml

from bootstrap.config.sample import TopicSample
from common.schema import StructType, to_ddl
from common.schema.inference import Alternative, Inferred, inferred, moments
from common.schema.types import Primitive
from common.settings.masking import MASK, mask

_WIDTH = 110
_NAMES = ("event_time", "occurred_at", "timestamp", "time", "ts", "created_at", "created")
"""Of several times, the one with this name is when the event happened."""


@dataclass(frozen=True, slots=True)
class Answers:
    kafka: Mapping[str, str]
    """Properties as given, with references to the environment not replaced."""
    stage_url: str
    tables_url: str
    partition_by: str | None = None
    """A column; empty for none, None for a proposal."""
    file: str = "pipeline.yaml"
    schema_registry_url: str | None = None


@dataclass(slots=True)
class Draft:
    text: str
    notes: list[str] = field(default_factory=list)


def draft(answers: Answers, samples: Sequence[TopicSample]) -> Draft:
    drafted = Draft("")
    lines = [
        "# yaml-language-server: $schema=config.schema.json",
        "# (for editors; `kafka-delta-express config schema > config.schema.json` writes that file)",
        (
            f"# Drafted from {sum(sample.messages for sample in samples):,} messages "
            f"of {', '.join(s.topic for s in samples)}."
        ),
        "# Every key is described in docs/configuration.md. Check the file, then run:",
        f"#   stage-writer check {answers.file}",
        "",
        "kafka:                                 # librdkafka properties, passed through",
        *_kafka(answers.kafka, drafted.notes),
        "",
        "stage:",
        f"  url: {_scalar(answers.stage_url)}",
        "  # storage_options:                   # passed to fsspec, for the stage and for every table",
        "  #   key: ${S3_KEY}",
        "  #   secret: ${S3_SECRET}",
        "  #   endpoint_url: https://s3.example.com",
        "",
        "writer:",
        "  group_id: kafka_delta_express",
        "  flush_after: 60s                     # allowed latency until a record is staged",
        "  memory: 1GiB                         # for all buffers of a writer; reading pauses above it",
        "",
        "loader:",
        "  schedule: 15m                        # how often what is staged is loaded; or a cron line",
        "",
    ]
    registry = answers.schema_registry_url
    if any(sample.framing == "confluent" for sample in samples):
        lines += ["schema_registry:", f"  url: {_scalar(registry or 'http://localhost:8081')}", ""]
        if registry is None:
            drafted.notes.append("the messages are framed: set schema_registry.url")
    lines.append("streams:")
    for sample in samples:
        lines += [f"  {line}".rstrip() for line in _stream(answers, sample, drafted.notes)]
    drafted.text = "\n".join(lines) + "\n"
    return drafted


def _kafka(properties: Mapping[str, str], notes: list[str]) -> list[str]:
    lines = []
    for key, value in properties.items():
        shown = value
        if "${" not in value and mask(key, value) == MASK:
            shown = f"${{KAFKA_{re.sub(r'[^A-Z0-9]+', '_', key.upper())}}}"
            notes.append(f"kafka.{key} is not written down: export {shown[2:-1]} before you start a service")
        lines.append(f"  {key}: {_scalar(shown)}")
    if not any(key.startswith("security.") for key in properties):
        lines.append("  # security.protocol: SASL_SSL        # with sasl.mechanism, sasl.username and sasl.password")
    return lines


def _stream(answers: Answers, sample: TopicSample, notes: list[str]) -> list[str]:
    columns_inferred = inferred(sample.records)
    name = re.sub(r"[^A-Za-z0-9_]+", "_", sample.topic)
    table = f"{answers.tables_url.rstrip('/')}/{name}"
    derived, partition_by, why = _partitioning(answers, columns_inferred, sample)
    lines = [
        f"- app_id: {_scalar(name)}".ljust(37) + "# never change it: the table's positions are stored under it",
        f"  topics: [{_scalar(sample.topic)}]".ljust(37) + f"# {sample.partitions} partitions",
        f"  table: {_scalar(table)}",
        f"  # dead_letters: {table}_dead_letters",
    ]
    lines += _wrapping(sample)
    lines += [line for note in columns_inferred.notes for line in _comment(note)]
    lines += ["  columns: >-", *_columns(columns_inferred.columns)]
    lines += [f"  # {line}" for alternative in columns_inferred.alternatives for line in _alternative(alternative)]
    if columns_inferred.formats:
        lines += ["  formats:", *(f"    {_scalar(path)}: {name}" for path, name in columns_inferred.formats.items())]
    lines.append("  # unknown_fields: rescue             # keep undeclared fields in the column _rescued")
    lines.append('  # coerce: lenient                    # accept equivalent values: "7" for a number')
    if derived:
        pairs = ", ".join(f"{_scalar(key)}: {_scalar(sql, quoted=True)}" for key, sql in derived.items())
        lines.append(f"  derive: {{{pairs}}}")
    lines += [*_comment(why), f"  partition_by: [{', '.join(map(_scalar, partition_by))}]"]
    lines.append("  start: earliest                      # where a partition starts: latest, or 2026-03-01T00:00:00Z")
    if sample.unreadable:
        hint = "; where they are Avro or Protobuf, set streams[].format" if sample.framing == "confluent" else ""
        notes.append(
            f"{sample.topic}: {sample.unreadable:,} of {sample.messages:,} messages are not JSON objects{hint}"
        )
    return lines


def _wrapping(sample: TopicSample) -> list[str]:
    lines = []
    if sample.framing != "none":
        lines.append(f"  framing: {sample.framing}")
    if sample.envelope != "plain":
        lines.append(f"  envelope: {sample.envelope}".ljust(37) + "# the records are row images; see docs/envelopes.md")
        keys = ", ".join(map(_scalar, sample.key_fields))
        named = "the fields of the message keys" if keys else "the columns that identify a row"
        lines.append(
            "  # load: merge                        # one row for each key, as the source has it, not each event"
        )
        lines.append(f"  # merge: {{keys: [{keys or 'id'}]}}".ljust(37) + f"  # {named}; see docs/change_events.md")
    if sample.tombstones:
        lines += _comment(
            f"{sample.tombstones:,} of {sample.messages:,} messages are tombstones: counted, without rows"
        )
    if sample.unreadable:
        lines += _comment(f"{sample.unreadable:,} of {sample.messages:,} messages are not JSON objects: dead letters")
    return lines


def _alternative(alternative: Alternative) -> list[str]:
    formats = f", with formats: {{{_scalar(alternative.path)}: {alternative.format}}}" if alternative.format else ""
    return wrap(f"{alternative.path} {alternative.type}{formats} would accept all sampled values", _WIDTH)


def _columns(columns: StructType) -> list[str]:
    # A line for each column; YAML joins them with spaces.
    texts = [to_ddl(StructType((column,))) for column in columns]
    return [f"    {text}{',' if index < len(texts) - 1 else ''}" for index, text in enumerate(texts)]


def _partitioning(
    answers: Answers, columns_inferred: Inferred, sample: TopicSample
) -> tuple[dict[str, str], list[str], str]:
    """The derived columns, the partition columns, and why."""
    if answers.partition_by is not None:
        named = [answers.partition_by] if answers.partition_by else []
        return {}, named, "as asked for"
    times = list(moments(columns_inferred.columns, sample.records))
    days = [path[0] for path, kind in times if kind is Primitive.DATE and len(path) == 1]
    if days:
        return {}, days[:1], "each record has this day; remove it, [], for a small table"
    column = next(name for name in ("date", "event_date", "kafka_date") if columns_inferred.columns.field(name) is None)
    source, what = "kafka.timestamp", "the day on which Kafka received the record"
    if times:
        path = min((path for path, _ in times), key=_distance)
        # Quoted: a name may be a keyword of SQL.
        source = ".".join('"' + name.replace('"', '""') + '"' for name in path)
        what = f"the day of {'.'.join(path)}"
    return {column: f"CAST({source} AS DATE)"}, [column], f"{what}; for a small table, remove derive and partition_by"


def _distance(path: tuple[str, ...]) -> tuple[int, int]:
    name = path[-1].casefold()
    return (_NAMES.index(name) if name in _NAMES else len(_NAMES), len(path))


def _comment(text: str) -> list[str]:
    # Some characters end a line for YAML.
    plain = "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
    return [f"  # {line}" for line in wrap(plain, _WIDTH)]


def _scalar(text: str, *, quoted: bool = False) -> str:
    """A text as YAML writes it on one line."""
    style = None if not quoted else "'" if '"' in text else '"'
    return yaml.safe_dump([text], default_flow_style=True, width=10_000, default_style=style, allow_unicode=True)[1:-2]
