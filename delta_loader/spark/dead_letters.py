"""Dead letters that the loader makes itself, as rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pyspark.sql import DataFrame, SparkSession

    from delta_loader.tables.commits import DeadLetterRow

_COLUMNS = (
    "_kafka_topic STRING, _kafka_partition INT, _kafka_offset BIGINT, _kafka_timestamp TIMESTAMP, key BINARY, "
    "value BINARY, error_class STRING, error STRING"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def letters_frame(spark: SparkSession, letters: Iterable[DeadLetterRow], columns: Collection[str]) -> DataFrame:
    """A data frame with those columns that the table has: an older table may lack some."""
    rows = [
        (
            letter.partition.topic,
            int(letter.partition.partition),
            int(letter.offset),
            None if letter.timestamp_ms is None else _EPOCH + timedelta(milliseconds=letter.timestamp_ms),
            None if letter.key is None else bytearray(letter.key),
            None if letter.value is None else bytearray(letter.value),
            letter.error_class,
            letter.error,
        )
        for letter in letters
    ]
    frame = spark.createDataFrame(rows, _COLUMNS).coalesce(1)
    return frame.select(*(name for name in frame.columns if name in columns))
