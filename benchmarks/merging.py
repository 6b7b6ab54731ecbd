"""Loads change events, and runs a plain MERGE of the same files as a ``foreachBatch`` would.

Records may have elements, each of which is a row: an event then replaces the rows of its record.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import yaml
from delta import DeltaTable
from pyspark.sql import Window, functions

from benchmarks.loading import load_once
from benchmarks.measure import Cost
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
    from pyspark.sql import SparkSession

_PARTITIONS = 4
_CREATED_MS = 1_767_225_600_000
_DELETES = 0.1
_TOPIC = "changes"


def merge_both(
    session: SparkSession, folder: Path, records: int, events: int, elements: int = 0
) -> tuple[int, int, dict[str, Cost]]:
    """Load ``events`` into a table of ``records`` on both sides, and require equal tables.

    Returns the number of files, their size in bytes, and each side's cost. With ``elements``, each record has that
    many, one row each.
    """
    place = Path(tempfile.mkdtemp(dir=folder))
    ours, theirs = str(place / "ours"), str(place / "theirs")
    config, generator = _config(place, ours, is_exploded=elements > 0), random.Random(events)  # noqa: S311 - the same events in each round
    path = place / "config.yaml"
    path.write_text(yaml.safe_dump(config), "utf-8")
    settings = Settings.model_validate(config)
    first = _staged(settings, place, [(key, False) for key in range(records)], elements)
    session.read.parquet(*first).drop(DELETE_COLUMN).limit(0).write.format("delta").save(theirs)
    merge = _replace if elements else _merge
    merge(session, first, theirs)
    load_once(session, path)
    changes = [(generator.randrange(records + records // 10), generator.random() < _DELETES) for _ in range(events)]
    files = _staged(settings, place, changes, elements)
    size_bytes = sum(Path(file).stat().st_size for file in files)
    costs = {}
    meter = meter_of(session)
    load_once(session, path)
    costs["merge"] = meter.read()
    meter = meter_of(session)
    merge(session, files, theirs)
    costs["spark"] = meter.read()
    columns = ("id", "items" if elements else "value", "_kafka_offset")
    tables = [session.read.format("delta").load(url).select(*columns) for url in (ours, theirs)]
    if tables[0].exceptAll(tables[1]).count() or tables[1].exceptAll(tables[0]).count():
        msg = "the two tables differ"
        raise RuntimeError(msg)
    shutil.rmtree(place)
    return len(files), size_bytes, costs


def _config(place: Path, table: str, *, is_exploded: bool) -> dict[str, object]:
    stream = {
        "app_id": _TOPIC,
        "topics": [_TOPIC],
        "table": table,
        "columns": "id BIGINT, value STRING, op STRING",
        "load": "merge",
        "merge": {"keys": ["id"], "operation": "op", "deletes": ["d"]},
    }
    if is_exploded:
        stream["columns"] = "id BIGINT, items ARRAY<STRUCT<sku: STRING, quantity: BIGINT>>, op STRING"
        stream["explode"] = "items"
        stream["merge"] = {"keys": ["id", "items.sku"], "operation": "op", "deletes": ["d"]}
    return {
        "kafka": {"bootstrap.servers": "127.0.0.1:1"},
        "stage": {"url": str(place / "stage")},
        # Loaded files stay, because the other side reads them too.
        "loader": {"http": None, "marker_retention": "1d"},
        "streams": [stream],
    }


def _staged(settings: Settings, place: Path, events: list[tuple[int, bool]], elements: int) -> list[str]:
    """Stage events with the writer's code, one flush per Kafka partition; returns copies of the files."""
    store = FsspecStore(settings.stage.url)
    before = {item.path for item in store.list("data")}
    for partition in range(_PARTITIONS):
        own = [event for event in events if event[0] % _PARTITIONS == partition]
        _flush(settings, store, partition, own, elements)
    found = [item.path for item in store.list("data") if item.path not in before]
    return list(_copies(Path(settings.stage.url), place / f"copies-{uuid.uuid4().hex}", found))


def _flush(
    settings: Settings, store: FsspecStore, partition: int, events: list[tuple[int, bool]], elements: int
) -> None:
    stage = ObjectStage(store, stores_of({}), SystemClock(), lambda: str(uuid.uuid4()), "benchmark")
    topic_partition, (stream,) = TopicPartition(Topic(_TOPIC), Partition(partition)), settings.streams
    tail, converter = stage.chains.tail(topic_partition), StreamConverter(stream)
    start = Position(0) if tail is None else tail.end
    offsets = np.arange(start, start + len(events))
    values = [
        json.dumps({"id": key, **_content(key, int(offset), elements), "op": "d" if is_delete else "u"}).encode()
        for (key, is_delete), offset in zip(events, offsets, strict=True)
    ]
    keys = pa.nulls(len(events), pa.binary())
    batch = MessageBatch(topic_partition, offsets, _CREATED_MS + offsets, pa.array(values, pa.binary()), keys, None)
    buffer = Buffer.begin(start, converter.formats)
    for slice_of_rows in converter.slices([batch]):
        for _, staged in slice_of_rows:
            buffer.add(staged, 0.0)
    flush = FlushIdentity(topic_partition, stream, buffer, tail)
    if not isinstance(stage.flush_job(flush, lambda: ClaimVerdict.CLAIM).run(), Sealed):
        msg = f"{topic_partition} was not staged"
        raise TypeError(msg)


def _content(key: int, offset: int, elements: int) -> dict[str, object]:
    """A record's value, or its elements; the record's next event has other elements."""
    if not elements:
        return {"value": f"{key} at {offset}"}
    return {"items": [{"sku": f"sku-{(offset + n) % (2 * elements)}", "quantity": offset} for n in range(elements)]}


def _copies(stage: Path, folder: Path, paths: list[str]) -> Iterator[str]:
    folder.mkdir()
    for number, path in enumerate(paths):
        copy = folder / f"{number}.parquet"
        shutil.copyfile(stage / path, copy)
        yield str(copy)


def _merge(session: SparkSession, files: list[str], table: str) -> None:
    """MERGE the last event of each key with Delta."""
    rows = session.read.parquet(*files)
    newest = Window.partitionBy("id").orderBy(functions.desc("_kafka_offset"))
    last = rows.withColumn("n", functions.row_number().over(newest)).where("n = 1").drop("n")
    kept = {name: f"s.`{name}`" for name in rows.columns if name != DELETE_COLUMN}
    merge = DeltaTable.forPath(session, table).alias("t").merge(last.alias("s"), "t.id = s.id")
    merge = merge.whenMatchedDelete(f"s.{DELETE_COLUMN}").whenMatchedUpdate(set=kept)
    merge.whenNotMatchedInsert(f"NOT s.{DELETE_COLUMN}", values=kept).execute()


def _replace(session: SparkSession, files: list[str], table: str) -> None:
    """Replace each record's elements with those of its last event, in one Delta MERGE."""
    rows, target = session.read.parquet(*files), DeltaTable.forPath(session, table)
    newest = Window.partitionBy("id").orderBy(functions.desc("_kafka_offset"))
    last = rows.withColumn("n", functions.rank().over(newest)).where("n = 1").drop("n").cache()
    had = target.toDF().join(last.select("id").distinct(), "id", "left_semi")
    kept = last.where(f"NOT {DELETE_COLUMN}").select("id", functions.col("items.sku").alias("sku"))
    lost = had.withColumn("sku", functions.col("items.sku")).join(kept, ["id", "sku"], "left_anti").drop("sku")
    source = last.where(f"NOT {DELETE_COLUMN}").unionByName(lost.withColumn(DELETE_COLUMN, functions.expr("true")))
    columns = {name: f"s.`{name}`" for name in rows.columns if name != DELETE_COLUMN}
    merge = target.alias("t").merge(source.alias("s"), "t.id = s.id AND t.items.sku = s.items.sku")
    merge = merge.whenMatchedDelete(f"s.{DELETE_COLUMN}").whenMatchedUpdate(set=columns)
    merge.whenNotMatchedInsert(f"NOT s.{DELETE_COLUMN}", values=columns).execute()
    last.unpersist()
