"""Offsets increase strictly, no matter what librdkafka delivers."""

import numpy as np
import pyarrow as pa
import pytest

from common.spans import Partition, Position, Topic, TopicPartition
from stage_writer.decode.batch import NO_TIMESTAMP, MessageBatch, header_lists, headers_column


def batch(offsets: list[int]) -> MessageBatch:
    return MessageBatch(
        TopicPartition(Topic("orders"), Partition(0)),
        np.array(offsets, np.int64),
        np.array([offset * 10 for offset in offsets], np.int64),
        pa.array([b"v%d" % offset for offset in offsets], pa.binary()),
        pa.array([b"k%d" % offset for offset in offsets], pa.binary()),
        headers_column([[("h", b"%d" % offset)] for offset in offsets]),
    )


@pytest.mark.parametrize(
    ("offsets", "position", "kept"),
    [
        ([5, 6, 9], 5, [5, 6, 9]),
        ([5, 6, 9], 6, [6, 9]),
        ([5, 6, 9], 10, []),
        ([5, 5, 6], 0, [5, 6]),
        ([5, 6, 5, 6, 7], 0, [5, 6, 7]),
        ([7, 5, 6, 8], 0, [7, 8]),
        ([], 0, []),
    ],
)
def test_only_strictly_increasing_offsets_are_kept(offsets: list[int], position: int, kept: list[int]) -> None:
    fresh = batch(offsets).after(Position(position))
    assert fresh.offsets.tolist() == kept
    assert fresh.values.to_pylist() == [b"v%d" % offset for offset in kept]
    assert fresh.keys.to_pylist() == [b"k%d" % offset for offset in kept]
    assert fresh.timestamps_ms.tolist() == [offset * 10 for offset in kept]
    assert fresh.headers is not None
    assert header_lists(fresh.headers) == [[("h", b"%d" % offset)] for offset in kept]


def test_batch_in_order_is_not_copied() -> None:
    given = batch([1, 2, 3])
    assert given.after(Position(1)) is given


def test_missing_timestamps_are_left_out_of_the_bounds() -> None:
    timed = batch([1, 2])
    timed.timestamps_ms[0] = NO_TIMESTAMP
    assert timed.timestamp_bounds_ms() == (20, 20)
    timed.timestamps_ms[1] = NO_TIMESTAMP
    assert timed.timestamp_bounds_ms() is None
