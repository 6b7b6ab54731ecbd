"""Checkpoints are written in the background of loads, when Delta would have written them."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import deltalake
import pytest
import structlog
from pyspark.sql import SparkSession

from common.clock import SystemClock
from common.errors import TableError
from common.metrics import Metrics
from common.storage.store import FsspecStore
from common.tables.log_files import LOG, complete_checkpoints, newest_checkpoint
from delta_loader.plan.plan import TableShape
from delta_loader.spark.bridge import LOCAL_STATE_PARTITIONS, STATE_PARTITIONS, Bridge
from delta_loader.spark.checkpoint_threads import Checkpoints, DueCheckpoint
from delta_loader.spark.delta import SparkDeltaTables
from delta_loader.tables.load_modes.layout import Layout
from delta_loader.wiring import spark_checkpoints
from tests.conftest import Lake
from tests.fakes.loading import loader_for
from tests.fakes.staging import DECLARED, Staging
from tests.integration.conftest import Programs

pytestmark = pytest.mark.spark

_OLD_S = 60 * 86_400


def jobs(spark: SparkSession) -> int:
    return int(spark.sparkContext._jsc.sc().dagScheduler().nextJobId())


class Later:
    """Keeps due checkpoints until the test writes them."""

    def __init__(self) -> None:
        self.due: list[DueCheckpoint] = []

    def request(self, due: DueCheckpoint) -> None:
        self.due.append(due)


class Table:
    """A table whose every second version gets a checkpoint; it has one file more with each load."""

    def __init__(self, folder: Path | Lake, spark: SparkSession) -> None:
        if isinstance(folder, Path):
            self.staging = Staging.below(folder)
        else:
            self.staging = Staging(folder.url, "orders", storage_options=dict(folder.storage_options))
        self.store = FsspecStore(self.staging.table, self.staging.storage_options)
        self.spark = spark
        self._flushed = 0
        shape = TableShape(self.staging.schema(), self.staging.partition_by)
        layout = Layout({"delta.checkpointInterval": "2"})
        SparkDeltaTables(spark, SystemClock()).make(self.staging.table, shape, layout, nullable=True)

    @property
    def log(self) -> Path:
        return Path(self.staging.table) / "_delta_log"

    @property
    def checkpoints(self) -> list[int]:
        return sorted(int(path.name[:20]) for path in self.log.glob("*.checkpoint*.parquet"))

    def load(self, checkpoints: Checkpoints) -> None:
        self.staging.flush(0, self._flushed, self._flushed + 5)
        self._flushed += 5
        tables = SparkDeltaTables(self.spark, SystemClock(), self.staging.stage_url, checkpoints)
        (report,) = loader_for(self.staging, tables).run_pass()
        assert (report.failure, report.rows) == (None, 5)

    def forget_checksums(self) -> None:
        """As a writer without checkpoints leaves a table."""
        for path in self.log.glob("*.crc"):
            path.unlink()
        self.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    def require_whole(self) -> None:
        self.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        count = self.spark.read.format("delta").load(self.staging.table).select("_kafka_offset").distinct().count()
        assert count == self._flushed
        assert deltalake.DeltaTable(self.staging.table).to_pyarrow_table().num_rows == self._flushed


def test_checkpoint_is_written_after_the_commit_with_the_cleaning_of_the_log(
    tmp_path: Path, spark: SparkSession
) -> None:
    table, later, before = Table(tmp_path, spark), Later(), jobs(spark)
    for _ in range(5):
        table.load(later)  # versions 1 to 5
    assert jobs(spark) == before
    assert [due.version for due in later.due] == [2, 4]
    assert table.checkpoints == []

    later.due[0].write()
    assert table.checkpoints == [2]
    for path in table.log.iterdir():
        os.utime(path, (time.time() - _OLD_S,) * 2)
    later.due[1].write()
    assert table.checkpoints[-1] == 4
    assert not (table.log / f"{0:020d}.json").exists()
    table.require_whole()


def test_checkpoints_are_written_by_background_threads(tmp_path: Path, spark: SparkSession) -> None:
    table, metrics = Table(tmp_path, spark), Metrics()
    checkpoints = spark_checkpoints(spark, SystemClock(), FsspecStore, log=structlog.get_logger(), metrics=metrics)
    for _ in range(4):
        table.load(checkpoints)
    checkpoints.finish()
    assert table.checkpoints[-1] == 4
    exposition = metrics.exposition().decode()
    assert 'delta_loader_checkpoints_total{outcome="written"}' in exposition
    assert 'outcome="failed"' not in exposition
    checkpoints.close()
    table.load(Later())
    table.require_whole()


@pytest.mark.parametrize("checkpointed", [False, True])
def test_files_are_counted_in_commits_and_checkpoints_where_there_is_no_checksum(
    tmp_path: Path, spark: SparkSession, *, checkpointed: bool
) -> None:
    table, later = Table(tmp_path, spark), Later()
    for _ in range(2):
        table.load(later)
    if checkpointed:
        later.due[0].write()
    table.forget_checksums()
    sessions = spark, spark.newSession()
    for session in sessions:  # those of tests have another number, which would be left as it is
        session.conf.set(STATE_PARTITIONS, LOCAL_STATE_PARTITIONS)
    few = 16 if checkpointed else 1  # a checkpoint counts for more files than it has, and each part is a task
    loader, services = (Bridge(session, files_of_a_part=few) for session in sessions)
    for bridge in (loader, services):
        known = bridge.state(table.staging.table)
        assert known is not None
        assert len(known.transactions) == 1
    services.size_session(table.staging.table)
    assert int(services.spark.conf.get(STATE_PARTITIONS) or 0) > int(LOCAL_STATE_PARTITIONS)
    assert spark.conf.get(STATE_PARTITIONS) == LOCAL_STATE_PARTITIONS
    table.require_whole()


@contextmanager
def without_a_codec(spark: SparkSession) -> Iterator[None]:
    """Parquet fails when it compresses its first page, as it does where its native library cannot be loaded."""
    broken = {"spark.sql.parquet.compression.codec": "zstd", "parquet.compression.codec.zstd.level": "none"}
    for key, value in broken.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in broken:
            spark.conf.unset(key)


@pytest.mark.in_turn("a checkpoint cannot be written")
@pytest.mark.parametrize("lake", ["file", pytest.param("moto", marks=pytest.mark.s3)], indirect=True)
def test_failed_checkpoint_leaves_no_torn_file_and_is_retried(
    lake: Lake, spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    table, later, metrics = Table(lake, spark), Later(), Metrics()
    for _ in range(2):
        table.load(later)
    (due,) = later.due

    def checkpoints_there() -> list[str]:
        return [path for _, parts in complete_checkpoints(table.store.list(LOG)) for path in map(str, parts)]

    def failing() -> int:
        return len(checkpoints.problems)

    with without_a_codec(spark), pytest.raises(TableError, match="cannot write a checkpoint of"):
        due.write()
    assert checkpoints_there() == []

    checkpoints = spark_checkpoints(
        spark, SystemClock(), lambda _: table.store, log=structlog.get_logger(), metrics=metrics
    )
    request.addfinalizer(checkpoints.close)
    with without_a_codec(spark):
        checkpoints.request(due)
        checkpoints.finish()
    assert failing() == 1
    assert checkpoints_there() == []

    table.store.write(f"{LOG}/{2:020d}.checkpoint.parquet", b"PAR1")  # of a loader that died, at the name of the next
    checkpoints.request(due)
    checkpoints.finish()
    assert failing() == 0
    assert newest_checkpoint(table.store, table.store.list(LOG))[0] == 2
    assert len(checkpoints_there()) == 1
    table.load(Later())


@pytest.mark.nightly  # a Java of its own, for the codecs' library alone
@pytest.mark.s3
@pytest.mark.parametrize("lake", ["moto"], indirect=True)
def test_loader_whose_codec_is_missing_loads_and_leaves_no_torn_checkpoint(
    lake: Lake, programs: Programs, tmp_path: Path
) -> None:
    """Java raises an error, not an exception, and Parquet then closes its file: S3A would upload what there is."""
    staging = Staging(lake.url, "orders", storage_options=dict(lake.storage_options))
    nowhere = tmp_path / "file"
    nowhere.touch()
    broken = [f"-Dorg.xerial.snappy.{key}={nowhere}/folder" for key in ("lib.path", "tempdir")]
    stream = {"app_id": staging.topic, "topics": [staging.topic], "table": staging.table, **DECLARED}
    config = programs.config(
        {
            "kafka": {"bootstrap.servers": "127.0.0.1:9"},
            "stage": {"url": staging.stage_url, "storage_options": staging.storage_options},
            "loader": {
                "http": None,
                "lease": "0s",
                "spark": {
                    "spark.master": "local[1]",
                    "spark.driver.memory": "600m",
                    "spark.driver.extraJavaOptions": " ".join(broken),
                },
            },
            "streams": [stream | {"table_properties": {"delta.checkpointInterval": "1"}}],
        }
    )
    staging.flush(0, 0, 5)
    done = programs.run("delta-loader", "run", config, "--once")
    assert done.returncode == 0, done.stderr
    output = done.stdout + done.stderr
    assert "checkpoint failed" in output
    assert "torn checkpoint removed" not in output
    store = FsspecStore(staging.table, staging.storage_options)
    assert list(complete_checkpoints(store.list(LOG))) == []
