"""Which maintenance is due for a table, given its facts."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from common.schema import Primitive
from common.settings.services import TableServicesSettings, VacuumMode
from delta_loader.maintenance.services.due import MaintenanceTask, TableRules, due, where, z_order_by
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
from delta_loader.tables.history import LiveFile

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
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
    facts = table(part("1", 20, 5), part("2", 8, 5), part("3", 99, 0), part("4", 30, 9))
    (piece,) = pieces(facts, rules())
    assert [dict(values)["day"] for values in piece.partitions] == ["4", "1"]  # 8 files become 1: 7 are saved
    assert piece.why == "50 small files, 500.0 KiB, in 2 partitions"


def test_busy_partition_is_optimized_once_it_has_enough_small_files() -> None:
    assert len(pieces(table(part("3", 101, 0)), rules())) == 1
    assert pieces(table(part("3", 101, 0)), rules(optimize={"min_files_busy": None})) == ()
    assert pieces(table(part("3", 101, 0)), rules(z_order=("id",))) == ()


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


def test_unpartitioned_table_is_one_task() -> None:
    whole = PartitionFacts((), 50, 50 * 10 * KIB, 30, 30 * 10 * KIB, NOW_MS)
    (piece,) = pieces(table(whole), rules())
    assert (piece.partitions, piece.z_order) == ((), ())


@pytest.mark.parametrize(("new_bytes", "is_due"), [(2**30, True), (2**28, False)])
def test_full_rewrite_needs_a_share_of_new_bytes(new_bytes: int, *, is_due: bool) -> None:
    clustered = PartitionFacts((), 100, 9 * 2**30, unclustered_files=20, unclustered_bytes=new_bytes)
    wanted = rules(optimize={"target_file": "1GiB"})
    assert bool(pieces(table(clustered, is_clustered=True), wanted)) is is_due
    sorted_ = PartitionFacts((), 100, 9 * 2**30, small_files=20, small_bytes=new_bytes)
    assert bool(pieces(table(sorted_), replace(wanted, z_order=("id",)))) is is_due


def test_checkpoint_and_statistics_are_due() -> None:
    log = LogFacts(140, 100, 141, 0, 0, 5000)
    bare = PartitionFacts((), 3, 30, bare_files=2, bare_bytes=2**31)
    tasks = pieces(table(bare, log=log), rules())
    assert [piece.service for piece in tasks] == [Service.CHECKPOINT, Service.STATISTICS]
    assert tasks[1].why == "2 files without statistics, 2.0 GiB, 1.0 GiB of them now"


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
    assert waits(table(runs=(died, ended))) == "it is due every 1d, and the last was 23h ago"
    assert waits(table()) == ""
    (piece,), _ = vacuum(table(runs=(died, ended)), every="12h")
    assert piece.mode is VacuumMode.AUTO


def test_table_younger_than_its_retention_needs_no_vacuum() -> None:
    young = table(log=LogFacts(40, 4, 41, 0, NOW_MS - 99 * HOUR_MS, 5000))
    assert vacuum(young) == ((), ())
    assert waits(young) == "files that leave the table are kept for 1w, and the table is younger than that"
    assert len(vacuum(young, mode="full")[0]) == 1  # which also finds files that are in no log


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
            LiveFile("c", 500, old, {"col-1": "x"}, has_statistics=True, is_clustered=True),
            LiveFile("d", 10, old, {"col-1": None}, has_statistics=True),
        ]
    )
    assert facts == (
        PartitionFacts((("day", "x"),), 3, 520, 1, 10, new, 1, 10, 1, 10),
        PartitionFacts((("day", None),), 1, 10, 1, 10, old, 1, 10, 0, 0),
    )


def test_runs_are_read_from_the_log() -> None:
    start = {"operation": "VACUUM START", "timestamp": 5, "operationMetrics": {"sizeOfDataToDelete": "70"}}
    end = {
        "operation": "VACUUM END",
        "timestamp": 6,
        "operationMetrics": {"numDeletedFiles": "7"},
        "operationParameters": {"status": "COMPLETED"},
    }
    optimize = {
        "operation": "OPTIMIZE",
        "timestamp": 4,
        "operationMetrics": {"numRemovedFiles": "9", "numAddedFiles": "1"},
        "operationParameters": {"zOrderBy": '["id"]', "predicate": "[]"},
    }
    commits: list[tuple[int, Mapping[str, object]]] = [
        (9, start),
        (8, end),
        (7, {"operation": "WRITE"}),
        (6, start),
        (5, optimize),
    ]
    runs = joined_vacuums([run for version, info in commits if (run := run_of(version, info)) is not None])
    assert [(run.version, run.completed, run.files_removed, run.bytes_removed) for run in runs] == [
        (9, False, 0, 70),  # still running, or died
        (8, True, 7, 70),
        (5, True, 9, 0),
    ]
    assert runs[2].words == "Z-order by id"


def test_where_condition_names_each_partition() -> None:
    values = ((("day", "it's"), ("n", "3")), (("day", None), ("n", "4")))
    assert where(values, {"day": Primitive.STRING, "n": Primitive.INTEGER}) == (
        "(day = 'it\\'s' AND n = CAST('3' AS INT)) OR (day IS NULL AND n = CAST('4' AS INT))"
    )
    assert where((), {}) == ""
    assert z_order_by(("id", "a b.c")) == " ZORDER BY (id, `a b`.c)"
