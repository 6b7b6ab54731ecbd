"""The table services over real Spark: fewer files and the same rows, and nothing that a load would miss."""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog
from pyspark.sql import SparkSession

from common.clock import SystemClock
from common.metrics import Metrics
from common.settings import Settings
from delta_loader.maintenance.live_files import live_files
from delta_loader.maintenance.services.due import Done, MaintenanceTask, Outcome, RunReport, TableRules, due
from delta_loader.maintenance.services.facts import Service, TableFacts
from delta_loader.maintenance.services.reading import FactsReader
from delta_loader.maintenance.services.runs import TableServices
from delta_loader.maintenance.services.spark import SparkServices
from delta_loader.ports import in_turn
from delta_loader.spark.bridge import spark_url
from delta_loader.spark.delta import SparkDeltaTables
from delta_loader.stage.reading import Stage
from tests.conftest import Lake
from tests.fakes.loading import loader_for, settings_for
from tests.fakes.staging import Staging
from tests.reading import rows_of

pytestmark = pytest.mark.spark


class Earlier(SystemClock):
    """The machine's clock, some hours ago."""

    def wall_ms(self) -> int:
        return super().wall_ms() - 6 * 3_600_000


def services_settings(staging: Staging, z_order: Sequence[str] = (), **services: object) -> Settings:
    known = settings_for(staging).model_dump(by_alias=True)
    known["streams"][0]["table_services"] = {"z_order": list(z_order)}
    small = {"min_files": 3, "target_file": "1MiB", "piece": "1GiB"}
    return Settings.model_validate({**known, "table_services": {"optimize": small, **services}})


@dataclass
class World:
    """One stream's tables, who loads them, and who serves them."""

    staging: Staging
    spark: SparkSession

    def load(self, *, earlier: bool = False) -> None:
        tables = SparkDeltaTables(self.spark, Earlier() if earlier else SystemClock())
        (report,) = loader_for(self.staging, tables).run_pass()
        assert (report.failure, report.held) == (None, {})

    def inspector(self, settings: Settings) -> FactsReader:
        stage = Stage(self.staging.store(self.staging.stage_url), in_turn)
        return FactsReader(settings, stage, self.staging.store, in_turn, SystemClock())

    def serve(self, work: SparkServices | None = None, z_order: Sequence[str] = (), **services: object) -> RunReport:
        settings = services_settings(self.staging, z_order, **services)
        services_run = TableServices(
            settings,
            self.inspector(settings),
            work or SparkServices(self.spark),
            SystemClock(),
            log=structlog.get_logger(),
            metrics=Metrics(),
        )
        return services_run.run()

    def facts(self) -> TableFacts:
        settings = services_settings(self.staging)
        rules = TableRules(settings.table_services, 3600.0)
        facts = self.inspector(settings).read(self.staging.table, rules)
        assert facts is not None
        return facts

    def rows(self) -> Counter[tuple[object, ...]]:
        return Counter(tuple(row.values()) for row in rows_of(self.staging.table, self.staging.storage_options))

    def files(self) -> dict[str | None, set[str]]:
        by_day: dict[str | None, set[str]] = {}
        for file in live_files(self.staging.store(self.staging.table), in_turn):
            by_day.setdefault(file.partition_values["day"], set()).add(file.path)
        return by_day

    def insert(self, start: int, end: int) -> None:
        self.spark.range(start, end, 1, 1).selectExpr("id", "'x' AS day").write.format("delta").mode("append").save(
            self.staging.table
        )

    def sql(self, text: str) -> None:
        self.spark.sql(text.replace("{table}", f"delta.`{spark_url(self.staging.table)}`"))


def test_quiet_partitions_are_put_together_and_the_fresh_one_is_not(tmp_path: Path, spark: SparkSession) -> None:
    world = World(Staging.below(tmp_path), spark)
    quiet = ("2026-01-01", "it's\\quoted", None)
    for start in range(0, 60, 10):
        world.staging.flush(0, start, start + 10, days=quiet)
    world.load(earlier=True)
    for start in range(60, 90, 5):
        world.staging.flush(0, start, start + 5, days=["2026-01-02"])
    world.load()
    rows, files = world.rows(), world.files()
    assert {day: len(names) for day, names in files.items()} == {**dict.fromkeys(quiet, 6), "2026-01-02": 6}

    report = world.serve(vacuum={"enabled": False})
    (done,) = report.tasks
    assert isinstance(done.outcome, Done)
    assert (done.outcome.files_removed, done.outcome.files_added) == (18, 3)
    after = world.files()
    assert {day: len(after[day]) for day in quiet} == dict.fromkeys(quiet, 1)
    assert after["2026-01-02"] == files["2026-01-02"]
    assert world.rows() == rows

    run = world.facts().last(Service.OPTIMIZE)
    assert run is not None
    assert (run.files_removed, run.files_added) == (18, 3)
    assert world.serve(vacuum={"enabled": False}).tasks == ()  # nothing is rewritten twice


class Begun(SparkServices):
    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark)
        self.begun = threading.Event()

    def carry_out(self, piece: MaintenanceTask, rules: TableRules) -> Outcome:
        self.begun.set()
        return super().carry_out(piece, rules)


def test_loads_go_on_while_their_table_is_served(tmp_path: Path, spark: SparkSession) -> None:
    """Once more where OPTIMIZE was done before the first load."""
    worlds = (World(Staging.below(tmp_path / str(number)), spark) for number in range(9))
    assert any(map(is_loaded_while_it_is_served, worlds))


def is_loaded_while_it_is_served(world: World) -> bool:
    """Whether a load came between what OPTIMIZE has read and its commit, and neither of the two noticed."""
    work = Begun(world.spark)
    days = [f"2026-01-{day:02d}" for day in range(1, 6)]
    for start in range(0, 20, 5):
        world.staging.flush(0, start, start + 5, days=days)
    world.load(earlier=True)
    first = world.facts().log.version
    start = 20
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(world.serve, work, vacuum={"enabled": False})
        work.begun.wait(600)
        while not running.done():
            world.staging.flush(0, start, start + 5, days=days)  # into the very partitions
            world.load()
            start += 5
        (report,) = running.result().tasks
    assert isinstance(report.outcome, Done)
    history = SparkDeltaTables(world.spark, SystemClock()).history(world.staging.table, world.facts().log.version)
    commit = next(run for run in history if run.operation == "OPTIMIZE")
    assert commit.read_version is not None
    # What loads added before OPTIMIZE looked, which is a moment after it began, is put together too.
    before = 5 * (commit.read_version - first)
    assert (report.outcome.files_removed, report.outcome.files_added) == (20 + before, 5)
    assert sorted(int(str(row[4])) for row in world.rows()) == list(range(start))
    return commit.read_version < commit.version - 1


def test_vacuum_deletes_removed_files_and_no_staged_ones(tmp_path: Path, spark: SparkSession) -> None:
    world = World(Staging.below(tmp_path), spark)
    for start in range(0, 50, 10):
        world.staging.flush(0, start, start + 10)
    world.load(earlier=True)
    store = world.staging.store(world.staging.table)
    left = [path for paths in world.files().values() for path in paths]
    world.serve(vacuum={"enabled": False})
    world.sql("ALTER TABLE {table} SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 1 second')")
    staged = world.staging.flush(0, 50, 60)
    time.sleep(1.2)
    settings = services_settings(world.staging, vacuum={"mode": "full"})
    rules = TableRules(settings.table_services, 3600.0)  # that a flush takes its time is left out of account
    facts = world.facts()
    assert [refused.service for refused in due(facts, rules, SystemClock().wall_ms()).refused] == [Service.VACUUM]

    rules = TableRules(services_settings(world.staging).table_services, 3600.0)
    (piece,) = due(facts, rules, SystemClock().wall_ms()).tasks
    work = SparkServices(spark)
    assert work.dry_run(piece) == "5 files would be deleted"
    outcome = work.carry_out(piece, rules)
    assert isinstance(outcome, Done)
    assert outcome.files_removed == 5
    assert outcome.bytes_removed > 0
    assert all(store.stat(path) is None for path in left)
    assert all(store.stat(file.path) is not None for table in staged.tables for file in table.files)
    run = world.facts().last(Service.VACUUM)
    assert run is not None
    assert (run.files_removed, run.bytes_removed) == (5, outcome.bytes_removed)
    world.load()
    assert sorted(int(str(row[4])) for row in world.rows()) == list(range(60))
    # A table that keeps what left it for a second is refused, because a flush takes longer.
    assert [refused.service for snapshot in world.serve().snapshots for refused in snapshot.due.refused] == [
        Service.VACUUM
    ]


def test_checkpoints_statistics_and_clustering(tmp_path: Path, spark: SparkSession) -> None:
    world = World(Staging.below(tmp_path), spark)
    world.sql(
        "CREATE TABLE {table} (id BIGINT, day STRING) USING delta CLUSTER BY (id) TBLPROPERTIES "
        "('delta.checkpointInterval' = '1000', 'delta.enableDeletionVectors' = 'true')"
    )
    for start in range(0, 60, 20):
        world.insert(start, start + 20)
    collect = "spark.databricks.delta.stats.collect"
    spark.conf.set(collect, "false")
    try:
        world.insert(60, 80)
    finally:
        spark.conf.unset(collect)
    world.sql("DELETE FROM {table} WHERE id = 3")
    facts = world.facts()
    assert (facts.is_clustered, facts.files, facts.bare_files, facts.log.commits_since_checkpoint) == (True, 4, 1, 6)
    world.serve(vacuum={"enabled": False}, optimize={"enabled": False}, checkpoints={"commits": 5})
    facts = world.facts()
    assert (facts.bare_files, facts.log.commits_since_checkpoint) == (0, 1)
    world.serve(vacuum={"enabled": False}, optimize={"quiet": "0s", "min_files": 2, "target_file": "1MiB"})
    assert [file.is_clustered for file in live_files(world.staging.store(world.staging.table), in_turn)] == [True]
    assert sorted(int(str(row[0])) for row in world.rows()) == [id_ for id_ in range(80) if id_ != 3]


@pytest.mark.s3
@pytest.mark.parametrize("lake", ["versitygw"], indirect=True)
def test_on_s3_rows_are_put_in_z_order_and_what_left_the_table_is_deleted(lake: Lake, spark: SparkSession) -> None:
    world = World(Staging(lake.url, storage_options=dict(lake.storage_options)), spark)
    days = ["2026-01-01", "2026-01-02"]
    for start in range(0, 100, 20):
        world.staging.flush(0, start, start + 20, days=days)
    world.load(earlier=True)
    rows, left = world.rows(), [path for paths in world.files().values() for path in paths]
    report = world.serve(z_order=["_kafka_offset", "id"], vacuum={"enabled": False})
    assert [type(piece.outcome) for piece in report.tasks] == [Done]
    assert {day: len(names) for day, names in world.files().items()} == dict.fromkeys(days, 1)
    assert world.rows() == rows
    history = SparkDeltaTables(spark, SystemClock()).history(world.staging.table, world.facts().log.version)
    (optimize,) = [commit for commit in history if commit.operation == "OPTIMIZE"]
    table = f"delta.`{spark_url(world.staging.table)}`"
    operations = {row["version"]: row for row in spark.sql(f"DESCRIBE HISTORY {table}").collect()}
    assert operations[optimize.version]["operationParameters"]["zOrderBy"] == '["_kafka_offset","id"]'

    staged = world.staging.flush(0, 100, 110)
    world.sql("ALTER TABLE {table} SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 1 second')")
    time.sleep(1.2)
    rules = TableRules(services_settings(world.staging).table_services, 3600.0)
    (piece,) = [
        task for task in due(world.facts(), rules, SystemClock().wall_ms()).tasks if task.service is Service.VACUUM
    ]
    outcome = SparkServices(spark).carry_out(piece, rules)
    assert isinstance(outcome, Done)
    assert outcome.files_removed == len(left) == 10
    store = world.staging.store(world.staging.table)
    assert all(store.stat(path) is None for path in left)
    assert all(store.stat(file.path) is not None for table in staged.tables for file in table.files)
    world.load()
    assert sum(world.rows().values()) == 110
