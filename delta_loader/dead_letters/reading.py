"""Reads dead-letter tables with Spark: counts them in place, and returns them row by row.

Rules:

1. Spark reads them, because a table may have deletion vectors and any kind of checkpoint; its session takes about ten
   seconds to start.
2. Rows are returned ordered by topic, partition and offset, and never as a whole in memory.
3. A table that does not exist yet has no dead letters.
"""

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import BinaryIO, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession, functions

from common.ports import ObjectStore
from common.settings import Stream
from common.tables.delta_log import read_table_state
from delta_loader.dead_letters.filters import NUMBER, QUOTED, DeadLetterFilter, Group
from delta_loader.spark.bridge import spark_url, table_errors

PLACE = ("_kafka_topic", "_kafka_partition", "_kafka_offset")
EXPORT_SCHEMA = pa.schema(
    [
        ("_kafka_topic", pa.string()),
        ("_kafka_partition", pa.int32()),
        ("_kafka_offset", pa.int64()),
        ("_kafka_timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("error_class", pa.string()),
        ("error", pa.string()),
        ("app_id", pa.string()),
    ]
)
"""The columns of an export in Parquet: the table's, and the stream's app_id."""
_ROWS = 10_000
_SHOWN_BYTES = 200

_errors = partial(table_errors, remedy="check that the table can be read, and run the command again")


class StoredDeadLetter(TypedDict):
    _kafka_topic: str
    _kafka_partition: int
    _kafka_offset: int
    _kafka_timestamp: datetime | None
    key: bytes | None
    value: bytes | None
    error_class: str
    error: str
    app_id: str
    """The stream's: streams that share a topic have dead letters of the same offsets."""


@dataclass(frozen=True, slots=True)
class StoredDeadLetters:
    spark: SparkSession
    open_store: Callable[[str], ObjectStore]
    streams: Sequence[Stream]
    wanted: DeadLetterFilter

    def missing(self) -> list[str]:
        """The tables that do not exist. Raises TableError, StoreError."""
        return [
            stream.dead_letters
            for stream in self.streams
            if read_table_state(self.open_store(stream.dead_letters)) is None
        ]

    def groups(self, *, with_values: bool) -> list[Group]:
        """Counts by class, topic and reason pattern, the largest first."""
        groups: list[Group] = []
        for stream, frame in self._frames():
            pattern = functions.regexp_replace(functions.col("error"), QUOTED, '"…"')
            pattern = functions.regexp_replace(pattern, NUMBER, "#")
            location = functions.struct("_kafka_partition", "_kafka_offset", "error", "value")
            rows = (
                frame.withColumn("reason", pattern)
                .groupBy("error_class", "_kafka_topic", "reason")
                .agg(
                    functions.count("*").alias("letters"),
                    functions.countDistinct("_kafka_partition").alias("partitions"),
                    functions.min("_kafka_timestamp").alias("first"),
                    functions.max("_kafka_timestamp").alias("last"),
                    functions.min(location).alias("example"),
                )
            )
            with _errors("count", stream.dead_letters):
                for row in rows.collect():
                    example = row["example"]
                    groups.append(
                        Group(
                            stream.app_id,
                            row["error_class"],
                            row["_kafka_topic"],
                            row["reason"],
                            row["letters"],
                            row["partitions"],
                            row["first"],
                            row["last"],
                            (example["_kafka_partition"], example["_kafka_offset"]),
                            (example["error"], _text(example["value"])) if with_values else None,
                        )
                    )
        return sorted(
            groups, key=lambda group: (-group.count, group.app_id, group.error_class, group.topic, group.reason)
        )

    def rows(self) -> Iterator[StoredDeadLetter]:
        """All dead letters (rule 2)."""
        for stream, frame in self._frames():
            with _errors("read", stream.dead_letters):
                named = frame.withColumn("app_id", functions.lit(stream.app_id)).select(*EXPORT_SCHEMA.names)
                for row in named.orderBy(*PLACE).toLocalIterator():
                    yield row.asDict()

    def _frames(self) -> Iterator[tuple[Stream, DataFrame]]:
        missing = self.missing()
        for stream in self.streams:
            if stream.dead_letters not in missing:
                with _errors("open", stream.dead_letters):
                    frame = self.spark.read.format("delta").load(spark_url(stream.dead_letters))
                    # Several streams may share one table for dead letters.
                    topics = sorted(
                        row[0] for row in frame.select("_kafka_topic").distinct().collect() if stream.reads(row[0])
                    )
                    yield stream, self._filtered(frame.where(functions.col("_kafka_topic").isin(topics)))

    def _filtered(self, frame: DataFrame) -> DataFrame:
        wanted, column = self.wanted, functions.col
        for name, equal in (
            ("error_class", wanted.error_class),
            ("_kafka_topic", wanted.topic),
            ("_kafka_partition", wanted.partition),
        ):
            if equal is not None:
                frame = frame.where(column(name) == functions.lit(equal))
        for name, low, high in (
            ("_kafka_offset", wanted.start, wanted.end),
            ("_kafka_timestamp", _moment(wanted.since_ms), _moment(wanted.until_ms)),
        ):
            if low is not None:
                frame = frame.where(column(name) >= functions.lit(low))
            if high is not None:
                frame = frame.where(column(name) < functions.lit(high))
        return frame


def write_ndjson(file: BinaryIO, dead_letters: Iterable[StoredDeadLetter], advance: Callable[[int], None]) -> int:
    """Write a JSON object per line, with keys and values in base64; returns the number of dead letters."""
    count = 0
    for dead_letter in dead_letters:
        moment = dead_letter["_kafka_timestamp"]
        line = {
            "topic": dead_letter["_kafka_topic"],
            "partition": dead_letter["_kafka_partition"],
            "offset": dead_letter["_kafka_offset"],
            "timestamp": None if moment is None else moment.isoformat(),
            "key": _base64(dead_letter["key"]),
            "value": _base64(dead_letter["value"]),
            "error_class": dead_letter["error_class"],
            "error": dead_letter["error"],
            "app_id": dead_letter["app_id"],
        }
        file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        count += 1
        advance(1)
    return count


def write_parquet(file: BinaryIO, dead_letters: Iterable[StoredDeadLetter], advance: Callable[[int], None]) -> int:
    """Write the table's columns and the app_id, for `stage-writer replay --letters`; returns how many there are."""
    count, waiting = 0, list[StoredDeadLetter]()

    def flush(writer: pq.ParquetWriter) -> int:
        writer.write_table(pa.Table.from_pylist(waiting, EXPORT_SCHEMA))
        done = len(waiting)
        waiting.clear()
        advance(done)
        return done

    with pq.ParquetWriter(file, EXPORT_SCHEMA) as writer:
        for dead_letter in dead_letters:
            waiting.append(dead_letter)
            if len(waiting) >= _ROWS:
                count += flush(writer)
        count += flush(writer)
    return count


def _moment(timestamp_ms: int | None) -> datetime | None:
    return None if timestamp_ms is None else datetime.fromtimestamp(timestamp_ms / 1000, UTC)


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


def _text(data: bytes | None) -> str:
    """A value for display, truncated."""
    if data is None:
        return "null"
    text = bytes(data[:_SHOWN_BYTES]).decode("utf-8", "backslashreplace")
    return text + (" …" if len(data) > _SHOWN_BYTES else "")
