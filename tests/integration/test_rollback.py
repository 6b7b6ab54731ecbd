"""Tables that went back behind their txn actions, by real Spark: the loader stops, says so, and obeys an answer."""

import shutil
import time
from pathlib import Path

import deltalake
import pytest
from delta import DeltaTable
from pyspark.sql import SparkSession

from common.clock import SystemClock
from common.spans import Position
from common.stage.resolutions import Resolution
from common.tables.commit_metadata import Decision
from common.tables.delta_log import read_table_state
from common.tables.history import read_history, store_lines
from common.tables.rollback import find_rollback
from common.tables.state import TableState
from delta_loader.load.report import StreamReport
from delta_loader.plan.plan import TableShape
from delta_loader.service import LoaderService
from delta_loader.spark.delta import SparkDeltaTables
from delta_loader.tables.commits import CommitOutcome, Conflicted, TableCommit
from tests.fakes.loading import loader_for, settings_for
from tests.fakes.staging import Staging
from tests.reading import offsets_of

pytestmark = pytest.mark.spark


@pytest.fixture
def tables(spark: SparkSession) -> SparkDeltaTables:
    return SparkDeltaTables(spark, SystemClock())


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging.below(tmp_path)


@pytest.fixture
def loader(staging: Staging, tables: SparkDeltaTables) -> LoaderService:
    """One that has loaded [0, 10) by version 1, and [10, 20) by version 2."""
    service = loader_for(staging, tables, settings_for(staging, marker_retention=0))
    for start in (0, 10):
        staging.flush(0, start, start + 10)
        (report,) = service.run_pass()
        assert report.commits == 1
    return service


def reason_of(staging: Staging, report: StreamReport) -> str:
    assert (report.failure, report.commits, report.settled) == (None, 0, 0)
    assert list(report.held) == [staging.source(0)]
    return report.held[staging.source(0)].reason


def give_answer(staging: Staging, decision: Decision, version: int, position: int) -> None:
    state = read_table_state(staging.store(staging.table))
    assert state is not None
    positions = {staging.source(0): Position(position)}
    answer = Resolution("orders", staging.table, state.table_id, version, decision, positions, "a test", 1)
    staging.store(staging.stage_url).create(answer.path, answer.to_bytes())


def position(staging: Staging) -> int | None:
    state = read_table_state(staging.store(staging.table))
    return None if state is None else state.transactions.get("orders-0")


def restore(staging: Staging, version: int) -> None:
    """As Spark does it, in a hundredth of the time."""
    deltalake.DeltaTable(staging.table).restore(version)


@pytest.mark.in_turn("a replay after a RESTORE")
@pytest.mark.parametrize("by", ["version", "moment"])
def test_restore_stops_the_stream_and_a_replay_brings_each_record_once(
    staging: Staging, loader: LoaderService, spark: SparkSession, by: str
) -> None:
    if by == "version":
        spark.sql(f"RESTORE TABLE delta.`{staging.table}` TO VERSION AS OF 1")
    else:
        time.sleep(1)
        history = spark.sql(f"DESCRIBE HISTORY delta.`{staging.table}`").where("version = 1").collect()
        spark.sql(f"RESTORE TABLE delta.`{staging.table}` TO TIMESTAMP AS OF '{history[0]['timestamp']}'")
    # What went is out of sight: the txn actions say nothing of it.
    assert (offsets_of(staging.table), position(staging)) == (list(range(10)), 19)
    staging.flush(0, 20, 30)
    for _ in range(2):
        (report,) = loader.run_pass()
        assert reason_of(staging, report) == "table_restored"
    held = report.held[staging.source(0)]
    assert "version 3" in held.problem
    assert "to version 1" in held.problem
    assert "orders/0 up to 10" in held.problem
    assert "bootstrap accept ⟨config⟩ --stream orders" in held.remedy
    assert offsets_of(staging.table) == list(range(10))
    # The marker of [10, 20) is still there, because nothing was settled.
    give_answer(staging, Decision.REPLAY, 3, 10)
    (report,) = loader.run_pass()
    assert (report.failure, report.held, report.commits) == (None, {}, 2)
    assert (offsets_of(staging.table), position(staging)) == (list(range(30)), 29)
    # It is answered for good, also for a loader that knows nothing, and without the object.
    staging.store(staging.stage_url).delete([item.path for item in staging.store(staging.stage_url).list("accept")])
    staging.flush(0, 30, 40)
    (report,) = loader_for(staging, SparkDeltaTables(spark, SystemClock())).run_pass()
    assert (report.held, offsets_of(staging.table)) == ({}, list(range(40)))


def test_going_on_leaves_what_is_lost_and_loads_what_comes(staging: Staging, loader: LoaderService) -> None:
    restore(staging, 1)
    staging.flush(0, 20, 30)
    give_answer(staging, Decision.GO_ON, 3, 20)
    (report,) = loader.run_pass()
    assert (report.failure, report.held) == (None, {})
    assert offsets_of(staging.table) == [*range(10), *range(20, 30)]
    # A second RESTORE wants an answer of its own.
    restore(staging, 1)
    (report,) = loader.run_pass()
    assert reason_of(staging, report) == "table_restored"


def test_restore_above_the_own_commits_changes_nothing(staging: Staging, loader: LoaderService) -> None:
    deltalake.DeltaTable(staging.table).delete("_kafka_offset < 5")
    restore(staging, 2)
    restore(staging, 1)
    restore(staging, 2)
    staging.flush(0, 20, 30)
    (report,) = loader.run_pass()
    assert (report.held, offsets_of(staging.table)) == ({}, list(range(30)))


def test_dml_is_the_owners_right(staging: Staging, loader: LoaderService, spark: SparkSession) -> None:
    table = DeltaTable.forPath(spark, staging.table)
    table.delete("_kafka_offset < 5")
    table.update(set={"name": "'x'"})
    table.optimize().executeCompaction()
    spark.sql(f"TRUNCATE TABLE delta.`{staging.table}`")
    first = spark.read.format("delta").option("versionAsOf", 1).load(staging.table)
    first.write.format("delta").mode("overwrite").save(staging.table)
    staging.flush(0, 20, 30)
    (report,) = loader.run_pass()
    assert (report.held, report.commits) == ({}, 1)
    assert offsets_of(staging.table) == [*range(10), *range(20, 30)]


def test_replaced_table_stops_the_stream(staging: Staging, loader: LoaderService, spark: SparkSession) -> None:
    frame = spark.read.format("delta").load(staging.table).limit(0)
    frame.writeTo(f"delta.`{staging.table}`").using("delta").partitionedBy(frame["day"]).createOrReplace()
    assert (offsets_of(staging.table), position(staging)) == ([], 19)
    staging.flush(0, 20, 30)
    (report,) = loader.run_pass()
    assert reason_of(staging, report) == "table_replaced"
    assert "from orders/0 up to 0" in report.held[staging.source(0)].problem
    give_answer(staging, Decision.REPLAY, 3, 10)
    (report,) = loader.run_pass()
    assert (report.held, offsets_of(staging.table)) == ({}, list(range(10, 30)))


def test_recreated_table_is_distinguished_from_expired_txn_actions(
    staging: Staging, loader: LoaderService, tables: SparkDeltaTables, spark: SparkSession
) -> None:
    staging.flush(0, 20, 30)
    spark.sql(
        f"ALTER TABLE delta.`{staging.table}` "
        "SET TBLPROPERTIES ('delta.setTransactionRetentionDuration' = 'interval 1 seconds')"
    )
    time.sleep(2)
    (report,) = loader.run_pass()
    assert reason_of(staging, report) == "txn_expired"
    held = report.held[staging.source(0)]
    assert "up to 20" in held.problem
    assert "UNSET TBLPROPERTIES" in held.remedy
    spark.sql(f"ALTER TABLE delta.`{staging.table}` UNSET TBLPROPERTIES ('delta.setTransactionRetentionDuration')")
    give_answer(staging, Decision.GO_ON, 2, 20)
    (report,) = loader.run_pass()
    assert (report.held, offsets_of(staging.table)) == ({}, list(range(30)))

    staging.flush(0, 30, 40)
    shutil.rmtree(f"{staging.table}/_delta_log")
    tables.create(staging.table, TableShape(staging.schema(), staging.partition_by))
    (report,) = loader.run_pass()
    assert reason_of(staging, report) == "table_recreated"


def test_restore_after_the_plan_is_a_conflict(staging: Staging, loader: LoaderService, spark: SparkSession) -> None:
    """Between its look and its transaction; the next look tells."""
    assert loader is not None
    outcomes: list[CommitOutcome] = []

    class Restoring(SparkDeltaTables):
        def commit(self, commit: TableCommit) -> CommitOutcome:
            if not outcomes:
                restore(staging, 1)
            outcomes.append(super().commit(commit))
            return outcomes[-1]

    staging.flush(0, 20, 30)
    (report,) = loader_for(staging, Restoring(spark, SystemClock())).run_pass()
    assert [type(outcome) for outcome in outcomes] == [Conflicted]
    assert reason_of(staging, report) == "table_restored"
    assert offsets_of(staging.table) == list(range(10))


def test_restore_during_the_commit_is_seen_right_after(
    staging: Staging, loader: LoaderService, tables: SparkDeltaTables, spark: SparkSession
) -> None:
    """Within the transaction: Delta lets the blind append pass, and its readVersion tells."""
    assert loader is not None

    class Racing(SparkDeltaTables):
        raced = False

        def _changed(self, state: TableState, commit: TableCommit) -> CommitOutcome | None:
            outcome = super()._changed(state, commit)
            if not self.raced:
                self.raced = True
                restore(staging, 1)
            return outcome

    staging.flush(0, 20, 30)
    staging.flush(0, 30, 40)
    (report,) = loader_for(staging, Racing(spark, SystemClock()), settings_for(staging, max_files=1)).run_pass()
    assert (report.commits, report.held[staging.source(0)].reason) == (1, "table_restored")
    # Nor does a loader that starts again take the late commit for an all-clear.
    (report,) = loader_for(staging, tables).run_pass()
    assert reason_of(staging, report) == "table_restored"
    assert offsets_of(staging.table) == [*range(10), *range(20, 30)]


def test_history_read_without_spark_is_the_same(staging: Staging, loader: LoaderService, spark: SparkSession) -> None:
    assert loader is not None
    spark.sql(f"OPTIMIZE delta.`{staging.table}`")
    spark.sql(f"RESTORE TABLE delta.`{staging.table}` TO VERSION AS OF 1")
    store = staging.store(staging.table)
    state = read_table_state(store)
    assert state is not None
    plain = list(read_history(state.version, store_lines(store)))
    assert plain == list(SparkDeltaTables(spark, SystemClock()).history(staging.table, state.version))
    rollback = find_rollback(plain, "orders")
    assert rollback is not None
    assert rollback.positions == {staging.source(0): 10}
