"""The lower bound for any writer: ``python -m benchmarks.floor consume|pipeline SERVERS TOPIC COUNT COLUMNS FILE``.

``consume`` reads all messages from Kafka and drops them. ``pipeline`` also parses them, the messages of a poll as one
text, and writes them as Parquet; it tracks no offsets, proves nothing, and fails at the first unusual message.
"""

import sys

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from common.schema import parse_ddl, to_arrow_schema

_BATCH = 10_000
_ROW_GROUP_BYTES = 64 * 2**20


def read_once(mode: str, servers: str, topic: str, count: str, columns: str, file: str) -> None:  # noqa: PLR0917 - as on the command line
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "floor", "enable.auto.commit": False})
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
    if mode == "consume":
        left = int(count)
        while left > 0:
            left -= len(consumer.consume(_BATCH, 1.0))
    else:
        _write(consumer, int(count), to_arrow_schema(parse_ddl(columns)), file)
    consumer.close()


def _write(consumer: Consumer, left: int, schema: pa.Schema, file: str) -> None:
    parsing = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    batches: list[pa.Table] = []
    with pq.ParquetWriter(file, schema, compression="snappy") as writer:
        while left > 0:
            messages = consumer.consume(_BATCH, 1.0)
            if not messages:
                continue
            left -= len(messages)
            text = b"\n".join(message.value() or b"" for message in messages)
            reading = pj.ReadOptions(use_threads=False, block_size=len(text) + 1)
            batches.append(pj.read_json(pa.BufferReader(text), read_options=reading, parse_options=parsing))
            if left <= 0 or sum(table.nbytes for table in batches) >= _ROW_GROUP_BYTES:
                writer.write_table(pa.concat_tables(batches).cast(schema))
                batches = []


if __name__ == "__main__":
    read_once(*sys.argv[1:])
