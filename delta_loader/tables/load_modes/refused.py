"""Records whose rows the table refuses: they become dead letters, and the rest is loaded. Pure.

Rules:

1. The rows that a table refuses are known before its commit: Delta's own checks are evaluated on the rows that Spark is
   going to write. If one row of a record is refused, the record has no row at all.
2. Its dead letter, with its bytes, is in the dead-letter table before the commit that passes over it. It is written
   there by a separate commit: no position moves in it, and two txn actions of the dead-letter table record it:
   ``…:refused``, the highest offset that was ever refused (for a chain of several topics, whose positions are not
   offsets, the last position of that load), and ``…:refusals``, how often there were some (so one of two loaders
   fails). No id of a Kafka partition has a colon after its number. The commit also depends on the dead-letter table's
   own positions: it fails where another loader has loaded further meanwhile, because the table may take these records
   by now.
3. Where the highest refused offset is not below the table's position, a loader died between the two commits. Then the
   records of the existing dead letters are refused again, regardless of the table's current checks: none may also
   become a row. So while the dead-letter table cannot be read, a table that has or had constraints, or a
   narrower column, gets no rows.
4. A loader that stood still may carry out its commit of a dead letter after the check was dropped and another loader
   has made a row of the record. Before the first rows under a table's current checks, each process therefore counts a
   refusal in the dead-letter table (`ended_refusals`), so a commit from before fails: one small commit for each start
   of a loader and each change of the checks, and none for a table that never had any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from common.remedies import delta_table
from common.spans import Offset, Position, Span, TopicPartition
from common.stage.merged import inputs_of, is_merged
from common.tables.commit_metadata import CommitMetadata
from common.tables.counts import Counts
from common.tables.transactions import TxnIds
from delta_loader.plan.held import Held, stage_again
from delta_loader.tables.commits import DeadLetterRow, TableCommit, Target
from delta_loader.tables.file_split import RecordPosition, SparkWrite

REFUSED_BY_TABLE = "refused_by_table"
"""The error class of their dead letters."""
MOST_REFUSED = 10_000
"""In one commit. A table that refuses more does not have a problem with single records."""


@dataclass(frozen=True, slots=True, order=True)
class RefusedRecord:
    partition: TopicPartition
    """The record's own partition, also in a chain of several topics."""
    offset: Offset
    problem: str
    rows: int | None = 1
    """How many rows it would have had; None if not counted."""

    @property
    def position(self) -> RecordPosition:
        return self.partition, self.offset


@dataclass(frozen=True, slots=True)
class RefusalIds:
    """The two txn actions of a Kafka partition (rule 2)."""

    highest: str
    count: str

    @classmethod
    def for_chain(cls, ids: TxnIds, partition: TopicPartition) -> RefusalIds:
        return cls(f"{ids.of(partition)}:refused", f"{ids.of(partition)}:refusals")

    def half_done(self, transactions: Mapping[str, int], start: Position) -> bool:
        """Whether there may be dead letters of records that the table has not passed yet (rule 3)."""
        return transactions.get(self.highest, -1) >= start


def chains_of(partitions: Iterable[TopicPartition]) -> dict[TopicPartition, TopicPartition]:
    """The chain among these that contains a Kafka partition's records, by that partition."""
    return {partition: chain for chain in partitions for partition in inputs_of(chain)}


def dead_letters_commit(
    target: Target,
    ids: TxnIds,
    dead_letters: Sequence[DeadLetterRow],
    spans: Mapping[TopicPartition, Span],
    commit_id: str,
) -> TableCommit:
    """The commit of a load's refused records to the dead-letter table; ``spans`` are what the load covers."""
    chains = chains_of(spans)
    highest: dict[TopicPartition, int] = {}
    for dead_letter in dead_letters:
        chain = chains[dead_letter.partition]
        last: int = spans[chain].last_offset if is_merged(chain.topic) else dead_letter.offset
        highest[chain] = max(last, highest.get(chain, last))
    advances: dict[str, int] = {}
    for chain, last in highest.items():
        names = RefusalIds.for_chain(ids, chain)
        advances[names.highest] = max(last, target.transactions.get(names.highest, -1))
        advances[names.count] = target.transactions.get(names.count, 0) + 1
    return TableCommit(
        target=target,
        app_id=ids.app_id,
        files=(),
        expected={name: target.transactions.get(name) for name in (*advances, *map(ids.of, highest))},
        advances=advances,
        metadata=CommitMetadata(commit_id, ids.app_id, {}, None),
        dead_letter_rows=tuple(dead_letters),
    )


def ended_refusals(target: Target, ids: TxnIds, partitions: Iterable[TopicPartition], commit_id: str) -> TableCommit:
    """The commit to the dead-letter table by which those of other loaders fail (rule 4)."""
    counts = {
        name: target.transactions.get(name) for name in (RefusalIds.for_chain(ids, each).count for each in partitions)
    }
    return TableCommit(
        target=target,
        app_id=ids.app_id,
        files=(),
        expected=counts,
        advances={name: (count or 0) + 1 for name, count in counts.items()},
        metadata=CommitMetadata(commit_id, ids.app_id, {}, None),
    )


def without_refused(commit: TableCommit, refused: Iterable[RefusedRecord], *, counted: bool) -> TableCommit:
    """The commit without the rows of refused records, which it counts as dead letters.

    ``counted``: whether this commit's counts are of this table alone. Where it is not known how many rows are left out,
    the Kafka partition has no counts.
    """
    chains = chains_of(commit.metadata.spans)
    by_chain: dict[TopicPartition, dict[RecordPosition, int | None]] = {}
    for record in refused:
        by_chain.setdefault(chains[record.partition], {})[record.position] = record.rows
    if not by_chain:
        return commit
    written = tuple(_without(write, by_chain.get(write.partition, {})) for write in commit.written)
    counts: dict[TopicPartition, Counts] = {}
    for chain, counted_refusals in commit.metadata.counts.items():
        rows = [refused for refused in by_chain.get(chain, {}).values() if refused is not None]
        if len(rows) == len(by_chain.get(chain, {})) and (counted or not rows):
            counts[chain] = _without_rows(counted_refusals, rows)
    return replace(commit, written=written, metadata=replace(commit.metadata, counts=counts))


def _without(write: SparkWrite, records: Iterable[RecordPosition]) -> SparkWrite:
    return replace(write, without=tuple(sorted({*write.without, *records})))


def _without_rows(counts: Counts, rows_of_each: Sequence[int]) -> Counts:
    rows, records = sum(rows_of_each), len(rows_of_each)
    return replace(
        counts,
        rows=counts.rows - rows,
        exploded=counts.exploded - (rows - records),
        dead_letters=counts.dead_letters + records,
    )


def too_many(partition: TopicPartition, position: Position, refused: Sequence[RefusedRecord], url: str) -> Held:
    """Too much of a load from ``position`` on is refused to be a problem of single records."""
    ((problem, _),) = Counter(record.problem for record in refused).most_common(1)
    return Held(
        "too_many_refused",
        f"{url} refuses more than {MOST_REFUSED:,} records of one load, most of them of {partition} because: {problem}",
        f"change what the table checks (ALTER TABLE {delta_table(url)} …), or how the stream shapes its records, and "
        f"{stage_again({partition: position})}; nothing of it is loaded until then",
    )


def without_bytes(record: RefusedRecord, url: str, why: str) -> Held:
    """A refused record cannot become a dead letter because its bytes cannot be fetched."""
    partition, offset = record.partition, record.offset
    return Held(
        "refused_record",
        f"{url} refuses the record at {offset} of {partition} ({record.problem}), and {why}",
        "make sure that the loader can read it, or change what the table checks (ALTER TABLE "
        f"{delta_table(url)} DROP CONSTRAINT …, or ALTER COLUMN … DROP NOT NULL) and fix the row there; nothing of the "
        "partition is loaded until then",
    )
