"""What a loader's metrics say of its loads."""

from common.errors import TableError
from common.metrics import Metrics
from common.tables.state import TableState
from delta_loader.tables.commits import CommitOutcome, TableCommit
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.group import HandClock
from tests.fakes.loading import loader_for, settings_for
from tests.fakes.metrics import numbers
from tests.fakes.staging import Staging
from tests.unit.delta_loader.test_service import Later


def test_successful_and_failed_loads_are_counted(staging: Staging) -> None:
    files = [
        file
        for marker in (staging.flush(0, 0, 10, dead=[3, 4]), staging.flush(1, 0, 5))
        for table in marker.tables
        for file in table.files
    ]
    staging.flush(0, 12, 15)
    tables, metrics, clock = MemoryDeltaTables(), Metrics(), HandClock()
    loader = loader_for(staging, tables, clock=clock, metrics=metrics)
    loader.run_pass()
    expected = {
        "loading{}": 0,
        "commits_total{app_id=orders, outcome=committed}": 2,
        "commit_seconds_count{}": 2,
        "commit_seconds_sum{}": 0,
        "files_total{app_id=orders}": 3,
        "rows_total{app_id=orders}": 15,
        "bytes_total{app_id=orders}": sum(file.size_bytes for file in files),
        "valid_through_timestamp_seconds{app_id=orders}": 1767225600.004,
        "dead_letters_total{app_id=orders, error_class=not_json}": 2,
        "loaded_position{partition=0, topic=orders}": 10,
        "loaded_position{partition=1, topic=orders}": 5,
        "staged_position{partition=0, topic=orders}": 15,
        "staged_position{partition=1, topic=orders}": 5,
        "lag_positions{partition=0, topic=orders}": 5,
        "lag_positions{partition=1, topic=orders}": 0,
        "markers{app_id=orders}": 3,
        "waiting_markers{app_id=orders}": 1,
        "tables_left_out{app_id=orders}": 0,
        "runs_total{outcome=success}": 1,
        "run_seconds_count{}": 1,
        "run_seconds_sum{}": 0,
        "consecutive_failures{app_id=orders}": 0,
        "last_success_timestamp_seconds{}": 1000,
        "held_partitions{app_id=orders, reason=gap}": 1,
        "unfinished_streams{}": 0,
    }
    assert numbers(metrics) == expected
    staging.flush(1, 5, 7)
    tables.meanwhile = failing
    clock.sleep_s(60)
    loader.run_pass()
    changed = {name: number for name, number in numbers(metrics).items() if expected.get(name) != number}
    assert changed == {
        "runs_total{outcome=failure}": 1,
        "run_seconds_count{}": 2,
        "consecutive_failures{app_id=orders}": 1,
        "staged_position{partition=1, topic=orders}": 7,
        "lag_positions{partition=1, topic=orders}": 2,
        "markers{app_id=orders}": 4,
        "waiting_markers{app_id=orders}": 2,
    }


def test_lag_that_cannot_be_read_is_not_reported(staging: Staging) -> None:
    class Away(MemoryDeltaTables):
        is_away = False

        def state(self, url: str) -> TableState | None:
            if self.is_away:
                raise TableError("it is away", "wait")
            return super().state(url)

    tables, metrics = Away(), Metrics()
    staging.flush(0, 0, 10)
    loader = loader_for(staging, tables, metrics=metrics)
    loader.run_pass()
    names = {f"{name}{{partition=0, topic=orders}}" for name in ("loaded_position", "staged_position", "lag_positions")}
    assert names < numbers(metrics).keys()
    tables.is_away = True
    loader.run_pass()
    assert names.isdisjoint(numbers(metrics).keys())
    assert not loader.stats.entries["orders"].is_current
    tables.is_away = False
    loader.run_pass()
    assert names < numbers(metrics).keys()
    assert loader.stats.entries["orders"].is_current


def test_markers_that_were_settled_and_late_claims_are_counted(staging: Staging) -> None:
    metrics = Metrics()
    settings = settings_for(staging, marker_retention=0)
    loader = loader_for(staging, MemoryDeltaTables(), settings, Later(1), metrics=metrics)
    for start in range(0, 30, 10):
        staging.flush(0, start, start + 10)
    loader.run_pass()
    settled, strays = "settled_markers_total{app_id=orders}", "strays_total{app_id=orders}"
    counted = numbers(metrics)
    assert (counted[settled], counted.get(strays)) == (2, None)
    for start in (0, 10):
        staging.flush(0, start, start + 5, previous=None)
    loader.run_pass()
    counted = numbers(metrics)
    assert (counted[settled], counted[strays]) == (2, 2)


def failing(_commit: TableCommit) -> CommitOutcome:
    raise TableError("the table is away")
