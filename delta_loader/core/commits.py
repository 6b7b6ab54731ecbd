"""Commits as values: what one brings, what it stands on, what its metadata says, and how it can end.

Rules:

1. A commit brings data files and txn actions together. It stands on ``expected``: the last offsets that the plan saw.
   Whoever carries it out reads them again inside of Delta's transaction, so that two loaders cannot both succeed.
2. A txn action's version is the last offset loaded, under the app id of common/transactions.py.
3. Every marker moves the txn action of the stream's own table, also one without rows. A dead-letter table gets a
   commit only for markers that have dead letters, and gets it *before* the table's own. So the table's own txn action
   alone says that a marker is in all its tables, and the many commits without a dead letter cost nothing more.
4. The metadata is JSON in the commit's user metadata (common/commit_metadata.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from common.commit_metadata import CommitMetadata
from common.counts import counts_of
from common.spans import Span

if TYPE_CHECKING:
    from collections.abc import Mapping

    from common.markers import Marker, StagedFile
    from common.spans import Position, TopicPartition
    from common.transactions import TxnIds
    from delta_loader.core.plan import Load, TableShape


@dataclass(frozen=True, slots=True)
class Target:
    """One table of a stream, as the loader last saw it."""

    url: str
    table_id: str
    shape: TableShape
    transactions: Mapping[str, int]
    """The version of each txn action by its app id."""
    version: int | None = None
    """The table's version that was looked at: nothing up to it had put the table back (common/went_back.py)."""

    def after(self, commit: TableCommit, version: int) -> Target:
        """The table once the commit is in it, as the version right after this one."""
        return replace(self, transactions={**self.transactions, **commit.advances}, version=version)


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One Delta commit, ready to be carried out."""

    target: Target
    """The table that the plan looked at: if its id or its shape are others by now, that is a conflict."""
    app_id: str
    files: tuple[StagedFile, ...]
    expected: Mapping[str, int | None]
    """By txn app id, the last offset that the table had when the commit was planned."""
    advances: Mapping[str, int]
    """By txn app id, the last offset that it has afterwards; the same keys as ``expected``."""
    metadata: CommitMetadata

    @property
    def is_answer(self) -> bool:
        """Whether it carries out an operator's answer to a table that went back: its positions may be lower ones."""
        return self.metadata.answers is not None

    @property
    def rows(self) -> int:
        """Rows over all files."""
        return sum(file.rows for file in self.files)

    @property
    def size_bytes(self) -> int:
        """Bytes over all files."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Committed:
    """The commit is in the table's log."""

    version: int


@dataclass(frozen=True, slots=True)
class AlreadyLoaded:
    """Everything that it would have brought is in the table; another loader, or a commit whose answer was lost."""

    version: int


@dataclass(frozen=True, slots=True)
class Conflicted:
    """Nothing was written: the table is no longer what the plan looked at. Plan anew."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Nothing was written, and planning anew will not help by itself."""

    problem: str


CommitOutcome = Committed | AlreadyLoaded | Conflicted | Failed


@dataclass(frozen=True, slots=True)
class Naming:
    """What a stream's commits are called: its txn ids, and the name of one load."""

    ids: TxnIds
    commit_id: str


def rows_commit(target: Target, naming: Naming, load: Load, valid_through_ms: int | None) -> TableCommit:
    """The commit of a load to the stream's own table: every marker counts (rule 3)."""
    return _commit(target, naming, load.markers, valid_through_ms)


def dead_letters_commit(target: Target, naming: Naming, load: Load) -> TableCommit | None:
    """The commit of a load to its dead-letter table; None when that has everything already (rule 3)."""
    missing = tuple(marker for marker in load.markers if not covered(target, naming.ids, marker))
    return _commit(target, naming, missing, None) if missing else None


def covered(target: Target, ids: TxnIds, marker: Marker) -> bool:
    """Whether a dead-letter table needs nothing of a marker: no dead letters in it, or they are there."""
    position = ids.position(target.transactions, marker.name.topic_partition)
    return not files_for(target.url, marker) or (position is not None and marker.span.end <= position)


def straddled(target: Target, ids: TxnIds, marker: Marker) -> Position | None:
    """The position of a dead-letter table that has some of a marker's positions and not all; else None."""
    position = ids.position(target.transactions, marker.name.topic_partition)
    if position is None or not files_for(target.url, marker):
        return None
    return position if marker.span.start < position < marker.span.end else None


def files_for(url: str, marker: Marker) -> tuple[StagedFile, ...]:
    """The files that a marker staged for one table."""
    return tuple(file for table in marker.tables if table.url == url for file in table.files)


def _commit(target: Target, naming: Naming, markers: tuple[Marker, ...], valid_through_ms: int | None) -> TableCommit:
    spans: dict[TopicPartition, Span] = {}
    runs: dict[TopicPartition, list[Marker]] = {}
    for marker in markers:  # Each partition's markers come in order.
        source = marker.name.topic_partition
        spans[source] = Span(spans[source].start if source in spans else marker.span.start, marker.span.end)
        runs.setdefault(source, []).append(marker)
    counts = {source: counts_of(run) for source, run in runs.items()}
    ids = naming.ids
    return TableCommit(
        target=target,
        app_id=ids.app_id,
        files=tuple(file for marker in markers for file in files_for(target.url, marker)),
        expected={ids.of(source): target.transactions.get(ids.of(source)) for source in spans},
        advances={ids.of(source): int(span.last_offset) for source, span in spans.items()},
        metadata=CommitMetadata(naming.commit_id, ids.app_id, spans, valid_through_ms, counts),
    )
