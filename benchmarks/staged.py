"""A stage full of real Parquet files and markers, made quickly: input for a loader, without writers or Kafka.

Rule: each file has exactly the offsets of its marker's span, so a table with each file once has each record once. On a
local disk nothing is synced, because the files need not survive a power failure.
"""

from __future__ import annotations

import json
import os
import random
import time
from base64 import b85encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from common.schema import schema_to_json
from common.schema.types import Field, Primitive, StructType
from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.data_files import DataFileName
from common.stage.markers import Manifest, MarkerName, Origin, StagedFile, StagedTable, TableKind, manifest_to_bytes
from common.storage.store import FsspecStore

TOPIC = "backlog"
DAY = "2026-01-01"
COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("_kafka_topic", pa.string()),
        ("_kafka_partition", pa.int32()),
        ("_kafka_offset", pa.int64()),
        ("_kafka_timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
DECLARED: Mapping[str, object] = {"columns": "id BIGINT, name STRING", "derive": {"day": f"'{DAY}'"}}
_FIELDS = (
    Field("id", Primitive.LONG),
    Field("name", Primitive.STRING),
    Field("day", Primitive.STRING),
    Field("_kafka_topic", Primitive.STRING),
    Field("_kafka_partition", Primitive.INTEGER),
    Field("_kafka_offset", Primitive.LONG),
    Field("_kafka_timestamp", Primitive.TIMESTAMP),
)
SCHEMA = schema_to_json(StructType(_FIELDS))
"""The table's schema in the format of Delta's metadata."""
_CREATED_MS = 1_767_225_600_000
_THREADS = 16


@dataclass(frozen=True, slots=True)
class Backlog:
    stage_url: str
    table_url: str
    storage_options: Mapping[str, object]
    markers: int
    partitions: int
    rows: int
    """Rows of each file; each marker has one file."""
    value_bytes: int = 20
    """Bytes of each row's text, which does not compress."""
    begin: int = 0
    """Start position of each Kafka partition; at 0, the first marker starts its chain."""
    topic: str = TOPIC

    @property
    def records(self) -> int:
        return self.markers * self.rows


def build(backlog: Backlog) -> list[str]:
    """Stage everything, and return the paths of the data files."""
    write_data, write_marker = _writer(backlog, backlog.table_url), _writer(backlog, backlog.stage_url)

    began_s = time.time() - 10 * (backlog.markers // backlog.partitions + 1)

    def stage(number: int) -> tuple[str, int]:
        in_turn, partition = divmod(number, backlog.partitions)
        topic_partition = TopicPartition(Topic(backlog.topic), Partition(partition))
        start = Position(backlog.begin + in_turn * backlog.rows)
        file, data = _file(backlog, topic_partition, start)
        write_data(file.path, data)
        name = MarkerName(topic_partition, start)
        write_marker(name.path, manifest_to_bytes(topic_partition, _manifest(backlog, start, file)))
        if "://" not in backlog.stage_url:  # as if one were written every ten seconds
            moment_s = began_s + 10 * in_turn
            os.utime(Path(backlog.stage_url) / name.path, (moment_s, moment_s))
        return file.path, file.size_bytes

    with ThreadPoolExecutor(_THREADS) as pool:
        return [path for path, _ in pool.map(stage, range(backlog.markers))]


def write_config(backlog: Backlog, folder: Path, heap: str, **loader: object) -> Path:
    stream = {"app_id": backlog.topic, "topics": [backlog.topic], "table": backlog.table_url, **DECLARED}
    path = folder / "config.yaml"
    config = {
        "kafka": {"bootstrap.servers": "127.0.0.1:1"},
        "stage": {"url": backlog.stage_url, "storage_options": dict(backlog.storage_options)},
        "loader": {"http": None, "spark": {"spark.master": "local[2]", "spark.driver.memory": heap}, **loader},
        "logs": {"format": "json"},
        "streams": [{**stream, "partition_by": ["day"]}],
    }
    path.write_text(yaml.safe_dump(config), "utf-8")
    return path


def _file(backlog: Backlog, topic_partition: TopicPartition, start: Position) -> tuple[StagedFile, bytes]:
    rows, partition = backlog.rows, int(topic_partition.partition)
    offsets = list(range(start, start + rows))
    texts = _texts(backlog.rows, backlog.value_bytes)
    moments = [(_CREATED_MS + offset) * 1000 for offset in offsets]
    arrays = [
        pa.array(offsets, pa.int64()),
        texts,
        pa.array([topic_partition.topic] * rows, pa.string()),
        pa.array([partition] * rows, pa.int32()),
        pa.array(offsets, pa.int64()),
        pa.array(moments, COLUMNS.field("_kafka_timestamp").type),
    ]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(arrays, schema=COLUMNS), sink, compression="snappy")
    data = sink.getvalue().to_pybytes()
    unique = f"{partition:08x}-0000-4000-8000-{start:012x}"
    name = DataFileName(topic_partition, start, unique, (("day", DAY),))
    statistics = json.dumps(
        {
            "numRecords": rows,
            "minValues": {"id": offsets[0], "_kafka_partition": partition, "_kafka_offset": offsets[0]},
            "maxValues": {"id": offsets[-1], "_kafka_partition": partition, "_kafka_offset": offsets[-1]},
            "nullCount": {"id": 0, "_kafka_partition": 0, "_kafka_offset": 0},
        }
    )
    return StagedFile(name.path, {"day": DAY}, len(data), rows, statistics), data


@cache
def _texts(rows: int, value_bytes: int) -> pa.Array:
    """The same texts for all files, random so that the size on disk is as requested."""
    generator = random.Random(0)  # noqa: S311 - not a secret
    texts = [b85encode(generator.randbytes(value_bytes)).decode()[:value_bytes] for _ in range(rows)]
    return pa.array(texts, pa.string())


def _manifest(backlog: Backlog, start: Position, file: StagedFile) -> Manifest:
    span = Span(start, Position(start + backlog.rows))
    staged = StagedTable(backlog.table_url, TableKind.ROWS, SCHEMA, ("day",), (file,))
    previous = max(0, start - backlog.rows) if start > backlog.begin else 0
    return Manifest(
        span=span,
        previous=Position(previous) if start else None,
        app_id=backlog.topic,
        origin=Origin.FLUSH,
        writer="benchmark",
        created_ms=_CREATED_MS + start,
        records=backlog.rows,
        dead_letters={},
        lowest_timestamp_ms=_CREATED_MS + start,
        highest_timestamp_ms=_CREATED_MS + span.end - 1,
        tables=(staged,),
    )


def _writer(backlog: Backlog, url: str) -> Callable[[str, bytes], object]:
    if "://" in url:
        store = FsspecStore(url, dict(backlog.storage_options))
        return store.write
    folder = Path(url)

    def write(path: str, data: bytes) -> None:
        place = folder / path
        try:
            place.write_bytes(data)
        except FileNotFoundError:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)

    return write


def added_paths(actions: Iterable[str]) -> Iterator[str]:
    """The paths of all AddFile actions in lines of a Delta log."""
    for line in actions:
        if line.startswith('{"add":'):
            yield str(json.loads(line)["add"]["path"])
