"""A load of change events, and a plain MERGE of the very same files, as a ``foreachBatch`` does it."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import yaml
from delta import DeltaTable
from pyspark.sql import Window, functions

from benchmarks.loading import load_once
from benchmarks.spark import meter_of
from common.clock import SystemClock
from common.settings import Settings
from common.spans import Partition, Position, Topic, TopicPartition
from common.storage.store import FsspecStore, stores_of
from common.tables.changes import DELETE_COLUMN
from stage_writer.convert import StreamConverter
from stage_writer.decode.batch import MessageBatch
from stage_writer.parquet.buffer import Buffer
from stage_writer.ports import ClaimVerdict, FlushIdentity, Sealed
from stage_writer.stage.staging import ObjectStage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from benchmarks.measure import Cost

_PARTITIONS = 4
_CREATED_MS = 1_767_225_600_000
_DELETES = 0.1
_TOPIC = "changes"


def merge_both(session: SparkSession, folder: Path, rows: int, events: int) -> tuple[int, int, dict[str, Cost]]:
    """Files, their bytes, and what each side used for ``events`` on a table of ``rows``; both tables are then equal."""
    place = Path(tempfile.mkdtemp(dir=folder))
    ours, theirs = str(place / "ours"), str(place / "theirs")
    config, dice = _config(place, ours), random.Random(events)  # noqa: S311 - the same events in each round
    path = place / "config.yaml"
    path.write_text(yaml.safe_dump(config), "utf-8")
    settings = Settings.model_validate(config)
    first = _staged(settings, place, [(key, False) for key in range(rows)])
    session.read.parquet(*first).drop(DELETE_COLUMN).limit(0).write.format("delta").save(theirs)
    _merge(session, first, theirs)
    load_once(session, path, asks_kafka=False)
    drawn = [(dice.randrange(rows + rows // 10), dice.random() < _DELETES) for _ in range(events)]
    files = _staged(settings, place, drawn)
    size_bytes = sum(Path(file).stat().st_size for file in files)
    costs = {}
    meter = meter_of(session)
    load_once(session, path, asks_kafka=False)
    costs["merge"] = meter.read()
    meter = meter_of(session)
    _merge(session, files, theirs)
    costs["spark"] = meter.read()
    tables = [session.read.format("delta").load(url).select("id", "value", "_kafka_offset") for url in (ours, theirs)]
    if tables[0].exceptAll(tables[1]).count() or tables[1].exceptAll(tables[0]).count():
        msg = "the two tables differ"
        raise RuntimeError(msg)
    shutil.rmtree(place)
    return len(files), size_bytes, costs


def _config(place: Path, table: str) -> dict[str, object]:
    stream = {
        "app_id": _TOPIC,
        "topics": [_TOPIC],
        "table": table,
        "columns": "id BIGINT, value STRING, op STRING",
        "load": "merge",
        "merge": {"keys": ["id"], "operation": "op", "deletes": ["d"]},
    }
    return {
        "kafka": {"bootstrap.servers": "127.0.0.1:1"},
        "stage": {"url": str(place / "stage")},
        # Files that were loaded stay: the other side reads them too.
        "loader": {"http": None, "marker_retention": "1d"},
        "logs": {"format": "json"},
        "streams": [stream],
    }


def _staged(settings: Settings, place: Path, events: list[tuple[int, bool]]) -> list[str]:
    """Stage events by the writer's own code, a flush of each Kafka partition; copies of the files."""
    store = FsspecStore(settings.stage.url)
    before = {item.path for item in store.list("data")}
    for partition in range(_PARTITIONS):
        _flush(settings, store, partition, [event for event in events if event[0] % _PARTITIONS == partition])
    found = [item.path for item in store.list("data") if item.path not in before]
    return list(_copies(Path(settings.stage.url), place / f"copies-{uuid.uuid4().hex}", found))


def _flush(settings: Settings, store: FsspecStore, partition: int, events: list[tuple[int, bool]]) -> None:
    stage = ObjectStage(store, stores_of({}), SystemClock(), lambda: str(uuid.uuid4()), "benchmark")
    topic_partition, (stream,) = TopicPartition(Topic(_TOPIC), Partition(partition)), settings.streams
    tail, converter = stage.chains.tail(topic_partition), StreamConverter(stream)
    start = Position(0) if tail is None else tail.end
    offsets = np.arange(start, start + len(events))
    values = [
        json.dumps({"id": key, "value": f"{key} at {offset}", "op": "d" if is_delete else "u"}).encode()
        for (key, is_delete), offset in zip(events, offsets, strict=True)
    ]
    keys = pa.nulls(len(events), pa.binary())
    batch = MessageBatch(topic_partition, offsets, _CREATED_MS + offsets, pa.array(values, pa.binary()), keys, None)
    buffer = Buffer.begin(start, converter.formats)
    for staged in converter.convert([batch]):
        buffer.add(staged, 0.0)
    flush = FlushIdentity(topic_partition, stream, buffer, tail)
    if not isinstance(stage.flush_job(flush, lambda: ClaimVerdict.CLAIM).run(), Sealed):
        msg = f"{topic_partition} was not staged"
        raise TypeError(msg)


def _copies(stage: Path, folder: Path, paths: list[str]) -> Iterator[str]:
    folder.mkdir()
    for number, path in enumerate(paths):
        copy = folder / f"{number}.parquet"
        shutil.copyfile(stage / path, copy)
        yield str(copy)


def _merge(session: SparkSession, files: list[str], table: str) -> None:
    """The last event of each key, by Delta's MERGE."""
    rows = session.read.parquet(*files)
    newest = Window.partitionBy("id").orderBy(functions.desc("_kafka_offset"))
    last = rows.withColumn("n", functions.row_number().over(newest)).where("n = 1").drop("n")
    kept = {name: f"s.`{name}`" for name in rows.columns if name != DELETE_COLUMN}
    merge = DeltaTable.forPath(session, table).alias("t").merge(last.alias("s"), "t.id = s.id")
    merge = merge.whenMatchedDelete(f"s.{DELETE_COLUMN}").whenMatchedUpdate(set=kept)
    merge.whenNotMatchedInsert(f"NOT s.{DELETE_COLUMN}", values=kept).execute()
