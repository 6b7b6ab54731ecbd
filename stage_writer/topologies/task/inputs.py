"""A task's input and output, and how the output of its nodes is collected, in order.

Rules:

1. Each item is recorded with the number of its message, which rises. So all output of a message is at the end, and is
   removed from there.
2. A punctuation's output is identified by its index: it belongs to no record, and so cannot be refused with one.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from common.spans import Partition, Topic, TopicPartition
from stage_writer.decode.batch import Headers as KafkaHeaders
from stage_writer.decode.batch import Index, Mask, Messages, header_lists
from stage_writer.decode.decode import Decoder
from stage_writer.decode.rejects import Reject
from stage_writer.topologies.records import TopicRecord


@dataclass(frozen=True, slots=True)
class Input:
    """Decoded messages of one partition of a source topic, in order, without refused ones."""

    topic: str
    partition: int
    index: Index
    """The messages' numbers within this conversion, which outputs refer to.

    Rising; those of several inputs of a task interleave, in the order in which their records are processed.
    """
    offsets: Index
    timestamps_ms: Index
    """The messages' timestamps; `NO_TIMESTAMP` for a message that has none in Kafka."""
    keys: pa.Array
    """The messages' keys, as bytes or null."""
    rows: pa.Table
    """The source's columns, a row for each message; for a source of plain JSON one column, the messages' bytes."""
    is_null: Mask
    """Whether a message is a tombstone, so that its row has no meaning."""
    headers: Sequence[KafkaHeaders | None] | None = None
    """The messages' headers; None when no node uses headers (`BuiltTopology.needs_headers`)."""

    def __len__(self) -> int:
        return len(self.index)

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(Topic(self.topic), Partition(self.partition))


def decoded_input(messages: Messages, decoder: Decoder | None) -> tuple[Input, list[Reject], Index]:
    """The messages of one partition for its task, the refused ones, and the tombstones; no decoder: plain JSON."""
    if decoder is None:
        tombstones = np.flatnonzero(messages.values.is_null().to_numpy(zero_copy_only=False))
        rows = pa.table({"value": messages.values})
        everything = np.arange(len(messages))
        given = input_of(messages, rows, everything, tombstones[:0])
        return replace(given, is_null=np.isin(everything, tombstones)), [], tombstones
    decoded = decoder.decode(messages.values)
    return (
        input_of(messages, decoded.rows, decoded.row_index, decoded.tombstones),
        list(decoded.rejects),
        decoded.tombstones,
    )


def input_of(messages: Messages, rows: pa.Table, row_index: Index, tombstones: Index) -> Input:
    """The messages as the task's input; messages that are neither a row nor a tombstone are left out."""
    source = messages.batches[0].partition
    if len(tombstones) == 0:
        index, is_null = row_index, np.zeros(len(row_index), np.bool_)
    else:
        index = np.sort(np.concatenate([row_index, tombstones]))
        is_null = np.isin(index, tombstones, assume_unique=True)
        indexes = np.searchsorted(row_index, index)
        rows = rows.take(pa.array(np.where(is_null, 0, indexes), mask=is_null))
    headers = messages.headers
    return Input(
        source.topic,
        int(source.partition),
        index,
        messages.offsets[index],
        messages.timestamps_ms[index],
        messages.keys.take(pa.array(index)),
        rows,
        is_null,
        None if headers is None else header_lists(headers.take(pa.array(index))),
    )


@dataclass(slots=True)
class Output:
    """The result for the inputs of a task. A message that appears nowhere in it was filtered."""

    tables: dict[str, tuple[Index, pa.Table]] = field(default_factory=dict)
    """For each sink's table that gets rows, by its name: the messages' numbers, rising, and the rows."""
    topics: list[TopicRecord] = field(default_factory=list)
    """The records for Kafka topics, in the order in which they were made."""
    rejects: list[Reject] = field(default_factory=list)
    """One reject for each refused message, by the message's number, rising. A refused message has no other output."""
    dropped: Counter[str] = field(default_factory=Counter)
    """The number of records that processors dropped, by reason."""
    wants_commit: bool = False
    """A processor requested a flush."""


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
