"""Files that are old when they are committed, and a VACUUM that has listed them."""

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from common.clock import SystemClock
from common.stage.data_files import DataFileName
from delta_loader.tables.commits import CommitOutcome, Conflicted, TableCommit
from delta_loader.tables.vacuum import fresh_path, guarded_age_s, retention_s
from tests.fakes.clock import IdleClock
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.loading import loader_for, settings_for
from tests.fakes.staging import Staging

DAY_S = 86_400.0
NOW_S = float(int(time.time()))
PROPERTY = "delta.deletedFileRetentionDuration"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, 7 * DAY_S),
        ("interval 7 days", 7 * DAY_S),
        ("interval 1 week", 7 * DAY_S),
        ("INTERVAL 36 HOURS", 1.5 * DAY_S),
        ("interval 1 day 12 hours", 1.5 * DAY_S),
        ("interval 0 seconds", 0.0),
        ("30 days", 30 * DAY_S),
        ("1 week 2 hours", 7 * DAY_S + 7200),
        ("interval", None),
        ("", None),
        ("interval soon", None),
        ("interval 1 month", None),
        ("forever", None),
    ],
)
def test_retention_is_parsed_as_delta_writes_it(text: str | None, seconds: float | None) -> None:
    assert retention_s({} if text is None else {PROPERTY: text}) == seconds


@pytest.mark.parametrize(
    ("text", "age_s"),
    [
        ("interval 7 days", 3.5 * DAY_S),
        ("interval 2 days", DAY_S),
        ("interval 36 hours", DAY_S / 2),
        ("interval 12 hours", 0.0),
        ("interval 0 hours", 0.0),
        ("forever", 0.0),
    ],
)
def test_guarded_age_follows_from_the_retention(text: str, age_s: float) -> None:
    assert guarded_age_s({PROPERTY: text}) == age_s


@given(st.floats(0, 60 * DAY_S))
def test_files_added_unchanged_are_a_day_from_any_vacuum(retention: float) -> None:
    age_s = guarded_age_s({PROPERTY: f"interval {int(retention)} seconds"})
    assert age_s == 0 or (age_s + DAY_S <= int(retention) and age_s <= retention / 2)


def test_fresh_path_keeps_the_folder_and_identity() -> None:
    path = "day=a%2Fb/orders-0-00000000000000000041-0b4a5dbe-8d61-4bb7-9e0e-2f8f0b0e3c11.snappy.parquet"
    fresh = fresh_path(path, "load-1")
    old, new = DataFileName.parse(path), DataFileName.parse(fresh)
    assert (new.topic_partition, new.start, new.partition_values) == (
        old.topic_partition,
        old.start,
        old.partition_values,
    )
    assert new.unique not in {old.unique, DataFileName.parse(fresh_path(path, "load-2")).unique}


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging.below(tmp_path)


def grow_old(staging: Staging, days: float) -> None:
    for path in Path(staging.root).rglob("*.parquet"):
        os.utime(path, (NOW_S - days * DAY_S,) * 2)


def staged(staging: Staging) -> set[str]:
    return {stored.path for stored in staging.store(staging.table).list("") if stored.path.endswith(".parquet")}


class Leaping(IdleClock):
    """The clock of a machine that can be suspended; its date stands still otherwise."""

    now_s = NOW_S

    def wall_ms(self) -> int:
        return int(self.now_s * 1000)


@pytest.mark.parametrize("too_old_s", [0, 1])
def test_young_files_are_added_as_they_are(staging: Staging, tables: MemoryDeltaTables, too_old_s: int) -> None:
    staging.flush(0, 0, 10)
    grow_old(staging, days=3.5 + too_old_s / DAY_S)
    loader_for(staging, tables, None, Leaping()).run_pass()
    assert len(staged(staging)) == 1 + too_old_s
    assert set(tables.tables[staging.table].paths) <= staged(staging)


def test_old_files_are_copied_so_a_running_vacuum_does_no_harm(staging: Staging, tables: MemoryDeltaTables) -> None:
    staging.flush(0, 0, 10, days=["2026-01-01", "a/b=c %ü"], dead=[3])
    grow_old(staging, days=4)
    staging.flush(0, 10, 20)
    listed = staged(staging)
    old = {path for path in listed if "00000000000000000000" in path}
    (report,) = loader_for(staging, tables).run_pass()
    assert (report.failure, report.rows) == (None, 20)
    paths = set(tables.tables[staging.table].paths)
    assert paths.isdisjoint(old)
    assert len(paths) == len(listed)
    staging.store(staging.table).delete(old)
    assert paths == staged(staging)


class Behind(SystemClock):
    """The clock of a machine that is a month behind the store's."""

    def wall_ms(self) -> int:
        return super().wall_ms() - int(30 * DAY_S * 1000)


def test_clock_that_is_behind_does_not_make_files_young(staging: Staging, tables: MemoryDeltaTables) -> None:
    staging.flush(0, 0, 10)
    grow_old(staging, days=4)
    old = staged(staging)
    staging.flush(0, 10, 20)
    loader_for(staging, tables, None, Behind()).run_pass()
    assert old.isdisjoint(tables.tables[staging.table].paths)


def test_replan_after_a_conflict_reuses_the_copies(staging: Staging) -> None:
    conflicts = iter([Conflicted("a foreign commit")])
    tables = MemoryDeltaTables(lambda _: next(conflicts, None))
    staging.flush(0, 0, 10)
    grow_old(staging, days=4)
    with capture_logs() as logs:
        loader_for(staging, tables).run_pass()
    assert [log["files"] for log in logs if "are copied" in log["event"]] == [1]
    assert len(staged(staging)) == 2
    assert set(tables.tables[staging.table].paths) < staged(staging)


def test_unprotected_table_is_reported_once(staging: Staging, tables: MemoryDeltaTables) -> None:
    for start in (0, 10):
        staging.flush(0, start, start + 10)
    loader_for(staging, tables).run_pass()
    tables.tables[staging.table].properties = {PROPERTY: "interval 0 hours"}
    with capture_logs() as logs:  # of a pass that reads the tables again before it deletes a marker
        loader_for(staging, tables, settings_for(staging, marker_retention=0)).run_pass()
    assert [log["table"] for log in logs if "not safe" in log["event"]] == [staging.table]


@pytest.mark.parametrize("too_old_s", [0, 1])
def test_copy_that_grew_old_is_copied_again(staging: Staging, too_old_s: int) -> None:
    clock, conflicts = Leaping(), iter([Conflicted("a foreign commit")])

    def suspended(_commit: TableCommit) -> CommitOutcome | None:
        clock.now_s = NOW_S + 3.5 * DAY_S + too_old_s
        return next(conflicts, None)

    tables = MemoryDeltaTables(suspended)
    staging.flush(0, 0, 10)
    grow_old(staging, days=4)
    loader_for(staging, tables, None, clock).run_pass()
    assert len(staged(staging)) == 2 + too_old_s
    (path,) = tables.tables[staging.table].paths
    assert path in staged(staging)


def test_crash_between_copy_and_commit_loads_each_row_once(staging: Staging) -> None:
    class Dying(MemoryDeltaTables):
        def commit(self, commit: TableCommit) -> CommitOutcome:
            raise RuntimeError(commit.app_id)

    staging.flush(0, 0, 10)
    grow_old(staging, days=4)
    (report,) = loader_for(staging, Dying()).run_pass()
    assert report.failure is not None
    tables = MemoryDeltaTables()
    (report,) = loader_for(staging, tables).run_pass()
    assert (report.failure, report.rows) == (None, 10)
    (path,) = tables.tables[staging.table].paths
    assert path in staged(staging)
