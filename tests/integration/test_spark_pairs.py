"""The loader on the pairs of Spark and Delta before its own: it adds, appends, checks rows and merges there."""

import json
import subprocess
import sys
import uuid
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema

from common.clock import SystemClock
from common.settings import Settings
from common.spans import Partition, Position, Topic, TopicPartition
from common.storage.store import FsspecStore, stores_of
from devservices.spark_pairs import OLDER_PAIRS, environment_of
from stage_writer.convert import StreamConverter
from stage_writer.decode.batch import MessageBatch
from stage_writer.parquet.buffer import Buffer
from stage_writer.ports import FlushIdentity, Sealed
from stage_writer.stage.staging import ObjectStage
from tests.conftest import Lake
from tests.fakes.streams import staged_batches
from tests.fakes.writers import always
from tests.integration.conftest import Programs
from tests.reading import delta_rs_options, rows_of

_MADE_MS = 1_767_225_600_000
_WITHIN_S = 900


def _stage(settings: Settings, topic: str, *records: Mapping[str, object]) -> None:
    """One flush of a topic's next records, by the writer's own code."""
    options = settings.stage.storage_options
    (stream,) = (stream for stream in settings.streams if topic in stream.topics)
    store = FsspecStore(settings.stage.url, options)
    stage = ObjectStage(store, stores_of(options), SystemClock(), lambda: str(uuid.uuid4()), "test")
    partition = TopicPartition(Topic(topic), Partition(0))
    tail, converter = stage.chains.tail(partition), StreamConverter(stream)
    start = Position(0) if tail is None else tail.end
    offsets = np.arange(start, start + len(records))
    values = pa.array([json.dumps(record).encode() for record in records], pa.binary())
    batch = MessageBatch(partition, offsets, _MADE_MS + offsets, values, pa.nulls(len(records), pa.binary()), None)
    buffer = Buffer.begin(start, converter.formats)
    (staged,) = staged_batches(converter, [batch])
    buffer.add(staged, 0.0)
    assert isinstance(stage.flush_job(FlushIdentity(partition, stream, buffer, tail), always).run(), Sealed)


@pytest.fixture(params=OLDER_PAIRS, ids=[pair.name for pair in OLDER_PAIRS])
def environment(request: pytest.FixtureRequest) -> dict[str, str]:
    """Of a process on an older pair, which has its Java classes compiled."""
    environment = environment_of(request.param)
    subprocess.run([sys.executable, "-m", "delta_loader.spark.jars"], env=environment, check=True)
    return environment


@pytest.mark.nightly
@pytest.mark.spark
def test_command_adds_appends_and_merges_on_each_pair(
    environment: dict[str, str], lake: Lake, programs: Programs
) -> None:
    tables = {name: f"{lake.url}/tables/{name}" for name in ("added", "appended", "merged")}
    usual = {"columns": "id BIGINT, value STRING", "kafka_columns": False}
    merge = {"load": "merge", "merge": {"keys": ["id"], "operation": "op", "deletes": ["d"]}}
    merge |= {"columns": "id BIGINT, value STRING, op STRING"}
    config = {
        "kafka": {"bootstrap.servers": "127.0.0.1:1"},
        "stage": {"url": f"{lake.url}/stage", "storage_options": dict(lake.storage_options)},
        "loader": {"http": None, "spark": {"spark.master": "local[2]"}},
        "streams": [
            {"app_id": name, "topics": [name], "table": url, **usual, **(merge if name == "merged" else {})}
            for name, url in tables.items()
        ],
    }
    settings, path = Settings.model_validate(config), programs.config(config)
    columns = pa.schema([("id", pa.int64()), ("value", pa.string())])
    options = delta_rs_options(lake.storage_options)
    checked = DeltaTable.create(tables["appended"], Schema.from_arrow(columns), storage_options=options)
    checked.alter.add_constraint({"positive": "id > 0"})

    def load() -> None:
        command = [sys.executable, "-m", "delta_loader", "run", str(path), "--once"]
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=_WITHIN_S)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"

    for topic in tables:
        _stage(settings, topic, {"id": 1, "value": "a", "op": "c"}, {"id": 2, "value": "b", "op": "c"})
    load()
    _stage(settings, "added", {"id": 3, "value": "c"})
    _stage(settings, "appended", {"id": 3, "value": "c"})
    _stage(settings, "merged", {"id": 1, "op": "d"}, {"id": 2, "value": "z", "op": "u"}, {"id": 4, "op": "c"})
    load()

    rows_of_tables = {
        name: sorted((row["id"], row["value"]) for row in rows_of(url, lake.storage_options))
        for name, url in tables.items()
    }
    assert rows_of_tables["added"] == rows_of_tables["appended"] == [(1, "a"), (2, "b"), (3, "c")]
    assert rows_of_tables["merged"] == [(2, "z"), (4, None)]
    for name, url in tables.items():
        table = DeltaTable(url, storage_options=options)
        assert table.transaction_version(f"{name}-0") == (4 if name == "merged" else 2)
