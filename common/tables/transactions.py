"""The txn actions of a Delta table, as positions of Kafka partitions.

Rules:

1. A txn action's version is the last offset loaded, and its app id is the one that kafka-delta-ingest uses, so a job
   can migrate from there to here, or back.
2. A topic that was deleted and recreated starts at offset 0 again. Its chain has the next generation, and its txn
   action the same app id followed by ``@`` and the generation: versions are never lowered within an app id, and the
   positions of the two topics are never confused. No topic has an ``@`` in its name.
3. The ids of a stream of one topic do not name it, those of any other stream do. Which of the two a topic has is
   decided by the first commit to a table and never changes (common/tables/identity.py): a stream that gets another
   topic, or loses one, continues at the positions that it has. At most one topic, the table's *plain* one, is not
   named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from common.spans import Offset, Partition, Position, Topic, TopicPartition, position_after

_ID = re.compile(r"(?:-(?P<topic>.+))?-(?P<partition>\d{1,10})(?:@(?P<generation>\d+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class TxnIds:
    app_id: str
    several_topics: bool
    """Whether the topic is part of the id: the stream names several topics, or a regular expression."""
    generations: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The generation of each Kafka partition's chain (rule 2); 0 if missing."""
    plain_topic: str | None = None
    """The topic that its ids do not name (rule 3); empty for none, None where a table's commits do not have it."""

    def in_table(self, plain_topic: str | None) -> TxnIds:
        return self if plain_topic == self.plain_topic else replace(self, plain_topic=plain_topic)

    def is_plain(self, topic: str) -> bool:
        """Whether the ids of a topic do not name it."""
        return not self.several_topics if self.plain_topic is None else topic == self.plain_topic

    def of(self, partition: TopicPartition, generation: int | None = None) -> str:
        """The app id of one Kafka partition's chain, in the given or else its newest generation."""
        if generation is None:
            generation = self.generation_of(partition)
        return self._first(partition) + (f"@{generation}" if generation else "")

    def names(self, partition: TopicPartition) -> tuple[str, ...]:
        """The app ids that one Kafka partition's chain may have: both where no commit says which is the plain topic."""
        if self.plain_topic is not None:
            return (self.of(partition),)
        return tuple(self.in_table(plain).of(partition) for plain in (partition.topic, ""))

    def generation_of(self, partition: TopicPartition) -> int:
        return self.generations.get(partition, 0)

    def position(self, transactions: Mapping[str, int], partition: TopicPartition) -> Position | None:
        """The next position that the table wants; None when it has no txn action for the Kafka partition's chain."""
        last = transactions.get(self.of(partition))
        return None if last is None else position_after(Offset(last))

    def generation(self, transactions: Mapping[str, int], partition: TopicPartition) -> int:
        """The highest generation of a Kafka partition that the table has anything of."""
        prefix = f"{self._first(partition)}@"
        generations = (name.removeprefix(prefix) for name in transactions if name.startswith(prefix))
        return max((int(text) for text in generations if text.isdecimal()), default=0)

    def at(
        self, begun: Mapping[TopicPartition, int], transactions: Mapping[str, int], partitions: Iterable[TopicPartition]
    ) -> TxnIds:
        """The ids of the newest generations: those that the stage has started, or that the table has."""
        in_table: dict[str, int] = {}
        for name in transactions:
            first, separator, generation = name.rpartition("@")
            if separator and generation.isdecimal():
                in_table[first] = max(in_table.get(first, 0), int(generation))
        newest = {
            partition: max(begun.get(partition, 0), in_table.get(self._first(partition), 0)) for partition in partitions
        }
        return replace(self, generations=newest)

    def _first(self, partition: TopicPartition) -> str:
        named = "" if self.is_plain(partition.topic) else f"-{partition.topic}"
        return f"{self.app_id}{named}-{partition.partition}"

    def chain_of(self, txn_id: str, plain_topic: str) -> tuple[TopicPartition, int] | None:
        """The inverse of `of`: the chain of an id, and its generation; None for another stream's.

        ``plain_topic`` is the topic of ids that name none.
        """
        match = _ID.fullmatch(txn_id.removeprefix(self.app_id))
        if match is None:
            return None
        partition = TopicPartition(Topic(match["topic"] or plain_topic), Partition(int(match["partition"])))
        chain = partition, int(match["generation"] or 0)
        return chain if self.of(*chain) == txn_id else None
