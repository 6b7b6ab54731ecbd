"""Messages as columns: a batch of one Kafka partition, and several batches together.

Rules:

1. The columns of a batch have one entry for each message, in Kafka's order; offsets rise strictly (`MessageBatch.after`
   ensures it, because librdkafka can deliver a message twice).
2. Work with a cost per call rather than per message is done for all batches of a poll at once (`Messages`), so that a
   thousand partitions with ten messages each cost as much as one with ten thousand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from common.spans import Offset, Position, TopicPartition, position_after
from common.stage.markers import LastRecord
from common.stage.merged import kafka_topic

Several = TypeVar("Several", pa.Table, pa.Array)

Index = NDArray[np.int64]
"""Which messages, or which rows, by number."""
Mask = NDArray[np.bool_]
Headers = list[tuple[str, bytes | None]]
HEADERS = pa.list_(pa.struct([pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary())]))
"""Messages' headers, in Kafka's order; null for a message without any. Keys are bytes that may not be UTF-8."""
NO_TIMESTAMP = -1
_END_MS = 253_402_300_800_000  # 10000-01-01T00:00:00Z


def timestamps_of(given: NDArray[np.int64]) -> NDArray[np.int64]:
    """Milliseconds as in Kafka; `NO_TIMESTAMP` for times before 1970 or after 9999.

    Producers may write any number. An invalid one would affect the tables' columns and statistics, the valid-through
    time of a table, and the time by which windows close.
    """
    return np.where((given >= 0) & (given < _END_MS), given, NO_TIMESTAMP)


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Messages of one Kafka partition in Kafka's order."""

    partition: TopicPartition
    offsets: NDArray[np.int64]
    timestamps_ms: NDArray[np.int64]
    """`NO_TIMESTAMP` where Kafka has no valid one (`timestamps_of`)."""
    values: pa.BinaryArray
    """Null for a tombstone. ``large_binary`` where a batch exceeds 2 GiB."""
    keys: pa.BinaryArray
    headers: pa.ListArray | None
    """`HEADERS`; None when they are not read."""
    leader_epoch: int | None = field(default=None, kw_only=True)
    """The leader epoch of the broker that appended them, the same for all; None where that is unknown."""

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def memory_bytes(self) -> int:
        """The memory of its values, keys and headers, and of each message's entries in the columns."""
        size_bytes = self.values.nbytes + self.keys.nbytes + self.offsets.nbytes + self.timestamps_ms.nbytes
        return int(size_bytes if self.headers is None else size_bytes + self.headers.nbytes)

    @property
    def end(self) -> Position:
        """The position after the last message; the batch must not be empty."""
        return position_after(Offset(int(self.offsets[-1])))

    def after(self, position: Position) -> MessageBatch:
        """The messages from ``position`` on whose offsets rise strictly; the same object when all do."""
        offsets = self.offsets
        if len(offsets) == 0 or (offsets[0] >= position and bool((offsets[1:] > offsets[:-1]).all())):
            return self
        highest = np.maximum.accumulate(np.concatenate(([position - 1], offsets)))[:-1]
        return replace(self, **columns_at(self, np.flatnonzero(offsets > highest)))

    def part(self, start: int, end: int) -> Self:
        """The messages ``[start, end)``, by index; the same object when these are all."""
        if (start, end) == (0, len(self)):
            return self
        return replace(
            self,
            offsets=self.offsets[start:end],
            timestamps_ms=self.timestamps_ms[start:end],
            values=self.values.slice(start, end - start),
            keys=self.keys.slice(start, end - start),
            headers=None if self.headers is None else self.headers.slice(start, end - start),
        )

    def record_at(self, index: int) -> LastRecord | None:
        """A marker's record of the message, if it is the last one; None for a chain of several topics."""
        timestamp_ms = int(self.timestamps_ms[index])
        known = None if timestamp_ms == NO_TIMESTAMP else timestamp_ms
        return LastRecord(int(self.offsets[index]), known, self.leader_epoch)

    def timestamp_bounds_ms(self) -> tuple[int, int] | None:
        """The lowest and the highest record time, or None when no message has one."""
        known = self.timestamps_ms[self.timestamps_ms != NO_TIMESTAMP]
        return (int(known.min()), int(known.max())) if len(known) else None


@dataclass(frozen=True, slots=True)
class Messages:
    """The messages of one or several batches, one batch after the other (rule 2). Never empty of batches."""

    batches: tuple[MessageBatch, ...]
    starts: NDArray[np.int64]
    """For each batch the index of its first message here, and the number of all messages at the end."""
    offsets: NDArray[np.int64]
    timestamps_ms: NDArray[np.int64]
    values: pa.BinaryArray
    keys: pa.BinaryArray
    headers: pa.ListArray | None

    @classmethod
    def from_batches(cls, batches: Sequence[MessageBatch]) -> Messages:
        """The batches together; data that is already contiguous, as read from Kafka, is not copied."""
        starts = np.cumsum([0, *map(len, batches)], dtype=np.int64)
        if len(batches) == 1:
            (only,) = batches
            return cls((only,), starts, only.offsets, only.timestamps_ms, only.values, only.keys, only.headers)
        return cls(
            tuple(batches),
            starts,
            np.concatenate([batch.offsets for batch in batches]),
            np.concatenate([batch.timestamps_ms for batch in batches]),
            concatenated([batch.values for batch in batches]),
            concatenated([batch.keys for batch in batches]),
            headers_of(batches),
        )

    def __len__(self) -> int:
        return len(self.offsets)

    def part(self, start: int, end: int) -> Messages:
        """The messages ``[start, end)``, by index, without batches that have none of them."""
        starts = self.starts.tolist()
        cuts = [
            (batch, max(start - first, 0), min(end, last) - first)
            for batch, first, last in zip(self.batches, starts[:-1], starts[1:], strict=True)
            if first < end and last > start
        ]
        return Messages.from_batches([batch.part(low, high) for batch, low, high in cuts])

    def taken(self, index: NDArray[np.int64]) -> Messages:
        """Some of the messages, by rising indices, each as often as it is named; ``batches`` stay, as their origin."""
        if len(index) == len(self) and bool(np.all(index[1:] > index[:-1])):
            return self
        return replace(self, starts=self.bounds(index), **columns_at(self, index))

    def bounds(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where each batch starts in ``index``, rising indices of messages; and the length of ``index`` at the end."""
        return np.searchsorted(index, self.starts)

    def parted(self, index: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        if len(index) == 0:
            return [index] * len(self.batches)
        return np.split(index, self.bounds(index)[1:-1])

    def topics(self, index: NDArray[np.int64]) -> pa.StringArray:
        """The topics of some messages, given by their rising indices."""
        return self._of_sources(index, pa.array([str(kafka_topic(batch.partition.topic)) for batch in self.batches]))

    def partitions(self, index: NDArray[np.int64]) -> pa.Int32Array:
        """The Kafka partitions of some messages, given by their rising indices."""
        return self._of_sources(index, pa.array([int(batch.partition.partition) for batch in self.batches], pa.int32()))

    def _of_sources(self, index: NDArray[np.int64], names: pa.Array) -> pa.Array:
        if len(names) == 1:
            return pa.repeat(names[0], len(index))
        return names.take(pa.array(np.repeat(np.arange(len(names)), np.diff(self.bounds(index)))))


def texts_of(values: pa.BinaryArray) -> pa.StringArray:
    """The bytes as text; null where they are not UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_text_or_none(value) for value in values.to_pylist()], pa.string())


def _text_or_none(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def columns_at(messages: MessageBatch | Messages, index: Index) -> dict[str, Any]:
    """The columns of some messages, by the names of the fields."""
    indexes = pa.array(index)
    return {
        "offsets": messages.offsets[index],
        "timestamps_ms": messages.timestamps_ms[index],
        "values": messages.values.take(indexes),
        "keys": messages.keys.take(indexes),
        "headers": None if messages.headers is None else messages.headers.take(indexes),
    }


def headers_column(headers: Sequence[Headers | None]) -> pa.ListArray:
    """Headers as a column. Surrogates in keys stand for bytes that are not UTF-8, as in `header_lists`."""
    each = [header for some in headers if some is not None for header in some]
    keys = pa.array([key.encode("utf-8", "surrogateescape") for key, _ in each], pa.binary())
    values = pa.array([value for _, value in each], pa.binary())
    ends = np.cumsum([0, *(0 if some is None else len(some) for some in headers)], dtype=np.int32)
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS.value_type))
    mask = pa.array([some is None for some in headers], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pairs, mask=mask).cast(HEADERS)


def header_lists(column: pa.ListArray) -> list[Headers | None]:
    """Headers as Python's values: the inverse of `headers_column`."""
    return [
        None
        if some is None
        else [(header["key"].decode("utf-8", "surrogateescape"), header["value"]) for header in some]
        for some in column.to_pylist()
    ]


def headers_of(batches: Sequence[MessageBatch]) -> pa.ListArray | None:
    """The headers of batches, one after the other; None where they were not read for any."""
    if all(batch.headers is None for batch in batches):
        return None
    return pa.concat_arrays(
        [pa.nulls(len(batch), HEADERS) if batch.headers is None else batch.headers for batch in batches]
    )


def concatenated(columns: Sequence[pa.BinaryArray]) -> pa.BinaryArray:
    """Columns one after the other; ``large_binary`` where they exceed 2 GiB."""
    if _are_in_a_row(columns):
        first, length = columns[0], sum(map(len, columns))
        return type(first).from_buffers(first.type, length, first.buffers(), offset=first.offset)
    # Arrow's 32-bit offsets end at 2 GiB, also over all of them together.
    if len({column.type for column in columns}) > 1 or sum(column.nbytes for column in columns) >= 2**31 - 1:
        columns = [column.cast(pa.large_binary()) for column in columns]
    return pa.concat_arrays(columns)


def _are_in_a_row(columns: Sequence[pa.BinaryArray]) -> bool:
    """Whether they are slices of one column, each right after the previous one."""
    end = _place(columns[0], columns[0].offset)
    for column in columns:
        if _place(column, column.offset) != end:
            return False
        end = _place(column, column.offset + len(column))
    return True


def _place(column: pa.BinaryArray, index: int) -> tuple[object, ...]:
    buffers = [None if buffer is None else (buffer.address, buffer.size) for buffer in column.buffers()]
    return (column.type, index, *buffers)


BLOCK_BYTES = 16 << 20
_BLOCK_MESSAGES = 65_536


def blocks(
    array: pa.BinaryArray | pa.LargeBinaryArray, block_bytes: int = BLOCK_BYTES
) -> Iterator[tuple[int, pa.BinaryArray]]:
    """The array's messages in blocks of bounded size, without copying: the first one's index, and the block."""
    width = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    _, offsets_buffer, data = array.buffers()
    offsets = np.frombuffer(offsets_buffer, width)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    start = 0
    while start < len(array):
        fitting = int(np.searchsorted(offsets, offsets[start] + block_bytes, side="right")) - 1
        end = min(max(fitting, start + 1), start + _BLOCK_MESSAGES, len(array))
        relative = (offsets[start : end + 1] - offsets[start]).astype(np.int32)
        data_of_block = pa.py_buffer(b"") if data is None else data.slice(offsets[start], offsets[end] - offsets[start])
        yield start, pa.Array.from_buffers(pa.binary(), end - start, [None, pa.py_buffer(relative), data_of_block])
        start = end


def in_order(parts: Sequence[tuple[Index, Several]]) -> tuple[Index, Several]:
    """Rows of several parts, each with the messages of its rows, in the order of all messages.

    Rows of one message are in the order of the parts. Needs at least one part.
    """
    filled = [part for part in parts if len(part[0])] or parts[:1]
    if len(filled) == 1:
        return filled[0]
    index = np.concatenate([index for index, _ in filled])
    order = np.argsort(index, kind="stable")
    rows = [rows for _, rows in filled]
    together = pa.concat_tables(rows) if isinstance(rows[0], pa.Table) else pa.concat_arrays(rows)
    return index[order], together.take(pa.array(order))


def in_place(parts: Sequence[pa.Array], indexes: Sequence[NDArray[np.int64]], count: int) -> pa.Array:
    """``count`` values: each part's values in its places, and null in the others. Needs at least one part."""
    filled = [part for part in parts if len(part)] or parts[:1]
    values = filled[0] if len(filled) == 1 else pa.concat_arrays(filled)
    index = np.concatenate(indexes)
    if len(index) == count and (np.diff(index) > 0).all():
        return values
    order = np.full(count, -1)
    order[index] = np.arange(len(index))
    return values.take(pa.array(order, mask=order < 0))
