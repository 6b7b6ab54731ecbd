"""Facts about a table for the table services, all from the table's log and the stage.

Rules:

1. The files are summed up by partition as they are read, so a million of them cost time and no memory.
2. A service's last runs are the table's own commits. Nothing else remembers when a table was maintained, and a run by
   another program counts like one of this loader's.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from common.json_value import members_of
from delta_loader.tables.history import LiveFile

PartitionValues = tuple[tuple[str, str | None], ...]
"""Partition columns with their values as Delta writes them; empty for a table without partitions."""


class Service(StrEnum):
    """A kind of maintenance of a table."""

    CHECKPOINT = "checkpoint"
    OPTIMIZE = "optimize"
    STATISTICS = "statistics"
    VACUUM = "vacuum"


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    values: PartitionValues
    files: int = 0
    size_bytes: int = 0
    small_files: int = 0
    """Small files that are old enough."""
    small_bytes: int = 0
    newest_ms: int = 0
    """When its newest file was added."""
    unclustered_files: int = 0
    """Files that are old enough and not yet clustered."""
    unclustered_bytes: int = 0
    bare_files: int = 0
    """Files without statistics."""
    bare_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ServiceRun:
    service: Service
    version: int
    at_ms: int
    files_removed: int = 0
    files_added: int = 0
    bytes_removed: int = 0
    bytes_added: int = 0
    words: str = ""
    """Its subject, for people."""
    completed: bool = True
    only_began: bool = False
    """A VACUUM with a start and no end in the history."""


@dataclass(frozen=True, slots=True)
class LogFacts:
    version: int
    commits_since_checkpoint: int
    commits: int
    oldest_version: int
    oldest_ms: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TableFacts:
    url: str
    log: LogFacts
    partition_by: tuple[str, ...]
    """Its partition columns, as named in SQL."""
    properties: Mapping[str, str]
    is_clustered: bool
    """By liquid clustering."""
    partitions: tuple[PartitionFacts, ...]
    runs: tuple[ServiceRun, ...]
    """The runs of its services, newest first; at most some of each."""
    waiting_ms: int | None = None
    """When the oldest marker was written that has files for the table and is not loaded; None for none."""

    @property
    def maintained_ms(self) -> int:
        """When a service last ran; 0 when unknown."""
        return max((run.at_ms for run in self.runs), default=0)

    def last(self, service: Service) -> ServiceRun | None:
        """The last completed run of a service."""
        return next((run for run in self.runs if run.service is service and run.completed), None)

    @property
    def files(self) -> int:
        return sum(partition.files for partition in self.partitions)

    @property
    def size_bytes(self) -> int:
        return sum(partition.size_bytes for partition in self.partitions)

    @property
    def bare_files(self) -> int:
        """Files without statistics."""
        return sum(partition.bare_files for partition in self.partitions)


@dataclass(slots=True)
class PartitionTotals:
    """Sums files up by partition (rule 1)."""

    small_below_bytes: int
    quiet_before_ms: int
    """Only older files count as small or unclustered."""
    columns: Mapping[str, str]
    """From the partition columns' names in the log to those in SQL, in order."""
    facts: dict[PartitionValues, PartitionFacts] = field(default_factory=dict)

    def add(self, files: Iterable[LiveFile]) -> tuple[PartitionFacts, ...]:
        """All partitions, once all files are counted."""
        for file in files:
            values = tuple((sql, file.partition_values.get(name)) for name, sql in self.columns.items())
            known = self.facts.get(values) or PartitionFacts(values)
            self.facts[values] = self._with(known, file)
        return tuple(self.facts.values())

    def _with(self, known: PartitionFacts, file: LiveFile) -> PartitionFacts:
        is_quiet = file.modified_ms < self.quiet_before_ms
        small = int(is_quiet and file.size_bytes < self.small_below_bytes)
        unclustered = int(is_quiet and not file.is_clustered)
        bare = int(not file.has_statistics and not file.deleted_rows)
        return replace(
            known,
            files=known.files + 1,
            size_bytes=known.size_bytes + file.size_bytes,
            small_files=known.small_files + small,
            small_bytes=known.small_bytes + small * file.size_bytes,
            newest_ms=max(known.newest_ms, file.modified_ms),
            unclustered_files=known.unclustered_files + unclustered,
            unclustered_bytes=known.unclustered_bytes + unclustered * file.size_bytes,
            bare_files=known.bare_files + bare,
            bare_bytes=known.bare_bytes + bare * file.size_bytes,
        )


def run_of(version: int, info: Mapping[str, object]) -> ServiceRun | None:
    """The service run in a commit's ``commitInfo``; None for any other commit."""
    operation, parameters = str(info.get("operation") or ""), members_of(info.get("operationParameters"))
    metrics, at_ms = members_of(info.get("operationMetrics")), _number(info.get("timestamp"))
    match operation:
        case "OPTIMIZE":
            return ServiceRun(
                Service.OPTIMIZE,
                version,
                at_ms,
                files_removed=_number(metrics.get("numRemovedFiles")),
                files_added=_number(metrics.get("numAddedFiles")),
                bytes_removed=_number(metrics.get("numRemovedBytes")),
                bytes_added=_number(metrics.get("numAddedBytes")),
                words=_words(parameters),
            )
        case "VACUUM START":
            # The planned deletes; the matching end says that they happened.
            return ServiceRun(
                Service.VACUUM,
                version,
                at_ms,
                files_removed=_number(metrics.get("numFilesToDelete")),
                bytes_removed=_number(metrics.get("sizeOfDataToDelete")),
                completed=False,
                only_began=True,
            )
        case "VACUUM END":
            return ServiceRun(
                Service.VACUUM,
                version,
                at_ms,
                files_removed=_number(metrics.get("numDeletedFiles")),
                completed=str(parameters.get("status", "")).strip('"') == "COMPLETED",
            )
        case "COMPUTE STATS" | "COMPUTE STATISTICS":
            return ServiceRun(Service.STATISTICS, version, at_ms)
        case _:
            return None


def joined_vacuums(runs: Iterable[ServiceRun]) -> tuple[ServiceRun, ...]:
    """The runs, newest first, each VACUUM's start and end as one; one without an end is not completed."""
    joined: list[ServiceRun] = []
    ended: int | None = None  # the index of the VACUUM whose start is still to come
    for run in runs:
        if run.only_began and ended is not None:
            joined[ended] = replace(joined[ended], bytes_removed=run.bytes_removed)
            ended = None
            continue
        joined.append(run)
        if run.service is Service.VACUUM:
            ended = None if run.only_began else len(joined) - 1
    return tuple(joined)


def _words(parameters: Mapping[str, object]) -> str:
    parts = []
    for key, words in (("zOrderBy", "Z-order by"), ("clusterBy", "clustered by")):
        columns = str(parameters.get(key) or "[]")
        if columns not in ("[]", ""):
            parts.append(f"{words} {', '.join(map(str, _list(columns)))}")
    return "; ".join(parts)


def _list(text: str) -> list[object]:
    try:
        items = json.loads(text)
    except ValueError:
        return [text]
    return items if isinstance(items, list) else [items]


def _number(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        return 0
