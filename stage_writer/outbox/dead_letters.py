"""Dead letters as records for a Kafka topic: the message as it was, with why it has no row in its headers.

Rules:

1. They are made of the rows for the dead-letter table, so both have the same messages.
2. They go the way of a topology's records: in the outbox of their flush, delivered once, in a transaction, after the
   flush was sealed.
3. The record has the message's key, value and time. Its own headers are not read from Kafka, and are not sent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from common.stage.markers import TableKind
from common.stage.merged import inputs_of
from stage_writer.decode.batch import NO_TIMESTAMP
from stage_writer.outbox.records import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from common.settings import Stream
    from common.spans import TopicPartition
    from stage_writer.parquet.buffer import StagedRows, TableFormat

PREFIX = "dead_letter."
"""Of the headers' names."""


def with_dead_letters_sent(
    staged: StagedRows, formats: Sequence[TableFormat], stream: Stream, partition: TopicPartition
) -> StagedRows:
    """Converted rows, with their dead letters for the stream's topic; ``formats`` are those of the rows."""
    if stream.dead_letters_topic is None or not staged.dead_letters:
        return staged
    tables = zip(formats, staged.rows, strict=False)
    letters = [
        _records(rows, stream, partition)
        for table_format, rows in tables
        if table_format.kind is TableKind.DEAD_LETTERS
    ]
    outgoing = letters if staged.outgoing is None else [staged.outgoing, *letters]
    return replace(staged, outgoing=pa.concat_tables(outgoing))


def _records(rows: pa.Table, stream: Stream, topic_partition: TopicPartition) -> pa.Table:
    inputs = {partition.topic: number for number, partition in enumerate(inputs_of(topic_partition))}
    topic, _, offset, timestamp, key, value = rows.columns[:6]
    times = timestamp.cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).fill_null(NO_TIMESTAMP)
    columns = [
        pa.repeat(stream.dead_letters_topic, len(rows)),
        key,
        value,
        times,
        pa.array([list(_headers(stream, row)) for row in rows.drop_columns(["key", "value"]).to_pylist()]),
        pa.array([inputs[name] for name in topic.to_pylist()], pa.int16()),
        offset,
    ]
    return pa.table(columns, names=SCHEMA.names).cast(SCHEMA)


def _headers(stream: Stream, row: dict[str, object]) -> Iterable[dict[str, object]]:
    given = {
        "app_id": stream.app_id,
        "error_class": row["error_class"],
        "error": row["error"],
        "topic": row["_kafka_topic"],
        "partition": row["_kafka_partition"],
        "offset": row["_kafka_offset"],
    }
    for name, value in given.items():
        yield {"name": PREFIX + name, "value": str(value).encode()}
