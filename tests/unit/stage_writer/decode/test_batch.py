"""Concatenated batches: the same columns, with or without a copy."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from common.spans import Partition, Topic, TopicPartition
from stage_writer.decode.batch import MessageBatch, Messages

SOURCE = TopicPartition(Topic("orders"), Partition(0))
VALUES = pa.array([b"a", None, b"", b"ccc", b"dddd", None, b"e"], pa.binary())
KEYS = pa.array([None, b"k", b"", None, b"l", b"m", b"n"], pa.binary())


def taken(first: int = 0) -> MessageBatch:
    offsets = np.arange(first, first + len(VALUES))
    return MessageBatch(SOURCE, offsets, offsets * 10, VALUES, KEYS, None)


@pytest.mark.parametrize(
    "cuts",
    [
        [(0, 3), (3, 7)],
        [(1, 2), (2, 4), (4, 6)],
        [(0, 0), (0, 2), (2, 2), (2, 5)],
        [(0, 2), (3, 7)],
        [(3, 7), (0, 3)],
        [(0, 4), (2, 7)],
        [(2, 3), (2, 3)],
    ],
)
def test_concatenated_slices_keep_their_values(cuts: list[tuple[int, int]]) -> None:
    whole = taken()
    messages = Messages.from_batches([whole.part(start, end) for start, end in cuts])
    assert messages.values.to_pylist() == [value for start, end in cuts for value in VALUES.to_pylist()[start:end]]
    assert messages.keys.to_pylist() == [key for start, end in cuts for key in KEYS.to_pylist()[start:end]]
    messages.values.validate(full=True)
    messages.keys.validate(full=True)


def test_adjacent_slices_are_not_copied() -> None:
    whole = taken()
    before = pa.total_allocated_bytes()
    messages = Messages.from_batches([whole.part(1, 3), whole.part(3, 6)])
    assert pa.total_allocated_bytes() == before
    assert [b and b.address for b in messages.values.buffers()] == [b and b.address for b in VALUES.buffers()]


def test_slices_of_different_columns_are_copied() -> None:
    first, other = taken(), replace(taken(7), values=pa.array([b"z"] * 7, pa.binary()))
    messages = Messages.from_batches([first.part(0, 3), other.part(3, 7)])
    assert messages.values.to_pylist() == [b"a", None, b"", *[b"z"] * 4]
