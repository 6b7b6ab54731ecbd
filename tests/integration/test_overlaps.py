"""A stage that was lost and staged again, over a real Spark: what the table has is left out, the rest arrives once."""

import pytest
from pyspark.sql import Row, SparkSession

from common.clock import SystemClock
from common.tables.commit_metadata import CommitMetadata
from common.tables.delta_log import read_table_state
from delta_loader.load.report import StreamReport
from delta_loader.spark.bridge import LoadTransaction, spark_url
from delta_loader.spark.delta import SparkDeltaTables
from tests.conftest import Lake
from tests.fakes.loading import loader_for
from tests.fakes.staging import Staging
from tests.reading import offsets_of, rows_of
from tests.verifier import delta_rs_reader, spark_reader

pytestmark = pytest.mark.spark

DAYS = ["2026-01-01", None, "a/b=c %ü"]


@pytest.fixture
def tables(spark: SparkSession) -> SparkDeltaTables:
    return SparkDeltaTables(spark, SystemClock())


@pytest.fixture
def staging(lake: Lake) -> Staging:
    # Spark's own listing would pass over a name that begins so.
    return Staging(lake.url, "_orders", storage_options=dict(lake.storage_options))


def lose_the_stage(staging: Staging) -> None:
    store = staging.store(staging.stage_url)
    store.delete([item.path for item in store.list("")])
    staging.previous.clear()


def load(staging: Staging, tables: SparkDeltaTables) -> StreamReport:
    (report,) = loader_for(staging, tables).run_pass()
    assert report.failure is None
    return report


def transactions(staging: Staging, url: str) -> dict[str, int]:
    state = read_table_state(staging.store(url))
    return {} if state is None else dict(state.transactions)


def newest(spark: SparkSession, url: str) -> Row:
    return spark.sql(f"DESCRIBE HISTORY delta.`{spark_url(url)}`").collect()[0]


@pytest.mark.in_turn("records are staged again")
@pytest.mark.parametrize("lake", ["file", "moto", "versitygw"], indirect=True)
def test_records_staged_again_are_loaded_once(
    staging: Staging, tables: SparkDeltaTables, spark: SparkSession, lake: Lake
) -> None:
    staging.flush(0, 0, 10, days=DAYS, dead=[4])
    load(staging, tables)
    lose_the_stage(staging)
    staging.flush(0, 0, 5, days=DAYS, dead=[4])
    staging.flush(0, 5, 21, days=DAYS, dead=[12])
    staging.flush(0, 21, 24)

    report = load(staging, tables)

    assert report.held == {}
    # Rows and dead letters of the marker that straddles, and then the rows behind it.
    assert (report.commits, report.rows) == (3, 10 + 1 + 3)
    expected = [offset for offset in range(24) if offset not in (4, 12)]
    assert offsets_of(staging.dead_letters, 0, staging.storage_options) == [4, 12]
    # What Spark wrote, it reads itself over a disk.
    read = spark_reader(spark) if lake.kind == "file" else delta_rs_reader(lake.server)
    rows = read(staging.table)
    assert sorted(int(str(row["_kafka_offset"])) for row in rows) == expected
    for row in rows:
        offset = int(str(row["_kafka_offset"]))
        day = "2026-01-01" if offset > 20 else DAYS[offset % 3]
        assert (row["id"], row["name"], row["day"]) == (offset * 10, f"n{offset}", day)
    assert transactions(staging, staging.table) == {"orders-0": 23}


@pytest.mark.parametrize("lake", ["file"], indirect=True)
def test_rows_and_txn_action_are_in_one_commit(staging: Staging, tables: SparkDeltaTables, spark: SparkSession) -> None:
    staging.flush(0, 0, 10)
    load(staging, tables)
    spark.sql(f"ALTER TABLE delta.`{staging.table}` ADD COLUMNS (more INT)")
    lose_the_stage(staging)
    staging.flush(0, 5, 20, days=DAYS)
    assert load(staging, tables).rows == 10
    log = staging.store(staging.table).read(f"_delta_log/{3:020}.json")
    assert log is not None
    lines = [line.split(b'"', 2)[1] for line in log.splitlines()]
    assert lines.count(b"txn") == 1
    assert lines.count(b"add") == 3
    assert set(lines) == {b"commitInfo", b"txn", b"add"}
    row = newest(spark, staging.table)
    assert (row["version"], row["operation"], row["isBlindAppend"]) == (3, "STREAMING UPDATE", True)
    metadata = CommitMetadata.from_json(row["userMetadata"])
    assert metadata is not None
    assert {str(partition): str(span) for partition, span in metadata.spans.items()} == {"_orders/0": "[10, 20)"}
    assert metadata.valid_through_ms == staging.created_ms + 19
    assert [row["more"] for row in rows_of(staging.table)] == [None] * 20, "a column that was added meanwhile is null"


@pytest.mark.parametrize("lake", ["file"], indirect=True)
def test_dead_letter_table_that_is_ahead_gets_only_missing_records(staging: Staging, tables: SparkDeltaTables) -> None:
    """The loader died between its two commits, and the stage was lost before the next run."""
    staging.flush(0, 0, 10, dead=[4])
    load(staging, tables)
    commits = staging.store(staging.table)
    commits.delete([item.path for item in commits.list("_delta_log")])
    lose_the_stage(staging)
    staging.flush(0, 0, 20, dead=[4, 14])
    report = load(staging, tables)
    assert (report.held, report.commits) == ({}, 2)
    assert offsets_of(staging.table) == [offset for offset in range(20) if offset not in (4, 14)]
    assert offsets_of(staging.dead_letters) == [4, 14]


@pytest.mark.parametrize("lake", ["file"], indirect=True)
def test_damaged_file_holds_its_partition_and_no_other(
    staging: Staging, tables: SparkDeltaTables, spark: SparkSession
) -> None:
    for partition in (0, 1, 2):
        staging.flush(partition, 0, 10)
    load(staging, tables)
    lose_the_stage(staging)
    damaged = staging.flush(0, 5, 20)
    staging.flush(1, 5, 20)
    staging.flush(2, 10, 20)
    file = damaged.tables[0].files[0]
    staging.store(staging.table).write(file.path, b"x" * file.size_bytes)
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        report = load(staging, tables)
        assert spark.conf.get("spark.sql.files.ignoreCorruptFiles") == "true"
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
    held = report.held[staging.source(0)]
    assert (list(report.held), held.reason) == ([staging.source(0)], "not_written")
    assert "rewind ⟨config⟩ --topic _orders --partition 0 --to 10" in held.remedy
    assert transactions(staging, staging.table) == {"orders-0": 9, "orders-1": 19, "orders-2": 19}
    assert len(rows_of(staging.table, sql="_kafka_partition > 0")) == 40


@pytest.mark.parametrize("lake", ["file"], indirect=True)
def test_straddle_that_meets_another_loader_is_loaded_once(
    staging: Staging, tables: SparkDeltaTables, spark: SparkSession
) -> None:
    staging.flush(0, 0, 10)
    load(staging, tables)
    lose_the_stage(staging)
    staging.flush(0, 5, 20)
    begin = tables._begin

    def overtaken(url: str) -> LoadTransaction:
        """The next transaction is overtaken by another loader while Spark writes."""
        transaction = begin(url)
        tables._begin = begin  # type: ignore[method-assign]
        load(staging, SparkDeltaTables(spark, SystemClock()))
        return transaction

    tables._begin = overtaken  # type: ignore[method-assign]
    load(staging, tables)
    assert newest(spark, staging.table)["version"] == 2
    assert offsets_of(staging.table) == list(range(20))
