"""A buffer: the rows of one Kafka partition since its last flush, on their way to Parquet.

Rules:

1. Its span starts where the chain ends and covers every position up to the last message added, gaps included.
2. Rows wait as Arrow until a row group is full, then they are encoded; so the size in Parquet is mostly known, and
   estimated for the rest from what was encoded so far, or from the last flush if nothing was.
3. `Buffer.encode` and `Buffer.finish` do the heavy work, hold no lock, and touch only the buffer: they may run in a
   thread of their own, as long as no other thread uses this buffer meanwhile.
4. A file for each partition value, up to a number of values, and in all tables together as many as one marker may name
   (`FileBudget`). Rows that would exceed it go, complete and in offset order, to one file that includes the partition
   columns, for Spark to cluster: thousands of tiny files would cost memory here, and time for every reader later.
5. Memory is counted as used: many small pieces cost many times their bytes, so they are joined as they arrive, and the
   overhead of a piece or an open file is counted too.
6. Rows have exactly their table's columns, which is checked when they are added. A buffer keeps its columns; those that
   a stream gains come with a new one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from common.schema import StructType
from common.schema.evolution import MOST_OFFERED, NO_COLUMNS, joined_within
from common.spans import Position
from common.stage.data_files import CODECS
from common.stage.markers import LastRecord, TableKind
from common.storage.chunks import ByteChunks
from common.tables.changes import IdentityColumns, MergeBy
from stage_writer.decode.batch import MessageBatch
from stage_writer.decode.unknown.census import FieldCensus
from stage_writer.parquet.encodings import all_leaves, choose_encodings
from stage_writer.parquet.partitioning import Groups, Values
from stage_writer.parquet.statistics import Path, delta_statistics, floating_point_paths

INITIAL_RATIO = 0.25
"""Parquet bytes per Arrow byte, until something was encoded."""
_JOINED_PIECES = 8
"""This many pieces of similar size are joined into one."""
_PIECE_COLUMN_BYTES = 1024
"""A column's overhead per piece, in addition to its bytes; measured."""
_LARGE_PIECE_BYTES = 4 * 2**20
"""Larger pieces are not copied to be joined; few of them fill a row group."""
_FILE_COLUMN_BYTES = 6 * 1024
"""The memory of a column of an open Parquet file; measured."""


@dataclass(frozen=True, slots=True)
class FilePolicy:
    """How rows are distributed over files."""

    row_group_bytes: int = 64 * 2**20
    """Arrow bytes after which waiting rows are encoded."""
    max_values: int = 100
    """The most partition values with a file of their own in one flush (rule 4)."""
    codec: str = CODECS[0]


MOST_FILES = 10_000
_MOST_VALUE_BYTES = 16 * 2**20


@dataclass(slots=True)
class FileBudget:
    """How many more files with partition values of their own one flush may start.

    All of them are named in one marker, whose size is limited (common/stage/stored.py, rule 3), and whose text may take
    six bytes for one byte of a value.
    """

    files: int = MOST_FILES
    value_bytes: int = _MOST_VALUE_BYTES // 6

    def has_room(self, files: Collection[Values]) -> bool:
        """Whether there is room for these; if so, reserves it."""
        value_bytes = sum(len(value.encode()) for values in files for value in values if value)
        if len(files) > self.files or value_bytes > self.value_bytes:
            return False
        self.files, self.value_bytes = self.files - len(files), self.value_bytes - value_bytes
        return True


@dataclass(frozen=True, slots=True)
class EncodedFile:
    values: Values | None
    """Its rows' partition values, as Delta serializes them; None when they differ, and are in the file (rule 4)."""
    data: ByteChunks
    rows: int
    statistics: str
    codec: str = CODECS[0]


@dataclass(frozen=True, slots=True)
class TableFormat:
    url: str
    kind: TableKind
    schema: str
    """Spark's JSON, partition columns included."""
    arrow_schema: pa.Schema
    """The rows' columns, partition columns included."""
    partition_by: tuple[str, ...]
    waits: bool = False
    """Whether its files wait for Spark below the stage: all rows in one file, regardless of their partition values."""
    merge: MergeBy | None = None
    """How its rows change the table's; they have columns for that (changes.py). None to append."""
    place: IdentityColumns | None = None
    """Columns of its rows that the table does not have (common/tables/changes.py)."""
    settings: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The keys of the settings that make columns which no field of a record is, by the columns' names in lower case."""


class _Sink:
    """The memory that a Parquet file is written to: in pieces, so growing copies nothing."""

    closed = False

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.size_bytes = 0

    def write(self, data: bytes | pa.Buffer) -> int:
        self.pieces.append(bytes(data))
        self.size_bytes += len(data)
        return len(data)

    def tell(self) -> int:
        return self.size_bytes

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        """Nothing to release."""


class _OpenFile:
    def __init__(self, schema: pa.Schema, first: pa.Table, codec: str) -> None:
        self._schema = schema
        self._codec = codec
        self._sink = _Sink()
        encodings = choose_encodings(first)
        long = encodings.without_statistics
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression=codec,
            write_statistics=[path for path in all_leaves(first) if path not in long] if long else True,
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
        return self._sink.size_bytes

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        self.rows += rows.num_rows
        for path in self._may_hold_nan:
            if path not in self._with_nan and _has_nan(rows, path):
                self._with_nan.add(path)

    def close(self, values: Values | None) -> EncodedFile:
        self._writer.close()
        footer = self._writer.writer.metadata
        statistics = delta_statistics(footer, self._schema, self._with_nan)
        return EncodedFile(values, ByteChunks(self._sink.pieces), self.rows, statistics, self._codec)


class _Waiting:
    """Rows that wait as Arrow, in order of arrival (rule 5)."""

    def __init__(self, columns: int) -> None:
        self._chunk_bytes = columns * _PIECE_COLUMN_BYTES
        self._levels: list[list[pa.Table]] = []
        """Pieces by size, the largest and oldest last; each level in order."""
        self.rows_bytes = 0
        self._pieces = 0

    @property
    def memory_bytes(self) -> int:
        return self.rows_bytes + self._pieces * self._chunk_bytes

    def add(self, rows: pa.Table) -> None:
        self.rows_bytes += rows.nbytes
        self._pieces += 1
        level = 0
        while True:
            if level == len(self._levels):
                self._levels.append([])
            chunks = self._levels[level]
            chunks.append(rows)
            if len(chunks) < _JOINED_PIECES:
                return
            rows = pa.concat_tables(chunks)
            if rows.nbytes <= _LARGE_PIECE_BYTES:
                rows = rows.combine_chunks()
                self._pieces -= len(chunks) - 1
            chunks.clear()
            level += 1

    def take(self) -> pa.Table | None:
        chunks = [chunk for level in reversed(self._levels) for chunk in level]
        self._levels, self.rows_bytes, self._pieces = [], 0, 0
        return pa.concat_tables(chunks) if chunks else None


class TableRows:
    def __init__(
        self,
        table: TableFormat,
        file_policy: FilePolicy = FilePolicy(),
        guess: float = INITIAL_RATIO,
        budget: FileBudget | None = None,
    ) -> None:
        """``guess`` is the expected number of Parquet bytes per Arrow byte, until something was encoded.

        ``budget`` is shared by all tables of the flush.
        """
        self._budget = FileBudget() if budget is None else budget
        self.table = table
        self._file_policy = file_policy
        self._compression_ratio = guess
        self._file_schema = table.arrow_schema
        if table.partition_by:
            self._file_schema = pa.schema(
                [column for column in table.arrow_schema if column.name not in table.partition_by]
            )
        self._columns = leaves(table.arrow_schema)
        self._waiting = _Waiting(self._columns)
        self._open: dict[Values, _OpenFile] = {}
        self._mixed: _OpenFile | None = None
        self._encoded_bytes = 0
        self._encoded_from_bytes = 0

    @property
    def arrow_bytes(self) -> int:
        """The size of everything added."""
        return self._waiting.rows_bytes + self._encoded_from_bytes

    @property
    def memory_bytes(self) -> int:
        """Waiting Arrow, and Parquet in memory."""
        files = len(self._open) + (self._mixed is not None)
        return self._waiting.memory_bytes + self._encoded_bytes + files * self._columns * _FILE_COLUMN_BYTES

    @property
    def parquet_bytes(self) -> int:
        """The size of the files if they were closed now; an estimate (rule 2)."""
        encoded = self._encoded_bytes
        ratio = encoded / self._encoded_from_bytes if self._encoded_from_bytes else self._compression_ratio
        return encoded + int(self._waiting.rows_bytes * ratio)

    def add(self, rows: pa.Table) -> None:
        """Add rows. Raises ValueError when their schema is not the table's: a file would be incomplete (rule 6)."""
        if not rows.schema.equals(self.table.arrow_schema):
            given, wanted = (
                {f"{column.name}: {column.type}" for column in schema}
                for schema in (rows.schema, self.table.arrow_schema)
            )
            msg = f"rows for {self.table.url} have other columns than their buffer: {', '.join(sorted(given ^ wanted))}"
            raise ValueError(msg)
        if rows.num_rows:
            self._waiting.add(rows)
        if self._waiting.rows_bytes >= self._file_policy.row_group_bytes:
            self.encode()

    def encode(self) -> None:
        """Encode what waits: one row group in the file of each partition value, or in the common file."""
        waiting_bytes = self._waiting.rows_bytes
        rows = self._waiting.take()
        if rows is None:
            return
        self._encoded_from_bytes += waiting_bytes
        is_mixed = self.table.waits or self._mixed is not None
        groups = None if is_mixed else Groups.from_rows(rows, self.table.partition_by)
        if groups is None or not self._may_open(groups.values):
            self._mixed = self._mixed or _OpenFile(self.table.arrow_schema, rows, self._file_policy.codec)
            self._mixed.write(rows)
        else:
            for values, group in groups.split(rows):
                if values not in self._open:
                    self._open[values] = _OpenFile(self._file_schema, group, self._file_policy.codec)
                self._open[values].write(group)
        files = [*self._open.values(), *([self._mixed] if self._mixed else [])]
        self._encoded_bytes = sum(file.size_bytes for file in files)

    def _may_open(self, values: Collection[Values]) -> bool:
        """Whether there is a file for each of these, or room for one (rule 4)."""
        fresh = [value for value in values if value not in self._open]
        return len(self._open) + len(fresh) <= self._file_policy.max_values and self._budget.has_room(fresh)

    def finish(self) -> tuple[EncodedFile, ...]:
        """Close the files; the object must not be used after that."""
        self.encode()
        files = [self._open[values].close(values) for values in self._open]
        if self._mixed is not None:
            files.append(self._mixed.close(None))
        self._open, self._mixed = {}, None
        return tuple(files)


@dataclass(slots=True)
class Buffer:
    """Everything collected for one flush of one Kafka partition."""

    start: Position
    end: Position
    tables: tuple[TableRows, ...]
    first_record_at_s: float | None = None
    """When its first message was added, on the monotonic clock; None while it is empty."""
    records: int = 0
    tombstones: int = 0
    filtered: int = 0
    exploded: int = 0
    dead_letters: Counter[str] = field(default_factory=Counter)
    violations: Counter[str] = field(default_factory=Counter)
    """Records by the rule of `expect` that they break."""
    lowest_timestamp_ms: int | None = None
    highest_timestamp_ms: int | None = None
    last_record: LastRecord | None = None
    offered: StructType = NO_COLUMNS
    """The columns that the table could gain."""
    sample: FieldCensus | None = None
    """The fields of some of its records; None where none were sampled."""
    outgoing: list[pa.Table] = field(default_factory=list)
    """Records for Kafka topics (stage_writer/outbox/records.py)."""
    _routed: dict[str, TableRows] = field(default_factory=dict)
    """Also in ``tables``, from their first rows on."""
    _file_policy: FilePolicy = FilePolicy()
    _compression_ratio: float = INITIAL_RATIO
    _budget: FileBudget = field(default_factory=FileBudget)

    @classmethod
    def begin(
        cls,
        start: Position,
        formats: Sequence[TableFormat],
        file_policy: FilePolicy = FilePolicy(),
        guess: float = INITIAL_RATIO,
    ) -> Buffer:
        """An empty buffer whose span starts at ``start``; ``guess`` as in `TableRows`."""
        budget = FileBudget()
        tables = tuple(TableRows(table, file_policy, guess, budget) for table in formats)
        return cls(start, start, tables, _file_policy=file_policy, _compression_ratio=guess, _budget=budget)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to seal. A span of only tombstones is not empty."""
        return self.records == 0

    @property
    def memory_bytes(self) -> int:
        outgoing_bytes: int = sum(some.nbytes for some in self.outgoing)
        return sum(table.memory_bytes for table in self.tables) + outgoing_bytes

    @property
    def arrow_bytes(self) -> int:
        return sum(table.arrow_bytes for table in self.tables)

    @property
    def parquet_bytes(self) -> int:
        """The approximate size of what a flush would write."""
        return sum(table.parquet_bytes for table in self.tables)

    def add(self, staged: StagedRows, now_s: float) -> None:
        if self.first_record_at_s is None:
            self.first_record_at_s = now_s
        self.end = staged.end
        if staged.outgoing is not None:
            self.outgoing.append(staged.outgoing)
        self.records += staged.records
        self.tombstones += staged.tombstones
        self.filtered += staged.filtered
        self.exploded += staged.exploded
        for error_class, count in staged.dead_letters.items():
            self.dead_letters[error_class] += count
        for rule, count in staged.violations.items():
            self.violations[rule] += count
        if staged.offered.fields:
            self.offered = joined_within(self.offered, staged.offered, MOST_OFFERED)
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

    def add_sample(self, census: FieldCensus | None) -> None:
        """Add the fields of some of a batch's records; the argument belongs to the buffer from now on."""
        if self.sample is None:
            self.sample = census
        elif census is not None:
            self.sample.add_all(census)

    def _routed_to(self, table: TableFormat) -> TableRows:
        if table.url not in self._routed:
            self._routed[table.url] = TableRows(table, self._file_policy, self._compression_ratio, self._budget)
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
    offered: StructType = NO_COLUMNS
    """The columns that the stream's table could gain, from the rows' rescue column."""
    filtered_offsets: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """The messages that a condition filtered. Rising."""
    exploded: int = 0
    """Rows beyond the first one of their message."""
    routed: tuple[tuple[TableFormat, pa.Table], ...] = ()
    """Rows for the tables of the stream's routes, of those that have any."""
    outgoing: pa.Table | None = None
    """Records for Kafka topics."""
    violations: Mapping[str, int] = field(default_factory=dict)
    """Records by the rule of `expect` that they break."""
    stop: str | None = None
    """Why the partition is to be held at ``end``. Then there is nothing else: no rows, and no message is covered."""

    @property
    def is_segment(self) -> bool:
        """Whether these are rows of a record with more to follow: then nothing else about it is recorded yet."""
        return self.records == 0 and self.stop is None

    @classmethod
    def stopped(cls, position: Position, stop: str) -> StagedRows:
        """The end of a partition's rows in front of a message that may not be staged."""
        return cls(position, 0, 0, {}, None, (), stop=stop)

    def as_segment(self, batch: MessageBatch) -> StagedRows:
        """Rows of the only message of ``batch``, with more to follow."""
        first = Position(int(batch.offsets[0]))
        rows = sum(len(rows) for rows in (self.rows[0], *(rows for _, rows in self.routed)))
        return StagedRows(first, 0, 0, {}, None, self.rows, exploded=rows, routed=self.routed, offered=self.offered)

    @property
    def filtered(self) -> int:
        """How many messages a condition filtered."""
        return len(self.filtered_offsets)


def leaves(schema: pa.Schema) -> int:
    """The number of leaf columns in a file."""
    return sum(_leaves_of(field.type) for field in schema)


def _leaves_of(arrow_type: pa.DataType) -> int:
    if arrow_type.num_fields == 0:
        return 1
    return 1 + sum(_leaves_of(arrow_type.field(index).type) for index in range(arrow_type.num_fields))


def _has_nan(rows: pa.Table, path: Path) -> bool:
    column = rows.column(path[0])
    if len(path) > 1:
        column = pc.struct_field(column, list(path[1:]))
    return bool(pc.any(pc.is_nan(column)).as_py())
