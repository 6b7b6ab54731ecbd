"""The sources of positions: the values of ``--from``, and files with positions.

Rules:

1. A position is the next offset wanted. Two of the sources hold *last* offsets and are turned into positions here and
   nowhere else: kafka-delta-ingest's ``seek_offsets`` (its first message is the one after the number given) and, in
   common/tables/transactions.py, a Delta table's txn actions.
2. A file is YAML or JSON. ``{topic: {partition: position}}`` and ``{partition: position}`` hold positions; a list of
   pairs ``[[partition, offset], …]``, and any file behind ``seek_offsets:``, is kafka-delta-ingest's.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import yaml

from common.errors import UsageError
from common.settings import FromTimestamp, StartAt
from common.settings.strict_yaml import load_yaml, yaml_problem
from common.settings.values import parse_timestamp_ms
from common.spans import MAX_POSITION, Partition, Position, Topic, TopicPartition

_GROUP = "group:"
_SEEK_OFFSETS = "seek_offsets:"
_PAIR = 2
_FORMS = (
    "write earliest, latest, a time such as 2026-03-01T00:00:00Z, group:NAME, delta, the path of a file with "
    "positions such as {0: 120, 1: 340}, or seek_offsets:PATH for a kafka-delta-ingest file"
)
_SHAPES = (
    "write {partition: position} such as {0: 120, 1: 340}, or {topic: {partition: position}}; for kafka-delta-ingest's "
    "last offsets, pairs such as [[0, 119], [1, 339]]"
)


@dataclass(frozen=True, slots=True)
class FromGroup:
    name: str


@dataclass(frozen=True, slots=True)
class FromDelta:
    """The txn actions of the stream's main table."""


@dataclass(frozen=True, slots=True)
class FromFile:
    """A file with positions, or with last offsets."""

    path: str
    last_offsets: bool


PositionSource = StartAt | FromTimestamp | FromGroup | FromDelta | FromFile


def parse_source(text: str) -> PositionSource:
    """The meaning of ``--from``; any other text is the path of a file. Raises UsageError."""
    if text in set(StartAt):
        return StartAt(text)
    if text == "delta":
        return FromDelta()
    for prefix in (_GROUP, _SEEK_OFFSETS):
        rest = text.removeprefix(prefix)
        if rest != text and not rest:
            raise UsageError(f"--from {text} names nothing after the colon", _FORMS)
    if text.startswith(_GROUP):
        return FromGroup(text.removeprefix(_GROUP))
    if text.startswith(_SEEK_OFFSETS):
        return FromFile(text.removeprefix(_SEEK_OFFSETS), last_offsets=True)
    try:
        return FromTimestamp(parse_timestamp_ms(text))
    except ValueError:
        return FromFile(text, last_offsets=False)


def unreadable_file(path: str, reason: str) -> UsageError:
    """The error for a ``--from`` that is neither a keyword nor a file."""
    return UsageError(f"--from {path} is not a known source, and no file can be read there: {reason}", _FORMS)


def parse_positions(
    text: str, source: str, topics: Sequence[Topic], *, last_offsets: bool
) -> Mapping[TopicPartition, Position]:
    """The positions of a file's text (rule 2); ``topics`` are the stream's. Raises UsageError that names ``source``."""
    try:
        content = load_yaml(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{source} is neither YAML nor JSON: {yaml_problem(error)}", _SHAPES) from None
    if isinstance(content, list):
        entries, last_offsets = _pairs(content, source), True
    elif isinstance(content, dict) and content:
        entries = list(_entries(content, source))
    else:
        raise UsageError(f"{source} holds no positions", _SHAPES)
    positions: dict[TopicPartition, Position] = {}
    for topic, partition, number in entries:
        named = TopicPartition(_only(topics, source) if topic is None else topic, partition)
        if named in positions:
            raise UsageError(f"{source} names {named} twice", "name each partition once")
        positions[named] = Position(number + 1 if last_offsets else number)
        if not 0 <= positions[named] <= MAX_POSITION:
            raise UsageError(f"{source} gives {number} for {named}, which is not a valid offset", _SHAPES)
    return positions


_Entry = tuple[Topic | None, Partition, int]


def _pairs(content: list[object], source: str) -> list[_Entry]:
    entries: list[_Entry] = []
    for pair in content:
        if not isinstance(pair, list) or len(pair) != _PAIR:
            raise UsageError(f"{source} holds {pair!r}, which is not a pair of a partition and an offset", _SHAPES)
        entries.append((None, _partition(pair[0], source), _number(pair[1], source)))
    return entries


def _entries(content: Mapping[object, object], source: str) -> Iterable[_Entry]:
    for key, value in content.items():
        if isinstance(value, dict):
            for inner, number in value.items():
                yield Topic(str(key)), _partition(inner, source), _number(number, source)
        else:
            yield None, _partition(key, source), _number(value, source)


def _partition(value: object, source: str) -> Partition:
    if isinstance(value, bool) or not str(value).isdecimal():
        raise UsageError(f"{source} holds {value!r} where a partition's number is expected", _SHAPES)
    return Partition(int(str(value)))


def _number(value: object, source: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise UsageError(f"{source} holds {value!r} where an offset is expected", _SHAPES)
    return value


def _only(topics: Sequence[Topic], source: str) -> Topic:
    if len(topics) != 1:
        msg = f"{source} names no topics, and the stream has {len(topics)}: {', '.join(topics)}"
        raise UsageError(msg, "write {topic: {partition: position}}")
    return topics[0]
