"""What a table of a stream may still lack of what the stream's own table is past: written down in the latter's log.

Rules:

1. The own table's txn actions say how far the stream is. When another of its tables cannot take its part of a load, the
   very commit that moves the own table on also notes the *debt*: ``[start, end)`` of the Kafka partition. So nothing is
   forgotten by a crash, and one broken table holds no other.
2. A debt is two txn actions: the partition's own id, a digest of the table's URL, and ``from`` or ``to``. Versions are
   last offsets, as in all txn actions of ours: nothing is lacking up to ``from``, nor beyond ``to``. Neither ever goes
   back, and where both are the same nothing is owed.
3. Whoever does not know these ids (kafka-delta-ingest, an older release) passes over them: no id of a Kafka partition
   has a colon behind its number.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.spans import Offset, Position, Span, position_after
from common.tables.urls import comparable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from common.spans import TopicPartition
    from common.tables.transactions import TxnIds

_DIGITS = 16
_END = "to"


@dataclass(frozen=True, slots=True)
class DebtIds:
    """The two txn actions of one table's debt of one Kafka partition."""

    start: str
    end: str

    @classmethod
    def of(cls, ids: TxnIds, source: TopicPartition, url: str) -> DebtIds:
        """Those of a partition's chain and the table at ``url``."""
        return cls.with_prefix(f"{ids.of(source)}:{_digest_of(url)}")

    @classmethod
    def with_prefix(cls, prefix: str) -> DebtIds:
        """Those of a Kafka partition's txn id and a table's digest, with a colon between them."""
        return cls(f"{prefix}:from", f"{prefix}:{_END}")

    def read(self, transactions: Mapping[str, int]) -> Span | None:
        """What may be owed, by the own table's txn actions; None for nothing."""
        start, end = transactions.get(self.start), transactions.get(self.end)
        if start is None or end is None or start >= end:
            return None
        return Span(position_after(Offset(start)), position_after(Offset(end)))

    def written(self, owed: Span) -> dict[str, int]:
        """The txn actions that say so."""
        return {self.start: owed.start - 1, self.end: owed.end - 1}

    def paid(self, owed: Span) -> dict[str, int]:
        """The txn actions that say that nothing is owed any more."""
        return {self.start: owed.end - 1, self.end: owed.end - 1}


@dataclass(frozen=True, slots=True)
class Debt:
    """What a table may lack of one Kafka partition."""

    url: str
    source: TopicPartition
    owed: Span


@dataclass(frozen=True, slots=True)
class DeferredRanges:
    """Every debt in the own table's txn actions, found in one pass over them.

    A stream may have ten thousand Kafka partitions and as many txn actions, so nothing is searched for a partition.
    """

    by_partition: Mapping[str, tuple[tuple[str, Span], ...]]
    """By a Kafka partition's txn id: the digests of the tables' URLs, and what each may lack."""

    @classmethod
    def read(cls, transactions: Mapping[str, int]) -> DeferredRanges:
        """Those that the own table's txn actions tell of."""
        found: dict[str, tuple[tuple[str, Span], ...]] = {}
        for name in transactions:
            prefix, _, end = name.rpartition(":")
            partition, _, digest = prefix.rpartition(":")
            owed = DebtIds.with_prefix(prefix).read(transactions) if end == _END else None
            if owed is not None:
                found[partition] = (*found.get(partition, ()), (digest, owed))
        return cls(found)

    def of(self, ids: TxnIds, urls: Iterable[str], sources: Iterable[TopicPartition]) -> tuple[Debt, ...]:
        """The debts of some tables and Kafka partitions, in the order of the tables first."""
        if not self.by_partition:
            return ()
        owed_by = {(source, digest): owed for source in sources for digest, owed in self._at(ids, source)}
        lacking = dict.fromkeys(source for source, _ in owed_by)
        digests = ((url, _digest_of(url)) for url in urls if lacking)
        return tuple(
            Debt(url, source, owed_by[source, digest])
            for url, digest in digests
            for source in lacking
            if (source, digest) in owed_by
        )

    def floor(self, ids: TxnIds, urls: Iterable[str], source: TopicPartition, position: Position) -> Position:
        """Up to where every table has what a Kafka partition brought, when the own table is at ``position``."""
        return min([position, *(debt.owed.start for debt in self.of(ids, urls, [source]))])

    def _at(self, ids: TxnIds, source: TopicPartition) -> tuple[tuple[str, Span], ...]:
        return self.by_partition.get(ids.of(source), ())


def debts_of(
    ids: TxnIds, transactions: Mapping[str, int], urls: Iterable[str], sources: Iterable[TopicPartition]
) -> tuple[Debt, ...]:
    """All debts, by the own table's txn actions."""
    return DeferredRanges.read(transactions).of(ids, urls, sources)


def _digest_of(url: str) -> str:
    return hashlib.sha256(comparable(url).encode()).hexdigest()[:_DIGITS]
