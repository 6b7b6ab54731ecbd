"""Commits as values: what one adds, what it depends on, what its metadata says, and how it can end.

Rules:

1. A commit adds data files and txn actions together. It depends on ``expected``: the last offsets that the plan saw.
   The code that carries it out reads them again inside Delta's transaction, so two loaders cannot both succeed.
   The first commit to a table requires that both names that a chain's txn action may have are absent. Another config
   under the same app_id, with more topics or fewer, may be about to make its own first commit. A chain's other
   generations must be as they were too: another stage may be about to load one (common/tables/identity.py, rule 8).
2. A txn action's version is the last offset loaded, under the app id of common/tables/transactions.py.
3. Every marker moves the txn action of the stream's main table, even a marker without rows. The secondary tables (those
   of its routes and the one for dead letters) get a commit only for markers that have files for them, and get it
   *before* the main table. The main table's txn action alone therefore says that a marker is in all tables, except for
   the deferred ranges that it names (load/deferred.py). A table that receives nothing costs nothing, and its txn action
   lags behind, which is not a gap.
4. A load starts at its run's start, which is the main table's position. A secondary table may be further ahead, after a
   crash between two commits and a rebuilt chain. It then gets only the positions after its own.
5. The metadata is JSON in the commit's user metadata (common/tables/commit_metadata.py). It records the identity of
   every chain's position in the table (common/tables/identity.py), not only of the chains that the commit moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from common.spans import Offset, Position, Span, TopicPartition
from common.stage.markers import Marker, StagedFile
from common.tables.changes import MergedBy
from common.tables.commit_metadata import CommitMetadata
from common.tables.counts import counts_of
from common.tables.identity import NO_IDENTITY, TableChain, TableIdentity
from common.tables.transactions import TxnIds
from delta_loader.plan.plan import Load, TableShape
from delta_loader.tables.file_split import FileSplit, SparkWrite, split_files_at
from delta_loader.tables.load_modes.load_mode import PLAIN, LoadMode


@dataclass(frozen=True, slots=True)
class Target:
    """One table of a stream, as the loader last saw it."""

    url: str
    table_id: str
    shape: TableShape
    transactions: Mapping[str, int]
    """The version of each txn action by its app id."""
    version: int
    """The table version that was read: no rollback had happened up to it (common/tables/rollback.py)."""
    load_mode: LoadMode = PLAIN
    """How rows are written to it."""
    identity: TableIdentity = NO_IDENTITY
    """The topics and the stream that its positions belong to."""
    complete_columns: frozenset[str] = frozenset()
    """Where events are merged: the columns that the stream's rows have, some of which an older file may lack."""
    checks: str | None = None
    """A digest of its checks on rows; None for a table that cannot have refused rows, now or before."""

    def after(self, commit: TableCommit, version: int) -> Target:
        """The table with the commit in it, as the version right after this one."""
        moved, identity = {**self.transactions, **commit.advances}, self.identity.after(commit.metadata, version)
        return replace(self, transactions=moved, version=version, identity=identity)

    def ids(self, ids: TxnIds) -> TxnIds:
        return ids.in_table(self.identity.plain_topic)


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    partition: TopicPartition
    offset: Offset
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    error_class: str
    error: str


@dataclass(frozen=True, slots=True)
class TableCommit:
    target: Target
    """The table that the plan was made for: if its id or shape has changed by now, the commit conflicts."""
    app_id: str
    files: tuple[StagedFile, ...]
    """Added as they are."""
    expected: Mapping[str, int | None]
    """By txn app id, the last offset that the table had when the commit was planned."""
    advances: Mapping[str, int]
    """By txn app id, the last offset that it has afterward; all of them are keys of ``expected``."""
    metadata: CommitMetadata
    written: tuple[SparkWrite, ...] = ()
    """Rows that go through Spark, in the same commit."""
    dead_letter_rows: tuple[DeadLetterRow, ...] = ()
    """Dead letters that are not in a file yet; Spark writes them too."""

    def __post_init__(self) -> None:
        if not self.expected.keys() >= self.advances.keys():  # Delta would see no conflict with another loader
            msg = f"a commit sets {self.advances.keys() - self.expected.keys()}, and does not depend on what they were"
            raise ValueError(msg)

    @property
    def merges(self) -> bool:
        """Whether the rows that go through Spark change existing rows instead of being added."""
        return any(write.shape.merge is not None for write in self.written)

    @property
    def is_resolution(self) -> bool:
        """Whether it carries out an operator's resolution of a rollback: its positions may be lower."""
        return self.metadata.answers is not None

    @property
    def added(self) -> LoadedTotals:
        """The files that are added as they are."""
        files = self.files
        return LoadedTotals(len(files), sum(file.rows for file in files), sum(file.size_bytes for file in files))


@dataclass(frozen=True, slots=True)
class LoadedTotals:
    """Row and file counts of a table's new files."""

    files: int = 0
    rows: int = 0
    size_bytes: int = 0

    def __add__(self, other: LoadedTotals) -> LoadedTotals:
        return LoadedTotals(self.files + other.files, self.rows + other.rows, self.size_bytes + other.size_bytes)


@dataclass(frozen=True, slots=True)
class Committed:
    """The commit is in the table's log."""

    version: int
    written: LoadedTotals = LoadedTotals()
    """The files that Spark wrote."""


@dataclass(frozen=True, slots=True)
class AlreadyLoaded:
    """Everything that it would have loaded is in the table, by another loader or by a commit with a lost response."""

    version: int


@dataclass(frozen=True, slots=True)
class Conflicted:
    """Nothing was written: the table has changed since the plan was made. Plan again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Nothing was written, and planning again will not help by itself."""

    problem: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The result is not known: a request got no response.

    The table does not have the commit now, and may have it a moment later. Nothing of the load may be treated as "not
    in the table" before the table has moved. Trying again is safe: each commit reads the txn actions in its own
    transaction, and its version is created exclusively.
    """

    problem: str


@dataclass(frozen=True, slots=True)
class NotWritten:
    """Nothing was committed: Spark could not write the rows of `TableCommit.written` to files of the table."""

    problem: str


CommitOutcome = Committed | AlreadyLoaded | Conflicted | Failed | Unknown | NotWritten


@dataclass(frozen=True, slots=True)
class CommitNaming:
    """How a stream's commits are named: its txn ids, and the name of one load."""

    ids: TxnIds
    commit_id: str


def rows_commit(target: Target, naming: CommitNaming, load: Load, valid_through_ms: int | None) -> TableCommit:
    """The commit of a load to the stream's main table: every marker counts (rule 3)."""
    commit = _commit(target, naming, load, load.markers, valid_through_ms)
    tables = {table.url: table.kind for marker in load.markers for table in marker.tables if table.rows}
    others = {url: kind for url, kind in sorted(tables.items()) if url != target.url}
    return replace(commit, metadata=replace(commit.metadata, other_tables=others))


def secondary_commit(target: Target, naming: CommitNaming, load: Load) -> TableCommit | None:
    """The commit of a load to a secondary table; None when that table already has all of its part (rule 3)."""
    missing = tuple(marker for marker in load.markers if needed(target, naming.ids, load, marker).files)
    return _commit(target, naming, load, missing, None) if missing else None


def needed(target: Target, ids: TxnIds, load: Load, marker: Marker) -> FileSplit:
    start, by_spark = _start(target, ids, load, marker), target.load_mode.through_spark
    schema, complete_columns = target.shape.schema, target.complete_columns
    return split_files_at(
        target.url, marker, start, by_spark=by_spark, schema=schema, complete_columns=complete_columns
    )


def _start(target: Target, ids: TxnIds, load: Load, marker: Marker) -> Position:
    """The first of a marker's positions that the table lacks (rule 4)."""
    start, partition = load.start_of(marker), marker.name.topic_partition
    position = target.ids(ids).position(target.transactions, partition)
    known = target.identity.chains.get(partition)
    if position is None and known is not None and known.generation == ids.generation_of(partition):
        position = known.position  # its txn action expired; what the table's own commits say stays true
    return start if position is None else max(start, position)


def _commit(
    target: Target, naming: CommitNaming, load: Load, markers: tuple[Marker, ...], valid_through_ms: int | None
) -> TableCommit:
    ids = target.ids(naming.ids)
    spans: dict[TopicPartition, Span] = {}
    runs: dict[TopicPartition, list[Marker]] = {}
    for marker in markers:  # Each partition's markers come in order.
        partition, start = marker.name.topic_partition, _start(target, ids, load, marker)
        spans[partition] = Span(spans[partition].start if partition in spans else start, marker.span.end)
        runs.setdefault(partition, []).append(marker)
    shares = [needed(target, ids, load, marker) for marker in markers]
    counts = {
        partition: counted
        for partition, run in runs.items()
        if (counted := counts_of(run, spans[partition].start, target.url))
    }
    files = tuple(file for split in shares for file in split.added)
    written = tuple(write for split in shares for write in split.written)
    merged_by = _merged_by(written) if files or written else target.identity.merged_by
    return TableCommit(
        target=target,
        app_id=ids.app_id,
        files=files,
        expected={
            txn_id: target.transactions.get(txn_id)
            for partition in spans
            for txn_id in (*ids.names(partition), *_other_generations(target, ids, partition))
        },
        advances={ids.of(partition): int(span.last_offset) for partition, span in spans.items()},
        metadata=with_identity(
            CommitMetadata(naming.commit_id, ids.app_id, spans, valid_through_ms, counts, merged_by=merged_by),
            target,
            ids,
            {
                partition: TableChain(ids.generation_of(partition), span.end, _topic_id(runs[partition]))
                for partition, span in spans.items()
            },
        ),
        written=written,
    )


def _other_generations(target: Target, ids: TxnIds, partition: TopicPartition) -> Iterator[str]:
    """The txn app ids of a chain's next generation, and of older ones while the table has none of its own (rule 1)."""
    known, generation = target.identity.chains.get(partition), ids.generation_of(partition)
    for other in range(0 if known is None else known.generation, generation):
        yield ids.of(partition, other)
    yield ids.of(partition, generation + 1)


def _merged_by(written: Iterable[SparkWrite]) -> MergedBy | None:
    """How a load's rows are merged; all have one shape."""
    return next((write.shape.merge.merged for write in written if write.shape.merge is not None), None)


def _topic_id(markers: Iterable[Marker]) -> str | None:
    """The broker's id of the topic that a run came from, as the last of its markers that has one says."""
    named = [marker.manifest.topic_id for marker in markers if marker.manifest is not None]
    return next((named_id for named_id in reversed(named) if named_id is not None), None)


def with_identity(
    metadata: CommitMetadata, target: Target, ids: TxnIds, moved: Mapping[TopicPartition, TableChain]
) -> CommitMetadata:
    """The metadata that also says what all of the table's positions belong to, once some chains have moved (rule 5)."""
    chains = target.identity.with_chains(moved)
    plain = target.identity.plain_topic
    if plain is None:  # the first commit decides
        plain = next((str(partition.topic) for partition in sorted(moved) if ids.is_plain(partition.topic)), "")
    return replace(
        metadata,
        generations={partition: known.generation for partition, known in chains.items() if known.generation},
        positions={partition: known.position for partition, known in chains.items()},
        topic_ids={partition: known.topic_id for partition, known in chains.items() if known.topic_id is not None},
        plain_topic=plain,
        secondary_versions=target.identity.secondary_versions,
        unproved=target.identity.unproved - {(partition, known.generation) for partition, known in moved.items()},
    )
