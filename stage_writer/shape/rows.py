"""The data of a conversion: rows, each with its message, and the steps that transform them.

Rules:

1. A step takes rows and returns rows. What it removes it accounts for: as rejects, or as filtered. So at any time each
   message is in exactly one of the rows, the rejects, the filtered ones or the tombstones.
2. Rows stay in the order of their messages. `Rows.index` rises; strictly, until one message is exploded into several
   rows, or if its envelope has several. A message with a failing row is a reject as a whole.
3. A step's columns are known at construction, and errors in them are found then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from common.schema import StructType
from stage_writer.decode.batch import Index, Mask, Messages
from stage_writer.decode.decode import Decoded
from stage_writer.decode.rejects import Reject


@dataclass(frozen=True, slots=True)
class Stop:
    index: int
    problem: str


@dataclass(frozen=True, slots=True)
class Destinations:
    """The tables that the rows of each message go to, by their numbers (`Stream.row_tables`)."""

    numbers: Index
    """Message by message, each table once."""
    starts: Index
    """Where the numbers of each message start, and how many there are at the end."""

    @classmethod
    def from_counts(cls, numbers: Index, counts: Index) -> Destinations:
        """Destinations with ``counts[i]`` of the numbers for message ``i``."""
        return cls(numbers, np.concatenate([[0], np.cumsum(counts)]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def joined(self, other: Destinations) -> Destinations:
        """The destinations of both, which have different messages of the same batches."""
        counts = [np.diff(destinations.starts) for destinations in (self, other)]
        messages = np.concatenate([np.repeat(np.arange(len(count)), count) for count in counts])
        numbers = np.concatenate([self.numbers, other.numbers])
        return Destinations.from_counts(numbers[np.argsort(messages, kind="stable")], counts[0] + counts[1])

    def part(self, start: int, end: int) -> Destinations:
        """The part for the messages ``[start, end)``."""
        first, last = self.starts[start], self.starts[end]
        return Destinations(self.numbers[first:last], self.starts[start : end + 1] - first)

    def among(self, wanted: Mask, index: Index) -> Destinations:
        """The ``wanted`` tables of the messages ``index``, by number; the other messages have none."""
        count = len(self)
        messages = np.repeat(np.arange(count), np.diff(self.starts))
        is_one = np.zeros(count, np.bool_)
        is_one[index] = True
        kept = wanted[self.numbers] & is_one[messages]
        return Destinations.from_counts(self.numbers[kept], np.bincount(messages[kept], minlength=count))

    @property
    def messages(self) -> Index:
        """The messages with a table."""
        return np.flatnonzero(np.diff(self.starts))

    def of_rows(self, index: Index) -> tuple[Index, Index]:
        """For rows with these messages: each pair of a row and one of its tables, by rising rows."""
        firsts, counts = self.starts[index], self.starts[index + 1] - self.starts[index]
        if bool((counts == 1).all()):
            return np.arange(len(index)), self.numbers[firsts]
        rows = np.repeat(np.arange(len(index)), counts)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows, self.numbers[firsts[rows] + within]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows in conversion, and the outcome of the other messages."""

    table: pa.Table
    index: Index
    """For each row, the index of its message. Rising (rule 2)."""
    rejects: tuple[Reject, ...] = ()
    """In any order, at most one per message."""
    filtered: Index = field(default_factory=lambda: np.zeros(0, np.int64))
    """The messages that are left out: by a condition, or because they change no row. Rising."""
    violations: Mapping[str, Index] = field(default_factory=dict)
    """By rule of `expect`, the messages that break it, dead letters included. Rising."""
    stops: tuple[Stop, ...] = ()
    """The messages that may not be staged, in any order; nothing after them is staged either."""
    tables: Destinations | None = None
    """The tables that the rows go to; None if there is only one table."""

    @classmethod
    def from_decoded(cls, decoded: Decoded) -> Rows:
        return cls(decoded.rows, decoded.row_index, decoded.rejects, decoded.passed_over)

    def __len__(self) -> int:
        return len(self.index)

    def through(self, steps: Iterable[Step], messages: Messages) -> Rows:
        rows = self
        for step in steps:
            rows = step.apply(rows, messages)
        return rows

    def with_destinations(self, destinations: Destinations) -> Rows:
        """These rows with their tables; others of the same messages may have theirs already."""
        return replace(self, tables=destinations if self.tables is None else self.tables.joined(destinations))

    def among(self, index: Index, numbers: Index) -> Rows:
        """The rows of these messages with these `row_numbers`."""
        most = max(len(self), int(numbers.max(initial=0)) + 1)
        kept = np.isin(self.index * most + row_numbers(self.index), index * most + numbers)
        return replace(self, table=self.table.filter(pa.array(kept)), index=self.index[kept])

    def with_table(self, table: pa.Table) -> Rows:
        return replace(self, table=table)

    @property
    def has_several(self) -> bool:
        return bool((self.index[1:] == self.index[:-1]).any())

    def whole(self, some: Mask) -> Mask:
        """These rows, and all others of the same messages."""
        if not self.has_several:
            return some
        mask: Mask = np.isin(self.index, self.index[some])
        return mask

    def without(self, failing: Mask, rejects: Iterable[Reject]) -> Rows:
        """The rows without those that fail, and without others of their messages; a reject is given for each."""
        kept = ~self.whole(failing)
        by_message: dict[int, Reject] = {}
        for reject in rejects:
            by_message.setdefault(reject.index, reject)
        return replace(
            self,
            table=self.table.filter(pa.array(kept)),
            index=self.index[kept],
            rejects=(*self.rejects, *by_message.values()),
        )


def row_numbers(index: Index) -> Index:
    """The number of each row among those of its message, from 0; ``index`` as in `Rows`."""
    numbers: Index = np.arange(len(index)) - np.searchsorted(index, index)
    return numbers


class Step(Protocol):
    """A transformation of all rows of a stream. Not thread-safe."""

    @property
    def columns(self) -> StructType: ...

    @property
    def needs_headers(self) -> bool:
        """Whether it uses the records' headers, which otherwise are not read from Kafka."""

    def apply(self, rows: Rows, messages: Messages) -> Rows:
        """The result for these rows (rule 1)."""
