"""Changes of a task's state that are in a Kafka topic instead of in the stage, and how a marker refers to them.

Rules:

1. The changes of one flush are cut into pieces, each a message of the topic. They are written before the marker that
   names them, by their offsets: other messages in the topic, such as the pieces of a lost claim, are ignored.
2. The content must be verified: the marker has the digest of all pieces, and the id of their topic.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from common.spans import Position, Span, TopicPartition
from common.stage.stored import Count
from common.stored_types import StoredSpan, with_partition

_DIGEST_BYTES = 16
_DIGEST = rf"^[0-9a-f]{{{2 * _DIGEST_BYTES}}}$"


def changes_digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


@dataclass(frozen=True, slots=True)
class TopicChanges:
    place: TopicPartition
    """The Kafka partition that contains them."""
    topic_id: str | None
    """The broker's id of that topic; None if it has none."""
    spans: Annotated[tuple[StoredSpan, ...], Field(alias="pieces", min_length=1)]
    """The offsets of the pieces: ascending, one run after the other."""
    size_bytes: Annotated[Count, Field(alias="bytes")]
    digest: Annotated[str, Field(pattern=_DIGEST)]
    """`changes_digest` of all pieces concatenated."""
    written_ms: int
    """The time of the write, by the writer's clock."""

    def __post_init__(self) -> None:
        if any(span.end >= other.start for span, other in pairwise(self.spans)):
            msg = f"the pieces {', '.join(map(str, self.spans))} in {self.place} do not come one after the other"
            raise ValueError(msg)

    @property
    def pieces(self) -> int:
        return sum(span.positions for span in self.spans)

    @property
    def mark(self) -> str:
        """A string that identifies these changes."""
        return f"{self.place}@{self.spans[0].start}:{self.digest}"


def spans_of(offsets: Iterable[int]) -> tuple[Span, ...]:
    """Ascending offsets as runs. Raises ValueError for others."""
    spans: list[Span] = []
    for offset in offsets:
        if spans and spans[-1].end > offset:
            raise ValueError(f"offset {offset} comes after {spans[-1].last_offset}")
        if spans and spans[-1].end == offset:
            spans[-1] = Span(spans[-1].start, Position(offset + 1))
        else:
            spans.append(Span(Position(offset), Position(offset + 1)))
    return tuple(spans)


StoredChanges = Annotated[TopicChanges, with_partition(TopicChanges, "place")]
"""With the fields ``topic`` and ``partition``, and other names for some."""
