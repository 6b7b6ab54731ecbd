"""Rows of more partition values than a flush may have files: staged in few files, and parted by Spark, once."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from common.clock import SystemClock
from common.settings.values import LoadSetting
from common.stage.data_files import folder
from common.storage.store import FsspecStore
from delta_loader.load.report import StreamReport
from delta_loader.maintenance.live_files import live_files
from delta_loader.ports import in_turn
from delta_loader.spark.delta import SparkDeltaTables
from tests.conftest import Lake
from tests.fakes.loading import loader_for, settings_for
from tests.fakes.staging import Staging
from tests.reading import offsets_of, rows_of
from tests.verifier import delta_rs_reader, spark_reader

pytestmark = pytest.mark.spark

DAYS = [f"2026-{month:02}-{day:02}" for month in (1, 2) for day in range(1, 21)]


def load(staging: Staging, spark: SparkSession) -> StreamReport:
    tables = SparkDeltaTables(spark, SystemClock(), staging.stage_url)
    (report,) = loader_for(staging, tables).run_pass()
    assert report.failure is None
    return report


@pytest.mark.in_turn("mixed files arrive once")
@pytest.mark.parametrize("lake", ["file", "moto"], indirect=True)
def test_mixed_files_are_split_and_arrive_once_with_files_that_are_added(lake: Lake, spark: SparkSession) -> None:
    staging = Staging(lake.url, storage_options=dict(lake.storage_options))
    staging.flush(0, 0, 100, days=[*DAYS, None], mixed=True)
    staging.flush(1, 0, 100, days=[*DAYS, None], mixed=True, dead=[7])
    staging.flush(2, 0, 10)

    report = load(staging, spark)

    assert (report.held, report.commits) == ({}, 2), "rows and dead letters, a commit each"
    rows = rows_of(staging.table, staging.storage_options)
    assert len(rows) == 100 + 99 + 10
    assert {(row["_kafka_partition"], row["_kafka_offset"]) for row in rows} == {
        *((partition, offset) for partition in (0, 1) for offset in range(100) if (partition, offset) != (1, 7)),
        *((2, offset) for offset in range(10)),
    }
    for row in rows:
        offset = row["_kafka_offset"]
        day = "2026-01-01" if row["_kafka_partition"] == 2 else [*DAYS, None][offset % 41]
        assert (row["id"], row["day"]) == (offset * 10, day)
    # One file for each value, though both Kafka partitions had it; and the small partition's own.
    assert len(list(live_files(staging.store(staging.table), in_turn))) <= 41 + 1


@pytest.mark.parametrize("lake", ["file"], indirect=True)
def test_straddling_mixed_file_loads_only_the_missing_rows(lake: Lake, spark: SparkSession) -> None:
    staging = Staging(lake.url)
    staging.flush(0, 0, 10)
    load(staging, spark)
    store = staging.store(staging.stage_url)
    store.delete([item.path for item in store.list("")])
    staging.previous.clear()
    staging.flush(0, 5, 20, days=DAYS, mixed=True)
    assert load(staging, spark).rows == 10
    assert offsets_of(staging.table) == list(range(20))


@pytest.mark.parametrize("lake", ["file"], indirect=True)
def test_mixed_files_arrive_in_a_table_that_is_loaded_by_add(lake: Lake, spark: SparkSession) -> None:
    staging = Staging(lake.url, partition_by=())
    staging.flush(0, 0, 10)
    staging.flush(0, 10, 20, mixed=True)
    staging.flush(0, 20, 30)
    load(staging, spark)
    assert offsets_of(staging.table) == list(range(30))


@pytest.mark.parametrize("lake", ["file"], indirect=True)
def test_damaged_mixed_file_holds_its_own_kafka_partition(lake: Lake, spark: SparkSession) -> None:
    staging = Staging(lake.url)
    damaged = staging.flush(0, 0, 10, days=DAYS, mixed=True)
    staging.flush(1, 0, 10, days=DAYS, mixed=True)
    staging.flush(2, 0, 10)
    file = damaged.tables[0].files[0]
    staging.store(staging.stage_url).write(file.path, b"x" * file.size_bytes)
    report = load(staging, spark)
    assert {str(partition): held.reason for partition, held in report.held.items()} == {"orders/0": "not_written"}
    loaded = {row["_kafka_partition"] for row in rows_of(staging.table)}
    assert loaded == {1, 2}


@pytest.mark.parametrize("way", ["mixed", "append"])
def test_value_that_is_too_long_for_a_folder_holds_nothing(tmp_path: Path, spark: SparkSession, way: str) -> None:
    """Of two such values, one of them escaped, each row has its own again, and the others' folders have their names."""
    long = ["x" * 300, "x" * 299 + "/"]
    staging = Staging.below(tmp_path)
    staging.flush(0, 0, 84, days=[*DAYS, *long], mixed=True)
    settings = settings_for(staging)
    if way == "append":
        stream = settings.streams[0].model_copy(update={"load": LoadSetting.APPEND})
        settings = settings.model_copy(update={"streams": (stream,)})
    tables = SparkDeltaTables(spark, SystemClock(), staging.stage_url)
    (report,) = loader_for(staging, tables, settings).run_pass()
    assert (report.failure, report.held, report.rows) == (None, {}, 84)
    for read in (spark_reader(spark), delta_rs_reader(None)):
        rows = read(staging.table)
        expected = {offset: [*DAYS, *long][offset % 42] for offset in range(84)}
        assert {int(str(row["_kafka_offset"])): row["day"] for row in rows} == expected
    folders = {path.name for path in Path(staging.table.removeprefix("file://")).iterdir() if path.is_dir()}
    assert {folder(value) for value in long} == {name.removeprefix("day=") for name in folders if "sha256-" in name}
    assert {f"day={day}" for day in DAYS} <= folders


def test_settled_markers_leave_no_mixed_files(tmp_path: Path, spark: SparkSession) -> None:
    staging = Staging.below(tmp_path)
    staging.flush(0, 0, 10, days=DAYS, mixed=True)
    staging.flush(0, 10, 20, days=DAYS, mixed=True)
    tables = SparkDeltaTables(spark, SystemClock(), staging.stage_url)
    loader_for(staging, tables).run_pass()
    assert len(waiting(staging)) == 2, "they are kept as long as their markers"
    loader_for(staging, tables, settings_for(staging, marker_retention="0s")).run_pass()
    assert staging.markers() == [f"done/orders/0/{10:020d}.done"]
    assert len(waiting(staging)) == 1


def waiting(staging: Staging) -> list[str]:
    return [item.path for item in FsspecStore(staging.stage_url).list("data")]
