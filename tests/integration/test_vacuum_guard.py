"""A real VACUUM against files that wait for their commit, in the worst order: no committed file is missing."""

import os
import time
from pathlib import Path
from urllib.parse import unquote

import pytest
from pyspark.sql import SparkSession

from common.clock import SystemClock
from delta_loader.spark.delta import SparkDeltaTables
from delta_loader.tables.commits import CommitOutcome, TableCommit
from tests.fakes.loading import loader_for
from tests.fakes.staging import Staging
from tests.reading import rows_of

pytestmark = pytest.mark.spark


class VacuumBefore(SparkDeltaTables):
    """Between the look at the files and the commit, a whole VACUUM runs, and another one makes its list."""

    listed: tuple[str, ...] = ()

    def commit(self, commit: TableCommit) -> CommitOutcome:
        table = f"delta.`{commit.target.url}`"
        self._spark.sql(f"VACUUM {table}")  # of the table's own retention, a week
        return super().commit(commit)

    def list_all(self, url: str) -> None:
        """What a VACUUM that keeps nothing would delete, later."""
        key = "spark.databricks.delta.retentionDurationCheck.enabled"
        self._spark.conf.set(key, "false")
        try:
            listed = self._spark.sql(f"VACUUM delta.`{url}` RETAIN 0 HOURS DRY RUN").collect()
        finally:
            self._spark.conf.unset(key)
        self.listed = tuple(unquote(row["path"]) for row in listed)


def grow_old(staging: Staging) -> None:
    for path in Path(staging.table).rglob("*.parquet"):
        if "_delta_log" not in path.parts:
            os.utime(path, (time.time() - 8 * 86_400,) * 2)


def test_no_committed_file_is_missing_after_a_vacuum(tmp_path: Path, spark: SparkSession) -> None:
    staging, tables = Staging.below(tmp_path), VacuumBefore(spark, SystemClock())
    staging.flush(0, 0, 10)
    loader_for(staging, SparkDeltaTables(spark, SystemClock())).run_pass()
    old = staging.flush(0, 10, 20, days=["2026-01-01", "2026-01-02"])
    grow_old(staging)
    tables.list_all(staging.table)  # a VACUUM lists
    assert len(tables.listed) == 2
    (report,) = loader_for(staging, tables).run_pass()  # the loader commits next to another full VACUUM
    assert (report.failure, report.held, report.rows) == (None, {}, 10)
    for path in tables.listed:  # and the first one deletes
        Path(path.removeprefix("file:")).unlink(missing_ok=True)
    store = staging.store(staging.table)
    assert all(store.stat(file.path) is None for table in old.tables for file in table.files)
    assert len(rows_of(staging.table)) == 20
