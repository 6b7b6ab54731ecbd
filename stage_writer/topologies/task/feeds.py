"""The input records of the first processors.

A feed is the data that one source or early step passes from one input to one function. Several feeds of a task are
processed message by message: all functions for one message, in topology order, and then those for the next.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from stage_writer.decode.batch import Index
from stage_writer.decode.rejects import Reject
from stage_writer.topologies.built import BuiltTopology
from stage_writer.topologies.records import Record
from stage_writer.topologies.task.clock import NO_TIME_MS
from stage_writer.topologies.task.reading import InputReader

if TYPE_CHECKING:
    from stage_writer.topologies.task.context import Target
    from stage_writer.topologies.task.early import Early, Exit
    from stage_writer.topologies.task.graph import Graph
    from stage_writer.topologies.task.inputs import Input

    Step = tuple[int, int, int, int, Input, Target, Record]
    """The message's number, the feed's, its place in the input, its time, the input, and what is called with what."""


Timed = tuple[int, int, int, int, Record]
"""The message's number, its place in the input, its time, the highest time of messages left out before, the record."""


def _no_target(record: Record) -> None:
    """For a message that a step has left out, and whose time still counts."""


@dataclass(frozen=True, slots=True)
class Feed:
    input: Input
    reader: InputReader
    exit: Exit
    target: Target

    def records(self, refused: Collection[int], left_out: Feed | None = None) -> Iterator[Timed]:
        """Each message that is not refused. ``left_out`` are those of which only the time counts (`Timed`)."""
        indexes = self._places(refused)
        rows = self.exit.rows
        if len(indexes) < len(self.exit.indexes) and not self.is_left_out:
            rows = rows.filter(pa.array(np.isin(self.exit.indexes, indexes, assume_unique=True)))
        reader, listed = self.reader, indexes.tolist()
        keys, times = reader.keys, reader.times_ms
        if len(indexes) < len(self.input):
            keys, times = [keys[index] for index in listed], [times[index] for index in listed]
        values = repeat(None) if self.is_left_out else reader.values(rows, indexes)
        fields = zip(keys, values, times, reader.headers(listed))  # noqa: B905 - headers may repeat
        floors = repeat(NO_TIME_MS) if left_out is None else left_out.times_before(indexes, refused)
        index = self.input.index[indexes].tolist()
        return zip(index, listed, times, floors, map(tuple.__new__, repeat(Record), fields))  # noqa: B905 - one length

    @property
    def is_left_out(self) -> bool:
        """Whether no function takes these."""
        return self.target is _no_target

    def times_before(self, indexes: Index, refused: Collection[int]) -> list[int]:
        """For other messages of the input, the highest time of this feed's messages before each."""
        own, times = self._with_times(refused)
        highest = np.maximum.accumulate(np.concatenate([[NO_TIME_MS], times]))
        highest_before: list[int] = highest[np.searchsorted(own, indexes)].tolist()
        return highest_before

    def highest_time(self, refused: Collection[int]) -> int:
        return int(self._with_times(refused)[1].max(initial=NO_TIME_MS))

    def _with_times(self, refused: Collection[int]) -> tuple[Index, Index]:
        indexes = self._places(refused)
        return indexes, np.array(self.reader.times_ms, np.int64)[indexes]

    def _places(self, refused: Collection[int]) -> Index:
        """The indices of the messages that are not refused."""
        indexes = self.exit.indexes
        if not refused:
            return indexes
        return indexes[~np.isin(self.input.index[indexes], np.fromiter(refused, np.int64, len(refused)))]

    def steps(self, number: int, refused: Collection[int]) -> Iterator[Step]:
        """The records of this feed as calls to make, as one of several feeds."""
        given, target = self.input, self.target
        return (
            (index, number, row, time, given, target, record) for index, row, time, _, record in self.records(refused)
        )


def in_order(feeds: Sequence[Feed], refused: Collection[int]) -> Iterator[Step]:
    """The calls to make for several feeds, message by message."""
    return heapq.merge(*(feed.steps(number, refused) for number, feed in enumerate(feeds)))


def feeds_of(
    topology: BuiltTopology, graph: Graph, inputs: Sequence[Input], early: Sequence[Early], rejects: dict[int, Reject]
) -> list[Feed]:
    """The feeds of a task; messages whose key or time cannot be read are added to the rejects."""
    feeds = []
    for given, exits in zip(inputs, early, strict=True):
        if len(given) == 0:
            continue
        source = topology.sources[given.topic]
        reader = InputReader(given, source)
        for reject in reader.rejects:
            rejects.setdefault(reject.index, reject)
        covered = np.zeros(len(given), np.bool_)
        for number, target in graph.entries[source.name]:
            covered[exits.exits[number].indexes] = True
            feeds.append(Feed(given, reader, exits.exits[number], target))
        if not covered.all():
            feeds.append(Feed(given, reader, exits.left_out(covered), _no_target))
    return feeds
