"""A loader whose markers another loader loads and settles while it reads them, or looks for their files."""

from dataclasses import dataclass

import pytest

from common.ports import StoredObject
from delta_loader.service import LoaderService
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.loading import loader_for, settings_for
from tests.fakes.staging import Staging
from tests.fakes.stores import Trap, TrappedStore, acting
from tests.unit.delta_loader.load.test_interplay import Restorable
from tests.unit.delta_loader.test_service import Later


class Store(TrappedStore):
    def stat(self, path: str) -> StoredObject | None:
        self.before("stat", path)
        return super().stat(path)


@dataclass
class Trapped(Staging):
    trap: Trap = lambda *_: None

    def store(self, url: str) -> Store:
        return Store(url, self.storage_options, before=self.trap)


def settling(staging: Staging, tables: MemoryDeltaTables) -> LoaderService:
    return loader_for(staging, tables, settings_for(staging, marker_retention=0), Later(1))


def loader_next_to(staging: Staging, tables: MemoryDeltaTables, trap: Trap) -> LoaderService:
    return loader_for(Trapped(staging.root, storage_options=staging.storage_options, trap=trap), tables)


@pytest.mark.parametrize("read", [0, 10, 20, 30])
def test_markers_settled_by_another_loader_are_no_gap(staging: Staging, tables: MemoryDeltaTables, read: int) -> None:
    other = settling(staging, tables)
    staging.flush(0, 0, 10)
    other.run_pass()
    markers = {start: staging.flush(0, start, start + 10) for start in (10, 20, 30)}
    path = markers[read].name.path if read else ""
    slow = loader_next_to(staging, tables, acting("read", other.run_pass, below=path or "done/"))
    (report,) = slow.run_pass()
    assert (report.failure, report.held) == (None, {})
    assert tables.begun(staging.table, "orders-0") == [0, 10, 20, 30]
    assert len(staging.markers()) == 1


def test_files_that_another_loader_loads_and_deletes_are_not_missing(
    staging: Staging, tables: MemoryDeltaTables
) -> None:
    other = settling(staging, tables)
    for start in (0, 10, 20):
        staging.flush(0, start, start + 10, mixed=True)
    staging.flush(0, 30, 40)
    slow = loader_next_to(staging, tables, acting("stat", other.run_pass, below="data/"))
    (report,) = slow.run_pass()
    assert (report.failure, report.held) == (None, {})
    assert tables.begun(staging.table, "orders-0") == [0, 10, 20, 30]


def test_gap_of_markers_that_vanished_is_held(staging: Staging, tables: MemoryDeltaTables) -> None:
    staging.flush(0, 0, 10)
    loader_for(staging, tables).run_pass()
    first, *_ = (staging.flush(0, start, start + 10) for start in (10, 20))
    store = staging.store(staging.stage_url)
    slow = loader_next_to(staging, tables, acting("read", lambda: store.delete([first.name.path]), below="done/"))
    (report,) = slow.run_pass()
    assert [held.reason for held in report.held.values()] == ["gap"]


def test_rollback_seen_after_a_marker_vanished_ends_the_pass(staging: Staging) -> None:
    tables = Restorable()
    other = settling(staging, tables)
    staging.flush(0, 0, 10)
    other.run_pass()
    for start in (10, 20):
        staging.flush(0, start, start + 10)

    def act() -> None:
        other.run_pass()
        tables.restore(staging.table, 1)
        tables.tables[staging.table].transactions["orders-0"] = 9

    slow = loader_next_to(staging, tables, acting("read", act, below="done/"))
    (report,) = slow.run_pass()
    assert "was rolled back during the load" in str(report.failure)
    assert not report.held
    (report,) = slow.run_pass()
    assert [held.reason for held in report.held.values()] == ["table_restored"]
