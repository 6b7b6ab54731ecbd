"""Facts about a stream's tables and a Kafka partition, for reconcile.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from common.sizes import counted
from common.spans import Position, Span, TopicPartition
from common.tables.deferred_ranges import DeferredRange
from delta_loader.inspect.verify.findings import Finding, Verdict
from delta_loader.inspect.verify.ledger import Ledger, Removal
from delta_loader.inspect.verify.offset_ranges import OffsetRange, offset_ranges
from delta_loader.inspect.verify.offsets import Bucket, Ranges, SpanTally, between

MOST_RANGES = 1000  # of each kind, named in a report


@dataclass(slots=True)
class Explained:
    """Missing rows that were removed legitimately, over all partitions of a table (rule 2)."""

    rows: int = 0
    removals: dict[tuple[str, int], Removal] = field(default_factory=dict)
    """The commits that removed rows, by table and version."""
    nameless: int = 0
    """The number of rows in ranges that were loaded without offset columns."""

    def nameless_findings(self, tables: Tables, nameless: int) -> Iterator[Finding]:
        """Whether the tables have as many rows without offsets, ``nameless``, as were loaded."""
        if nameless > self.nameless:
            more, foreign = nameless - self.nameless, any(ledger.has_foreign_rows for ledger in tables.row_ledgers)
            text = f"another program added {counted(more, 'row')} without the identity of a record of Kafka"
            verdict = Verdict.NOTED if foreign or not self.nameless else Verdict.FAULT
            yield Finding(verdict, "rows_without_offsets", text, tables.url)
        elif self.nameless:
            text = (
                f"the tables have {counted(nameless, 'row')} without the identity of a record; commits without offset "
                f"columns loaded {self.nameless:,}"
            )
            removals = [removal for ledger in tables.row_ledgers for removal in ledger.removals]
            verdict, kind = Verdict.PROVED, "rows_reconciled"
            if nameless < self.nameless:
                verdict, kind = Verdict.FAULT, "rows_missing"
                if removals and all(removal.by_right for removal in removals):
                    verdict, kind = Verdict.UNPROVED, "may_be_deleted"
                    text += "; another program has deleted rows since"
            yield Finding(verdict, kind, text, tables.url)

    def findings(self, url: str) -> Iterator[Finding]:
        """Findings on whether these commits removed as many rows as are missing."""
        taken = [removal.rows for removal in self.removals.values()]
        most = sum(rows for rows in taken if rows is not None)
        names = ", ".join(
            str(version) if table == url else f"{version} of {table}" for table, version in sorted(self.removals)
        )
        if self.rows and None in taken:
            rows = counted(self.rows, "row")
            text = f"{rows} may have been deleted by version {names}, whose files do not say how many"
            yield Finding(Verdict.UNPROVED, "deleted_uncounted", text, url)
        elif self.rows > most:
            text = f"the tables lack {counted(self.rows, 'row')}, of which version {names} deleted only {most:,}"
            yield Finding(Verdict.FAULT, "more_missing_than_deleted", text, url, version=max(self.removals)[1])


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a stream's records, by settings and history."""

    filters: bool = False
    explodes: bool = False
    """Whether a record may have several rows."""

    def of(self, ranges: Iterable[OffsetRange]) -> Shape:
        """The shape by the commits of one Kafka partition, regardless of the current settings."""
        ranges = list(ranges)
        filters = self.filters or any(offset_range.filtered(may_be=False) != 0 for offset_range in ranges)
        explodes = self.explodes or any(offset_range.exploded(may_be=False) != 0 for offset_range in ranges)
        return Shape(filters, explodes)


@dataclass(slots=True)
class FilteredRecords:
    """Records that Kafka has and no table has, in offset ranges with filtered records."""

    spans: Sequence[Span] = ()
    """The offset ranges with filtered records, in order."""
    tally: SpanTally = field(default_factory=lambda: SpanTally(()))

    @classmethod
    def in_ranges(cls, ranges: Iterable[OffsetRange], shape: Shape) -> FilteredRecords:
        filtered = [
            offset_range
            for offset_range in ranges
            if offset_range.is_merged or (shape.filters and offset_range.filtered(may_be=shape.filters) != 0)
        ]
        spans = [span for offset_range in filtered for span in offset_range.without_given_up()]
        return cls(spans, SpanTally([*spans, *(offset_range.span for offset_range in filtered)]))

    def take(self, missing: int, bucket_start: int) -> int:
        """Count the bits of a bucket that are in such an offset range; returns the others."""
        own = 0
        for span in self.spans if missing else ():
            own |= between(missing, bucket_start, span.start, span.end)
        if own:
            self.tally.add(Bucket(bucket_start, 0, own))
        return missing & ~own


@dataclass(slots=True)
class BucketTotals:
    rows: SpanTally
    dead_letters: SpanTally
    total: int = 0
    distinct: int = 0
    dead_total: int = 0
    lowest: int | None = None
    highest: int | None = None
    twice: Ranges = field(default_factory=lambda: Ranges(MOST_RANGES))
    """Buckets in which the table has more rows than offsets; whole buckets, to be checked closely."""
    twice_dead: Ranges = field(default_factory=lambda: Ranges(MOST_RANGES))
    both: Ranges = field(default_factory=lambda: Ranges(MOST_RANGES))
    missing: Ranges = field(default_factory=lambda: Ranges(MOST_RANGES))
    """Records that Kafka has and no table of the stream has, as a row or a dead letter; without `left_out`."""
    left_out: FilteredRecords = field(default_factory=FilteredRecords)
    vanished: int = 0
    """Offsets above Kafka's first one that a table has and Kafka no longer has."""
    expired: int = 0
    """Offsets below Kafka's first one that a table has."""
    other_times: Ranges = field(default_factory=lambda: Ranges(MOST_RANGES))
    """Offsets whose timestamp in Kafka differs from the tables'."""
    same_times: int = 0
    """Offsets with the same timestamp in Kafka and in the tables."""
    without_times: int = 0
    """Offsets that Kafka and the tables have, without comparable timestamps."""
    kafka_records: int = 0
    kafka_tombstones: int = 0
    kafka_end: Position | None = None
    """The end of Kafka's log; None when Kafka was not asked."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The ledgers of a stream, and the URLs of its main table and the one for dead letters."""

    rows: Ledger
    dead_letters: Ledger | None
    url: str
    dead_letters_url: str
    shape: Shape = field(default_factory=Shape)
    routed: tuple[Ledger, ...] = ()
    """The ledgers of the existing tables of the stream's routes, and of route tables that its commits name."""
    former_dead_letters: tuple[Ledger, ...] = ()
    """The ledgers of the tables for dead letters that the stream had before."""
    unread: frozenset[str] = frozenset()
    """Tables that could not be read: the stream's commits name them, and its settings no longer do."""
    is_whole: bool = True
    """Whether all tables that the settings name for the stream's rows exist."""
    deferred: tuple[DeferredRange, ...] = ()
    """The ranges that secondary tables may still lack (rule 5)."""

    def offset_ranges(self, partition: TopicPartition) -> list[OffsetRange]:
        """The offset ranges of one Kafka partition, in order."""
        return offset_ranges(self.rows, self.dead_letters, partition, self.routed)

    @property
    def row_ledgers(self) -> tuple[Ledger, ...]:
        """The ledgers of all tables for rows, the main table first."""
        return (self.rows, *self.routed)

    def touching(self, partition: TopicPartition, span: Span, after: int = -1) -> list[tuple[Ledger, Removal]]:
        """Foreign commits that may have removed rows of a span; in the main table, those after a version."""
        own = [(self.rows, removal) for removal in self.rows.touching(partition, span, after)]
        return own + [(ledger, removal) for ledger in self.routed for removal in ledger.touching(partition, span, -1)]

    def dead_touching(self, partition: TopicPartition, span: Span) -> list[tuple[Ledger, Removal]]:
        """Foreign commits that may have removed dead letters of a span."""
        return [(ledger, removal) for ledger in self.dead_ledgers for removal in ledger.touching(partition, span, -1)]

    @property
    def dead_ledgers(self) -> tuple[Ledger, ...]:
        return (*(() if self.dead_letters is None else (self.dead_letters,)), *self.former_dead_letters)

    def tables_lacking(self, partition: TopicPartition, span: Span, *, dead: bool) -> list[str]:
        """The tables for rows, or for dead letters, that may lack records of a span."""
        return [
            missing.url
            for missing in self.deferred
            if missing.partition == partition
            and missing.span.overlaps(span)
            and (missing.url == self.dead_letters_url) == dead
        ]
