"""The files and rows of a marker that a table still needs, when it may already have some of the marker's positions.

Rules:

1. A file above the table's position, by its statistics, is added as it is; a file below it is left out. Only a file
   that has both, or has no statistics, goes through Spark, which leaves out the rows below.
2. A mixed file, whose rows have many partition values, always goes through Spark, which splits them. So does every file
   of a table that files may not be added to, and every file whose types are not the table's
   (delta_loader/tables/load_modes/).
3. The statistics of the offset column are exact: an integer is never truncated, and the column always has statistics.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from common.errors import SchemaError
from common.schema import schema_from_json
from common.settings.stream import KAFKA_COLUMNS
from common.spans import Offset, Position, TopicPartition
from common.stage.markers import Marker, StagedFile, StagedTable
from common.tables.changes import DELETE_COLUMN, HISTORY_COLUMNS, IdentityColumns
from delta_loader.plan.plan import TableShape, shape_of
from delta_loader.tables.load_modes.casting import Cast, casts_of, merged_schema

OFFSET_COLUMN = "_kafka_offset"

RecordPosition = tuple[TopicPartition, Offset]


@dataclass(frozen=True, slots=True)
class SparkWrite:
    """Staged files whose rows Spark reads and writes to a table, because they cannot be added as they are."""

    partition: TopicPartition
    """The chain of all their records."""
    root: str | None
    """The URL that the files' paths are relative to; None for the stage's: they are mixed."""
    shape: TableShape
    """The shape that they were written with; the table may have more columns."""
    files: tuple[StagedFile, ...]
    start: Position | None
    """Rows with a lower offset are left out; None keeps all rows."""
    without: tuple[RecordPosition, ...] = ()
    """Rows of these records are left out too, because the table refuses them."""
    topic_id: str | None = None
    """The id of the records' topic, if the broker has one; for a chain of several topics, their ids together."""
    casts: tuple[Cast, ...] = ()
    """Columns whose types are not the table's."""
    identity: IdentityColumns | None = None
    """The columns of the files with each row's record identity, or None."""


@dataclass(frozen=True, slots=True)
class FileSplit:
    added: tuple[StagedFile, ...] = ()
    """Files that are added as they are."""
    written: tuple[SparkWrite, ...] = ()
    """Files with rows that go through Spark."""

    @property
    def files(self) -> tuple[StagedFile, ...]:
        """Every file that has to exist."""
        return (*self.added, *(file for write in self.written for file in write.files))


def split_files_at(
    url: str,
    marker: Marker,
    start: Position,
    *,
    by_spark: bool = False,
    schema: str = "",
    complete_columns: frozenset[str] = frozenset(),
) -> FileSplit:
    """The files and rows that the table at ``url`` needs of a marker when it has all positions below ``start``.

    ``by_spark``: no file is added as it is. ``schema`` is the table's: Spark casts staged types that differ from it.
    ``complete_columns`` are the columns of a table that is merged into that events set, also where a file lacks them.
    """
    if marker.span.end <= start:
        return FileSplit()
    added: list[StagedFile] = []
    written: list[SparkWrite] = []
    for table in marker.tables:
        if table.url != url:
            continue
        whole, cut = _split(table.files, marker, start)
        casts = _casts(table, schema) if schema else ()
        is_read = by_spark or bool(casts)
        added += [file for file in whole if not (file.is_mixed or is_read)]
        spark_writes = [
            *_writes(marker, table, [file for file in whole if file.is_mixed or is_read], None),
            *_writes(marker, table, cut, start),
        ]
        if table.merge is not None and schema:
            read = merged_schema(schema, table.schema, complete_columns)
            spark_writes = [replace(write, shape=replace(write.shape, schema=read)) for write in spark_writes]
        written += [replace(write, casts=casts) for write in spark_writes]
    return FileSplit(tuple(added), tuple(written))


def _casts(table: StagedTable, schema: str) -> tuple[Cast, ...]:
    """The casts of staged rows; of an event that deletes only what says which row, and which event wins, is used."""
    if table.merge is None:
        return casts_of(schema, table.schema)
    used = {
        *(steps[0] for steps in table.merge.paths),
        table.merge.sequence,
        *(HISTORY_COLUMNS if table.merge.history else ()),
    }
    casts = casts_of(schema, merged_schema(schema, table.schema, frozenset()))
    if table.merge.history and table.merge.soft_delete is not None:  # a delete is a row
        return casts
    return tuple(cast if cast.column in used else replace(cast, unused_if=DELETE_COLUMN) for cast in casts)


def _split(
    files: Sequence[StagedFile], marker: Marker, start: Position
) -> tuple[Sequence[StagedFile], Sequence[StagedFile]]:
    """The files that are needed in full, and those that are needed in part (rule 1)."""
    if marker.span.start >= start:
        return files, ()
    bounds = {file.path: _offsets(file) for file in files}
    whole = [file for file in files if (offset_bounds := bounds[file.path]) and offset_bounds[0] >= start]
    cut = [
        file
        for file in files
        if not (offset_bounds := bounds[file.path]) or offset_bounds[0] < start <= offset_bounds[1]
    ]
    return whole, cut


def _writes(
    marker: Marker, table: StagedTable, files: Sequence[StagedFile], start: Position | None
) -> Iterator[SparkWrite]:
    """The writes through Spark: mixed files separately from the others, which are stored elsewhere."""
    partition, shape = marker.name.topic_partition, shape_of(table)
    topic_id = None if marker.manifest is None else marker.manifest.topic_id
    identity = place_of(table)
    mixed = tuple(file for file in files if file.is_mixed)
    if mixed:
        yield SparkWrite(
            partition, None, replace(shape, partition_by=()), mixed, start, topic_id=topic_id, identity=identity
        )
    others = tuple(file for file in files if not file.is_mixed)
    if others:
        yield SparkWrite(partition, table.url, shape, others, start, topic_id=topic_id, identity=identity)


def _offsets(file: StagedFile) -> tuple[int, int] | None:
    """The lowest and the highest offset in a file; None without statistics."""
    try:
        statistics = json.loads(file.statistics)
        return int(statistics["minValues"][OFFSET_COLUMN]), int(statistics["maxValues"][OFFSET_COLUMN])
    except (ValueError, KeyError, TypeError):
        return None


_TOPIC, _PARTITION, _OFFSET, _ = KAFKA_COLUMNS


def place_of(table: StagedTable) -> IdentityColumns | None:
    """The columns of staged files with each row's record identity, or None."""
    if table.merge is not None:
        return table.merge.place
    return table.place or _kafkas(table.schema)


@lru_cache(maxsize=256)
def _kafkas(schema: str) -> IdentityColumns | None:
    try:
        known = schema_from_json(schema).names
    except SchemaError:
        return None
    return (_TOPIC, _PARTITION, _OFFSET) if {_TOPIC, _PARTITION, _OFFSET} <= set(known) else None
