"""The size of a flush's files compared with ``flush_bytes``: ``python -m benchmarks.file_sizes``.

A buffer decides by the size that its files would have if they were closed now: the encoded part is known, the rest is
estimated (stage_writer/parquet/buffer.py, rule 2). Here each kind of record is buffered as the writer does, and flushed
when that size reaches the target, with the proportions of the default settings at an eighth of the size. The first
flush knows nothing of its records; the later flushes know the previous flush's ratio.
"""

import sys
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from benchmarks.messages import KINDS, Kind
from common.settings import Settings
from common.spans import Partition, Position, Topic, TopicPartition
from stage_writer.convert import StreamConverter
from stage_writer.decode.batch import MessageBatch
from stage_writer.parquet.buffer import INITIAL_RATIO, Buffer, FilePolicy

_MIB = 2**20
_TARGET_BYTES = 16 * _MIB
_FILE_POLICY = FilePolicy(row_group_bytes=4 * _MIB)
_FLUSHES = 3
_BATCH = 5_000
_PARTITION = TopicPartition(Topic("records"), Partition(0))


def _converter(kind: Kind) -> StreamConverter:
    stream = {
        "app_id": "records",
        "topics": ["records"],
        "table": "/tables/records",
        "columns": kind.columns,
        "derive": {"date": kind.date},
        "partition_by": ["date"],
    }
    content = {"kafka": {"bootstrap.servers": "nowhere:1"}, "stage": {"url": "/stage"}, "streams": [stream]}
    return StreamConverter(Settings.model_validate(content).streams[0])


def _batches(kind: Kind) -> Iterator[MessageBatch]:
    first = 0
    while True:
        offsets = np.arange(first, first + _BATCH)
        values = pa.array([kind.make(number) for number in offsets.tolist()], pa.binary())
        yield MessageBatch(
            _PARTITION, offsets, 1_600_000_000_000 + offsets, values, pa.nulls(_BATCH, pa.binary()), None
        )
        first += _BATCH


def flushes(kind: Kind) -> Iterator[tuple[int, int, int]]:
    """For each flush: its records, and the estimated and the actual size of its files in bytes."""
    converter, ratio, batches = _converter(kind), INITIAL_RATIO, _batches(kind)
    for _ in range(_FLUSHES):
        buffer = Buffer.begin(Position(0), converter.formats, _FILE_POLICY, ratio)
        while buffer.parquet_bytes < _TARGET_BYTES:
            for slice_of_rows in converter.slices([next(batches)]):
                for _, staged in slice_of_rows:
                    buffer.add(staged, 0.0)
        estimated, arrow = buffer.parquet_bytes, buffer.arrow_bytes
        size = sum(file.data.size_bytes for table in buffer.tables for file in table.finish())
        ratio = size / arrow
        yield buffer.records, estimated, size


def main() -> None:
    for kind in KINDS.values():
        for index, (records, estimated, size) in enumerate(flushes(kind)):
            sys.stdout.write(
                f"{kind.name:8} flush {index + 1}: {records:>9,} records, target {_TARGET_BYTES / _MIB:.1f} MiB, "
                f"estimated {estimated / _MIB:.2f}, files {size / _MIB:.2f} MiB ({size / _TARGET_BYTES:.1%})\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
