"""What writers say of partitions that have nothing new: facts that let a table's valid-through time move on.

Rules:

1. A fact says: at a moment, the end of a Kafka partition was this position, and its chain had all before it. It was
   true then, and stays so, whoever says it; so facts of a writer that lost its partition, or died, harm nobody.
2. The moment is the writer's clock before it asked, less a minute for records on their way and clocks that differ.
3. A table that has all positions up to a fact's is complete up to its moment, as far as that partition goes.
4. One object for each writer holds all its facts, so that a thousand idle partitions cost one request a minute. It is
   written over, and says nothing that cannot be lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.data_files import escape, shortened
from common.stage.stored import Count, Stored, StoredOffset, reading, require_known_version

if TYPE_CHECKING:
    from collections.abc import Iterable

IDLE = "idle"
VERSION = 1
MARGIN_MS = 60_000
"""Rule 2."""


@dataclass(frozen=True, slots=True)
class IdleFact:
    """Rule 1."""

    source: TopicPartition
    position: Position
    time_ms: int
    generation: int
    """Of the chain (common/stage/beginnings.py)."""


def idle_path(writer: str) -> str:
    """The object of one writer."""
    return f"{IDLE}/{escape(shortened(writer))}.idle"


class _StoredFact(Stored):
    topic: str
    partition: Count
    position: StoredOffset
    time_ms: int
    generation: Count


class _StoredIdle(Stored):
    version: Literal[1]
    partitions: list[_StoredFact]


def facts_to_bytes(facts: Iterable[IdleFact]) -> bytes:
    """The object's content."""
    stored = [
        _StoredFact(
            topic=str(fact.source.topic),
            partition=int(fact.source.partition),
            position=int(fact.position),
            time_ms=fact.time_ms,
            generation=fact.generation,
        )
        for fact in facts
    ]
    return _StoredIdle(version=1, partitions=stored).model_dump_json().encode()


def facts_from_bytes(path: str, data: bytes) -> tuple[IdleFact, ...]:
    """The inverse of `facts_to_bytes`. Raises MarkerError."""
    with reading(path, "delete it: a writer makes it anew within a minute or so"):
        require_known_version(path, data, VERSION)
        found = _StoredIdle.model_validate_json(data).partitions
    return tuple(
        IdleFact(
            TopicPartition(Topic(fact.topic), Partition(fact.partition)),
            Position(fact.position),
            fact.time_ms,
            fact.generation,
        )
        for fact in found
    )
