"""A table's position, without reading its files: no Spark job for a load that adds, for tables of any size."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from py4j.java_gateway import JavaObject
from pyspark.errors.exceptions import captured
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from common.clock import SystemClock
from delta_loader.spark.delta import SparkDeltaTables
from tests.fakes.loading import loader_for
from tests.fakes.staging import Staging
from tests.reading import place_of, rows_of

pytestmark = pytest.mark.spark

PARTITIONS = 120  # more than Delta's checksums have by default


def jobs(spark: SparkSession) -> int:
    return int(spark.sparkContext._jsc.sc().dagScheduler().nextJobId())


def load(staging: Staging, spark: SparkSession) -> int:
    (report,) = loader_for(staging, SparkDeltaTables(spark, SystemClock(), staging.stage_url)).run_pass()
    assert report.failure is None
    assert not report.held
    return report.rows


def test_load_that_adds_starts_no_job_and_a_lost_checksum_costs_only_time(tmp_path: Path, spark: SparkSession) -> None:
    staging = Staging.below(tmp_path)
    for partition in range(PARTITIONS):
        staging.flush(partition, 0, 2)
    assert load(staging, spark) == 2 * PARTITIONS

    for partition in range(PARTITIONS):
        staging.flush(partition, 2, 3)
    before = jobs(spark)
    assert load(staging, spark) == PARTITIONS
    assert load(staging, spark) == 0
    assert jobs(spark) == before

    # Another program's commit brings no checksum, and the earlier one is deleted.
    for path in (Path(staging.table) / "_delta_log").glob("*.crc"):
        path.unlink()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert load(staging, spark) == 0
    for partition in range(PARTITIONS):
        staging.flush(partition, 3, 4)
    assert load(staging, spark) == PARTITIONS
    assert jobs(spark) > before
    state = SparkDeltaTables(spark, SystemClock()).state(staging.table)
    assert state is not None
    assert state.transactions == {f"orders-{partition}": 3 for partition in range(PARTITIONS)}
    assert len({place_of(row) for row in rows_of(staging.table)}) == 4 * PARTITIONS


def test_no_load_has_java_throw(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an exception is, PySpark asks some sixty times, also where it is only the end of a collection."""
    staging = Staging.below(tmp_path)
    staging.flush(0, 0, 2)
    assert load(staging, spark) == 2
    thrown: list[str] = []
    convert = captured.convert_exception

    def converted(error: JavaObject) -> CapturedException:
        thrown.append(str(error.toString()))
        return convert(error)

    monkeypatch.setattr(captured, "convert_exception", converted)
    for offset, check in ((2, "id >= 0"), (4, "id < 1000")):  # Spark writes into a table with a constraint
        staging.flush(0, offset, offset + 2)
        assert (load(staging, spark), thrown) == (2, [])
        spark.sql(f"ALTER TABLE delta.`{staging.table}` ADD CONSTRAINT c{offset} CHECK ({check})")
        thrown.clear()


def test_table_of_another_program_is_looked_at_from_a_thread_that_ran_no_query(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Streams have threads of their own; a checkpoint without a checksum has to be read."""
    url = str(tmp_path / "table")
    write_deltalake(url, pa.table({"id": [1, 2]}))
    DeltaTable(url).create_checkpoint()
    tables = SparkDeltaTables(spark, SystemClock())
    with ThreadPoolExecutor(1) as pool:
        state = pool.submit(tables.state, url).result()
    assert state is not None
    assert (state.version, state.partition_by) == (0, ())
