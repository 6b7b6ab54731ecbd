"""The txn actions of a Delta table, as positions of Kafka partitions.

Rule: a txn action's version is the last offset loaded, and its app id is the one that kafka-delta-ingest uses, so that
a job can move from there to here, or back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.spans import Offset, Position, TopicPartition, position_after

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class TxnIds:
    """The app ids of a stream's txn actions."""

    app_id: str
    several_topics: bool
    """Whether the topic is part of the id: the stream names several topics, or a regular expression."""

    def of(self, source: TopicPartition) -> str:
        """The app id of one Kafka partition."""
        if self.several_topics:
            return f"{self.app_id}-{source.topic}-{source.partition}"
        return f"{self.app_id}-{source.partition}"

    def position(self, transactions: Mapping[str, int], source: TopicPartition) -> Position | None:
        """The next position that the table wants; None when it has no txn action for the Kafka partition."""
        last = transactions.get(self.of(source))
        return None if last is None else position_after(Offset(last))
