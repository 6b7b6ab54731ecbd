"""Collects the output of a task's nodes, in order.

Rules:

1. Each item is recorded with the number of its message, which rises. So all output of a message is at the end, and is
   removed from there.
2. A punctuation's output is identified by its index: it belongs to no record, and so cannot be refused with one.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from stage_writer.topologies.records import TopicRecord


@dataclass(slots=True)
class Collected:
    index: list[int] = field(default_factory=list)
    values: list[dict[str, Any]] = field(default_factory=list)
    punctuated: list[tuple[int, int]] = field(default_factory=list)
    """The index ranges ``[start, end)`` of the dicts that punctuations gave."""
    check: Callable[[dict[str, Any]], None] | None = None
    """Raises for an incompatible dict, right after recording; None while all dicts are checked together at the end."""

    def is_punctuated(self, index: int) -> bool:
        """Whether a punctuation gave the dict at this index."""
        last = bisect_right(self.punctuated, index, key=itemgetter(0)) - 1
        return last >= 0 and index < self.punctuated[last][1]

    def punctuated_messages(self) -> Iterator[int]:
        """The numbers of the messages with output from a punctuation."""
        return (self.index[index] for start, end in self.punctuated for index in range(start, end))

    def undo(self, index: int) -> None:
        while self.index and self.index[-1] == index:
            self.index.pop()
            self.values.pop()

    def clear(self) -> None:
        """Start the next conversion; the collected output belongs to its receiver."""
        self.index, self.values, self.punctuated = [], [], []


@dataclass(slots=True)
class Outbox:
    """The whole output of a task's nodes."""

    rows: dict[str, Collected] = field(default_factory=dict)
    """By the sinks' tables."""
    late: dict[str, Collected] = field(default_factory=dict)
    """By the names of steps after processors."""
    topics: list[TopicRecord] = field(default_factory=list)
    dropped: list[tuple[int, str]] = field(default_factory=list)
    wants_commit: bool = False

    def collections(self) -> Iterator[Collected]:
        yield from self.rows.values()
        yield from self.late.values()

    def undo(self, index: int) -> None:
        for collected in self.collections():
            collected.undo(index)
        while self.topics and self.topics[-1].index == index:
            self.topics.pop()
        while self.dropped and self.dropped[-1][0] == index:
            self.dropped.pop()

    def clear(self) -> None:
        for collected in self.collections():
            collected.clear()
        self.topics.clear()
        self.dropped.clear()
        self.wants_commit = False
