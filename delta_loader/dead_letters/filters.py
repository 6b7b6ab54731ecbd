"""Which dead letters are selected, and how they are summarized. Pure.

Rule: a record's bytes are shown only on request. A reason quotes the value that it refuses, so only its pattern is
shown, with quoted texts and numbers removed. That also makes reasons countable.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from common.errors import UsageError
from common.printable import joined, one_line
from common.settings import Stream
from common.settings.values import parse_timestamp_ms
from common.stage.merged import kafka_topic, stream_of
from common.terminal import Tone, aligned, colored

QUOTED = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
NUMBER = r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Selects dead letters; None means any."""

    app_id: str | None = None
    error_class: str | None = None
    topic: str | None = None
    partition: int | None = None
    start: int | None = None
    end: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None


def selected(streams: Sequence[Stream], wanted: DeadLetterFilter) -> tuple[Sequence[Stream], DeadLetterFilter]:
    """The streams to look at, and what to look for there: a stream's own topic is Kafka's to its dead letters.

    Raises UsageError.
    """
    if wanted.topic is None or stream_of(wanted.topic) is None:
        return streams, wanted
    selected_streams = [stream for stream in streams if stream.takes(wanted.topic)]
    if not selected_streams:
        names = " or ".join(stream.app_id for stream in streams)
        msg = f"--topic {wanted.topic} is not a topic of {names}"
        raise UsageError(
            msg, f"to select the topic for every stream that reads it: --topic {kafka_topic(wanted.topic)}"
        )
    return selected_streams, replace(wanted, topic=kafka_topic(wanted.topic))


def moment_ms(option: str, text: str | None) -> int | None:
    """An option's time in milliseconds. Raises UsageError."""
    try:
        return None if text is None else parse_timestamp_ms(text)
    except ValueError:
        msg = f"{option} {text!r} is not a valid time"
        raise UsageError(msg, "write a time such as 2026-03-01T00:00:00Z") from None


@dataclass(frozen=True, slots=True)
class Group:
    """Dead letters of one stream with the same class, topic and reason pattern."""

    app_id: str
    error_class: str
    topic: str
    reason: str
    count: int
    partitions: int
    first: datetime | None
    """Kafka's timestamps."""
    last: datetime | None
    example: tuple[int, int]
    """Partition and offset of one of them."""
    shown: tuple[str, str] | None = None
    """The example's reason and value, if values were requested."""


def as_text(groups: Sequence[Group], missing: Sequence[str]) -> str:
    """A line for each group, the largest first."""
    lines = [f"{url} does not exist: no record was refused yet" for url in missing]
    if not groups:
        return joined([*lines, "No dead letters."])
    rows = [
        (
            f"{group.count:,}",
            colored(group.error_class, Tone.BAD),
            group.topic,
            _moment(group.first),
            _moment(group.last),
            f"{group.example[0]}/{group.example[1]}",
            group.reason,
        )
        for group in groups
    ]
    head = ("count", "class", "topic", "first", "last", "example", "reason")
    lines.append(aligned(head, rows, right=(0,)))
    for group in groups:
        if group.shown is not None:
            headline = f"{group.topic} {group.example[0]}/{group.example[1]}: {group.shown[0]}"
            lines += ["", one_line(headline), one_line(f"  {group.shown[1]}")]
    lines.append(f"{sum(group.count for group in groups):,} dead letters")
    return "\n".join(lines)


def as_json(groups: Sequence[Group]) -> str:
    records = [
        {
            "app_id": group.app_id,
            "error_class": group.error_class,
            "topic": group.topic,
            "reason": group.reason,
            "count": group.count,
            "partitions": group.partitions,
            "first": None if group.first is None else group.first.isoformat(),
            "last": None if group.last is None else group.last.isoformat(),
            "example": {"partition": group.example[0], "offset": group.example[1]},
            **({} if group.shown is None else {"error": group.shown[0], "value": group.shown[1]}),
        }
        for group in groups
    ]
    return json.dumps(
        {"dead_letters": sum(group.count for group in groups), "groups": records}, indent=2, ensure_ascii=False
    )


def _moment(value: datetime | None) -> str:
    return "–" if value is None else value.strftime("%Y-%m-%dT%H:%M:%S")
