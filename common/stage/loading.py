"""Notes of loads in progress, so no rewind removes what is being loaded, where that matters.

It matters in two cases. In a chain of several topics, the topics may be interleaved differently when they are staged
again. Nothing that is being loaded may therefore be staged again at all. (Records of a single topic are the same at the
same offsets, whichever writer stages them, and a table's position says which it has.)

The other case is the first load of any chain, which says where the table's records begin. A rewind to before the
chain's start, carried out while that load is on its way, would stage records that the table then counts as loaded.

Rules:

1. Before its first commit a loader writes how far a load will advance the table, in a separate object:
   ``loading/<topic>/<partition>/<unique>.loading``. Then it reads the partition's repairs (repair_lock.py). It does not
   load if a repair is in progress, or has started since before it read the markers. In a chain of one topic it also
   reads the origin, as the last thing, and does not load if the origin has moved since the markers were listed.
2. Once a rewind has its turn, it reads these notes, and then the table. It changes nothing if one of them is past its
   target position. (In a chain of one topic, this concerns a rewind to before the chain's start, which always moves the
   origin.) Each side writes before it reads, so one of the two sees the other; no clock is used.
3. The note is deleted when the load is in the table, or when it is certain that nothing of it is in any table. A loader
   that dies leaves its note, which stands for a commit that may still arrive. The note means nothing anymore once the
   table has reached its position, and the loader that sees that deletes it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from common.spans import MAX_POSITION, Position, TopicPartition

LOADING = "loading"


@dataclass(frozen=True, slots=True)
class LoadNote:
    """How far a loader advances the table."""

    end: Position
    began_ms: int

    def to_bytes(self) -> bytes:
        return json.dumps({"version": 1, "end": int(self.end), "began_ms": self.began_ms}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> LoadNote:
        """The inverse; an unreadable note counts as reaching any position."""
        try:
            note = json.loads(data)
            return cls(Position(int(note["end"])), int(note["began_ms"]))
        except (ValueError, TypeError, KeyError):
            return cls(Position(MAX_POSITION), 0)


def loading_folder(partition: TopicPartition) -> str:
    return f"{LOADING}/{partition.topic}/{partition.partition}/"


def loading_path(partition: TopicPartition, unique: str) -> str:
    return f"{loading_folder(partition)}{unique}.loading"
