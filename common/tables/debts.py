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


@dataclass(frozen=True, slots=True)
class DebtIds:
    """The two txn actions of one table's debt of one Kafka partition."""

    start: str
    end: str

    @classmethod
    def of(cls, ids: TxnIds, source: TopicPartition, url: str) -> DebtIds:
        """Those of a partition's chain and the table at ``url``."""
        digest = hashlib.sha256(comparable(url).encode()).hexdigest()[:_DIGITS]
        prefix = f"{ids.of(source)}:{digest}"
        return cls(f"{prefix}:from", f"{prefix}:to")

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


def debts_of(
    ids: TxnIds, transactions: Mapping[str, int], urls: Iterable[str], sources: Iterable[TopicPartition]
) -> tuple[Debt, ...]:
    """All debts, by the own table's txn actions."""
    if not any(name.endswith(":to") for name in transactions):
        return ()
    sources = tuple(sources)
    found = ((url, source, DebtIds.of(ids, source, url).read(transactions)) for url in urls for source in sources)
    return tuple(Debt(url, source, owed) for url, source, owed in found if owed is not None)


def floor_of(debts: Iterable[Debt], source: TopicPartition, position: Position) -> Position:
    """Up to where every table has what a Kafka partition brought, when the own table is at ``position``."""
    return min([position, *(debt.owed.start for debt in debts if debt.source == source)])
