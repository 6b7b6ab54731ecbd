"""A buffer: what one Kafka partition has gathered since its last flush, on its way to Parquet.

Rules:

1. Its span begins where the chain ends and covers every position up to the last message taken in, holes included.
2. Rows wait as Arrow until a row group is full, then they are encoded; so the size in Parquet is known for the most
   part, and estimated for the rest from what was encoded so far.
3. `Buffer.encode` and `Buffer.finish` do the heavy work, hold no lock, and touch nothing but the buffer: they may run
   in a thread of their own, as long as nobody else uses this buffer meanwhile.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stage_writer.core.encodings import choose_encodings
from stage_writer.core.partitioning import Values, split
from stage_writer.core.statistics import Path, delta_statistics, floating_point_paths

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from common.markers import TableKind
    from common.spans import Position

ROW_GROUP_BYTES = 64 * 2**20
"""Arrow bytes after which waiting rows are encoded."""
_FIRST_GUESS = 0.25
"""Parquet bytes for each Arrow byte, until something was encoded."""


@dataclass(frozen=True, slots=True)
class EncodedFile:
    """A whole Parquet file in memory."""

    values: Values
    """Its rows' partition values, as Delta serialises them."""
    data: pa.Buffer
    rows: int
    statistics: str


@dataclass(frozen=True, slots=True)
class TableFormat:
    """How one table of a stream is written."""

    url: str
    kind: TableKind
    schema: str
    """Spark's JSON, partition columns included."""
    arrow_schema: pa.Schema
    """The rows' columns, partition columns included."""
    partition_by: tuple[str, ...]


class _OpenFile:
    """One Parquet file that grows in memory."""

    def __init__(self, schema: pa.Schema, first: pa.Table) -> None:
        self._schema = schema
        self._sink = pa.BufferOutputStream()
        encodings = choose_encodings(first)
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression="snappy",
            use_dictionary=list(encodings.with_dictionary),
            column_encoding=dict.fromkeys(encodings.by_difference, "DELTA_BINARY_PACKED"),
            store_schema=False,
            store_decimal_as_integer=True,
        )
        self._may_hold_nan = floating_point_paths(schema)
        self._with_nan: set[Path] = set()
        self.rows = 0

    @property
    def size_bytes(self) -> int:
        return int(self._sink.tell())

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        self.rows += rows.num_rows
        for path in self._may_hold_nan:
            if path not in self._with_nan and _has_nan(rows, path):
                self._with_nan.add(path)

    def close(self, values: Values) -> EncodedFile:
        self._writer.close()
        data = self._sink.getvalue()
        footer = pq.read_metadata(pa.BufferReader(data))
        return EncodedFile(values, data, self.rows, delta_statistics(footer, self._schema, self._with_nan))


class TableRows:
    """The rows of a buffer for one table."""

    def __init__(self, table: TableFormat) -> None:
        self._table = table
        names = [name for name in table.arrow_schema.names if name not in table.partition_by]
        self._file_schema = pa.schema([table.arrow_schema.field(name) for name in names])
        self._waiting: list[pa.Table] = []
        self._open: dict[Values, _OpenFile] = {}
        self._waiting_bytes = 0
        self._encoded_from_bytes = 0

    @property
    def table(self) -> TableFormat:
        """The table that the rows are for."""
        return self._table

    @property
    def memory_bytes(self) -> int:
        """Arrow that waits, and Parquet that is held."""
        return self._waiting_bytes + self._encoded_bytes

    @property
    def parquet_bytes(self) -> int:
        """The size of the files if they were closed now; an estimate (rule 2)."""
        encoded = self._encoded_bytes
        ratio = encoded / self._encoded_from_bytes if self._encoded_from_bytes else _FIRST_GUESS
        return encoded + int(self._waiting_bytes * ratio)

    def add(self, rows: pa.Table) -> None:
        """Take rows in; their schema is the table's."""
        if rows.num_rows:
            self._waiting.append(rows)
            self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self.encode()

    def encode(self) -> None:
        """Encode what waits: one row group in the file of each partition value."""
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        self._encoded_from_bytes += self._waiting_bytes
        self._waiting, self._waiting_bytes = [], 0
        for values, group in split(rows, self._table.partition_by):
            if values not in self._open:
                self._open[values] = _OpenFile(self._file_schema, group)
            self._open[values].write(group)

    def finish(self) -> tuple[EncodedFile, ...]:
        """Close the files; the object is of no further use."""
        self.encode()
        return tuple(file.close(values) for values, file in self._open.items())

    @property
    def _encoded_bytes(self) -> int:
        return sum(file.size_bytes for file in self._open.values())


@dataclass(slots=True)
class Buffer:
    """Everything gathered for one flush of one Kafka partition."""

    start: Position
    end: Position
    tables: tuple[TableRows, ...]
    first_record_at_s: float | None = None
    """When its first message was taken in, on the monotonic clock; None while it is empty."""
    records: int = 0
    tombstones: int = 0
    filtered: int = 0
    exploded: int = 0
    dead_letters: Counter[str] = field(default_factory=Counter)
    lowest_timestamp_ms: int | None = None
    highest_timestamp_ms: int | None = None
    _routed: dict[str, TableRows] = field(default_factory=dict)
    """Also in ``tables``, from their first rows on."""

    @classmethod
    def begin(cls, start: Position, formats: Sequence[TableFormat]) -> Buffer:
        """An empty buffer whose span begins at ``start``."""
        return cls(start, start, tuple(TableRows(table) for table in formats))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to seal. A span of nothing but tombstones is something."""
        return self.records == 0

    @property
    def memory_bytes(self) -> int:
        """What it holds in memory."""
        return sum(table.memory_bytes for table in self.tables)

    @property
    def parquet_bytes(self) -> int:
        """About what a flush would write."""
        return sum(table.parquet_bytes for table in self.tables)

    def add(self, staged: StagedRows, now_s: float) -> None:
        """Take a converted batch in."""
        if self.first_record_at_s is None:
            self.first_record_at_s = now_s
        self.end = staged.end
        self.records += staged.records
        self.tombstones += staged.tombstones
        self.filtered += staged.filtered
        self.exploded += staged.exploded
        self.dead_letters.update(staged.dead_letters)
        if staged.timestamp_bounds_ms is not None:
            low, high = staged.timestamp_bounds_ms
            self.lowest_timestamp_ms = min(low, low if self.lowest_timestamp_ms is None else self.lowest_timestamp_ms)
            self.highest_timestamp_ms = max(
                high, high if self.highest_timestamp_ms is None else self.highest_timestamp_ms
            )
        for table, rows in zip(self.tables[: len(staged.rows)], staged.rows, strict=True):
            table.add(rows)
        for table_format, rows in staged.routed:
            self._routed_to(table_format).add(rows)

    def _routed_to(self, table: TableFormat) -> TableRows:
        if table.url not in self._routed:
            self._routed[table.url] = TableRows(table)
            self.tables = (*self.tables, self._routed[table.url])
        return self._routed[table.url]


@dataclass(frozen=True, slots=True)
class StagedRows:
    """A converted batch: its rows for each table of the stream, and what became of the other messages."""

    end: Position
    records: int
    tombstones: int
    dead_letters: Mapping[str, int]
    timestamp_bounds_ms: tuple[int, int] | None
    rows: tuple[pa.Table, ...]
    """One for each of the converter's formats, in their order."""
    filtered_offsets: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """The messages that a condition left out. Rising."""
    exploded: int = 0
    """Rows beyond the first one of their message."""
    routed: tuple[tuple[TableFormat, pa.Table], ...] = ()
    """Rows for the tables of the stream's routes, of those that have any."""

    @property
    def filtered(self) -> int:
        """How many messages a condition left out."""
        return len(self.filtered_offsets)


def _has_nan(rows: pa.Table, path: Path) -> bool:
    column = rows.column(path[0])
    if len(path) > 1:
        column = pc.struct_field(column, list(path[1:]))
    return bool(pc.any(pc.is_nan(column)).as_py())
