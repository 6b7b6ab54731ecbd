"""An independent judge: re-reads Kafka with a consumer of its own and compares it with the tables, row by row.

Rules:

1. It is given Kafka's contents and the tables' contents and nothing else: no marker, no log of a service, no ledger of
   a producer. It shares no code with the services (an architecture test sees to that): records are parsed by the
   standard library, tables are read by Spark, by delta-rs and by DuckDB.
2. What a record should have become is told by its key (`GOOD`, or ``bad:<error class>``), which its producer wrote
   there, by its value being null, and by a function from a record to its row.
3. Each record is a row or a dead letter, once, with exactly its values; nothing else is in either table.
4. A table only grows at each Kafka partition's end: what a version adds has higher offsets than all that the versions
   before it added (G4, G5). A repair by an operator may break this rule; nothing else may.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

import duckdb
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, TopicPartition
from deltalake import DeltaTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from devservices.s3 import S3Server

GOOD = b"good"
BAD = b"bad:"
Row = dict[str, object]
Place = tuple[str, int, int]
"""Topic, partition, offset."""
_PLACE = ("_kafka_topic", "_kafka_partition", "_kafka_offset")


@dataclass(frozen=True, slots=True)
class Sent:
    place: Place
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Findings:
    """What is wrong; all empty when every record is where it should be, once."""

    missing: tuple[Place, ...]
    twice: tuple[Place, ...]
    unknown: tuple[Place, ...]
    different: tuple[str, ...]

    @property
    def clean(self) -> bool:
        return not (self.missing or self.twice or self.unknown or self.different)

    def __str__(self) -> str:
        return (
            f"{len(self.missing)} missing {self.missing[:5]}, {len(self.twice)} twice {self.twice[:5]}, "
            f"{len(self.unknown)} unknown {self.unknown[:5]}, {len(self.different)} different {self.different[:5]}"
        )


def read_kafka(bootstrap_servers: str, topic: str) -> list[Sent]:
    """Everything that a topic has, committed transactions only."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "verifier",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    sent: list[Sent] = []
    open_partitions = set(partitions)
    while open_partitions:
        message = consumer.poll(30)
        assert message is not None, "Kafka does not answer"
        if message.error() is not None:
            open_partitions.discard(message.partition())
            continue
        place = (topic, message.partition(), message.offset())
        sent.append(Sent(place, message.timestamp()[1], message.key(), message.value()))
    consumer.close()
    return sent


class Reader(Protocol):
    def __call__(self, url: str) -> list[Row]:
        """All rows of the Delta table at ``url``; an empty list when there is no table."""


def spark_reader(spark: SparkSession) -> Reader:
    def read(url: str) -> list[Row]:
        place = url.replace("s3://", "s3a://")
        frame = spark.read.format("delta").load(place)
        return [row.asDict(recursive=True) for row in frame.collect()]

    return read


def delta_rs_reader(server: S3Server | None) -> Reader:
    """delta-rs, with its own readers of log and Parquet."""

    def read(url: str) -> list[Row]:
        return list(_delta_rs(url, server).to_pyarrow_table().to_pylist(maps_as_pydicts="strict"))

    return read


def duckdb_reader(server: S3Server | None, storage_options: Mapping[str, object]) -> Reader:
    """DuckDB over the files that the log names; its Delta extension would have to be downloaded."""

    def read(url: str) -> list[Row]:
        # On S3 `file_uris` of delta-rs spells a space in a key as %20; the paths in the log are not ambiguous.
        paths = pa.table(_delta_rs(url, server).get_add_actions())["path"].to_pylist()
        root = url if server is not None else url2pathname(urlsplit(url).path)
        files = [f"{root}/{unquote(path)}" for path in paths]
        if not files:
            return []
        connection = duckdb.connect()
        connection.execute("SET TimeZone = 'UTC'")
        if server is not None:
            connection.register_filesystem(fsspec.filesystem("s3", **storage_options))
        options = "hive_partitioning = true, hive_types_autocast = false, union_by_name = true"
        # The options are a constant of this function.
        relation = connection.sql(f"SELECT * FROM read_parquet($files, {options})", params={"files": files})  # noqa: S608
        return list(relation.to_arrow_table().to_pylist(maps_as_pydicts="strict"))

    return read


def _delta_rs(url: str, server: S3Server | None) -> DeltaTable:
    options = {} if server is None else server.environ | {"AWS_ALLOW_HTTP": "true", "AWS_REGION": server.region}
    return DeltaTable(url, storage_options=options)


def reading_faults(
    by_spark: Sequence[Row], table: str, storage_options: Mapping[str, object], folder: Path
) -> list[str]:
    """Where delta-rs and DuckDB do not read the same rows of a table as Spark; a copy may go to ``folder``.

    DuckDB reads files, and not what Delta says of their columns' names, of deleted rows, and of partition values.
    """
    local = Path(url2pathname(urlsplit(table).path))
    copy = copied(table, storage_options, folder) if table.startswith("s3") else local
    log = DeltaTable(copy)
    faults = _differences(by_spark, delta_rs_reader(None)(copy.as_uri()), "delta-rs", set())
    if _features(log).isdisjoint({"deletionVectors", "columnMapping"}):
        by_duckdb = duckdb_reader(None, {})(copy.as_uri())
        faults += _differences(by_spark, by_duckdb, "DuckDB", set(log.metadata().partition_columns))
    return [f"{table}: {fault}" for fault in faults]


def _differences(by_spark: Iterable[Row], rows: Iterable[Row], reader: str, left_out: set[str]) -> list[str]:
    wanted, read = _counted_rows(by_spark, left_out), _counted_rows(rows, left_out)
    more, less = list((read - wanted).items()), list((wanted - read).items())
    return [f"{reader} reads {more[:3]}, Spark {less[:3]}"] if more or less else []


def _features(table: DeltaTable) -> set[str]:
    protocol = table.protocol()
    return {*(protocol.reader_features or ()), *(["columnMapping"] if protocol.min_reader_version == 2 else [])}


def _counted_rows(rows: Iterable[Row], left_out: set[str]) -> Counter[str]:
    kept = ({name: value for name, value in row.items() if name not in left_out} for row in rows)
    return Counter(json.dumps(canonical(row), sort_keys=True, default=str) for row in kept)


def verify(
    sent: Iterable[Sent], rows: Iterable[Row], dead_letters: Iterable[Row], expected: Callable[[Sent], Row]
) -> Findings:
    """Compare: each good record a row with exactly the values that ``expected`` says, each bad one a dead letter."""
    by_place = {record.place: record for record in sent}
    counts: Counter[Place] = Counter()
    unknown: list[Place] = []
    different: list[str] = []
    for row, is_dead in [*((row, False) for row in rows), *((row, True) for row in dead_letters)]:
        place = _place(row)
        counts[place] += 1
        record = by_place.get(place)
        if record is None or record.value is None:
            unknown.append(place)
            continue
        is_bad = record.key is not None and record.key.startswith(BAD)
        if is_bad is not is_dead:
            different.append(f"{place}: {record.key!r} is in the wrong table")
            continue
        wanted = dead_letter(record, row) if is_dead else {**expected(record), **kafka_columns(record)}
        wanted |= dict.fromkeys(row.keys() - wanted.keys())
        different += [
            f"{place}.{name}: {canonical(row.get(name))!r} instead of {value!r}"
            for name, value in wanted.items()
            if canonical(row.get(name)) != canonical(value)
        ]
    missing = tuple(place for place, record in by_place.items() if record.value is not None and not counts[place])
    twice = tuple(place for place, count in counts.items() if count > 1)
    return Findings(missing, twice, tuple(unknown), tuple(different))


def read_growth(table: Path) -> list[list[Place]]:
    """What each version of a table on a local disk added, by the table's log; what OPTIMIZE rewrote is not added."""
    growth: list[list[Place]] = []
    for version in sorted((table / "_delta_log").glob("[0-9]*.json")):
        actions = map(json.loads, version.read_text("utf-8").splitlines())
        adds = [action["add"] for action in actions if "add" in action]
        added = [table / unquote(add["path"]) for add in adds if add["dataChange"]]
        rows = (row for path in added for row in pq.ParquetFile(path).read(list(_PLACE)).to_pylist())
        growth.append([_place(row) for row in rows])
    return growth


def order_faults(growth: Iterable[Iterable[Place]]) -> list[str]:
    """The records that came in a version after others of their Kafka partition that are newer (rule 4)."""
    faults: list[str] = []
    newest: dict[tuple[str, int], int] = {}
    for version, added in enumerate(growth):
        before = dict(newest)
        for topic, partition, offset in added:
            known = before.get((topic, partition), -1)
            if offset <= known:
                faults.append(f"version {version} added {topic}/{partition} @ {offset} after @ {known} was there")
            newest[topic, partition] = max(offset, newest.get((topic, partition), -1))
    return faults


def judge(
    sent: Sequence[Sent], expected: Callable[[Sent], Row], table: str, *, server: S3Server, folder: Path
) -> list[str]:
    """All faults of a stream's table on S3 and of its dead letters, by two readers; copies go to ``folder``."""
    urls = [table, f"{table}_dead_letters"]
    copies = [copied(url, server.storage_options, folder) for url in urls]
    faults = [f"{copy.name}: {fault}" for copy in copies for fault in order_faults(read_growth(copy))]
    for name, reader, places in (
        ("delta-rs", delta_rs_reader(server), urls),
        # Thousands of small files over HTTP, one after the other, would take DuckDB longer than the run.
        ("DuckDB", duckdb_reader(None, {}), [copy.as_uri() for copy in copies]),
    ):
        rows, dead_letters = map(reader, places)
        findings = verify(sent, rows, dead_letters, expected)
        faults += [] if findings.clean else [f"read by {name}: {findings}"]
    return faults


def copied(url: str, storage_options: Mapping[str, object], folder: Path) -> Path:
    copy = folder / "copies" / url.rpartition("/")[2]
    copy.mkdir(parents=True)
    fsspec.filesystem("s3", **storage_options).get(f"{url}/", f"{copy}/", recursive=True)
    return copy


def kafka_columns(record: Sent) -> Row:
    topic, partition, offset = record.place
    return {
        "_kafka_topic": topic,
        "_kafka_partition": partition,
        "_kafka_offset": offset,
        "_kafka_timestamp": datetime.fromtimestamp(record.timestamp_ms / 1000, UTC),
    }


def dead_letter(record: Sent, row: Row) -> Row:
    """What the dead letter of a record has; its error may say anything, but not nothing."""
    assert record.key is not None
    return {
        **kafka_columns(record),
        "key": record.key,
        "value": record.value,
        "error_class": record.key.removeprefix(BAD).decode(),
        "error": row.get("error") or "a sentence",
    }


def canonical(value: object) -> object:
    """Values as three readers and a producer agree on them: microseconds UTC, plain containers."""
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).replace(tzinfo=None).isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, dict):
        return {str(key): canonical(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [canonical(inner) for inner in value]
    return value


def parse(record: Sent) -> Row:
    """The record by the standard library, numbers with a fraction as Decimal."""
    assert record.value is not None
    row: Row = json.loads(record.value, parse_float=Decimal)
    return row


def decode_base64(value: object) -> bytes | None:
    return None if value is None else base64.b64decode(str(value))


def _place(row: Row) -> Place:
    topic, partition, offset = (row[name] for name in _PLACE)
    return str(topic), int(str(partition)), int(str(offset))
