"""librdkafka's messages into columns: one batch for each Kafka partition.

Rules:

1. What is asked of a message is asked in a loop of C's, once for all messages of a call: a call to Python for each of
   them would cost as much as all that is done with them later.
2. The columns are made once, and the batches are parts of them. librdkafka hands out one partition's messages in a row,
   for the most part, so nothing is moved; where it did not, rows are brought together in Arrow.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
from confluent_kafka import Message

from common.spans import Partition, Topic, TopicPartition
from stage_writer.core.batch import NO_TIMESTAMP, Headers, MessageBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_second = itemgetter(1)


@dataclass(frozen=True, slots=True)
class _Columns:
    """Messages, whatever their partitions."""

    offsets: NDArray[np.int64]
    timestamps_ms: NDArray[np.int64]
    values: pa.BinaryArray
    keys: pa.BinaryArray
    headers: tuple[Headers | None, ...] | None

    @classmethod
    def of(cls, messages: Sequence[Message], *, with_headers: bool) -> _Columns:
        count = len(messages)
        stamps = np.fromiter(map(_second, map(Message.timestamp, messages)), np.int64, count)
        return cls(
            np.fromiter(map(Message.offset, messages), np.int64, count),
            np.where(stamps >= 0, stamps, NO_TIMESTAMP),
            _binaries(list(map(Message.value, messages))),
            _binaries(list(map(Message.key, messages))),
            tuple(_headers(message) for message in messages) if with_headers else None,
        )

    def take(self, order: NDArray[np.intp]) -> _Columns:
        """The same in another order."""
        places = pa.array(order)
        headers = None if self.headers is None else tuple(self.headers[place] for place in order.tolist())
        offsets, stamps = self.offsets[order], self.timestamps_ms[order]
        return _Columns(offsets, stamps, self.values.take(places), self.keys.take(places), headers)

    def batch(self, source: TopicPartition, start: int, end: int) -> MessageBatch:
        """Some of them, which are all of one partition."""
        return MessageBatch(
            source,
            self.offsets[start:end],
            self.timestamps_ms[start:end],
            self.values.slice(start, end - start),
            self.keys.slice(start, end - start),
            None if self.headers is None else self.headers[start:end],
        )


def batches_of(messages: Sequence[Message], *, with_headers: bool) -> tuple[MessageBatch, ...]:
    """The batches of messages, none of them an error. Batches are by partition, and each in the order that it came."""
    if not messages:
        return ()
    count = len(messages)
    topics = list(map(Message.topic, messages))
    partitions = np.fromiter(map(Message.partition, messages), np.int64, count)
    codes = {topic: code for code, topic in enumerate(dict.fromkeys(topics))}
    keys = partitions * len(codes)
    if len(codes) > 1:
        keys += np.fromiter(map(codes.__getitem__, topics), np.int64, count)
    columns = _Columns.of(messages, with_headers=with_headers)
    order = np.argsort(keys, kind="stable")
    parted = keys[order]
    starts = np.concatenate(([0], np.flatnonzero(np.diff(parted)) + 1))
    sources = [_source(topics[first], int(partitions[first])) for first in order[starts].tolist()]
    sizes = np.diff(starts, append=count)
    if np.any(order[starts + sizes - 1] - order[starts] != sizes - 1):  # some partition's messages are not in a row
        columns, order = columns.take(order), np.arange(count)
    return tuple(
        columns.batch(source, first, first + size)
        for source, first, size in zip(sources, order[starts].tolist(), sizes.tolist(), strict=True)
    )


def batch_of(source: TopicPartition, messages: Sequence[Message], *, with_headers: bool) -> MessageBatch:
    """Messages of one partition, none of them an error."""
    return _Columns.of(messages, with_headers=with_headers).batch(source, 0, len(messages))


def _source(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(Topic(topic), Partition(partition))


def _headers(message: Message) -> Headers | None:
    found = message.headers()
    return None if found is None else [(str(name), cast("bytes | None", value)) for name, value in found]


def _binaries(values: list[bytes | None]) -> pa.BinaryArray | pa.LargeBinaryArray:
    column = pa.array(values, pa.binary())
    # Arrow's 32-bit offsets end at 2 GiB; more comes in chunks.
    return column if isinstance(column, pa.Array) else column.cast(pa.large_binary()).combine_chunks()
