"""Messages of several topics in one order: a batch of a merged chain.

Rules:

1. To the writer it is a batch like any other: its ``offsets`` are the chain's (the sum of the inputs' positions after a
   message, less one), and rise with each message. They are not offsets in Kafka: rows and dead letters get those from
   `MergedBatch.by_input`.
2. Its end has each input's position, even if it is split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from common.spans import Position, TopicPartition
from common.stage.markers import LastRecord
from common.stage.merged import InputEnd, merged_position
from stage_writer.decode.batch import MessageBatch, columns_at, concatenated, headers_of


@dataclass(frozen=True, slots=True)
class InputMessages:
    batch: MessageBatch
    """As in Kafka: its partition and its offsets are the input's."""
    index: NDArray[np.int64]
    """Their indices in the merged batch; rising."""


@dataclass(frozen=True, slots=True)
class MergedBatch(MessageBatch):
    """Messages of one merged chain, in their merged order."""

    inputs: tuple[TopicPartition, ...]
    input_of: NDArray[np.int64]
    """For each message the index of its input."""
    input_offsets: NDArray[np.int64]
    """For each message its offset in Kafka."""
    before: tuple[Position, ...]
    """Each input's position before the first message."""

    @property
    def end(self) -> Position:
        return merged_position(map(InputEnd, self.inputs, self._places(len(self))))

    def record_at(self, index: int) -> LastRecord | None:
        """None: its offsets are not a record's."""
        del index
        return None

    def after(self, position: Position) -> MergedBatch:
        """The messages from a position of the chain on; the same object when that is all of them."""
        return self.part(int(np.searchsorted(self.offsets, position)), len(self))

    def part(self, start: int, end: int) -> Self:
        if (start, end) == (0, len(self)):
            return self
        return replace(
            MessageBatch.part(self, start, end),
            input_of=self.input_of[start:end],
            input_offsets=self.input_offsets[start:end],
            before=self._places(start),
        )

    def by_input(self) -> list[InputMessages]:
        """The messages by input, without inputs that have none."""
        inputs = []
        for number, partition in enumerate(self.inputs):
            index = np.flatnonzero(self.input_of == number)
            if len(index):
                inputs.append(InputMessages(self._of_input(partition, index), index))
        return inputs

    def _of_input(self, partition: TopicPartition, index: NDArray[np.int64]) -> MessageBatch:
        return MessageBatch(partition, **{**columns_at(self, index), "offsets": self.input_offsets[index]})

    def _places(self, count: int) -> tuple[Position, ...]:
        """Each input's position after the given number of messages."""
        positions = []
        for number, before in enumerate(self.before):
            own_rows = np.flatnonzero(self.input_of[:count] == number)
            positions.append(Position(int(self.input_offsets[own_rows[-1]]) + 1) if len(own_rows) else before)
        return tuple(positions)


def merged_batch(
    chain: TopicPartition,
    inputs: Sequence[TopicPartition],
    before: Sequence[Position],
    parts: Sequence[tuple[int, MessageBatch]],
    order: NDArray[np.int64],
) -> MergedBatch:
    """Messages of inputs, given by their index, one batch after the other; ``order`` is their merged order."""
    input_of = np.concatenate([np.full(len(batch), number, np.int64) for number, batch in parts])[order]
    own = np.concatenate([batch.offsets for _, batch in parts])[order]
    headers = headers_of([batch for _, batch in parts])
    order_of_rows = pa.array(order)
    return MergedBatch(
        chain,
        _chain_offsets(input_of, own, before),
        np.concatenate([batch.timestamps_ms for _, batch in parts])[order],
        concatenated([batch.values for _, batch in parts]).take(order_of_rows),
        concatenated([batch.keys for _, batch in parts]).take(order_of_rows),
        None if headers is None else headers.take(order_of_rows),
        tuple(inputs),
        input_of,
        own,
        tuple(before),
    )


def _chain_offsets(
    input_of: NDArray[np.int64], own: NDArray[np.int64], before: Sequence[Position]
) -> NDArray[np.int64]:
    """Each message advances the chain by as much as it advances its input."""
    steps = np.zeros(len(own), np.int64)
    for number, first in enumerate(before):
        own_rows = np.flatnonzero(input_of == number)
        steps[own_rows] = np.diff(own[own_rows] + 1, prepend=int(first))
    return np.cumsum(steps) + (sum(before) - 1)
