"""Staged replacements: rows that were converted again from Kafka and wait to replace a range's rows.

Rules:

1. One object is one request for one Kafka partition. Its name says where the range starts and which request it is, so
   it can be created exclusively and applied once. `ReplacementName.path` and `ReplacementName.parse` are inverses.
2. Its content is a JSON manifest with a ``version``; `replacement_to_bytes` and `replacement_from_bytes` are exact
   inverses. Unknown fields of a known version are ignored, a newer version is refused. A request with filtered records,
   or records with several rows, has version 2, and one for only some offsets of its span has version 3, for the reason
   in `common.stage.markers`, rule 5.
3. Its data files are below the *stage*, where no table sees them, and have all of the table's columns. A file whose
   name belongs to another table, Kafka partition or range is refused (common/stage/data_files.py, rule 5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from pydantic import TypeAdapter

from common.remedies import replay
from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.data_files import require_own_replay_file
from common.stage.markers import TableKind
from common.stage.merged import ChainPaths, is_merged
from common.stage.stored import Count, NotEmpty, StoredPosition, reading, require_known_version
from common.stored_types import StoredSpan, same_fields
from common.tables.urls import comparable

REPLACE = "replace"
VERSION = 3
_PATHS = ChainPaths(REPLACE, r"(?P<start>\d{20})-(?P<request>[0-9a-f]{32})\.replace")


@dataclass(frozen=True, slots=True, order=True)
class ReplacementName:
    """The range and Kafka partition of a request, and its id."""

    topic_partition: TopicPartition
    start: Position
    request: str
    """32 lower-case hexadecimal digits."""

    @property
    def path(self) -> str:
        return f"{_PATHS.folder(self.topic_partition)}{self.start:020d}-{self.request}.replace"

    @classmethod
    def parse(cls, path: str) -> ReplacementName | None:
        parsed = _PATHS.parse(path)
        if parsed is None or is_merged(parsed[0].topic):  # a chain of several topics is not replayed
            return None
        return cls(parsed[0], Position(int(parsed[1]["start"])), parsed[1]["request"])


@dataclass(frozen=True, slots=True)
class ReplacementFile:
    path: NotEmpty
    """Relative to the stage's root."""
    rows: Count
    size_bytes: Count


@dataclass(frozen=True, slots=True)
class ReplacementTable:
    """A request's files for one Delta table; no files if its rows of the range are only deleted."""

    url: NotEmpty
    kind: TableKind
    schema: str
    """As in Delta's metaData action: JSON, partition columns included."""
    files: tuple[ReplacementFile, ...]


@dataclass(frozen=True, slots=True)
class Replacement:
    span: Span
    app_id: str
    writer: str
    """The name of the requesting program, for people."""
    created_ms: int
    records: int
    """Kafka records in the span: those with rows, dead letters, tombstones and filtered ones."""
    tombstones: int
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    """Counts by error class."""
    tables: tuple[ReplacementTable, ...] = ()
    filtered: tuple[Span, ...] = ()
    """The offsets of the records that the stream's condition left out; records that Kafka has lost are not included."""
    exploded: int = 0
    """Rows beyond the first one of their record."""
    only: tuple[Span, ...] = ()
    """The runs of offsets that it replaces, in order; empty for the whole span."""

    @property
    def version(self) -> int:
        """The lowest version of the format that expresses it."""
        if self.only:
            return 3
        return 2 if self.filtered or self.exploded else 1

    @property
    def positions(self) -> int | None:
        """How many positions it is about; None for all of its span."""
        return sum(run.positions for run in self.only) if self.only else None

    @property
    def rows(self) -> int:
        return sum(file.rows for table in self.tables if table.kind is TableKind.ROWS for file in table.files)

    def of(self, url: str) -> ReplacementTable | None:
        """The part for one table; None if its rows of the range are only deleted."""
        return next((table for table in self.tables if comparable(table.url) == comparable(url)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredReplacement:
    version: int
    topic: str
    partition: Count
    start: StoredPosition
    end: StoredPosition
    request: str
    app_id: str
    writer: str
    created_ms: int
    records: Count
    tombstones: Count
    dead_letters: Mapping[str, Count]
    tables: tuple[ReplacementTable, ...]
    filtered: tuple[StoredSpan, ...] = ()
    exploded: Count = 0
    only: tuple[StoredSpan, ...] = ()


_FORM = TypeAdapter(_StoredReplacement)


def replacement_to_bytes(name: ReplacementName, replacement: Replacement) -> bytes:
    stored = _StoredReplacement(
        version=replacement.version,
        topic=name.topic_partition.topic,
        partition=name.topic_partition.partition,
        start=replacement.span.start,
        end=replacement.span.end,
        request=name.request,
        **same_fields(replacement, _StoredReplacement),
    )
    return _FORM.dump_json(stored)


def replacement_from_bytes(name: ReplacementName, data: bytes) -> Replacement:
    """The inverse of `replacement_to_bytes`. Raises MarkerError, which names the request."""
    what = f"the request {name.path}"
    again = replay(name.topic_partition, name.start, None)
    remedy = f"delete it from the stage, and request it again with `{again}`; OFFSET is the end of its range"
    with reading(what, remedy):
        require_known_version(what, data, VERSION)
        return _from_stored(name, _FORM.validate_json(data, strict=True))


def _from_stored(name: ReplacementName, stored: _StoredReplacement) -> Replacement:
    partition = TopicPartition(Topic(stored.topic), Partition(stored.partition))
    stored_name = ReplacementName(partition, stored.start, stored.request)
    if stored_name != name:
        raise ValueError(f"its content names {stored_name.path}")
    for url, file in ((table.url, file) for table in stored.tables for file in table.files):
        if ".." in file.path.split("/") or "://" in file.path:
            raise ValueError(f"the path {file.path!r} leaves the stage")
        require_own_replay_file(file.path, url, partition, range(stored.start, stored.end + 1))
    span, only = Span(stored.start, stored.end), stored.only
    ordered = all(span.end < other.start for span, other in pairwise(only))
    if only and not (ordered and only[0].start == span.start and only[-1].end == span.end):
        raise ValueError(f"its runs of offsets do not go from {span.start} to {span.end} in order")
    return Replacement(span=span, **same_fields(stored, Replacement))
