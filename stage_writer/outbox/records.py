"""Records for Kafka topics as columns, and as an object of the stage.

Rules:

1. Each names the message that it was made for: by its input's index and its offset there. So the delivery can determine
   which are delivered already, even when the chain was rewound and its flushes have other bounds.
2. An object has a head with a version and the digest of the rest: a truncated, damaged or newer one is refused by name.
   It includes the chain's generation, and where its flush ends in each input.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from common.errors import StateError
from common.kafka.delivering import DeliveryIdentity
from common.settings import Stream
from common.spans import Position, TopicPartition
from common.stage.markers import TableKind
from common.stage.merged import InputEnd, inputs_of, position_from_stored
from common.storage.chunks import ByteChunks
from common.tables.dead_letters import dead_letter_headers, is_dead_letter
from stage_writer.decode.batch import NO_TIMESTAMP, MessageBatch
from stage_writer.decode.merged_batch import MergedBatch
from stage_writer.parquet.buffer import StagedRows, TableFormat

if TYPE_CHECKING:
    from stage_writer.topologies.records import TopicRecord

_MAGIC = b"KDXOUTBX"
_VERSION = 1
_DIGEST_BYTES = 32
_HEAD_BYTES = len(_MAGIC) + 1 + _DIGEST_BYTES
_BATCH_RECORDS = 10_000
# Columns of such a batch are too small for threads: starting them costs more than they do.
_WRITING = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
_READING = pa.ipc.IpcReadOptions(use_threads=False)
_HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp_ms", pa.int64()),
        ("headers", _HEADERS),
        ("input", pa.int16()),
        ("offset", pa.int64()),
    ]
)
"""The fields of a record in Kafka, and the message that it was made for (rule 1)."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    partition: TopicPartition
    generation: int
    ends: tuple[InputEnd, ...]
    """Where the flush ends in each input of the chain, by topic."""
    records: pa.Table


def outgoing_table(records: Sequence[TopicRecord], batch: MessageBatch) -> pa.Table:
    """Records that a task has made from a batch's messages."""
    index = np.fromiter((record.index for record in records), np.int64, len(records))
    if isinstance(batch, MergedBatch):
        inputs, offsets = batch.input_of[index], batch.input_offsets[index]
    else:
        inputs, offsets = np.zeros(len(index), np.int64), batch.offsets[index]
    columns = [
        pa.array([record.topic for record in records], pa.string()),
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
        pa.array([record.timestamp_ms for record in records], pa.int64()),
        pa.array([_headers(record) for record in records], _HEADERS),
        pa.array(inputs).cast(pa.int16()),
        pa.array(offsets),
    ]
    return pa.table(columns, schema=SCHEMA)


def _headers(record: TopicRecord) -> list[dict[str, object]] | None:
    return [{"name": name, "value": value} for name, value in record.headers] if record.headers else None


def outgoing_to_chunks(outgoing: Outgoing) -> ByteChunks:
    about = {
        "topic": str(outgoing.partition.topic),
        "partition": int(outgoing.partition.partition),
        "generation": outgoing.generation,
        "ends": [int(end.position) for end in outgoing.ends],
    }
    sink = pa.BufferOutputStream()
    schema = SCHEMA.with_metadata({"about": json.dumps(about)})
    with pa.ipc.new_stream(sink, schema, options=_WRITING) as writer:
        for batch in outgoing.records.to_batches(_BATCH_RECORDS):
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
    body = sink.getvalue().to_pybytes()
    return ByteChunks([_MAGIC + bytes([_VERSION]) + hashlib.sha256(body).digest(), body])


def outgoing_from_bytes(path: str, data: bytes) -> Outgoing:
    """The inverse of `outgoing_to_chunks`. Raises StateError, which names the object."""
    if len(data) < _HEAD_BYTES or not data.startswith(_MAGIC):
        raise _unreadable(path, "it is not an outbox, or it is incomplete")
    version = data[len(_MAGIC)]
    if version > _VERSION:
        msg = f"the outbox {path} has format version {version}; this program reads up to {_VERSION}"
        raise StateError(msg, "upgrade this service to at least the release that wrote it")
    body = memoryview(data)[_HEAD_BYTES:]
    if hashlib.sha256(body).digest() != data[_HEAD_BYTES - _DIGEST_BYTES : _HEAD_BYTES]:
        raise _unreadable(path, "its checksum does not match")
    try:
        table = pa.ipc.open_stream(pa.py_buffer(body), options=_READING).read_all()
        about = json.loads((table.schema.metadata or {})[b"about"])
        topic_partition = TopicPartition(about["topic"], about["partition"])
        ends = tuple(
            InputEnd(partition, position_from_stored(partition, int(end), ()))
            for partition, end in zip(inputs_of(topic_partition), about["ends"], strict=True)
        )
        return Outgoing(
            topic_partition, int(about["generation"]), ends, table.replace_schema_metadata(None).cast(SCHEMA)
        )
    except (pa.ArrowInvalid, OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(path, str(error)) from error


def undelivered(outgoing: Outgoing, delivered: Iterable[Position | None]) -> pa.Table:
    """The records for messages from each input's delivered position on; None where nothing was delivered."""
    offsets = outgoing.records["offset"].to_numpy()
    inputs = outgoing.records["input"].to_numpy()
    lowest = np.array([0 if position is None else int(position) for position in delivered], np.int64)
    keep = offsets >= lowest[inputs]
    return outgoing.records if keep.all() else outgoing.records.filter(pa.array(keep))


def with_dead_letters_to(records: pa.Table, topic: str, chain: DeliveryIdentity) -> pa.Table:
    """The records of a chain, with its stream's dead letters among them for this topic."""
    number = chain.partition.partition
    topics: list[str] = records["topic"].to_pylist()
    for index, (given, offset, headers) in enumerate(
        zip(topics, records["offset"].to_pylist(), records["headers"], strict=True)
    ):
        if given != topic and is_dead_letter(headers.as_py() or (), chain.app_id, number, offset):
            topics[index] = topic
    return records.set_column(0, SCHEMA.field("topic"), pa.array(topics, pa.string()))


def _unreadable(path: str, why: str) -> StateError:
    return StateError(f"the outbox {path} cannot be read: {why}", "restore it from a version or a backup of the bucket")


def with_dead_letters_sent(
    staged: StagedRows, formats: Sequence[TableFormat], stream: Stream, partition: TopicPartition
) -> StagedRows:
    """Converted rows, with their dead letters for the stream's topic; ``formats`` are those of the rows."""
    if stream.dead_letters_topic is None or not staged.dead_letters:
        return staged
    tables = zip(formats, staged.rows, strict=False)
    dead_letters = [
        _records(rows, stream, partition)
        for table_format, rows in tables
        if table_format.kind is TableKind.DEAD_LETTERS
    ]
    outgoing = dead_letters if staged.outgoing is None else [staged.outgoing, *dead_letters]
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
        pa.array([_letter_headers(stream, row) for row in rows.drop_columns(["key", "value"]).to_pylist()]),
        pa.array([inputs[name] for name in topic.to_pylist()], pa.int16()),
        offset,
    ]
    return pa.table(columns, names=SCHEMA.names).cast(SCHEMA)


def _letter_headers(stream: Stream, row: dict[str, str]) -> list[dict[str, str | bytes]]:
    source = (row["_kafka_topic"], row["_kafka_partition"], row["_kafka_offset"])
    return dead_letter_headers(stream.app_id, (row["error_class"], row["error"]), source)
