"""The loader loop over markers, files and tables in memory, with interference from other writers."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import structlog
from fsspec.implementations.memory import MemoryFileSystem
from structlog.testing import capture_logs

from common.clock import SystemClock
from common.errors import ExitCode, StoreError, TableError
from common.metrics import Metrics
from common.settings import Stream
from common.spans import MAX_POSITION, Position
from common.stage.idle import IdleFact, StreamFact, facts_to_bytes, idle_path
from common.stage.markers import GONE, VERSION, MarkerName, manifest_to_bytes
from common.stage.undeclared import UndeclaredFields
from common.tables.state import TableState
from common.tables.urls import comparable
from delta_loader.load.committer import CONFLICTS_TO_FAILURE, SECONDS_TO_FAILURE
from delta_loader.load.load_stats import STUCK_S, FailureNotes, UnfinishedStreams
from delta_loader.plan.held import MainTable, missing_file
from delta_loader.plan.held import held as held_by_plan
from delta_loader.plan.plan import MissingOrigin
from delta_loader.ports import in_turn
from delta_loader.stage.reading import Stage
from delta_loader.status.values import exit_code, to_json, to_text
from delta_loader.tables.commits import CommitOutcome, Committed, Conflicted, Failed, TableCommit, Unknown
from tests.builders import required
from tests.fakes.clock import IdleClock
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.group import HandClock
from tests.fakes.loading import loader_for, routed_settings_for, settings_for, status_of
from tests.fakes.metrics import numbers, values
from tests.fakes.staging import Staging
from tests.fakes.stores import TrappedStore

HOUR_MS = 3_600_000


class Later(SystemClock):
    """A clock that is ahead of the stores' by some hours."""

    def __init__(self, hours: int) -> None:
        self._hours = hours

    def wall_ms(self) -> int:
        return super().wall_ms() + self._hours * HOUR_MS


def written_at(staging: Staging, moment: datetime, folder: str = "done") -> None:
    """Set the store's write time of all markers, or of all objects in another folder."""
    root = f"{staging.stage_url.removeprefix('memory:/')}/{folder}/"
    for path, item in MemoryFileSystem.store.items():
        if path.startswith(root):
            item.created = moment


def loaded(tables: MemoryDeltaTables, url: str) -> list[str]:
    return sorted(tables.tables[url].paths)


@pytest.mark.parametrize("arrives", [True, False])
def test_commit_with_an_unknown_outcome_is_looked_up_before_a_retry(staging: Staging, *, arrives: bool) -> None:
    class LateStore(MemoryDeltaTables):
        """Its first commit is not there when it is looked up, and arrives (or not) later."""

        on_its_way: TableCommit | None = None
        tried = 0

        def commit(self, commit: TableCommit) -> CommitOutcome:
            self.tried += 1
            if self.tried > 1:
                return super().commit(commit)
            self.on_its_way = commit
            return Unknown("java.net.SocketTimeoutException: Read timed out")

    tables = LateStore()
    staging.flush(0, 0, 10)
    loader = loader_for(staging, tables)
    (report,) = loader.run_pass()
    assert report.failure is not None
    assert "it is unknown whether a commit" in report.failure.problem
    assert "nothing was written" not in report.failure.remedy
    assert tables.on_its_way is not None
    if arrives:
        assert isinstance(MemoryDeltaTables.commit(tables, tables.on_its_way), Committed)
    (report,) = loader.run_pass()
    assert (report.failure, report.commits) == (None, 0 if arrives else 1)
    assert len(loaded(tables, staging.table)) == len(set(loaded(tables, staging.table)))
    assert tables.tables[staging.table].transactions == {"orders-0": 9}


def test_dead_letters_are_committed_first(staging: Staging) -> None:
    order: list[str] = []

    class Watched(MemoryDeltaTables):
        def commit(self, commit: TableCommit) -> CommitOutcome:
            order.append(commit.target.url)
            return super().commit(commit)

    staging.flush(0, 0, 10, dead=[4])
    loader_for(staging, Watched()).run_pass()
    assert order == [staging.dead_letters, staging.table]


def test_replan_after_a_conflict_loads_the_rest(staging: Staging) -> None:
    class Raced(MemoryDeltaTables):
        raced = False

        def commit(self, commit: TableCommit) -> CommitOutcome:
            if not self.raced:
                self.raced = True
                # Another loader, which does not know of the second marker yet, is faster.
                super().commit(
                    type(commit)(
                        commit.target,
                        commit.app_id,
                        commit.files[:1],
                        commit.expected,
                        {"orders-0": 9},
                        commit.metadata,
                    )
                )
            return super().commit(commit)

    raced = Raced()
    staging.flush(0, 0, 10)
    staging.flush(0, 10, 20)
    (report,) = loader_for(staging, raced).run_pass()
    assert (report.failure, report.commits) == (None, 1)
    paths = loaded(raced, staging.table)
    assert len(paths) == len(set(paths)) == 2


def test_endless_conflicts_fail_the_load(staging: Staging) -> None:
    staging.flush(0, 0, 10)
    clock, tables = IdleClock(), MemoryDeltaTables(lambda _: Conflicted("another commit"))
    (report,) = loader_for(staging, tables, clock=clock).run_pass()
    assert "other writers'" in str(report.failure)
    assert clock.monotonic_s() >= 60


def test_last_failure_is_reported_until_a_load_succeeds(staging: Staging) -> None:
    staging.flush(0, 0, 10)
    tables = MemoryDeltaTables()

    class Broken(MemoryDeltaTables):
        problem = "is away"

        def commit(self, commit: TableCommit) -> CommitOutcome:
            raise TableError(f"the log of {commit.target.url} {self.problem}", "put it back")

    broken = loader_for(staging, Broken())
    broken.run_pass()
    Broken.problem = "is torn"
    (report,) = broken.run_pass()
    assert report.exit_code == ExitCode.FAILED
    status = status_of(staging)
    assert "is torn" in required(status.last_failure).problem
    assert (status.partitions[0].held, exit_code([status])) == (None, ExitCode.FAILED)
    assert "the last load failed at" in to_text([status])
    document = json.loads(json.dumps(to_json([status])))["streams"][0]
    assert "is torn" in document["last_failure"]["problem"]
    following = loader_for(staging, tables)
    following.recall()
    entry = following.stats.entries["orders"]
    assert entry.failure is not None
    assert "is torn" in entry.failure.problem
    assert "before this loader started" in entry.failure.problem
    following.run_pass()
    assert following.stats.entries["orders"].failure is None
    assert (status_of(staging).last_failure, exit_code([status_of(staging)])) == (None, ExitCode.DONE)


def test_status_totals_violations_of_expect_rules(staging: Staging) -> None:
    staging.violations = {"known": 2, "\x1b[2J": 1}
    staging.flush(0, 0, 10)
    staging.flush(1, 0, 10)
    status = status_of(staging)
    assert json.loads(json.dumps(to_json([status])))["streams"][0]["violations"] == {"known": 4, "\x1b[2J": 2}
    assert "  broken rules of expect, in the newest flushes: known (4), \\x1b[2J (2)\n" in to_text([status])


def test_status_totals_undeclared_fields_with_terminal_escapes_neutralized(staging: Staging) -> None:
    stream = settings_for(staging).streams[0]
    staging.undeclared = UndeclaredFields(20, {"sku": 20, "\x1b[2J\n": 1}, 2)
    staging.flush(0, 0, 10)
    staging.undeclared = UndeclaredFields(1, {"sku": 1})
    staging.flush(1, 0, 10)
    staging.undeclared = None
    staging.flush(1, 10, 20)
    status = status_of(staging)
    text = to_text([status])
    assert (
        "  dropped: of 21 sampled records, fields that no column takes: sku (21), \\x1b[2J\\n (1), and others (2)\n"
        in text
    )
    assert "unknown_fields: ignore" in text
    document = json.loads(json.dumps(to_json([status])))["streams"][0]
    assert document["undeclared"] == {"sampled": 21, "fields": {"sku": 21, "\x1b[2J\n": 1}, "others": 2}
    assert document["violations"] == {}
    meant = stream.model_copy(update={"unknown_fields": stream.record.unknown_fields})
    assert meant.record.drops_on_purpose
    shown = status_of(staging, stream=meant)
    assert shown.undeclared == status.undeclared
    assert "dropped" not in to_text([shown])


def test_deleted_table_is_distinguished_from_a_single_missing_file(staging: Staging) -> None:
    marker = staging.flush(0, 0, 10)
    staging.store(staging.table).delete([file.path for file in marker.tables[0].files])
    (shown,) = status_of(staging).partitions
    (report,) = loader_for(staging, MemoryDeltaTables()).run_pass()
    for held in (shown.held, report.held[staging.source(0)]):
        assert held is not None
        assert held.reason == "missing_file"
        assert f"is gone: the table {staging.table} was deleted, or its folder emptied" in held.problem
    held = missing_file(staging.source(0), Position(5), "a.parquet", GONE, position=Position(10), table=staging.table)
    assert "is gone: a VACUUM may have deleted it" in held.problem
    assert "--to 10" in held.remedy, "a rewind to a position below the table's is refused"
    main = MainTable(staging.table, exists=False, others={}, for_rows=())
    without_origin = required(held_by_plan(staging.source(0), MissingOrigin(marker), main))
    assert f"the table {staging.table} was deleted" in without_origin.problem


def test_failure_note_the_store_refuses_raises_nothing() -> None:
    def refuse(request: str, path: str) -> None:
        raise StoreError(request, path)

    store = TrappedStore("memory://refusing", before=refuse)
    notes = FailureNotes(store, SystemClock(), structlog.get_logger())
    notes.failed("orders", TableError("no"))
    notes.succeeded("orders")


def test_stop_ends_the_conflict_backoff(staging: Staging) -> None:
    staging.flush(0, 0, 10)
    clock, tried = IdleClock(), list[TableCommit]()

    def conflict(commit: TableCommit) -> CommitOutcome:
        tried.append(commit)
        return Conflicted("another commit")

    service = loader_for(staging, MemoryDeltaTables(conflict), clock=clock)
    (report,) = service.run_pass(lambda: len(tried) >= 5)
    assert (report.failure, len(tried)) == (None, 5)
    assert clock.monotonic_s() < 5


def test_fourteen_conflicts_in_a_row_do_not_fail_a_stream(staging: Staging) -> None:
    staging.flush(0, 0, 10)
    wins = iter([Conflicted("its properties were changed")] * 14)
    tables, metrics = MemoryDeltaTables(lambda _: next(wins, None)), Metrics()
    (report,) = loader_for(staging, tables, clock=IdleClock(), metrics=metrics).run_pass()
    assert (report.failure, report.commits) == (None, 1)
    assert values(metrics)["delta_loader_conflicts_total", (("app_id", "orders"),)] == 14


def test_dead_letters_of_a_load_that_is_planned_again_are_counted_once(staging: Staging) -> None:
    wins = iter([Conflicted("its properties were changed")])
    tables = MemoryDeltaTables(lambda commit: next(wins, None) if commit.target.url == staging.table else None)
    staging.flush(0, 0, 10, dead=[4])
    (report,) = loader_for(staging, tables, clock=IdleClock()).run_pass()
    assert (report.failure, report.dead_letters.total()) == (None, 1)


def test_successful_commit_resets_the_conflict_count(staging: Staging) -> None:
    clock, tries = IdleClock(), itertools.count()

    def meanwhile(_commit: TableCommit) -> CommitOutcome | None:
        number = next(tries)
        if number == CONFLICTS_TO_FAILURE:
            clock.sleep_s(SECONDS_TO_FAILURE)
        return None if number in (CONFLICTS_TO_FAILURE, CONFLICTS_TO_FAILURE + 2) else Conflicted("another commit")

    for start in (0, 10):
        staging.flush(0, start, start + 10)
    tables = MemoryDeltaTables(meanwhile)
    (report,) = loader_for(staging, tables, settings_for(staging, max_files=1), clock).run_pass()
    assert (report.failure, report.commits) == (None, 2)


def test_skipped_table_that_is_not_compatible_waits_for_a_person(staging: Staging) -> None:
    staging.flush(0, 0, 10, dead=[4])
    tables = MemoryDeltaTables()
    loader_for(staging, tables).run_pass()
    tables.tables[staging.dead_letters].schema = '{"type":"struct","fields":[]}'
    staging.flush(0, 10, 20, dead=[14])
    (report,) = loader_for(staging, tables).run_pass()
    assert f"{staging.dead_letters} is skipped" in str(report.failure)
    assert report.exit_code == ExitCode.HELD, "a retry fails in the same way"


def test_two_skipped_tables_are_tried_again_if_one_of_them_may_succeed(staging: Staging) -> None:
    tables, settings = MemoryDeltaTables(), routed_settings_for(staging, ("a",))
    staging.flush(0, 0, 10, dead=[4], routed={"a": [5]})
    loader_for(staging, tables, settings).run_pass()
    tables.tables[staging.dead_letters].schema = '{"type":"struct","fields":[]}'
    tables.meanwhile = lambda commit: Failed("no") if commit.target.url == staging.route("a") else None
    staging.flush(0, 10, 20, dead=[14], routed={"a": [15]})
    (report,) = loader_for(staging, tables, settings).run_pass()
    assert "is skipped (and 1 more)" in str(report.failure)
    assert report.exit_code == ExitCode.FAILED


def test_conflicts_of_a_skipped_table_do_not_count_for_others(staging: Staging) -> None:
    own = iter([Conflicted("its properties were changed")])

    def meanwhile(commit: TableCommit) -> CommitOutcome | None:
        return Conflicted("another commit") if commit.target.url == staging.dead_letters else next(own, None)

    staging.flush(0, 0, 10, dead=[4])
    tables = MemoryDeltaTables(meanwhile)
    (report,) = loader_for(staging, tables, clock=IdleClock()).run_pass()
    assert f"{staging.dead_letters} is skipped" in str(report.failure)
    assert tables.tables[staging.table].transactions["orders-0"] == 9


def test_missing_file_holds_only_its_partition(staging: Staging, tables: MemoryDeltaTables) -> None:
    staging.flush(0, 0, 10)
    gone = staging.flush(0, 10, 20)
    staging.flush(1, 0, 5)
    path = gone.tables[0].files[0].path
    staging.store(staging.table).delete([path])
    (report,) = loader_for(staging, tables).run_pass()
    held = report.held[staging.source(0)]
    assert (held.reason, path in held.problem) == ("missing_file", True)
    assert "bootstrap rewind ⟨config⟩ --topic orders --partition 0 --to 10" in held.remedy
    assert tables.tables[staging.table].transactions == {"orders-0": 9, "orders-1": 4}


def test_file_with_an_unexpected_size_holds_its_partition(staging: Staging, tables: MemoryDeltaTables) -> None:
    (file,) = staging.flush(0, 0, 10).tables[0].files
    staging.store(staging.table).write(file.path, b"PAR1")
    (report,) = loader_for(staging, tables).run_pass()
    held = report.held[staging.source(0)]
    assert (report.failure, held.reason) == (None, "missing_file")
    assert f"{file.path} of the marker at 0 of orders/0 has 4 bytes, but its marker says" in held.problem
    assert "bootstrap rewind ⟨config⟩ --topic orders --partition 0 --to 0" in held.remedy


def test_stream_failing_three_times_in_a_row_is_a_problem(staging: Staging) -> None:
    class Broken(MemoryDeltaTables):
        def commit(self, commit: TableCommit) -> CommitOutcome:
            raise KeyError(commit.app_id)

    staging.flush(0, 0, 10)
    loader = loader_for(staging, Broken())
    for _ in range(3):
        assert loader.problems == ()
        (report,) = loader.run_pass()
        assert "KeyError" in str(report.failure)
    assert "orders failed 3 times in a row" in loader.problems[0]


def test_stop_ends_a_load_between_two_commits(staging: Staging, tables: MemoryDeltaTables) -> None:
    staging.flush(0, 0, 10)
    staging.flush(0, 10, 20)
    loader = loader_for(staging, tables, settings_for(staging, max_files=1))
    (report,) = loader.run_pass(lambda: staging.table in tables.tables and bool(tables.tables[staging.table].commits))
    assert report.commits == 1
    (report,) = loader.run_pass()
    assert report.commits == 1


def test_lost_lease_ends_a_load_between_two_commits(staging: Staging, tables: MemoryDeltaTables) -> None:
    def may_load(app_id: str) -> bool:
        return app_id == "orders" and not (staging.table in tables.tables and tables.tables[staging.table].commits)

    for start in (0, 10):
        staging.flush(0, start, start + 10)
    (report,) = loader_for(staging, tables, settings_for(staging, max_files=1), may_load=may_load).run_pass()
    assert (report.commits, report.failure) == (1, None)


def test_pass_without_a_stream_to_load_is_no_success(staging: Staging, tables: MemoryDeltaTables) -> None:
    loader = loader_for(staging, tables, may_load=lambda _: False)
    assert (loader.run_pass(), loader.last_success_s) == ([], None)


def test_stop_before_the_first_commit_loads_nothing(staging: Staging, tables: MemoryDeltaTables) -> None:
    staging.flush(0, 0, 10)
    asked = iter([False, True, True, True])
    (report,) = loader_for(staging, tables).run_pass(lambda: next(asked))
    assert (report.commits, report.failure) == (0, None)


def test_backlog_longer_than_the_marker_window_is_loaded_once(staging: Staging, tables: MemoryDeltaTables) -> None:
    for start in range(0, 400, 10):
        staging.flush(0, start, start + 10)
    (report,) = loader_for(staging, tables, settings_for(staging, max_files=5)).run_pass()
    assert (report.commits, report.files) == (8, 40)
    paths = loaded(tables, staging.table)
    assert len(paths) == len(set(paths)) == 40


def test_flush_of_only_dead_letters_is_loaded(staging: Staging, tables: MemoryDeltaTables) -> None:
    staging.flush(0, 0, 3, dead=(0, 1, 2))
    metrics = Metrics()
    (report,) = loader_for(staging, tables, metrics=metrics).run_pass()
    assert not report.held
    of_class = {labels: value for (name, labels), value in values(metrics).items() if "dead_letters_total" in name}
    assert [(dict(labels)["app_id"], value) for labels, value in of_class.items()] == [("orders", 3)]
    assert tables.tables[staging.table].transactions == {"orders-0": 2}
    assert len(tables.tables[staging.dead_letters].paths) == 1


def test_empty_marker_waits_for_a_table(staging: Staging, tables: MemoryDeltaTables) -> None:
    staging.touch(0, 41)
    (report,) = loader_for(staging, tables).run_pass()
    assert (report.failure, [held.reason for held in report.held.values()]) == (None, ["no_table"])
    staging.flush(0, 42, 50)
    (report,) = loader_for(staging, tables).run_pass()
    assert not report.held
    assert tables.tables[staging.table].transactions == {"orders-0": 49}


def test_gap_after_empty_markers_is_held(staging: Staging, tables: MemoryDeltaTables) -> None:
    for offset in (3, 4, 7):
        staging.touch(0, offset)
    staging.flush(0, 8, 12)
    (report,) = loader_for(staging, tables).run_pass()
    held = report.held[staging.source(0)]
    assert (held.reason, held.problem) == ("gap", "nothing is staged for the positions [5, 7) of orders/0")
    assert "bootstrap rewind" in held.remedy
    staging.touch(0, 5)
    staging.touch(0, 6)
    (report,) = loader_for(staging, tables).run_pass()
    assert not report.held
    assert tables.tables[staging.table].transactions == {"orders-0": 11}


@pytest.mark.parametrize(
    ("content", "reason", "messages"),
    [
        (b"{not json", "unreadable_marker", ("", "bootstrap rewind")),
        (
            f'{{"version": {VERSION + 1}}}'.encode(),
            "newer_marker",
            (f"has format version {VERSION + 1}; this program reads up to {VERSION}", "upgrade this service"),
        ),
    ],
    ids=["corrupt", "of a newer release"],
)
def test_unreadable_marker_holds_its_partition_after_the_markers_before_it(
    staging: Staging, tables: MemoryDeltaTables, content: bytes, reason: str, messages: tuple[str, str]
) -> None:
    staging.flush(0, 0, 10)
    staging.store(staging.stage_url).write("done/orders/0/00000000000000000010.done", content)
    staging.flush(1, 0, 10)
    (report,) = loader_for(staging, tables).run_pass()
    held = report.held[staging.source(0)]
    assert held.reason == reason
    assert [words in text for words, text in zip(messages, (held.problem, held.remedy), strict=True)] == [True, True]
    assert ("rewind" in held.remedy) == (reason == "unreadable_marker"), "what an upgrade reads is not staged again"
    assert tables.tables[staging.table].transactions == {"orders-0": 9, "orders-1": 9}


def test_chain_without_its_first_marker_is_held(staging: Staging, tables: MemoryDeltaTables) -> None:
    staging.flush(0, 50, 60, previous=40)
    (report,) = loader_for(staging, tables).run_pass()
    assert report.held[staging.source(0)].reason == "no_root"
    assert not tables.tables


def test_markers_of_other_topics_are_ignored(staging: Staging, tables: MemoryDeltaTables) -> None:
    Staging(staging.root, topic="others").flush(0, 0, 10)
    staging.flush(0, 0, 10)
    loader_for(staging, tables).run_pass()
    assert tables.tables[staging.table].transactions == {"orders-0": 9}


def test_marker_retention_counts_from_the_stores_write_time(staging: Staging, tables: MemoryDeltaTables) -> None:
    for start in range(0, 30, 10):
        staging.flush(0, start, start + 10)
    settings = settings_for(staging, marker_retention="24h")
    (report,) = loader_for(staging, tables, settings, Later(25)).run_pass()
    assert report.settled == 0, "this machine's clock is ahead of the store's"
    for hours, settled in ((23, 0), (25, 2)):
        written_at(staging, datetime.now(UTC) - timedelta(hours=hours))
        (report,) = loader_for(staging, tables, settings).run_pass()
        assert report.settled == settled
    assert [stored.path for stored in staging.store(staging.stage_url).list("probe/")] == []
    assert staging.markers() == ["done/orders/0/00000000000000000020.done"]


def test_partition_with_no_marker_to_settle_does_not_block_others(staging: Staging, tables: MemoryDeltaTables) -> None:
    staging.flush(0, 0, 10)
    for start in (0, 10):
        staging.flush(1, start, start + 10)
    (report,) = loader_for(staging, tables, settings_for(staging, marker_retention=0), Later(1)).run_pass()
    assert report.settled == 1
    assert staging.markers() == ["done/orders/0/00000000000000000000.done", "done/orders/1/00000000000000000010.done"]


def test_handmade_marker_is_deleted_by_its_own_name(staging: Staging, tables: MemoryDeltaTables) -> None:
    staging.touch(0, 41)
    staging.flush(0, 42, 50)
    staging.flush(0, 50, 60)
    loader_for(staging, tables, settings_for(staging, marker_retention=0), Later(1)).run_pass()
    assert staging.markers() == ["done/orders/0/00000000000000000050.done"]


def test_idle_partition_advances_the_valid_through_time(staging: Staging, tables: MemoryDeltaTables) -> None:
    """Partition 1 is staged to 4 and loaded; a writer finds nothing beyond; of partition 2 not all is loaded."""

    def idle(partition: int, position: int, after_ms: int, generation: int = 0) -> IdleFact:
        return IdleFact(staging.source(partition), Position(position), staging.created_ms + after_ms, generation)

    store = staging.store(staging.stage_url)
    staging.flush(0, 0, 10)
    staging.flush(1, 0, 4)
    store.write(idle_path("one"), facts_to_bytes([idle(1, 4, 7)]))
    store.write(idle_path("two"), facts_to_bytes([idle(1, 4, 6), idle(1, 5, 90), idle(1, 4, 95, 1), idle(9, 0, 1)]))
    store.write(idle_path("broken"), b"{")
    loader_for(staging, tables).run_pass()
    assert tables.tables[staging.table].commits[-1].metadata.valid_through_ms == staging.created_ms + 7
    store.write(idle_path("one"), facts_to_bytes([idle(1, 4, 50)]))
    staging.flush(0, 10, 30)
    loader_for(staging, tables, clock=Later(1)).run_pass()
    assert tables.tables[staging.table].commits[-1].metadata.valid_through_ms == staging.created_ms + 29
    staging.flush(0, 30, 40)
    loader_for(staging, tables, clock=Later(48)).run_pass()
    assert len(list(store.list("idle"))) == 3, "this machine's clock says nothing about their age"
    written_at(staging, datetime.now(UTC) - timedelta(hours=25), "idle")
    store.write(idle_path("one"), facts_to_bytes([idle(1, 4, 60)]))
    loader_for(staging, tables).run_pass()
    assert [stored.path for stored in store.list("idle")] == [idle_path("one")], (
        "facts a day older than the newest are deleted"
    )


def test_new_unstaged_partition_holds_back_the_valid_through_time(staging: Staging, tables: MemoryDeltaTables) -> None:
    """Its records may be older than those of the others that are loaded."""

    def known(partitions: int, after_ms: int) -> StreamFact:
        return StreamFact("orders", staging.created_ms + after_ms, {staging.source(0).topic: partitions})

    def through_ms(partitions: Callable[[Stream], StreamFact | None], start: int) -> int | None:
        staging.flush(0, start, start + 10)
        loader_for(staging, tables, partitions=partitions).run_pass()
        metadata = tables.tables[staging.table].commits[-1].metadata
        return None if metadata.valid_through_ms is None else metadata.valid_through_ms - staging.created_ms

    store = staging.store(staging.stage_url)
    assert through_ms(lambda _: None, 0) is None, "the set of partitions is unknown"
    store.write(idle_path("one"), facts_to_bytes([], [replace(known(1, 99), app_id="other")]))
    assert through_ms(lambda _: None, 10) is None, "a writer of another stream does not reveal it"
    store.write(idle_path("two"), facts_to_bytes([], [known(1, 25)]))
    store.write(idle_path("one"), facts_to_bytes([], [known(2, 5)]))
    assert through_ms(lambda _: None, 20) == 25, "the most recent writer's knowledge counts"
    assert through_ms(lambda _: known(1, 99), 30) == 39
    assert through_ms(lambda _: known(2, 99), 40) is None, "partition 1 is not staged"
    fact = IdleFact(staging.source(1), Position(7), staging.created_ms + 47, 0)
    store.write(idle_path("one"), facts_to_bytes([fact]))
    assert through_ms(lambda _: known(2, 99), 50) == 47, "a writer found nothing in it"
    staging.flush(1, 0, 4)
    assert through_ms(lambda _: known(2, 99), 60) == 3


@pytest.mark.parametrize("partition", [7, 2**32 - 1])
def test_handmade_marker_of_a_nonexistent_partition_is_held(
    staging: Staging, tables: MemoryDeltaTables, partition: int
) -> None:
    staging.flush(0, 0, 10)
    staging.flush(5, 0, 3)  # of a topic that had more partitions before it was created again
    staging.touch(partition, 0)
    topic = staging.source(0).topic
    service = loader_for(staging, tables, partitions=lambda stream: StreamFact(stream.app_id, MAX_POSITION, {topic: 2}))
    (report,) = service.run_pass()
    assert {topic_partition.partition: held.reason for topic_partition, held in report.held.items()} == {
        partition: "unknown_partition"
    }
    held = report.held[staging.source(partition)]
    assert f"done/orders/{partition}/0.done was made by hand" in held.problem
    assert f"delete done/orders/{partition}/0.done" in held.remedy
    assert sorted(tables.tables[staging.table].transactions) == ["orders-0", "orders-5"]
    ends = {staging.source(number): Position(10) for number in range(2)}
    assert f"delete done/orders/{partition}/0.done" in to_text([status_of(staging, ends)])
    service = loader_for(staging, tables, partitions=lambda stream: StreamFact(stream.app_id, MAX_POSITION, {topic: 1}))
    staging.flush(0, 10, 20)
    service.run_pass()
    valid_through_ms = tables.tables[staging.table].commits[-1].metadata.valid_through_ms
    assert valid_through_ms == staging.created_ms + 19, "neither an unwritten partition nor one that is over counts"
    staging.flush(5, 4, 9)  # after a gap
    staging.flush(0, 20, 30)
    service.run_pass()
    valid_through_ms = tables.tables[staging.table].commits[-1].metadata.valid_through_ms
    assert valid_through_ms == staging.created_ms + 2, "not all of partition 5 is loaded"


def test_valid_through_time_waits_for_every_partition(staging: Staging, tables: MemoryDeltaTables) -> None:
    staging.flush(0, 0, 10)
    staging.touch(1, 5)
    loader_for(staging, tables).run_pass()
    staging.flush(1, 6, 9)
    loader_for(staging, tables).run_pass()
    first, second = (commit.metadata for commit in tables.tables[staging.table].commits)
    assert first.valid_through_ms is None
    # Partition 0 was loaded before, by a loader without memory: its last marker shows the time.
    assert second.valid_through_ms == staging.created_ms + 8
    assert list(second.spans) == [staging.source(1)]
    assert second.spans[staging.source(1)].start == Position(6)


def test_status_offers_one_repair_for_several_held_partitions(staging: Staging, tables: MemoryDeltaTables) -> None:
    for partition in (0, 1):
        staging.flush(partition, 0, 10)
        staging.flush(partition, 20, 30)
    (report,) = loader_for(staging, tables).run_pass()
    assert len(report.held) == 2
    for partition in (0, 1):  # tables in memory have no log, so that status begins at the first markers
        staging.store(staging.stage_url).write(f"done/orders/{partition}/{0:020d}.done", b"{torn")
    text = to_text([status_of(staging)])
    assert text.count("`bootstrap rewind ⟨config⟩ --all-held`") == 1


def test_marker_replaced_before_its_deletion_is_kept_with_all_above_it(staging: Staging) -> None:
    """An operator rewinds, and a writer stages other records under the same name, while markers are settled."""
    markers = [staging.flush(0, start, start + 10) for start in (0, 10, 20, 30)]
    staging.touch(1, 5)
    (stream,) = settings_for(staging).streams
    store = staging.store(staging.stage_url)
    stage = Stage(store, in_turn)
    listing = stage.listing(stream)
    by_hand = MarkerName(staging.source(1), Position(5))
    names = [*(marker.name for marker in markers[:3]), by_hand]
    tables = {comparable(url): url for url in stream.tables}
    judged = stage.read(listing, names, tables)
    manifest = required(markers[1].manifest)
    store.write(names[1].path, manifest_to_bytes(staging.source(0), replace(manifest, writer="a later one")))

    ended = {staging.source(0): names[:3], staging.source(1): [by_hand]}
    assert stage.delete(listing, ended, judged, tables) == {names[0], by_hand}

    assert staging.markers() == [marker.name.path for marker in markers[1:]]


def test_long_load_is_reported_after_growing_pauses() -> None:
    clock = HandClock()
    streams = UnfinishedStreams(clock, structlog.get_logger(), Metrics())
    streams.begin("orders")
    began_s, reported_s = clock.now_s, list[float]()
    for _ in range(1_000):
        clock.now_s += 1
        with capture_logs() as logs:
            streams.report_long_turns()
        reported_s += [clock.now_s - began_s for entry in logs if entry["event"] == "load still running"]
    assert reported_s == [30, 90, 210, 450, 930]


def test_turn_hangs_once_it_has_made_no_progress_for_long() -> None:
    clock = HandClock()
    streams = UnfinishedStreams(clock, structlog.get_logger(), Metrics())
    report = streams.begin("orders")
    clock.now_s += STUCK_S
    report.stepped()
    streams.report_long_turns()
    clock.now_s += STUCK_S
    assert list(streams.stuck) == []
    clock.now_s += 1
    assert list(streams.stuck) == ["stream orders has made no progress for 901 s"]


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
