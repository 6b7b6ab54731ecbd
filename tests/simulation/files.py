"""The data files of simulated stages: rows in Arrow's own format, which takes a twentieth of Parquet's time for a few.

Markers are the same: the real code makes a file's statistics, from columns instead of a footer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from common.storage.chunks import ByteChunks
from stage_writer.parquet.buffer import EncodedFile
from stage_writer.parquet.partitioning import Values
from stage_writer.parquet.statistics import delta_statistics

_PARQUET = b"PAR1"


def rows_in(data: bytes) -> pa.Table:
    """The rows of a data file, also of one that was made outside of the simulation."""
    if data.startswith(_PARQUET):
        return pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    return pa.ipc.open_stream(data).read_all()


class SimulatedFile:
    """In place of the open Parquet file of a buffer."""

    def __init__(self, schema: pa.Schema, first: pa.Table, codec: str) -> None:
        del first
        self._schema = schema
        self._codec = codec
        self._sink = pa.BufferOutputStream()
        self._writer = pa.ipc.new_stream(self._sink, schema)
        self._parts: list[pa.Table] = []
        self.rows = 0

    @property
    def size_bytes(self) -> int:
        return int(self._sink.tell())

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows)
        self._parts.append(rows)
        self.rows += rows.num_rows

    def close(self, values: Values | None) -> EncodedFile:
        self._writer.close()
        footer = cast("pq.FileMetaData", Footer(pa.concat_tables(self._parts)))
        statistics = delta_statistics(footer, self._schema, ())
        data = ByteChunks([self._sink.getvalue().to_pybytes()])
        return EncodedFile(values, data, self.rows, statistics, self._codec)


class Footer:
    """The source of statistics: a `pyarrow.parquet.FileMetaData` of one row group, and that row group."""

    num_row_groups = 1

    def __init__(self, rows: pa.Table) -> None:
        self.num_rows = rows.num_rows
        self._leaves = [leaf for column in rows.columns for leaf in _leaves(_joined(column))]

    def row_group(self, _group: int) -> Footer:
        return self

    def column(self, index: int) -> ColumnStatistics:
        return ColumnStatistics(self._leaves[index])


@dataclass
class ColumnStatistics:
    """Of one column: a `pyarrow.parquet.ColumnChunkMetaData`, and its statistics."""

    values: pa.Array
    is_stats_set = has_null_count = True

    @property
    def statistics(self) -> ColumnStatistics:
        return self

    @property
    def null_count(self) -> int:
        return int(self.values.null_count)

    @property
    def num_values(self) -> int:
        return len(self.values) - self.null_count

    @property
    def has_min_max(self) -> bool:
        return self.num_values > 0

    @property
    def min(self) -> object:
        return self._as_stored(min(self._known))

    @property
    def max(self) -> object:
        return self._as_stored(max(self._known))

    @cached_property
    def _known(self) -> list[Any]:
        kind = self.values.type
        values = self.values.view(pa.int64()) if pa.types.is_timestamp(kind) else self.values
        return [value for value in values.to_pylist() if value is not None]

    def _as_stored(self, value: object) -> object:
        kind = self.values.type
        if not pa.types.is_timestamp(kind):
            return value
        return datetime.fromtimestamp(0, None if kind.tz is None else UTC) + timedelta(microseconds=cast("int", value))


def _joined(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _leaves(column: pa.Array) -> Iterator[pa.Array]:
    """The leaf columns of a column, as in Parquet."""
    if pa.types.is_struct(column.type):
        for part in column.flatten():
            yield from _leaves(part)
    elif pa.types.is_map(column.type):
        yield from _leaves(column.keys)
        yield from _leaves(column.items)
    elif pa.types.is_list(column.type):
        yield from _leaves(column.flatten())
    else:
        yield column
