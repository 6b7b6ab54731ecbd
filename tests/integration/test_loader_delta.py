"""The loader over a local disk and a real Spark: what is staged is in the table, once, for every reader."""

import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import deltalake
import duckdb
import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from common.clock import SystemClock
from common.tables.commit_metadata import CommitMetadata
from common.tables.delta_log import read_table_state
from delta_loader.plan.plan import TableShape
from delta_loader.spark.bridge import LoadTransaction
from delta_loader.spark.delta import SparkDeltaTables
from delta_loader.tables.commits import AlreadyLoaded, CommitOutcome, Committed, Conflicted, TableCommit
from tests.conftest import Lake
from tests.fakes.delta_tables import PassedOn
from tests.fakes.loading import loader_for, settings_for
from tests.fakes.spark_plans import scanned_files
from tests.fakes.staging import Staging
from tests.integration.mortal import Death
from tests.reading import offsets_of
from tests.verifier import spark_reader

pytestmark = pytest.mark.spark


@pytest.fixture
def tables(spark: SparkSession) -> SparkDeltaTables:
    return SparkDeltaTables(spark, SystemClock())


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging.below(tmp_path)


def transactions(staging: Staging, url: str | None = None) -> dict[str, int]:
    state = read_table_state(staging.store(url or staging.table))
    return {} if state is None else dict(state.transactions)


def test_every_reader_sees_the_rows_once(staging: Staging, tables: SparkDeltaTables, spark: SparkSession) -> None:
    staging.flush(0, 0, 10, days=["2026-01-01", "2026-01-02", None, "a/b=c %ü"])
    staging.flush(0, 10, 15)
    staging.flush(1, 100, 103)

    reports = loader_for(staging, tables).run_pass()

    assert [(report.commits, report.rows, report.held, report.failure) for report in reports] == [(1, 18, {}, None)]
    places = [(0, offset) for offset in range(15)] + [(1, offset) for offset in (100, 101, 102)]
    rows = spark_reader(spark)(staging.table)
    assert sorted((row["_kafka_partition"], row["_kafka_offset"]) for row in rows) == places
    days = Counter(row["day"] for row in rows)
    assert days == {"2026-01-01": 11, "2026-01-02": 3, None: 2, "a/b=c %ü": 2}
    arrow = deltalake.DeltaTable(staging.table).to_pyarrow_table()
    assert sorted(arrow["id"].to_pylist()) == sorted([*range(0, 150, 10), 1000, 1010, 1020])
    assert sorted(arrow["day"].to_pylist(), key=str).count("a/b=c %ü") == 2
    # DuckDB's own reader of Delta logs is an extension that it downloads; its reader of Parquet is built in.
    files = deltalake.DeltaTable(staging.table).file_uris()
    scan = duckdb.execute(
        "SELECT count(*), count(DISTINCT id), min(_kafka_offset) FROM read_parquet($files, hive_partitioning = false)",
        {"files": files},
    )
    assert scan.fetchone() == (18, 18, 0)


def test_log_says_what_was_loaded(staging: Staging, tables: SparkDeltaTables, spark: SparkSession) -> None:
    staging.flush(0, 0, 10)
    staging.flush(1, 100, 103)
    loader_for(staging, tables).run_pass()

    assert transactions(staging) == {"orders-0": 9, "orders-1": 102}
    row = spark.sql(f"DESCRIBE HISTORY delta.`{staging.table}`").collect()[0]
    assert row["operation"] == "STREAMING UPDATE"
    assert row["isBlindAppend"] is True
    metadata = CommitMetadata.from_json(row["userMetadata"])
    assert metadata is not None
    assert {str(partition): str(span) for partition, span in metadata.spans.items()} == {
        "orders/0": "[0, 10)",
        "orders/1": "[100, 103)",
    }
    # The lowest over the partitions of the highest record time.
    assert metadata.valid_through_ms == staging.created_ms + 9


@pytest.mark.parametrize("lake", ["versitygw"], indirect=True)
@pytest.mark.s3
def test_same_over_s3(lake: Lake, tables: SparkDeltaTables, spark: SparkSession) -> None:
    staging = Staging(lake.url, storage_options=dict(lake.storage_options))
    days = ["2026-01-01", None, "a/b=c %ü"]
    staging.flush(0, 0, 9, days=days, dead=[4])
    staging.flush(1, 5, 9)
    (report,) = loader_for(staging, tables).run_pass()
    assert (report.failure, report.held, report.rows) == (None, {}, 13)
    assert offsets_of(staging.dead_letters, 0, staging.storage_options) == [4]
    assert transactions(staging) == {"orders-0": 8, "orders-1": 8}
    rows = [row for row in spark_reader(spark)(staging.table) if row["_kafka_partition"] == 0]
    assert sorted(int(str(row["_kafka_offset"])) for row in rows) == [0, 1, 2, 3, 5, 6, 7, 8]
    assert {row["day"] for row in rows} == set(days)
    staging.flush(0, 9, 12)
    loader = loader_for(staging, tables, settings_for(staging, marker_retention=0))
    (report,) = loader.run_pass()
    assert (report.commits, report.settled) == (1, 1)
    assert offsets_of(staging.table, 0, staging.storage_options) == [0, 1, 2, 3, *range(5, 12)]


def test_spark_skips_files_by_the_statistics(staging: Staging, tables: SparkDeltaTables, spark: SparkSession) -> None:
    for start in range(0, 50, 10):
        staging.flush(0, start, start + 10)
    loader_for(staging, tables).run_pass()
    frame = spark.read.format("delta").load(staging.table)
    assert len(frame.inputFiles()) == 5
    assert scanned_files(frame.where("_kafka_offset = 33").select("name").distinct()) == 1


def test_marker_made_by_hand_moves_the_position_without_rows(staging: Staging, tables: SparkDeltaTables) -> None:
    staging.flush(0, 0, 10)
    loader = loader_for(staging, tables)
    loader.run_pass()
    staging.touch(0, 10)
    loader.run_pass()
    assert transactions(staging) == {"orders-0": 10}


def test_dead_letters_reach_their_own_table_once(staging: Staging, tables: SparkDeltaTables) -> None:
    staging.flush(0, 0, 10, dead=[3, 7])
    staging.flush(0, 10, 20)
    loader_for(staging, tables).run_pass()
    assert offsets_of(staging.table, 0) == [0, 1, 2, 4, 5, 6, 8, 9, *range(10, 20)]
    assert offsets_of(staging.dead_letters, 0) == [3, 7]
    assert transactions(staging) == {"orders-0": 19}
    assert transactions(staging, staging.dead_letters) == {"orders-0": 9}
    loader_for(staging, tables).run_pass()
    assert offsets_of(staging.dead_letters, 0) == [3, 7]


def test_stream_without_dead_letters_has_no_table_for_them(staging: Staging, tables: SparkDeltaTables) -> None:
    staging.flush(0, 0, 10)
    loader_for(staging, tables).run_pass()
    assert not Path(staging.dead_letters).exists()


class Mortal(PassedOn):
    """Tables whose loader dies before or after a commit that ``at`` says."""

    def __init__(self, tables: SparkDeltaTables, url: str, *, after: bool) -> None:
        super().__init__(tables)
        self._url, self._after = url, after

    def commit(self, commit: TableCommit) -> CommitOutcome:
        if commit.target.url == self._url and not self._after:
            raise Death
        outcome = self._tables.commit(commit)
        if commit.target.url == self._url:
            raise Death
        return outcome


@pytest.mark.parametrize(("table", "after"), [("table", True), ("table", False), ("dead_letters", True)])
def test_loader_that_dies_loads_nothing_twice(
    staging: Staging, tables: SparkDeltaTables, table: str, *, after: bool
) -> None:
    staging.flush(0, 0, 10, dead=[3])
    staging.flush(0, 10, 20, dead=[12])
    with pytest.raises(Death):
        loader_for(staging, Mortal(tables, getattr(staging, table), after=after)).run_pass()
    (report,) = loader_for(staging, tables).run_pass()
    assert (report.failure, report.held) == (None, {})
    assert offsets_of(staging.table, 0) == [0, 1, 2, *range(4, 12), *range(13, 20)]
    assert offsets_of(staging.dead_letters, 0) == [3, 12]


class Raced(PassedOn):
    """Tables into which another loader commits just before this one does, ``times`` times."""

    def __init__(self, tables: SparkDeltaTables, staging: Staging) -> None:
        super().__init__(tables)
        self._staging = staging
        self.outcomes: list[CommitOutcome] = []

    def commit(self, commit: TableCommit) -> CommitOutcome:
        if not self.outcomes:
            loader_for(self._staging, self._tables).run_pass()
        self.outcomes.append(self._tables.commit(commit))
        return self.outcomes[-1]


def test_two_loaders_load_once(staging: Staging, tables: SparkDeltaTables) -> None:
    staging.flush(0, 0, 10)
    staging.flush(1, 0, 10)
    raced = Raced(tables, staging)
    (report,) = loader_for(staging, raced).run_pass()
    assert isinstance(raced.outcomes[0], AlreadyLoaded)
    assert (report.failure, report.commits) == (None, 0)
    assert offsets_of(staging.table, 0) == list(range(10))
    assert offsets_of(staging.table, 1) == list(range(10))


def test_commit_between_read_and_commit_is_a_conflict(staging: Staging, tables: SparkDeltaTables) -> None:
    """The race that only Delta can decide: both transactions are open before either commits."""
    staging.flush(0, 0, 10)
    loader_for(staging, tables).run_pass()
    staging.flush(0, 10, 20)
    kept: list[TableCommit] = []

    class Keeps(Mortal):
        def commit(self, commit: TableCommit) -> CommitOutcome:
            kept.append(commit)
            raise Death

    with pytest.raises(Death):
        loader_for(staging, Keeps(tables, "", after=False)).run_pass()
    (commit,) = kept
    slow = tables._begin(staging.table)
    assert tables._changed(slow.state(commit.expected), commit) is None
    assert isinstance(tables.commit(commit), Committed)
    with pytest.raises(Exception, match="ConcurrentTransactionException"):
        slow.commit(tables._load(commit))
    assert isinstance(tables.commit(commit), AlreadyLoaded)


class Forgetful(LoadTransaction):
    """A transaction whose commit is written, or not, and then seems to fail."""

    def __init__(self, real: LoadTransaction, *, writes: bool) -> None:
        super().__init__(real._java)
        self._writes = writes

    def commit(self, load: Mapping[str, object]) -> int:
        if self._writes:
            super().commit(load)
        msg = "connection reset by peer"
        raise Py4JError(msg)


@pytest.mark.parametrize("writes", [True, False])
def test_commit_whose_answer_is_lost_is_looked_up(
    staging: Staging, spark: SparkSession, tables: SparkDeltaTables, *, writes: bool
) -> None:
    staging.flush(0, 0, 10)
    loader_for(staging, tables).run_pass()
    staging.flush(0, 10, 20)
    forgetful = SparkDeltaTables(spark, SystemClock())
    forgetful._begin = lambda url: Forgetful(tables._begin(url), writes=writes)  # type: ignore[method-assign]
    (report,) = loader_for(staging, forgetful).run_pass()
    assert (report.commits, report.failure is None) == ((1, True) if writes else (0, False))
    if report.failure is not None:
        assert "it is unknown whether a commit" in report.failure.problem
        assert "nothing was written" not in report.failure.remedy
    (report,) = loader_for(staging, tables).run_pass()
    assert report.commits == (0 if writes else 1)
    assert offsets_of(staging.table, 0) == list(range(20))


def test_changed_table_is_a_conflict_and_then_loaded(
    staging: Staging, tables: SparkDeltaTables, spark: SparkSession
) -> None:
    staging.flush(0, 0, 10)
    loader_for(staging, tables).run_pass()
    staging.flush(0, 10, 20)

    class Altered(Mortal):
        outcomes: list[CommitOutcome] = []  # noqa: RUF012 - one test's

        def commit(self, commit: TableCommit) -> CommitOutcome:
            if not self.outcomes:
                spark.sql(f"ALTER TABLE delta.`{staging.table}` ADD COLUMNS (more INT)")
            self.outcomes.append(tables.commit(commit))
            return self.outcomes[-1]

    altered = Altered(tables, "", after=False)
    (report,) = loader_for(staging, altered).run_pass()
    assert [type(outcome) for outcome in altered.outcomes] == [Conflicted, Committed]
    assert report.failure is None
    assert offsets_of(staging.table, 0) == list(range(20))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("id BIGINT, day STRING", "the column name is not in it"),
        ("id INT, name STRING, {k}, day STRING", "the column id is INT, staged as BIGINT"),
    ],
)
def test_table_that_what_is_staged_does_not_fit_is_refused(
    staging: Staging, tables: SparkDeltaTables, spark: SparkSession, columns: str, message: str
) -> None:
    kafka = "_kafka_topic STRING, _kafka_partition INT, _kafka_offset BIGINT"
    spark.sql(f"CREATE TABLE delta.`{staging.table}` ({columns.format(k=kafka)}) USING delta PARTITIONED BY (day)")
    staging.flush(0, 0, 10)
    (report,) = loader_for(staging, tables).run_pass()
    assert report.failure is not None
    assert message in str(report.failure)
    assert transactions(staging) == {}


@pytest.mark.parametrize(
    "properties",
    [
        "'delta.enableDeletionVectors' = 'true'",
        "'delta.enableChangeDataFeed' = 'true'",
        "'delta.appendOnly' = 'true'",
        "'delta.enableInCommitTimestamps' = 'true'",
        "'delta.checkpointPolicy' = 'v2'",
        "'delta.enableTypeWidening' = 'true'",
    ],
)
def test_files_are_added_to_tables_with_harmless_features(
    staging: Staging, tables: SparkDeltaTables, spark: SparkSession, properties: str
) -> None:
    kafka = "_kafka_topic STRING, _kafka_partition INT, _kafka_offset BIGINT"
    spark.sql(
        f"CREATE TABLE delta.`{staging.table}` (id BIGINT, name STRING, {kafka}, day STRING) USING delta "
        f"PARTITIONED BY (day) TBLPROPERTIES ({properties})"
    )
    staging.flush(0, 0, 10)
    (report,) = loader_for(staging, tables).run_pass()
    assert report.failure is None
    offsets = spark.read.format("delta").load(staging.table).select("_kafka_offset").collect()
    assert sorted(row[0] for row in offsets) == list(range(10))


def test_finished_markers_go_and_the_last_stays(staging: Staging, tables: SparkDeltaTables) -> None:
    for start in range(0, 30, 10):
        staging.flush(0, start, start + 10)
    staging.touch(1, 5)
    loader_for(staging, tables, settings_for(staging, marker_retention="1h")).run_pass()
    assert len(staging.markers()) == 4
    (report,) = loader_for(staging, tables, settings_for(staging, marker_retention=0)).run_pass()
    assert report.settled == 2
    assert staging.markers() == ["done/orders/0/00000000000000000020.done", "done/orders/1/5.done"]
    staging.flush(0, 30, 40)
    loader_for(staging, tables, settings_for(staging, marker_retention=0)).run_pass()
    assert transactions(staging) == {"orders-0": 39, "orders-1": 5}


def test_table_that_was_made_again_begins_again(staging: Staging, tables: SparkDeltaTables) -> None:
    staging.flush(0, 0, 10)
    staging.flush(0, 10, 20)
    loader_for(staging, tables).run_pass()
    shutil.rmtree(f"{staging.table}/_delta_log")
    (report,) = loader_for(staging, tables).run_pass()
    assert report.failure is None
    assert transactions(staging) == {"orders-0": 19}


def test_creating_a_table_that_is_there_changes_nothing(staging: Staging, tables: SparkDeltaTables) -> None:
    shape = TableShape(staging.schema(), ("day",))
    tables.create(staging.table, shape)
    before = tables.state(staging.table)
    tables.create(staging.table, TableShape(staging.schema(), ()))
    assert tables.state(staging.table) == before
