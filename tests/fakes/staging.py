"""Stages real Parquet files and real markers by hand, so that a test of the loader needs no stage writer."""

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from common.schema.arrow import from_arrow_type
from common.schema.spark_json import schema_to_json
from common.schema.types import Field, Primitive, StructType
from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.data_files import DataFileName, waiting_path
from common.stage.markers import (
    Manifest,
    Marker,
    MarkerName,
    Origin,
    StagedFile,
    StagedTable,
    TableKind,
    manifest_to_bytes,
)
from common.stage.merged import InputEnd, merged_position, topics_of
from common.stage.undeclared import UndeclaredFields
from common.storage.store import FsspecStore

Row = dict[str, object]

DECLARED: Mapping[str, object] = {
    "columns": "id BIGINT, name STRING, _kafka_topic STRING, _kafka_partition INT, _kafka_offset BIGINT, day STRING",
    "partition_by": ["day"],
    "kafka_columns": False,
}
"""A stream's settings for what `Staging` stages; a loader finds an existing table compatible with them."""

DEAD_LETTERS = pa.schema(
    [
        ("_kafka_topic", pa.string()),
        ("_kafka_partition", pa.int32()),
        ("_kafka_offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("error_class", pa.string()),
        ("error", pa.string()),
    ]
)
ORDERS = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("_kafka_topic", pa.string()),
        ("_kafka_partition", pa.int32()),
        ("_kafka_offset", pa.int64()),
    ]
)


@dataclass
class Staging:
    """One stream's stage and tables below a folder or URL."""

    root: str
    topic: str = "orders"
    columns: pa.Schema = ORDERS
    partition_by: tuple[str, ...] = ("day",)
    created_ms: int = 1_767_225_600_000
    previous: dict[int, Position] = field(default_factory=dict)
    storage_options: dict[str, object] = field(default_factory=dict)
    app_id: str = "orders"
    topic_id: str | None = None
    generation: int = 0
    undeclared: UndeclaredFields | None = None
    violations: dict[str, int] = field(default_factory=dict)
    chain_origin: int | None = None
    name_of: Callable[[int], str | None] = "n{}".format
    """The row's value of the name column, by its offset."""

    @classmethod
    def below(cls, folder: Path, topic: str = "orders") -> Self:
        return cls(str(folder), topic)

    @property
    def stage_url(self) -> str:
        return f"{self.root}/stage"

    @property
    def table(self) -> str:
        return f"{self.root}/tables/orders"

    @property
    def dead_letters(self) -> str:
        return f"{self.root}/tables/orders_dead_letters"

    def route(self, name: str) -> str:
        return f"{self.root}/tables/orders_{name}"

    def source(self, partition: int) -> TopicPartition:
        return TopicPartition(Topic(self.topic), Partition(partition))

    def store(self, url: str) -> FsspecStore:
        return FsspecStore(url, self.storage_options)

    def flush(
        self,
        partition: int,
        start: int,
        end: int,
        *,
        days: Sequence[str | None] = ("2026-01-01",),
        dead: Sequence[int] = (),
        routed: Mapping[str, Sequence[int]] | None = None,
        previous: int | None = None,
        mixed: bool = False,
    ) -> Marker:
        """Stage the offsets ``[start, end)``: a row or dead letter each; rows alternate between the days.

        ``mixed``: all days in one file, which waits for Spark.

        ``routed`` are, by the name of a route, offsets whose rows go to its table.
        """
        routed = routed or {}
        elsewhere = {offset for offsets in routed.values() for offset in offsets}
        topic_partition, span = (
            self.source(partition),
            Span(self.position(partition, start), self.position(partition, end)),
        )
        by_day: dict[str | None, list[Row]] = {}
        for offset in range(start, end):
            if offset not in dead and offset not in elsewhere:
                day = days[offset % len(days)]
                by_day.setdefault(day, []).append(
                    {"id": offset * 10, "name": self.name_of(offset), **self._origin(topic_partition, offset)}
                )
        files = [
            self._write(
                self.table,
                self.columns,
                rows,
                topic_partition,
                span.start,
                values={"day": day} if self.partition_by else {},
            )
            for day, rows in by_day.items()
            if not mixed
        ]
        if mixed:
            files = [self._write_mixed(by_day, topic_partition, span.start)]
        tables = [StagedTable(self.table, TableKind.ROWS, self.schema(), self.partition_by, tuple(files))]
        for route, offsets in routed.items():
            rows: list[Row] = [
                {"id": offset, "name": route, **self._origin(topic_partition, offset)} for offset in offsets
            ]
            values = {"day": days[0]} if self.partition_by else {}
            file = self._write(self.route(route), self.columns, rows, topic_partition, span.start, values=values)
            tables.append(StagedTable(self.route(route), TableKind.ROWS, self.schema(), self.partition_by, (file,)))
        if dead:
            letters: list[Row] = [
                {
                    "key": None,
                    "value": b"{",
                    "error_class": "not_json",
                    "error": "no",
                    **self._origin(topic_partition, offset),
                }
                for offset in dead
            ]
            file = self._write(self.dead_letters, DEAD_LETTERS, letters, topic_partition, span.start, values={})
            tables.append(StagedTable(self.dead_letters, TableKind.DEAD_LETTERS, _schema(DEAD_LETTERS), (), (file,)))
        manifest = Manifest(
            span=span,
            previous=self.previous.get(partition) if previous is None else Position(previous),
            app_id=self.app_id,
            origin=Origin.FLUSH,
            writer="test",
            created_ms=self.created_ms + start,
            records=end - start,
            dead_letters={"not_json": len(dead)} if dead else {},
            lowest_timestamp_ms=self.created_ms + start,
            highest_timestamp_ms=self.created_ms + end - 1,
            tables=tuple(tables),
            topic_id=self.topic_id,
            generation=self.generation,
            undeclared=self.undeclared,
            violations=self.violations,
            chain_origin=self.chain_origin,
        )
        name = MarkerName(topic_partition, span.start)
        self.store(self.stage_url).create(name.path, manifest_to_bytes(topic_partition, manifest))
        self.previous[partition] = span.start
        return Marker(name, manifest)

    def touch(self, partition: int, offset: int) -> None:
        self.store(self.stage_url).create(f"done/{self.topic}/{partition}/{offset}.done", b"")
        self.previous[partition] = Position(offset)

    def markers(self) -> list[str]:
        return sorted(item.path for item in self.store(self.stage_url).list("done/"))

    def schema(self) -> str:
        return _schema(self.columns, self.partition_by)

    def position(self, partition: int, position: int) -> Position:
        del partition
        return Position(position)

    def _origin(self, partition: TopicPartition, offset: int) -> Row:
        return {"_kafka_topic": partition.topic, "_kafka_partition": int(partition.partition), "_kafka_offset": offset}

    def _write_mixed(
        self, by_day: Mapping[str | None, Sequence[Row]], partition: TopicPartition, start: Position
    ) -> StagedFile:
        days = self.partition_by
        rows = [{**row, **dict.fromkeys(days, value)} for value, rows_of_day in by_day.items() for row in rows_of_day]
        table = pa.Table.from_pylist(
            sorted(rows, key=lambda row: int(str(row["_kafka_offset"]))),
            pa.schema([*self.columns, *(pa.field(day, pa.string()) for day in days)]),
        )
        path = waiting_path(self.table, DataFileName(partition, start, str(uuid.uuid4())))
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="snappy")
        data = sink.getvalue().to_pybytes()
        self.store(self.stage_url).write(path, data)
        return StagedFile(path, None, len(data), len(rows), _statistics(table))

    def _write(
        self,
        url: str,
        columns: pa.Schema,
        rows: Sequence[Row],
        partition: TopicPartition,
        start: Position,
        *,
        values: Mapping[str, str | None],
    ) -> StagedFile:
        name = DataFileName(partition, start, str(uuid.uuid4()), tuple(values.items()))
        sink = pa.BufferOutputStream()
        table = pa.Table.from_pylist(list(rows), schema=columns)
        pq.write_table(table, sink, compression="snappy")
        data = sink.getvalue().to_pybytes()
        self.store(url).write(name.path, data)
        return StagedFile(name.path, dict(values), len(data), len(rows), _statistics(table))


@dataclass
class JoinedStaging(Staging):
    """A chain of two topics whose records alternate: the chain's positions 0, 1, 2 are the first record of one topic,
    the first of the other, and the second of the first topic."""

    topic: str = "orders+payments"

    def position(self, partition: int, position: int) -> Position:
        ends = enumerate(topics_of(self.topic))
        return merged_position(
            InputEnd(TopicPartition(topic, Partition(partition)), Position((position + 1 - number) // 2))
            for number, topic in ends
        )

    def _origin(self, partition: TopicPartition, offset: int) -> Row:
        topic = topics_of(self.topic)[offset % 2]
        return {"_kafka_topic": topic, "_kafka_partition": int(partition.partition), "_kafka_offset": offset // 2}


@dataclass
class OneOfMany(Staging):
    """One of several streams whose common stage is not below their tables; its app_id is its topic's name."""

    def __post_init__(self) -> None:
        self.app_id = self.topic

    @property
    def stage_url(self) -> str:
        return self.root.rpartition("/")[0] + "/stage"


def _schema(columns: pa.Schema, partition_by: Sequence[str] = ()) -> str:
    fields = [Field(column.name, from_arrow_type(column.type)) for column in columns]
    return schema_to_json(StructType((*fields, *(Field(name, Primitive.STRING) for name in partition_by))))


def _statistics(table: pa.Table) -> str:
    plain = [name for name in table.column_names if not pa.types.is_binary(table.schema.field(name).type)]
    values = {name: [value for value in table[name].to_pylist() if value is not None] for name in plain}
    return json.dumps(
        {
            "numRecords": table.num_rows,
            "minValues": {name: min(column_values) for name, column_values in values.items() if column_values},
            "maxValues": {name: max(column_values) for name, column_values in values.items() if column_values},
            "nullCount": {name: table[name].null_count for name in table.column_names},
        }
    )
