"""Outboxes: a topology's records for Kafka topics from one flush, until they are delivered.

Rules:

1. An outbox is written before the marker of its flush and named by it, and never changed. It is deleted once its
   records are in their topics: a marker may name a deleted outbox.
2. A marker names all outboxes of its chain that are not known to be delivered, the oldest first. The chain's last
   marker is therefore all that a new owner needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from common.spans import Position, TopicPartition
from common.stage.paths import ChainPaths

OUTBOX = "outbox"
_PATHS = ChainPaths(OUTBOX, r"(?P<start>\d{20})-(?P<generation>\d{1,10})-(?P<unique>[0-9A-Za-z-]{1,64})\.records")
outbox_folder = _PATHS.folder


@dataclass(frozen=True, slots=True)
class OutboxName:
    partition: TopicPartition
    start: Position
    """The start of the flush that it was written for."""
    generation: int
    unique: str

    @property
    def path(self) -> str:
        return f"{outbox_folder(self.partition)}{self.start:020d}-{self.generation}-{self.unique}.records"

    @classmethod
    def parse(cls, path: str) -> OutboxName | None:
        parsed = _PATHS.parse(path)
        if parsed is None:
            return None
        partition, match = parsed
        name = cls(partition, Position(int(match["start"])), int(match["generation"]), match["unique"])
        return name if name.path == path else None


def require_own_outboxes(partition: TopicPartition, paths: Iterable[str]) -> None:
    for path in paths:
        name = OutboxName.parse(path)
        if name is None or name.partition != partition:
            raise ValueError(f"{path!r} is not an outbox of {partition}")
