"""A run: its order, its window, its budget, and its failures, on a fake clock."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Event

import pytest
import structlog
from structlog.testing import capture_logs

from common.clock import SystemClock
from common.errors import TableError
from common.metrics import Metrics
from common.settings import Settings
from delta_loader.maintenance.services.due import (
    Done,
    MaintenanceTask,
    Outcome,
    RunReport,
    TableRules,
    TaskAborted,
    TaskFailed,
)
from delta_loader.maintenance.services.facts import LogFacts, PartitionFacts, Service, ServiceRun, TableFacts
from delta_loader.maintenance.services.reading import rules_of, tables_of
from delta_loader.maintenance.services.runs import ScheduledServices, TableServices, inspect_tables
from delta_loader.maintenance.services.view import run_to_json, run_to_text, tables_to_json, tables_to_text
from delta_loader.scheduling.jobs import Jobs
from delta_loader.scheduling.stream_scheduler import StreamScheduler
from tests.builders import settings_of
from tests.fakes.metrics import numbers

NIGHT_MS = int(datetime(2026, 3, 1, 2, 0, tzinfo=UTC).timestamp() * 1000)
HOUR_MS = 3_600_000


@dataclass
class GivenClock:
    """Time passes only as tasks run."""

    now_ms: int = NIGHT_MS
    spent_s: float = 0.0

    def monotonic_s(self) -> float:
        return self.spent_s

    def wall_ms(self) -> int:
        return self.now_ms + int(self.spent_s * 1000)

    def sleep_s(self, seconds: float) -> None:
        self.spent_s += seconds


@dataclass
class World:
    """Tables with one optimize task each, which takes ten minutes."""

    clock: GivenClock = field(default_factory=GivenClock)
    served: dict[str, int] = field(default_factory=dict)
    """The hours since each table was maintained."""
    broken: dict[str, Outcome] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)
    done: list[str] = field(default_factory=list)
    cancelled: bool = False
    inspected: Event = field(default_factory=Event)
    served_one: Event = field(default_factory=Event)

    def read(self, url: str, rules: TableRules) -> TableFacts | None:
        self.inspected.set()
        if url in self.unreadable:
            raise TableError("its log is torn", "fix it")
        if url.endswith("_dead_letters"):
            return None
        ago = self.served.get(url)
        runs = () if ago is None else (ServiceRun(Service.OPTIMIZE, 3, self.clock.wall_ms() - ago * HOUR_MS, 9, 1),)
        partitions = tuple(
            PartitionFacts((("day", day),), 20, rules.settings.optimize.piece_bytes, 20, 2**20) for day in ("1", "2")
        )
        return TableFacts(url, LogFacts(9, 1, 10, 0, 0, 10), ("day",), {}, False, partitions, runs)  # noqa: FBT003

    def carry_out(self, piece: MaintenanceTask, rules: TableRules) -> Outcome:  # noqa: ARG002 - the port's
        self.clock.sleep_s(600)
        self.done.append(piece.url)
        self.served_one.set()
        return self.broken.get(piece.url, Done(20, 1, 100, 90))

    def cancel(self) -> None:
        self.cancelled = True


def settings(*tables: str, **services: object) -> Settings:
    columns = {"columns": "day STRING, id INT", "partition_by": ["day"]}
    streams = ({"app_id": name, "topics": [name], "table": f"memory://{name}", **columns} for name in tables)
    return settings_of(*streams, table_services={"vacuum": {"enabled": False}, **services})


def services_of(world: World, wanted: Settings, metrics: Metrics | None = None) -> TableServices:
    metrics = metrics or Metrics()
    return TableServices(wanted, world, world, world.clock, log=structlog.get_logger(), metrics=metrics)


def run(world: World, wanted: Settings, may_begin: Callable[[], bool] = lambda: True) -> RunReport:
    return services_of(world, wanted).run(may_begin)


def test_least_recently_maintained_table_comes_first_within_the_budget() -> None:
    world = World(served={"memory://a": 1, "memory://b": 9})
    report = run(world, settings("a", "b", "c", budget="15m"))
    assert world.done == ["memory://c", "memory://b"]
    assert (report.stopped_by, [piece.url for piece in report.left]) == ("budget", ["memory://a"])
    assert "memory://a: optimize: left for the next run (budget)" in run_to_text(report)


def test_log_line_names_the_table_service_and_keeps_the_programs_name() -> None:
    """Every line of the log has the program's name as its ``service``."""
    log = structlog.get_logger().bind(service="delta-loader")
    world, wanted = World(), settings("a")
    with capture_logs() as lines:
        TableServices(wanted, world, world, world.clock, log=log, metrics=Metrics()).run()
    [line] = [line for line in lines if line["event"] == "table served"]
    assert (line["service"], line["table_service"]) == ("delta-loader", "optimize")


def test_no_task_begins_outside_the_window() -> None:
    zone = {"window": "01:00-03:15", "time_zone": "Europe/Vienna"}  # 02:00 UTC is 03:00 there
    world = World()
    report = run(world, settings("a", "b", "c", budget="10h", **zone))
    assert (world.done, report.stopped_by) == (["memory://a", "memory://b"], "window")


@pytest.mark.parametrize(("window", "begins"), [("22:00-02:30", True), ("22:00-02:00", False), ("02:00-02:01", True)])
def test_window_may_span_midnight(window: str, *, begins: bool) -> None:
    assert bool(run(World(), settings("a", window=window)).tasks) is begins


def test_stop_ends_the_run_before_the_next_task() -> None:
    world = World()
    assert run(world, settings("a", "b"), lambda: not world.done).stopped_by == "stop"
    assert world.done == ["memory://a"]


def test_tables_of_another_loaders_streams_are_skipped() -> None:
    world, wanted = World(), settings("a", "b")
    services = TableServices(
        wanted,
        world,
        world,
        world.clock,
        log=structlog.get_logger(),
        metrics=Metrics(),
        may_load=lambda app_id: app_id == wanted.streams[1].app_id,
    )
    assert {snapshot.url for snapshot in services.run().snapshots} == {*wanted.streams[1].tables}
    assert set(world.done) == {wanted.streams[1].table}


_SERVED = {
    "seconds_count": 3,
    "seconds_sum": 1800,
    "files_removed_total": 20,
    "files_added_total": 1,
    "bytes_removed_total": 100,
    "bytes_added_total": 90,
}


def test_failed_table_does_not_stop_others_and_comes_last_next_time() -> None:
    world = World(
        broken={"memory://a": TaskFailed("no room"), "memory://b": TaskAborted("a MERGE")}, unreadable={"memory://d"}
    )
    wanted, metrics = settings("a", "b", "c", "d"), Metrics()
    services = services_of(world, wanted, metrics)
    report = services.run()
    assert world.done == ["memory://a", "memory://b", "memory://c"]
    assert [snapshot.failure for snapshot in report.snapshots if snapshot.failure] == ["its log is torn"]
    of_all = {f"services_{name}{{service=optimize}}": number for name, number in _SERVED.items()}
    ends = {f"services_pieces_total{{outcome={end}, service=optimize}}": 1 for end in ("done", "failed", "given_up")}
    counted = {name: number for name, number in numbers(metrics).items() if "pieces_left" not in name}
    assert counted == {**of_all, **ends, "services_last_run_timestamp_seconds{}": NIGHT_MS / 1000 + 1800}
    world.done.clear()
    services.run()
    assert world.done == ["memory://b", "memory://c", "memory://a"]
    assert "failed: no room" in run_to_text(report)


def test_command_shows_past_runs_and_due_tasks() -> None:
    world = World(served={"memory://a": 2}, unreadable={"memory://b"})
    snapshots = inspect_tables(settings("a", "b"), world, world.clock)
    text = tables_to_text(snapshots)
    assert "last optimize at 2026-03-01T00:00:00+00:00 (version 3): 9 files became 1, 0 B became 0 B" in text
    assert "due: optimize: 40 small files, 2.0 MiB, in 2 partitions" in text
    assert "no vacuum is due: table_services.vacuum.enabled is false" in text
    assert "kept for 30 days; " in text
    assert "memory://b: unknown: its log is torn" in text
    assert "memory://a_dead_letters: not created yet" in text
    assert '"bytes_before": 100' in str(run_to_json(run(World(), settings("a")))).replace("'", '"')
    assert "'small_files': 40" in str(tables_to_json(snapshots))
    assert tables_to_text([]) == "no table: `table_services.enabled` is false for each stream"


def test_maintenance_can_be_disabled_for_a_stream() -> None:
    given = settings("a", "b")
    off = given.streams[0].model_copy(
        update={"table_services": given.streams[0].table_services.model_copy(update={"enabled": False})}
    )
    world = World()
    run(world, given.model_copy(update={"streams": (off, given.streams[1])}))
    assert world.done == ["memory://b"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"window": "1-5"}, "is not a window of the day"),
        ({"window": "05:00-05:00"}, "two different times"),
        ({"time_zone": "Vienna"}, "is not a known time zone"),
        ({"schedule": "often"}, "is not a schedule"),
        ({"optimize": {"piece": "1MiB"}}, "optimize.piece is smaller"),
        ({"vacuum": {"retention": "1h"}}, "not permitted"),
    ],
)
def test_invalid_settings_are_refused(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        settings("a", **given)


def test_task_waits_for_a_running_load_even_one_that_fails_and_close_cancels() -> None:
    world = World()
    wanted = settings("a", schedule="1h").table_services
    services = services_of(world, settings("a"))
    scheduled = ScheduledServices(services, wanted, lambda: True)
    jobs = Jobs(SystemClock(), structlog.get_logger())
    jobs.add("maintenance", scheduled.run_due, every_s=0.01)
    with suppress(TableError), scheduled.loading():
        jobs.start()
        assert world.inspected.wait(180)
        assert not world.served_one.wait(0.3)  # the run has begun, and its task waits for the load
        raise TableError("away")
    assert world.served_one.wait(180)
    scheduled.close()
    jobs.close()
    assert world.cancelled
    assert world.done == ["memory://a"]


@pytest.mark.parametrize(("schedule", "runs"), [("1h", 1), ("0 0 29 2 *", 0)], ids=["an interval", "a cron line"])
def test_scheduled_run_that_is_not_due_again_does_not_begin(
    monkeypatch: pytest.MonkeyPatch, schedule: str, runs: int
) -> None:
    services, begun = services_of(World(), settings("a")), []
    monkeypatch.setattr(type(services), "run", lambda *_: begun.append(schedule))
    scheduled = ScheduledServices(services, settings("a", schedule=schedule).table_services, lambda: True)
    for _ in range(2):
        scheduled.run_due()
    assert len(begun) == runs


def test_no_task_begins_during_a_load_that_outlived_its_pass() -> None:
    ends, began = Event(), Event()

    class LongLoad:
        def run(self, app_id: str, should_yield: Callable[[], bool]) -> bool:
            del app_id, should_yield
            began.set()
            assert ends.wait(180)
            return False

        def progress(self, app_id: str) -> object:
            del app_id
            return 0

    world, scheduler = World(), StreamScheduler(1, patience_s=0.01)
    services = services_of(world, settings("a"))
    wanted, asked = settings("a", schedule="1h").table_services, Event()

    def is_loading() -> bool:
        asked.set()
        return scheduler.is_running()

    scheduled = ScheduledServices(services, wanted, lambda: True, is_loading=is_loading)
    jobs = Jobs(SystemClock(), structlog.get_logger())
    jobs.add("maintenance", scheduled.run_due, every_s=0.01)
    with scheduled.loading():
        assert scheduler(LongLoad(), ["slow"]) == {"slow"}  # the pass has ended, but not the load
    assert began.wait(180)
    jobs.start()
    assert world.inspected.wait(180)
    asked.clear()
    assert asked.wait(180)  # it has waited at least once
    assert not world.served_one.is_set()
    ends.set()
    assert world.served_one.wait(180)
    scheduled.close()
    jobs.close()
    assert scheduler.close() == ()


def test_shared_table_is_skipped_if_any_stream_opts_out_and_uses_the_longest_quiet() -> None:
    def shared(first: dict[str, object], second: dict[str, object]) -> Settings:
        table = {"table": "memory://shared"}
        return settings_of(
            {**table, "table_services": first}, {**table, "app_id": "b", "topics": ["b"], "table_services": second}
        )

    assert "memory://shared" not in tables_of(shared({}, {"enabled": False}))
    assert "memory://shared" in tables_of(shared({}, {}))
    for quiets in (("2h", "5h"), ("5h", "2h")):
        assert rules_of(shared({"quiet": quiets[0]}, {"quiet": quiets[1]}), "memory://shared").quiet_s == 5 * 3600


def test_failed_service_is_not_retried_and_a_manual_run_ignores_the_window() -> None:
    world = World(broken={"memory://a": TaskFailed("torn")})
    optimize = {"target_file": "1MiB", "piece": "1MiB"}
    wanted = settings("a", "b", window="03:00-04:00", budget="1m", optimize=optimize)
    assert (run(world, wanted).stopped_by, world.done) == ("window", [])
    report = services_of(world, wanted).run(at_any_time=True)
    pieces = len(inspect_tables(wanted, world, world.clock, "memory://a")[0].due.tasks)
    assert (report.stopped_by, world.done.count("memory://a"), world.done.count("memory://b")) == ("", 1, pieces)
    assert pieces > 1
