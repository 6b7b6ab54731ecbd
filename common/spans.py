"""Positions and spans: the arithmetic of the whole project.

Rules:

1. A *position* is the next offset wanted; an *offset* identifies a record. They have different types, and only
   `Span.last_offset` and `position_after` convert between them.
2. A span is half-open, ``[start, end)``, never empty, and covers *positions*: gaps in Kafka's offsets (compaction,
   transaction markers, aborted records) are part of it.
"""

from dataclasses import dataclass
from typing import NamedTuple, NewType

Topic = NewType("Topic", str)
Partition = NewType("Partition", int)
Offset = NewType("Offset", int)
Position = NewType("Position", int)

MAX_POSITION = 2**63 - 1


class TopicPartition(NamedTuple):
    """A tuple, because nearly every map has it as its key: tuples are hashed and compared in C."""

    topic: Topic
    partition: Partition

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"

    def to_json(self) -> dict[str, str | int]:
        """The form in the JSON output of commands and HTTP calls."""
        return {"topic": str(self.topic), "partition": int(self.partition)}


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """The positions ``[start, end)`` of one Kafka partition. Raises ValueError when empty or negative."""

    start: Position
    end: Position

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end <= MAX_POSITION:
            raise ValueError(f"a span needs 0 <= start < end <= 2^63 - 1, not [{self.start}, {self.end})")

    @property
    def last_offset(self) -> Offset:
        """The last offset covered, as a Delta txn action and kafka-delta-ingest record it."""
        return Offset(self.end - 1)

    @property
    def positions(self) -> int:
        """The number of positions covered; with gaps in Kafka, more than the number of records."""
        return self.end - self.start

    def covers(self, position: Position) -> bool:
        return self.start <= position < self.end

    def overlaps(self, other: "Span") -> bool:
        return self.start < other.end and other.start < self.end

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"


def position_after(offset: Offset) -> Position:
    """The position that follows a record, or a txn action's last offset."""
    return Position(offset + 1)
