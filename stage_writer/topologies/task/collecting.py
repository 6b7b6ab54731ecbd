"""What the nodes of a task give, in the order in which they give it.

Rules:

1. Each thing is noted with the number of its message, which rises. So all that a message gave is at the end, and is
   taken back from there.
2. What a punctuation gave is known by its place: it is of no record, and so cannot be refused with one.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stage_writer.topologies.records import TopicRecord


@dataclass(slots=True)
class Collected:
    """Dicts for one table or one step."""

    index: list[int] = field(default_factory=list)
    values: list[dict[str, Any]] = field(default_factory=list)
    punctuated: list[tuple[int, int]] = field(default_factory=list)
    """The places ``[start, end)`` of what punctuations gave."""
    check: Callable[[dict[str, Any]], None] | None = None
    """Raises for a dict that does not fit, right after it is noted; None while all are tried together at the end."""

    def is_punctuated(self, place: int) -> bool:
        """Whether a punctuation gave it."""
        at = bisect_right(self.punctuated, place, key=itemgetter(0)) - 1
        return at >= 0 and place < self.punctuated[at][1]

    def punctuated_messages(self) -> Iterator[int]:
        """The messages that something was noted with by a punctuation."""
        return (self.index[place] for start, end in self.punctuated for place in range(start, end))

    def undo(self, index: int) -> None:
        """Take back what a message gave."""
        while self.index and self.index[-1] == index:
            self.index.pop()
            self.values.pop()

    def clear(self) -> None:
        """Begin with the next conversion; what was collected belongs to whom it was given."""
        self.index, self.values, self.punctuated = [], [], []


@dataclass(slots=True)
class Outbox:
    """All that a task's nodes give."""

    rows: dict[str, Collected] = field(default_factory=dict)
    """By the sinks' tables."""
    late: dict[str, Collected] = field(default_factory=dict)
    """By the names of steps after processors."""
    topics: list[TopicRecord] = field(default_factory=list)
    dropped: list[tuple[int, str]] = field(default_factory=list)
    wants_commit: bool = False

    def collections(self) -> Iterator[Collected]:
        """Those of tables and of steps."""
        yield from self.rows.values()
        yield from self.late.values()

    def undo(self, index: int) -> None:
        """Take back what a message gave."""
        for collected in self.collections():
            collected.undo(index)
        while self.topics and self.topics[-1].index == index:
            self.topics.pop()
        while self.dropped and self.dropped[-1][0] == index:
            self.dropped.pop()

    def clear(self) -> None:
        """Begin with the next conversion."""
        for collected in self.collections():
            collected.clear()
        self.topics.clear()
        self.dropped.clear()
        self.wants_commit = False
