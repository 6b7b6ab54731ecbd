"""Loads of chains of several topics that are under way, so that no rewind takes away what is being loaded.

Records of one topic are the same at the same offsets whoever stages them, and a table's position says which it has.
The topics of a chain of several may come in another order when they are staged again, so that of what is being loaded
nothing may be staged again at all.

Rules:

1. Before its first commit a loader writes down how far a load will bring the table, in an object of its own:
   ``loading/<topic>/<partition>/<unique>.loading``. Then it looks at the partition's repairs (turns.py), and does not
   load where one goes on, or has begun since before it read the markers.
2. A rewind looks, once it has its turn, at these notes and then at the table, and changes nothing where one of them is
   beyond the place that it goes to. Each side writes before it looks, so one of two sees the other; no clock is asked.
3. The note goes when the load is in the table, or when it is certain that nothing of it is in any table. A loader that
   dies leaves its note, which stands for a commit that may still come; it means nothing any more once the table is
   there, and whichever loader sees that deletes it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.spans import MAX_POSITION, Position

if TYPE_CHECKING:
    from common.spans import TopicPartition

LOADING = "loading"


@dataclass(frozen=True, slots=True)
class LoadNote:
    """How far some loader brings the table."""

    end: Position
    began_ms: int

    def to_bytes(self) -> bytes:
        """The stored form."""
        return json.dumps({"version": 1, "end": int(self.end), "began_ms": self.began_ms}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> LoadNote:
        """The inverse; what cannot be read may reach to anywhere."""
        try:
            found = json.loads(data)
            return cls(Position(int(found["end"])), int(found["began_ms"]))
        except (ValueError, TypeError, KeyError):
            return cls(Position(MAX_POSITION), 0)


def loading_folder(source: TopicPartition) -> str:
    """The folder of a chain's notes, with the closing slash."""
    return f"{LOADING}/{source.topic}/{source.partition}/"


def loading_path(source: TopicPartition, unique: str) -> str:
    """One of them."""
    return f"{loading_folder(source)}{unique}.loading"
