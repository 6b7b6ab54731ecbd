"""The txn actions of a Delta table, as positions of Kafka partitions.

Rules:

1. A txn action's version is the last offset loaded, and its app id is the one that kafka-delta-ingest uses, so that a
   job can move from there to here, or back.
2. A topic that was deleted and created again begins at offset 0 once more. Its chain has the next generation, and its
   txn action the same app id with ``@`` and the generation behind it: versions never go back within an app id, and the
   positions of the two topics are never taken for each other's. No topic has an ``@`` in its name.
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

    def of(self, source: TopicPartition, generation: int = 0) -> str:
        """The app id of one Kafka partition's chain."""
        place = f"{source.topic}-{source.partition}" if self.several_topics else f"{source.partition}"
        return f"{self.app_id}-{place}" + (f"@{generation}" if generation else "")

    def position(self, transactions: Mapping[str, int], source: TopicPartition, generation: int = 0) -> Position | None:
        """The next position that the table wants; None when it has no txn action for the Kafka partition's chain."""
        last = transactions.get(self.of(source, generation))
        return None if last is None else position_after(Offset(last))

    def generation(self, transactions: Mapping[str, int], source: TopicPartition) -> int:
        """The highest generation of a Kafka partition that the table has anything of."""
        prefix = f"{self.of(source)}@"
        found = (name.removeprefix(prefix) for name in transactions if name.startswith(prefix))
        return max((int(text) for text in found if text.isdecimal()), default=0)
