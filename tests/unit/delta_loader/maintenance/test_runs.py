"""What maintenance is due, given a table's facts; a run's order, its window, its budget, and its failures."""

import json
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from threading import Event

import pytest
import structlog
from structlog.testing import capture_logs

from common.clock import SystemClock
from common.errors import TableError
from common.metrics import Metrics
from common.schema import Primitive
from common.settings import Settings
from common.settings.services import TableServicesSettings, VacuumMode
from delta_loader.maintenance.services.due import (
    Done,
    MaintenanceTask,
    Outcome,
    RunReport,
    TableRules,
    TaskAborted,
    TaskFailed,
    due,
    where,
    z_order_by,
)
from delta_loader.maintenance.services.facts import (
    LogFacts,
    PartitionFacts,
    PartitionTotals,
    Service,
    ServiceRun,
    TableFacts,
    joined_vacuums,
    run_of,
)
from delta_loader.maintenance.services.reading import FactsReader, rules_of, tables_of
from delta_loader.maintenance.services.runs import ScheduledServices, TableServices, inspect_tables
from delta_loader.maintenance.services.view import run_to_json, run_to_text, tables_to_json, tables_to_text
from delta_loader.ports import in_turn
from delta_loader.scheduling.jobs import Jobs
from delta_loader.scheduling.stream_scheduler import StreamScheduler
from delta_loader.stage.reading import Stage
from delta_loader.tables.history import LiveFile
from tests.builders import settings_of
from tests.fakes.loading import settings_for
from tests.fakes.metrics import numbers
from tests.fakes.staging import Staging

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


IN_SIX_HOURS = datetime.now(UTC) + timedelta(hours=6)


@pytest.mark.parametrize(
    ("given", "may_run", "runs"),
    [
        pytest.param({"schedule": "1h"}, True, 1, id="an interval"),
        pytest.param({"schedule": "0 0 29 2 *"}, True, 0, id="a cron line"),
        pytest.param({"schedule": "1h"}, False, 0, id="another loader's turn"),
        pytest.param({"schedule": "1h", "window": f"{IN_SIX_HOURS:%H}:00-{IN_SIX_HOURS:%H}:59"}, True, 0, id="outside"),
    ],
)
def test_scheduled_run_that_is_not_due_does_not_begin(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, object], *, may_run: bool, runs: int
) -> None:
    services, begun = services_of(World(), settings("a")), []
    monkeypatch.setattr(type(services), "run", lambda *_: begun.append(given))
    scheduled = ScheduledServices(services, settings("a", **given).table_services, lambda: may_run)
    for _ in range(2):
        scheduled.run_due()
    assert len(begun) == runs


def test_tables_that_have_appeared_are_maintained() -> None:
    world, log = World(), structlog.get_logger()
    services = TableServices(
        settings("a"), world, world, world.clock, log=log, metrics=Metrics(), now=lambda _: settings("a", "b")
    )
    services.run()
    assert world.done == ["memory://a", "memory://b"]


def test_no_task_begins_once_its_run_is_closed() -> None:
    class Closing(World):
        """Where the process ends during the first task."""

        def carry_out(self, piece: MaintenanceTask, rules: TableRules) -> Outcome:
            scheduled.close()
            return super().carry_out(piece, rules)

    world, wanted = Closing(), settings("a", "b", schedule="1h")
    scheduled = ScheduledServices(services_of(world, wanted), wanted.table_services, lambda: True)
    scheduled.run_due()
    assert (world.done, world.cancelled) == (["memory://a"], True)


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


NOW_MS = 1_800_000_000_000
KIB = 1024
NO_VACUUM: Mapping[str, object] = {"vacuum": {"enabled": False}}


def rules(z_order: tuple[str, ...] = (), **settings: object) -> TableRules:
    wanted = TableServicesSettings.model_validate({**NO_VACUUM, **settings})
    return TableRules(wanted, 3600.0, z_order, safe_age_s=7200.0)


def table(*partitions: PartitionFacts, **given: object) -> TableFacts:
    facts = TableFacts(
        url="s3://lake/orders",
        log=LogFacts(40, 4, 41, 0, NOW_MS - 999 * HOUR_MS, 5000),
        partition_by=("day",) if partitions and partitions[0].values else (),
        properties={},
        is_clustered=False,
        partitions=partitions,
        runs=(),
    )
    return replace(facts, **given)  # type: ignore[arg-type]


def part(day: str, small: int, hours_ago: int, size_bytes: int = 10 * KIB) -> PartitionFacts:
    total = small * size_bytes
    return PartitionFacts((("day", day),), small, total, small, total, NOW_MS - hours_ago * HOUR_MS)


def pieces(facts: TableFacts, wanted: TableRules) -> tuple[MaintenanceTask, ...]:
    return due(facts, wanted, NOW_MS).tasks


def test_only_quiet_partitions_with_enough_small_files_are_optimized() -> None:
    facts = table(part("1", 20, 5), part("2", 8, 5), part("3", 99, 1), part("4", 30, 9))
    (piece,) = pieces(facts, rules())
    assert [dict(values)["day"] for values in piece.partitions] == ["4", "1"]  # 8 files become 1: 7 are saved
    assert piece.why == "50 small files, 500.0 KiB, in 2 partitions"


def test_busy_partition_is_optimized_once_it_has_enough_small_files() -> None:
    assert len(pieces(table(part("3", 101, 1)), rules())) == 1
    assert pieces(table(part("3", 101, 1)), rules(optimize={"min_files_busy": None})) == ()
    assert pieces(table(part("3", 101, 1)), rules(z_order=("id",))) == ()


def test_optimize_that_saves_too_few_files_is_not_due() -> None:
    half = 120 * 2**20  # two of them make a file of 256 MiB
    assert pieces(table(part("1", 14, 5, half)), rules()) == ()  # 14 become 7
    assert len(pieces(table(part("1", 18, 5, half)), rules())) == 1


def test_tasks_are_split_by_the_bytes_they_rewrite() -> None:
    wanted = rules(optimize={"target_file": "1MiB", "piece": "1MiB", "min_files": 2})
    tasks = pieces(table(*(part(str(day), 60, 5) for day in range(5))), wanted)  # 600 KiB each
    assert [len(piece.partitions) for piece in tasks] == [1] * 5
    wanted = rules(optimize={"target_file": "1MiB", "piece": "2MiB", "min_files": 2})
    assert [len(task.partitions) for task in pieces(table(*(part(str(day), 60, 5) for day in range(5))), wanted)] == [
        3,
        2,
    ]


def test_task_has_two_hundred_partitions_at_most() -> None:
    tasks = pieces(table(*(part(str(day), 20, 5) for day in range(201))), rules())
    assert [len(task.partitions) for task in tasks] == [200, 1]


def test_unpartitioned_table_is_one_task() -> None:
    whole = PartitionFacts((), 50, 50 * 10 * KIB, 30, 30 * 10 * KIB, NOW_MS)
    (piece,) = pieces(table(whole), rules())
    assert (piece.partitions, piece.z_order) == ((), ())
    whole = replace(whole, unclustered_files=30, unclustered_bytes=30 * 10 * KIB)
    (piece,) = pieces(table(whole, is_clustered=True), rules(("id",)))
    assert piece.z_order == (), "Delta sorts by the columns of its clustering"
    for least, tasks in ((29, 1), (30, 0)):  # 30 files become one
        assert len(pieces(table(whole), rules(optimize={"min_files": least}))) == tasks


@pytest.mark.parametrize(
    ("all_gib", "new_bytes", "is_due"), [(9, 2**30, True), (9, 2**28, False), (9_000, 10 * 2**30, True)]
)
def test_full_rewrite_needs_a_share_of_new_bytes(all_gib: int, new_bytes: int, *, is_due: bool) -> None:
    size_bytes = all_gib * 2**30
    clustered = PartitionFacts((), 100, size_bytes, unclustered_files=99, unclustered_bytes=new_bytes)
    wanted = rules(optimize={"target_file": "1GiB"})
    assert bool(pieces(table(clustered, is_clustered=True), wanted)) is is_due
    sorted_ = PartitionFacts((), 100, size_bytes, small_files=99, small_bytes=new_bytes)
    assert bool(pieces(table(sorted_), replace(wanted, z_order=("id",)))) is is_due


def test_z_order_rewrites_all_of_a_partition() -> None:
    days = [replace(part(day, 20, 5), size_bytes=2**40) for day in ("1", "2")]
    assert [len(piece.partitions) for piece in pieces(table(*days), rules())] == [2]
    tasks = pieces(table(*days), rules(z_order=("id",)))
    assert [(len(piece.partitions), piece.size_bytes) for piece in tasks] == [(1, 2**40)] * 2


def test_service_that_is_off_is_never_due() -> None:
    log = LogFacts(140, 100, 141, 0, 0, 5000)
    facts = table(PartitionFacts((), 50, 50 * 10 * KIB, 30, 30 * 10 * KIB, 0, bare_files=2, bare_bytes=10), log=log)
    services = ("checkpoints", "optimize", "statistics")
    assert [piece.service for piece in pieces(facts, rules())] == [
        Service.CHECKPOINT, Service.OPTIMIZE, Service.STATISTICS,
    ]  # fmt: skip
    for off in services:
        assert len(pieces(facts, rules((), **{off: {"enabled": False}}))) == 2
    assert pieces(facts, rules((), **{off: {"enabled": False} for off in services})) == ()


def test_checkpoint_and_statistics_are_due() -> None:
    log = LogFacts(140, 100, 141, 0, 0, 5000)
    bare = PartitionFacts((), 3, 30, bare_files=2, bare_bytes=2**31)
    tasks = pieces(table(bare, log=log), rules())
    assert [piece.service for piece in tasks] == [Service.CHECKPOINT, Service.STATISTICS]
    assert tasks[1].why == "2 files without statistics, 2.0 GiB, 1.0 GiB of them now"
    assert tasks[1].size_bytes == 2**30


def vacuum(facts: TableFacts, **settings: object) -> tuple[tuple[MaintenanceTask, ...], tuple[str, ...]]:
    planned = due(facts, rules(vacuum=settings), NOW_MS)
    return planned.tasks, tuple(refused.why for refused in planned.refused)


def waits(facts: TableFacts) -> str:
    return due(facts, rules(vacuum={}), NOW_MS).vacuum_waits


def test_vacuum_is_due_counting_from_the_last_completed_one() -> None:
    ended = ServiceRun(Service.VACUUM, 7, NOW_MS - 23 * HOUR_MS)
    died = ServiceRun(Service.VACUUM, 9, NOW_MS - HOUR_MS, completed=False)
    (piece,), _ = vacuum(table())
    assert piece.why == "never before; files that leave the table are kept for 1w"
    assert vacuum(table(runs=(died, ended))) == ((), ())
    assert table(runs=(died, ended)).maintained_ms == NOW_MS - HOUR_MS
    assert waits(table(runs=(died, ended))) == "it is due every 1d, and the last was 23h ago"
    assert waits(table()) == ""
    (piece,), _ = vacuum(table(runs=(died, ended)), every="12h")
    assert piece.mode is VacuumMode.AUTO


def test_table_younger_than_its_retention_needs_no_vacuum() -> None:
    young = table(log=LogFacts(40, 4, 41, 0, NOW_MS - 99 * HOUR_MS, 5000))
    assert vacuum(young) == ((), ())
    assert waits(young) == "files that leave the table are kept for 1w, and the table is younger than that"
    assert len(vacuum(young, mode="full")[0]) == 1  # which also finds files that are in no log
    assert waits(replace(young, log=replace(young.log, oldest_version=1))) == "", "of unknown age"


@pytest.mark.parametrize("kept", ["interval 0 days", "interval 1 hour", "for a while"])
def test_vacuum_is_refused_where_staged_files_are_unprotected(kept: str) -> None:
    tasks, refused = vacuum(table(properties={"delta.deletedFileRetentionDuration": kept}))
    assert (tasks, len(refused)) == ((), 1)


def test_full_vacuum_waits_for_staged_files_to_be_loaded() -> None:
    waiting = table(waiting_ms=NOW_MS - 100 * HOUR_MS)
    (piece,), _ = vacuum(waiting)
    assert piece.mode is VacuumMode.LITE  # by the log alone, which contains no staged file
    tasks, refused = vacuum(waiting, mode="full")
    assert (tasks, refused) == ((), ("files have been staged for 100h and not loaded; a VACUUM might delete them",))
    (piece,), _ = vacuum(table(waiting_ms=NOW_MS - 3 * HOUR_MS), mode="full")
    assert piece.mode is VacuumMode.FULL


def test_files_are_totaled_by_partition() -> None:
    gathering = PartitionTotals(100, NOW_MS - HOUR_MS, {"col-1": "day"})
    old, new = NOW_MS - 2 * HOUR_MS, NOW_MS
    facts = gathering.add(
        [
            LiveFile("a", 10, old, {"col-1": "x"}, has_statistics=True),
            LiveFile("b", 10, new, {"col-1": "x"}, has_statistics=False),
            LiveFile("c", 100, old, {"col-1": "x"}, has_statistics=True, is_clustered=True),
            LiveFile("d", 10, old, {"col-1": None}, has_statistics=False, deleted_rows=1),
        ]
    )
    assert facts == (
        PartitionFacts((("day", "x"),), 3, 120, 1, 10, new, 1, 10, 1, 10),
        PartitionFacts((("day", None),), 1, 10, 1, 10, old, 1, 10, 0, 0),
    )


def test_runs_are_read_from_the_log() -> None:
    start = {"operation": "VACUUM START", "timestamp": 5, "operationMetrics": {"sizeOfDataToDelete": "70"}}
    end = {
        "operation": "VACUUM END",
        "timestamp": 6,
        "operationMetrics": {"numDeletedFiles": "7"},
        "operationParameters": {"status": '"COMPLETED"'},
    }
    optimize = {
        "operation": "OPTIMIZE",
        "timestamp": 4,
        "operationMetrics": {"numRemovedFiles": "9", "numAddedFiles": "1"},
        "operationParameters": {"zOrderBy": '["id"]', "predicate": "[]"},
    }
    commits: list[tuple[int, Mapping[str, object]]] = [
        (10, start),
        (9, start),
        (8, end),
        (7, {"operation": "WRITE"}),
        (6, start),
        (5, optimize),
        (4, start),
        (3, {**end, "operationParameters": {"status": "FAILED"}}),
    ]
    runs = joined_vacuums([run for version, info in commits if (run := run_of(version, info)) is not None])
    assert [(run.version, run.completed, run.files_removed, run.bytes_removed) for run in runs] == [
        (10, False, 0, 70),  # still running, or died
        (9, False, 0, 70),
        (8, True, 7, 70),
        (5, True, 9, 0),
        (4, False, 0, 70),
        (3, False, 7, 0),
    ]
    assert runs[3].words == "Z-order by id"


def test_where_condition_names_each_partition() -> None:
    values = ((("day", "it's"), ("n", "3")), (("day", None), ("n", "4")))
    assert where(values, {"day": Primitive.STRING, "n": Primitive.INTEGER}) == (
        "(day = 'it\\'s' AND n = CAST('3' AS INT)) OR (day IS NULL AND n = CAST('4' AS INT))"
    )
    assert where((), {}) == ""
    assert z_order_by(("id", "a b.c")) == " ZORDER BY (id, `a b`.c)"


@pytest.fixture
def root() -> str:
    return f"memory://{uuid.uuid4().hex}"


def waiting_ms(root: str, table: str | None = None, **last: int) -> int | None:
    """``waiting_ms`` of a table fed by `orders` alone, with its txn actions given as txn id → last offset."""
    orders = Staging(root)
    url = table or orders.table
    schema = {"type": "struct", "fields": []}
    actions: list[object] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": {
            "id": "t", "format": {"provider": "parquet", "options": {}}, "schemaString": json.dumps(schema),
            "partitionColumns": [], "configuration": {},
        }},
        *({"txn": {"appId": name.replace("_", "-"), "version": offset}} for name, offset in last.items()),
    ]  # fmt: skip
    orders.store(url).write(f"_delta_log/{0:020d}.json", "\n".join(map(json.dumps, actions)).encode())
    settings: Settings = settings_for(orders)
    stage = Stage(orders.store(orders.stage_url), in_turn)
    facts = FactsReader(settings, stage, orders.store, in_turn, SystemClock()).read(url, rules_of(settings, url))
    assert facts is not None
    return facts.waiting_ms


def written_ms(staging: Staging, start: int) -> int:
    item = staging.store(staging.stage_url).stat(f"done/{staging.topic}/0/{start:020d}.done")
    assert item is not None
    return item.modified_ms


def test_files_of_a_removed_stream_count_as_waiting_until_loaded(root: str) -> None:
    removed = Staging(root, "refunds", app_id="returns")
    removed.flush(0, 0, 10)
    removed.flush(0, 10, 20)

    assert waiting_ms(root) == written_ms(removed, 0)
    assert waiting_ms(root, returns_0=9) == written_ms(removed, 10)
    assert waiting_ms(root, returns_refunds_0=9) == written_ms(removed, 10)
    assert waiting_ms(root, returns_0=19) is None
    assert waiting_ms(root, table=f"{root}/tables/other") is None


def test_files_of_a_configured_stream_count_as_waiting_until_loaded(root: str) -> None:
    Staging(root).flush(0, 0, 10)
    assert waiting_ms(root) == written_ms(Staging(root), 0)
    assert waiting_ms(root, orders_0=9) is None
