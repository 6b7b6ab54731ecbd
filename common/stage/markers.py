"""Completed markers: their names, their manifests, and the only code that knows the format.

Rules:

1. A marker's name is the *start* of its span; it is created with a conditional write, so at most one marker can claim a
   position. `MarkerName.path` and `MarkerName.parse` are inverses, except that a hand-typed name needs no padding.
2. An empty marker was made by hand and covers exactly one position.
3. Any other marker is a JSON manifest with a ``version``. `manifest_to_bytes` and `manifest_from_bytes` are exact
   inverses. Unknown fields of a known version are ignored: a newer writer may add some. A newer version is refused.
4. A manifest is never trusted: a path in it that leaves its table's root, a file whose name belongs to another flush or
   another table (common/stage/data_files.py, rule 5), a span that does not start at the marker's name, or a file whose
   partition values are of columns other than the table's, raises MarkerError.
5. A marker is written in the lowest version that expresses it. A reader that does not know that version refuses the
   marker, and so does no harm:

   | version | written for | a reader that does not know it would |
   | --- | --- | --- |
   | 2 | a recreated topic: a later *generation* (common/stage/chain_origins.py) | take it for one of the old topic's |
   | 3 | filtered records, or records with several rows | pass on counts that do not add up |
   | 4 | a mixed file: rows of several partition values, for Spark to split | add the file as it is |
   | 5 | rows to be merged (common/tables/changes.py) | append events as rows |
   | 6 | state that is partly in a Kafka topic (common/stage/task_files.py, rule 5) | continue without it |
   | 7 | merges of messages with several rows | let an earlier row win |
   | 7 | merges in which nulls leave what the table has | set null |
   | 7 | merges in which an event deletes all rows | delete nothing |
   | 8 | merges into a table that keeps every version of a row | overwrite them all |
   | 9 | merges of the elements of records | leave those that a record has lost |

6. The other fields need no version: a reader that does not know them ignores them, and loads the same rows.
   a. ``inputs``: in a chain of several topics (common/stage/merged.py), the positions in each of them at the start and
      the end, in addition to the sums. Markers of older releases have them at the end only.
   b. ``place``: columns of the files that the table does not have (common/tables/changes.py, rule 7).
   c. ``last_record``: the last record of the span, by offset, timestamp and leader epoch. An offset alone does not say
      whether Kafka still has that record: after an unclean leader election, or on a broker that was restored from a
      copy, another record may have that offset.
   d. ``undeclared``: fields of records that no column takes, of a sample (common/stage/undeclared.py).
   e. ``violations``: records that break rules of `expect`, by rule, whether they were staged or became dead letters.
      The counts that add up to ``records`` have them already.
   f. ``chain_origin``: the number of the chain origin that the marker belongs to. So a reader recognizes a marker that
      a rewind puts aside, or that a late request creates after it (common/stage/chain_origins.py, rule 7).
   g. ``previous_digest``: of a flush's marker, a digest of the marker before it, so an emptied marker is not mistaken
      for a hand-made one (common/stage/chain.py, rule 5).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from pydantic import TypeAdapter

from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.data_files import require_own_file, require_own_waiting_file
from common.stage.merged import (
    ChainPaths,
    InputEnd,
    StoredInput,
    inputs_at,
    inputs_to_stored,
    position_from_stored,
    start_from_stored,
)
from common.stage.stored import Count, NotEmpty, StoredOffset, StoredPosition, reading, require_known_version
from common.stage.task_files import MarkedState, StoredState, require_own_outboxes, require_own_state
from common.stage.undeclared import UndeclaredFields
from common.stored_types import omit_defaults, same_fields
from common.tables.changes import IdentityColumns, MergeBy

if TYPE_CHECKING:
    from common.ports import StoredObject

DONE = "done"
STRAY = "stray"
VERSION = 9
"""The highest version that can be read; a marker is written in the lowest version that expresses it (rule 5)."""
GONE = "is gone"
"""The damage of a data file that the store does not have."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_PATHS = ChainPaths(DONE, r"(?P<start>\d{1,20})\.done")
folder_of = _PATHS.folder
markers_of_topic = _PATHS.folder_of_topic


class MarkerName(NamedTuple):
    """Which position of which Kafka partition a marker claims."""

    topic_partition: TopicPartition
    start: Position

    @property
    def path(self) -> str:
        return f"{folder_of(self.topic_partition)}{self.start:020d}.done"

    @classmethod
    def parse(cls, path: str) -> MarkerName | None:
        """The name of a marker's path, padded or not; None for any other path."""
        parsed = _PATHS.parse(path)
        return None if parsed is None else cls(parsed[0], Position(int(parsed[1]["start"])))


def stray_path(path: str, number: int = 1) -> str:
    """The path of a marker's copy when an operator moves it aside; writers take the copy as the sign of a rewind.

    The second copy of the same path has the ``number`` 2, and so on without a gap.
    """
    return f"{STRAY}/{path}" if number == 1 else f"{STRAY}/{path}.{number}"


def name_of_copy(path: str) -> MarkerName | None:
    """The name of the marker whose copy has this path, by `stray_path`; None for any other path."""
    name, _, number = path.removeprefix(f"{STRAY}/").rpartition(".")
    return MarkerName.parse(f"{name}.{number}" if number == "done" else name)


def late_path(path: str, data: bytes) -> str:
    """The path of a late claim's copy when the loader moves it aside: never one where writers look for a rewind's."""
    return f"{STRAY}/{path}.late-{digest_of(data)[:16]}"


def is_late_path(path: str) -> bool:
    return ".late-" in path.rpartition("/")[2]


def digest_of(data: bytes) -> str:
    """A digest that distinguishes a marker's bytes from those of another one with the same name."""
    return hashlib.sha256(data).hexdigest()


class Origin(StrEnum):
    FLUSH = "flush"  # a stage writer staged these records
    BOOTSTRAP = "bootstrap"  # an operator set the start of a chain
    SKIP = "skip"  # an operator gave these positions up


class TableKind(StrEnum):
    ROWS = "rows"
    DEAD_LETTERS = "dead_letters"


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One Parquet file of a flush. Its rows all have the same partition values, or it is mixed."""

    path: NotEmpty
    """Relative to the table's root, not percent-encoded; for a mixed file, to the stage's
    (`common.stage.data_files.waiting_path`)."""
    partition_values: Mapping[str, str | None] | None
    """Column to value as Delta serializes it; null for null and for an empty string. None for a mixed file: its rows
    contain their partition columns, and go through Spark."""
    size_bytes: Count
    rows: Count
    statistics: str
    """Delta's per-file statistics, a JSON object as text."""

    @property
    def is_mixed(self) -> bool:
        """Whether its rows have several partition values (rule 5)."""
        return self.partition_values is None

    def damage(self, stored: StoredObject | None) -> str | None:
        """How the stored file is damaged: it is gone, or has another size. Nothing replaces such a file."""
        if stored is None:
            return GONE
        if stored.size_bytes == self.size_bytes:
            return None
        return f"has {stored.size_bytes:,} bytes, but its marker says {self.size_bytes:,}: it was cut off or replaced"


@dataclass(frozen=True, slots=True)
class StagedTable:
    url: NotEmpty
    kind: TableKind
    schema: str
    """The table's schema as in Delta's metaData action: JSON, partition columns included."""
    partition_by: tuple[str, ...]
    files: tuple[StagedFile, ...]
    merge: MergeBy | None = None
    """How its rows change the table's rows; None where they are added."""
    place: IdentityColumns | None = None
    """Columns of the files that the table does not have, with each row's record identity (rule 6b)."""

    _without_empty = omit_defaults("merge", "place")

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class LastRecord:
    """The last record of a span, by which a writer detects that a topic has lost it (rule 6c)."""

    offset: StoredOffset
    timestamp_ms: int | None
    leader_epoch: Count | None
    """The epoch of the broker that appended it; None from brokers that do not report it."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a marker: everything that the loader needs to know about a flush."""

    span: Span
    previous: Position | None
    """The start of the marker before it; None when this one starts a chain."""
    app_id: str
    origin: Origin
    writer: str
    """The name of the writer, for people."""
    created_ms: int
    records: int = 0
    """Kafka records in the span: those with rows, dead letters, tombstones and filtered ones."""
    tombstones: int = 0
    filtered: int = 0
    """Records that the stream's condition left out."""
    exploded: int = 0
    """Rows beyond the first one of their record."""
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    """Counts by error class."""
    lowest_timestamp_ms: int | None = None
    highest_timestamp_ms: int | None = None
    tables: tuple[StagedTable, ...] = ()
    topic_id: str | None = None
    """The broker's id of the records' topic; None if unknown."""
    generation: int = 0
    """How often the topic was recreated, and its chain restarted, before this one."""
    offered: str | None = None
    """The columns that the table could gain from the rescue column's content, in the form of `StagedTable.schema`."""
    outboxes: tuple[str, ...] = ()
    """The topology's outboxes for Kafka topics that are not known to be delivered (task_files.py); the oldest first."""
    state: MarkedState | None = None
    """The state of a topology's task; None for a marker without a task."""
    last_record: LastRecord | None = None
    """None where the span has none, for a chain of several topics, and from older releases."""
    undeclared: UndeclaredFields | None = None
    """Undeclared fields in a sample of its records; None without any, or without a sample."""
    violations: Mapping[str, int] = field(default_factory=dict)
    """Records by the rule of the stream's `expect` that they break (rule 6e); a record may break several."""
    chain_origin: int | None = None
    """The number of the chain origin that it belongs to (rule 6f). None in a flush of an older release."""
    offered_by_route: str | None = None
    """In place of ``offered`` where tables gain columns of their own: a STRUCT for each."""
    previous_digest: str | None = None
    """The `digest_of` the marker before a flush's (rule 6g). None in a chain's first marker and in older markers."""

    @property
    def inputs(self) -> tuple[InputEnd, ...]:
        """The position in each topic of a chain of several (rule 6a); empty for a chain of one."""
        return inputs_at(self.span.end)

    @property
    def version(self) -> int:
        """The lowest version of the format that expresses it."""
        merges = [table.merge for table in self.tables if table.merge is not None]
        needs = {
            9: any(merge.element for merge in merges),
            8: any(merge.history for merge in merges),
            7: any((merge.row, merge.event_columns, merge.truncate) != (None, None, None) for merge in merges),
            6: self.state is not None and self.state.is_in_topics,
            5: bool(merges),
            4: any(file.is_mixed for table in self.tables for file in table.files),
            3: self.filtered > 0 or self.exploded > 0,
            2: self.generation > 0,
        }
        return next((version for version, is_needed in needs.items() if is_needed), 1)


@dataclass(frozen=True, slots=True)
class Marker:
    """A marker as found in the stage: a name and, unless made by hand, a manifest."""

    name: MarkerName
    manifest: Manifest | None
    is_as_named_by_programs: bool = False
    """Of an empty one: whether its object has the padded name that a program gives a marker."""

    @property
    def span(self) -> Span:
        if self.manifest is not None:
            return self.manifest.span
        return Span(self.name.start, Position(self.name.start + 1))

    @property
    def previous(self) -> Position | None:
        """The start of the marker before it, or None when it starts a chain."""
        return self.manifest.previous if self.manifest is not None else None

    @property
    def tables(self) -> tuple[StagedTable, ...]:
        """The staged files for each table; empty for a marker made by hand."""
        return self.manifest.tables if self.manifest is not None else ()

    @property
    def origin(self) -> Origin | None:
        """None for a marker made by hand."""
        return self.manifest.origin if self.manifest is not None else None

    def is_older_than(self, generation: int) -> bool:
        """Whether it is of a lower generation. A marker made by hand belongs to the generation that it is in."""
        return self.manifest is not None and self.manifest.generation < generation

    def was_before(self, origin: int) -> bool:
        """Whether it names a chain origin with a lower number (common/stage/chain_origins.py, rule 7)."""
        named = None if self.manifest is None else self.manifest.chain_origin
        return named is not None and named < origin


# The stored form. Pydantic reads it, so the error of a broken marker names the field.


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredManifest:
    version: int
    topic: str
    partition: Count
    start: StoredOffset
    end: StoredOffset
    previous: StoredPosition | None
    app_id: str
    origin: Origin
    writer: str
    created_ms: int
    records: Count
    tombstones: Count
    dead_letters: Mapping[str, Count]
    lowest_timestamp_ms: int | None
    highest_timestamp_ms: int | None
    tables: tuple[StagedTable, ...]
    topic_id: str | None = None
    generation: Count = 0
    filtered: Count = 0
    exploded: Count = 0
    offered: str | None = None
    inputs: tuple[StoredInput, ...] = ()
    state: StoredState | None = None
    outboxes: tuple[str, ...] = ()
    last_record: LastRecord | None = None
    undeclared: UndeclaredFields | None = None
    violations: Mapping[str, Count] = field(default_factory=dict)
    chain_origin: Count | None = None
    offered_by_route: str | None = None
    previous_digest: str | None = None

    _without_empty = omit_defaults(
        "inputs",
        "state",
        "outboxes",
        "last_record",
        "undeclared",
        "violations",
        "chain_origin",
        "offered_by_route",
        "previous_digest",
    )


_FORM = TypeAdapter(_StoredManifest)


def manifest_to_bytes(partition: TopicPartition, manifest: Manifest) -> bytes:
    span = manifest.span
    stored = _StoredManifest(
        version=manifest.version,
        topic=partition.topic,
        partition=partition.partition,
        start=span.start,
        end=span.end,
        inputs=inputs_to_stored(span.end, span.start),
        **same_fields(manifest, _StoredManifest),
    )
    return _FORM.dump_json(stored, by_alias=True)


def manifest_from_bytes(name: MarkerName, data: bytes) -> Manifest | None:
    """The inverse of `manifest_to_bytes`; None for an empty marker. Raises MarkerError, which names the marker."""
    if not data:
        return None
    what = f"marker {name.path}"
    with reading(what, "see docs/internals/guarantees.md, “corrupt markers”, for the commands that fix it"):
        require_known_version(what, data, VERSION)
        return _from_stored(name, _FORM.validate_json(data, strict=True))


def marker_from_bytes(name: MarkerName, data: bytes, path: str | None = None) -> Marker:
    """``path`` is the object's own, which of an empty marker says more (common/stage/chain.py, rule 5)."""
    return Marker(name, manifest_from_bytes(name, data), is_as_named_by_programs=not data and path == name.path)


def marker_to_bytes(marker: Marker) -> bytes:
    return b"" if marker.manifest is None else manifest_to_bytes(marker.name.topic_partition, marker.manifest)


def _from_stored(name: MarkerName, stored: _StoredManifest) -> Manifest:
    marker_name = MarkerName(TopicPartition(Topic(stored.topic), Partition(stored.partition)), Position(stored.start))
    if marker_name != name:
        raise ValueError(f"its content names {marker_name.path}")
    for table in stored.tables:
        _require_own_files(name, table)
    require_own_outboxes(name.topic_partition, stored.outboxes)
    for files in () if stored.state is None else (stored.state.files, stored.state.before):
        require_own_state(name.topic_partition, files)
    start = start_from_stored(stored.start, stored.inputs)
    end = position_from_stored(name.topic_partition, stored.end, stored.inputs)
    return Manifest(span=Span(start, end), **same_fields(stored, Manifest))


def _leaves_its_root(path: str) -> bool:
    """Whether a path is not a data file's below its table: it leaves the table, or is in the table's log (rule 4)."""
    first, *rest = path.split("/")
    steps = {first, *rest} & {"", ".", ".."}
    is_url = _SCHEME.match(first) is not None and "=" not in first
    return bool(steps) or is_url or first == "_delta_log" or "\\" in path or "\0" in path


def _require_own_files(name: MarkerName, table: StagedTable) -> None:
    for file in table.files:
        _require_own(name, table, file)
    if table.merge is not None and any(not file.is_mixed for file in table.files):
        raise ValueError(f"a file of {table.url}, whose rows are to be merged, is not in the stage")


def _require_own(name: MarkerName, table: StagedTable, file: StagedFile) -> None:
    """Raises ValueError for a file that does not belong to this marker (rule 4)."""
    if _leaves_its_root(file.path):
        raise ValueError(f"the path {file.path!r} leaves its table's root")
    if file.partition_values is None:
        require_own_waiting_file(file.path, table.url, name.topic_partition, name.start)
        return
    require_own_file(file.path, name.topic_partition, name.start, table.partition_by)
    if set(file.partition_values) != set(table.partition_by):
        raise ValueError(f"the file {file.path!r} has values of other columns than its table is partitioned by")
