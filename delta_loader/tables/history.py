"""A Delta table's versions as values: the actions of each commit, read from its JSON without a JVM.

Rules:

1. Paths are those of the object store: the log's percent-encoding is decoded here and nowhere else.
2. The possible content of a file (`Reach`) comes from its statistics. Without statistics it may contain anything, so a
   file is never ruled out by mistake. Long texts are truncated in statistics, downward in minima and upward in
   maxima.
3. A file's row count is the number that a reader sees: rows in its deletion vector are not counted.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import unquote

from common.json_value import members_of
from common.spans import Span, TopicPartition
from common.stage.merged import kafka_topic
from common.tables.history import LoggedCommit

_TOPIC, _PARTITION, _OFFSET = "_kafka_topic", "_kafka_partition", "_kafka_offset"
_PARAMETERS = ("predicate", "mode", "version", "timestamp")  # parameters that describe an operation
_LONGEST_WORDS = 160


@dataclass(frozen=True, slots=True)
class Reach:
    """Which records a file may contain: lowest and highest of each offset column; None where unknown."""

    topics: tuple[str, str] | None = None
    partitions: tuple[int, int] | None = None
    offsets: tuple[int, int] | None = None

    def may_hold(self, partition: TopicPartition, span: Span) -> bool:
        if self.topics is not None and not self.topics[0] <= kafka_topic(partition.topic) <= self.topics[1]:
            return False
        if self.partitions is not None and not self.partitions[0] <= partition.partition <= self.partitions[1]:
            return False
        return self.offsets is None or (self.offsets[0] < span.end and span.start <= self.offsets[1])


@dataclass(frozen=True, slots=True)
class DataFile:
    path: str
    rows: int | None
    """None without statistics."""
    reach: Reach
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersion(LoggedCommit):
    """A commit with its other actions."""

    words: str
    """The operation and its subject, for people."""
    transactions: Mapping[str, int]
    added: tuple[DataFile, ...]
    removed: tuple[DataFile, ...]
    changes_data: bool
    """False for a commit that only rearranges rows, such as OPTIMIZE."""

    @property
    def added_rows(self) -> int | None:
        """Rows in all files that it added; None when a file has no count."""
        return total_rows(self.added)


def total_rows(files: tuple[DataFile, ...]) -> int | None:
    """Rows in all files; None when a file has no count."""
    known = [file.rows for file in files if file.rows is not None]
    return sum(known) if len(known) == len(files) else None


def parse_version(version: int, data: bytes) -> TableVersion:
    """One commit file of the log. Raises ValueError if it is not a commit."""
    information: Mapping[str, object] = {}
    transactions: dict[str, int] = {}
    added: list[DataFile] = []
    removed: list[DataFile] = []
    changes_data = False
    for name, value in _actions(data):
        if name == "commitInfo":
            information = value
        elif name == "txn":
            transactions[str(value["appId"])] = int(cast("int", value["version"]))
        elif name in ("add", "remove"):
            (added if name == "add" else removed).append(_file(value))
            changes_data |= bool(value.get("dataChange", True))
    return TableVersion.of(
        version,
        information,
        words=_words(information),
        transactions=transactions,
        added=tuple(added),
        removed=tuple(removed),
        changes_data=changes_data,
    )


def _actions(data: bytes) -> Iterator[tuple[str, Mapping[str, object]]]:
    for line in data.splitlines():
        if line.strip():
            for name, value in cast("dict[str, object]", json.loads(line)).items():
                if isinstance(value, dict):
                    yield name, cast("dict[str, object]", value)


def _words(information: Mapping[str, object]) -> str:
    given = members_of(information.get("operationParameters"))
    parameters = [f"{key} {given[key]}" for key in _PARAMETERS if given.get(key) not in (None, "", "[]")]
    words = ", ".join([str(information.get("operation", "an unknown operation")), *parameters])
    return words if len(words) <= _LONGEST_WORDS else f"{words[:_LONGEST_WORDS]}…"


def _file(action: Mapping[str, object]) -> DataFile:
    path, statistics = unquote(str(action["path"])), action.get("stats")
    content = json.loads(statistics) if isinstance(statistics, str) and statistics else {}
    rows = cast("int | None", content.get("numRecords"))
    vector = action.get("deletionVector")
    if rows is not None and isinstance(vector, dict):
        rows -= int(cast("dict[str, int]", vector).get("cardinality", 0))
    size_bytes = int(cast("int | None", action.get("size")) or 0)
    return DataFile(path, rows, reach_of(content, action.get("partitionValues")), size_bytes)


def reach_of(statistics: Mapping[str, object], partition_values: object) -> Reach:
    """Which records a file may contain, by its statistics and its partition values (rule 2)."""
    lowest = cast("dict[str, object]", statistics.get("minValues") or {})
    highest = cast("dict[str, object]", statistics.get("maxValues") or {})
    fixed = cast("dict[str, object]", partition_values or {})

    def bounds(name: str) -> tuple[object, object] | None:
        low, high = fixed.get(name, lowest.get(name)), fixed.get(name, highest.get(name))
        return None if low is None or high is None else (low, high)

    topics, partitions, offsets = bounds(_TOPIC), bounds(_PARTITION), bounds(_OFFSET)
    return Reach(
        None if topics is None else (str(topics[0]), str(topics[1])),
        None if partitions is None else (int(str(partitions[0])), int(str(partitions[1]))),
        None if offsets is None else (int(str(offsets[0])), int(str(offsets[1]))),
    )


@dataclass(frozen=True, slots=True)
class LiveFile:
    path: str
    """Relative to the table's root, as in the object store."""
    size_bytes: int
    modified_ms: int
    """When the file was added to the table."""
    partition_values: Mapping[str, str | None]
    """By column name in the log, which differs from SQL's under column mapping."""
    has_statistics: bool
    statistics: str | None = None
    """Delta's JSON; None if not requested."""
    is_clustered: bool = False
    """By liquid clustering."""
    deleted_rows: int = 0
    """How many rows its deletion vector removes."""
