"""librdkafka's messages as columns: one batch for each Kafka partition.

Rules:

1. Each property of a message is read in a loop in C, once for all messages of a call: a call from Python for each would
   cost as much as all later processing.
2. The columns are made once, and the batches are slices of them. librdkafka returns one partition's messages in a row
   for the most part, so nothing is moved; elsewhere, rows are gathered in Arrow. A batch's messages have one leader
   epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from types import NoneType
from typing import cast

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, Message
from numpy.typing import NDArray

from common.spans import TopicPartition
from stage_writer.decode.batch import Headers, MessageBatch, headers_column, timestamps_of
from stage_writer.fetch.partitions import from_kafka
from stage_writer.native.fetching import FetchedMessages

_second = itemgetter(1)
_LONG_RUN = 64
"""Consecutive messages of one partition, from which on a batch for each run is cheaper than gathering them."""


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """An event from librdkafka in place of a message."""

    topic: str | None
    partition: int
    offset: int
    error: KafkaError


@dataclass(frozen=True, slots=True)
class Fetched:
    batches: tuple[MessageBatch, ...]
    """There may be several for one partition, in its order."""
    problems: tuple[ClientEvent, ...]
    count: int
    """The number of messages and problems."""


@dataclass(frozen=True, slots=True)
class _Columns:
    offsets: NDArray[np.int64]
    timestamps_ms: NDArray[np.int64]
    values: pa.BinaryArray
    keys: pa.BinaryArray
    headers: pa.ListArray | None

    @classmethod
    def from_messages(cls, messages: Sequence[Message], *, with_headers: bool) -> _Columns:
        count = len(messages)
        stamps = np.fromiter(map(_second, map(Message.timestamp, messages)), np.int64, count)
        return cls(
            np.fromiter(map(Message.offset, messages), np.int64, count),
            timestamps_of(stamps),
            _binaries(list(map(Message.value, messages))),
            _binaries(list(map(Message.key, messages))),
            headers_column([_headers(message) for message in messages]) if with_headers else None,
        )

    def take(self, order: NDArray[np.intp]) -> _Columns:
        """These messages in another order."""
        indexes = pa.array(order)
        headers = None if self.headers is None else self.headers.take(indexes)
        offsets, stamps = self.offsets[order], self.timestamps_ms[order]
        return _Columns(offsets, stamps, self.values.take(indexes), self.keys.take(indexes), headers)

    def batch(self, partition: TopicPartition, start: int, end: int, leader_epoch: int | None = None) -> MessageBatch:
        """A batch of some of them, all of one partition."""
        return MessageBatch(
            partition,
            self.offsets[start:end],
            self.timestamps_ms[start:end],
            self.values.slice(start, end - start),
            self.keys.slice(start, end - start),
            None if self.headers is None else self.headers.slice(start, end - start),
            leader_epoch=leader_epoch,
        )


def fetched_of(messages: Sequence[Message], *, with_headers: bool) -> Fetched:
    count, problems = len(messages), list[ClientEvent]()
    errors = list(map(Message.error, messages))
    if errors and set(map(type, errors)) != {NoneType}:  # a KafkaError cannot be compared with None
        problems = [
            ClientEvent(message.topic(), _number(message.partition()), _number(message.offset()), error)
            for message, error in zip(messages, errors, strict=True)
            if error is not None
        ]
        messages = [message for message, error in zip(messages, errors, strict=True) if error is None]
    return Fetched(batches_of(messages, with_headers=with_headers), tuple(problems), count)


def _number(known: int | None) -> int:
    """-1 for an event of a whole topic."""
    return -1 if known is None else known


def batches_of(messages: Sequence[Message], *, with_headers: bool) -> tuple[MessageBatch, ...]:
    """The batches of messages without errors, one per partition, in order of arrival."""
    if not messages:
        return ()
    count = len(messages)
    topics = list(map(Message.topic, messages))
    partitions = np.fromiter(map(Message.partition, messages), np.int64, count)
    codes = {topic: code for code, topic in enumerate(dict.fromkeys(topics))}
    keys = partitions * len(codes)
    if len(codes) > 1:
        keys += np.fromiter(map(codes.__getitem__, topics), np.int64, count)
    columns = _Columns.from_messages(messages, with_headers=with_headers)
    epochs = list(map(Message.leader_epoch, messages))
    if len(set(epochs)) > 1:
        terms = {epoch: code for code, epoch in enumerate(dict.fromkeys(epochs))}
        keys = keys * len(terms) + np.fromiter(map(terms.__getitem__, epochs), np.int64, count)
    return _by_partition(columns, keys, lambda row: (from_kafka(topics[row], int(partitions[row])), epochs[row]))


def batches_of_fetched(taken: FetchedMessages) -> tuple[MessageBatch, ...]:
    """The batches of messages that were read as columns; several for one partition when its runs are long."""
    columns = _Columns(taken.offsets, timestamps_of(taken.timestamps_ms), taken.values, taken.keys, taken.headers)
    partitions = [(from_kafka(run.topic, run.partition), run.leader_epoch) for run in taken.runs]
    if len(taken.offsets) >= _LONG_RUN * len(partitions) or len(set(partitions)) == len(partitions):
        return tuple(
            columns.batch(partition, run.start, run.end, epoch)
            for (partition, epoch), run in zip(partitions, taken.runs, strict=True)
        )
    codes = {partition: code for code, partition in enumerate(dict.fromkeys(partitions))}
    keys = np.repeat([codes[partition] for partition in partitions], [run.end - run.start for run in taken.runs])
    distinct = list(codes)
    return _by_partition(columns, keys, lambda row: distinct[keys[row]])


def _by_partition(
    columns: _Columns, keys: NDArray[np.int64], source_at: Callable[[int], tuple[TopicPartition, int | None]]
) -> tuple[MessageBatch, ...]:
    """A batch for each key; ``source_at`` gives the partition and the leader epoch of the message at an index."""
    count = len(keys)
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    starts = np.concatenate(([0], np.flatnonzero(np.diff(sorted_keys)) + 1))
    partitions = [source_at(first) for first in order[starts].tolist()]
    sizes = np.diff(starts, append=count)
    if np.any(order[starts + sizes - 1] - order[starts] != sizes - 1):  # some partition's messages are not consecutive
        columns, order = columns.take(order), np.arange(count)
    return tuple(
        columns.batch(partition, first, first + size, epoch)
        for (partition, epoch), first, size in zip(partitions, order[starts].tolist(), sizes.tolist(), strict=True)
    )


def batch_of(partition: TopicPartition, messages: Sequence[Message], *, with_headers: bool) -> MessageBatch:
    """A batch of one partition's messages, none of them an error."""
    return _Columns.from_messages(messages, with_headers=with_headers).batch(partition, 0, len(messages))


def _headers(message: Message) -> Headers | None:
    headers = message.headers()
    return None if headers is None else [(str(name), cast("bytes | None", value)) for name, value in headers]


def _binaries(values: list[bytes | None]) -> pa.BinaryArray | pa.LargeBinaryArray:
    column = pa.array(values, pa.binary())
    # Arrow's 32-bit offsets end at 2 GiB; larger data is chunked.
    return column if isinstance(column, pa.Array) else column.cast(pa.large_binary()).combine_chunks()
