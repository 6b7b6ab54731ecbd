"""The loaded ranges that a secondary table may still lack, recorded in the main table's log.

Rules:

1. The main table's txn actions say how far the stream is. When a secondary table cannot take its part of a load, the
   very commit that moves the main table on also notes the *deferred range*: ``[start, end)`` of the Kafka partition.
   Nothing is thus forgotten in a crash, and one broken table holds no other.
2. A deferred range is two txn actions: the partition's own id, a digest of the table's URL, and ``from`` or ``to``.
   Versions are last offsets, as in all of this product's txn actions: nothing is lacking up to ``from``, nor past
   ``to``. Neither is ever lowered, and where both are the same nothing is deferred. The digest is of the URL as the
   config has it; after an edit of its scheme (``gcs`` to ``gs``), the range is still found, and ends with the other.
3. Programs that do not know these ids (kafka-delta-ingest, an older release) ignore them: no id of a Kafka partition
   has a colon after its number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from common.spans import Offset, Position, Span, TopicPartition, position_after
from common.tables.transactions import TxnIds
from common.tables.urls import spellings

_DIGITS = 16
_END = "to"


@dataclass(frozen=True, slots=True)
class DeferredIds:
    """The two txn actions of one table's deferred range of one Kafka partition."""

    start: str
    end: str

    @classmethod
    def for_table(cls, ids: TxnIds, partition: TopicPartition, url: str) -> DeferredIds:
        return cls.all_for_table(ids, partition, url)[0]

    @classmethod
    def all_for_table(cls, ids: TxnIds, partition: TopicPartition, url: str) -> tuple[DeferredIds, ...]:
        """Those of the URL as it is written, and then those of its other spellings."""
        return tuple(cls.with_prefix(f"{ids.of(partition)}:{digest}") for digest in _digests_of(url))

    @classmethod
    def with_prefix(cls, prefix: str) -> DeferredIds:
        """The ids for a Kafka partition's txn id and a table's digest, joined by a colon."""
        return cls(f"{prefix}:from", f"{prefix}:{_END}")

    def read(self, transactions: Mapping[str, int]) -> Span | None:
        """The range that may be deferred, by the main table's txn actions; None for nothing."""
        start, end = transactions.get(self.start), transactions.get(self.end)
        if start is None or end is None or start >= end:
            return None
        return Span(position_after(Offset(start)), position_after(Offset(end)))

    def written(self, span: Span) -> dict[str, int]:
        """The txn actions that record it."""
        return {self.start: span.start - 1, self.end: span.end - 1}

    def caught_up(self, span: Span) -> dict[str, int]:
        """The txn actions that record that nothing is deferred anymore."""
        return {self.start: span.end - 1, self.end: span.end - 1}


@dataclass(frozen=True, slots=True)
class DeferredRange:
    url: str
    partition: TopicPartition
    span: Span


@dataclass(frozen=True, slots=True)
class DeferredRanges:
    """All deferred ranges in the main table's txn actions, found in one pass over them.

    A stream may have ten thousand Kafka partitions and as many txn actions, so they are not searched per partition.
    """

    by_partition: Mapping[str, tuple[tuple[str, Span], ...]]
    """By a Kafka partition's txn id: the digests of the tables' URLs, and the range that each may lack."""

    @classmethod
    def read(cls, transactions: Mapping[str, int]) -> DeferredRanges:
        """The deferred ranges in the main table's txn actions."""
        ranges: dict[str, tuple[tuple[str, Span], ...]] = {}
        for name in transactions:
            prefix, _, end = name.rpartition(":")
            partition, _, digest = prefix.rpartition(":")
            span = DeferredIds.with_prefix(prefix).read(transactions) if end == _END else None
            if span is not None:
                ranges[partition] = (*ranges.get(partition, ()), (digest, span))
        return cls(ranges)

    def of(self, ids: TxnIds, urls: Iterable[str], partitions: Iterable[TopicPartition]) -> tuple[DeferredRange, ...]:
        """The deferred ranges of some tables and Kafka partitions, ordered by table first."""
        if not self.by_partition:
            return ()
        span_by = {(partition, digest): span for partition in partitions for digest, span in self._at(ids, partition)}
        lacking = dict.fromkeys(partition for partition, _ in span_by)
        digests = ((url, _digests_of(url)) for url in urls if lacking)
        return tuple(
            DeferredRange(url, partition, Span(min(span.start for span in spans), max(span.end for span in spans)))
            for url, spelled in digests
            for partition in lacking
            if (spans := [span_by[partition, digest] for digest in spelled if (partition, digest) in span_by])
        )

    def floor(self, ids: TxnIds, urls: Iterable[str], partition: TopicPartition, position: Position) -> Position:
        """The position up to which every table has a Kafka partition's rows, when the main table is at ``position``."""
        return min([position, *(missing.span.start for missing in self.of(ids, urls, [partition]))])

    def _at(self, ids: TxnIds, partition: TopicPartition) -> tuple[tuple[str, Span], ...]:
        return self.by_partition.get(ids.of(partition), ())


def deferred_of(
    ids: TxnIds, transactions: Mapping[str, int], urls: Iterable[str], partitions: Iterable[TopicPartition]
) -> tuple[DeferredRange, ...]:
    """All deferred ranges, by the main table's txn actions."""
    return DeferredRanges.read(transactions).of(ids, urls, partitions)


def _digests_of(url: str) -> tuple[str, ...]:
    return tuple(hashlib.sha256(spelled.encode()).hexdigest()[:_DIGITS] for spelled in spellings(url))
