"""Interactions in one pass: resolutions, generations, replacements and several loaders."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
import structlog

from common.clock import SystemClock
from common.errors import ExitCode, TableError
from common.ports import Clock
from common.spans import Position, Span
from common.stage.chain_origins import ChainOrigin, origin_path, origin_to_bytes
from common.stage.markers import TableKind
from common.stage.replacements import Replacement, ReplacementName, ReplacementTable, replacement_to_bytes
from common.stage.resolutions import Resolution
from common.tables.commit_metadata import CommitMetadata, Decision
from common.tables.history import LoggedCommit
from common.tables.state import TableState
from delta_loader.commands.summary import as_json, as_text
from delta_loader.load.replace_ranges import Replacements
from delta_loader.load.replace_steps import Request, RequestStep
from delta_loader.plan.plan import TableShape
from delta_loader.service import LoaderService
from delta_loader.status.values import exit_code, to_text
from delta_loader.tables.commits import CommitOutcome, Committed, Conflicted, Failed, NotWritten, TableCommit, Target
from tests.builders import instance, required
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.group import HandClock
from tests.fakes.loading import loader_for, ports_for, routed_settings_for, settings_for, status_of
from tests.fakes.refusals import CHECK, RefusingTables
from tests.fakes.staging import Staging
from tests.unit.delta_loader.test_service import Later
from tests.unit.test_generations import begin_again, stage_again


class Restorable(MemoryDeltaTables):
    """Tables that can be put back. Their rows are not modeled; their histories are."""

    def __init__(self) -> None:
        super().__init__()
        self.restored: dict[tuple[str, int], int] = {}

    def restore(self, url: str, to: int) -> int:
        table = self.tables[url]
        shape = TableShape(table.schema, table.partition_by)
        nothing = CommitMetadata("restore", "another", {}, None)
        table.commits.append(TableCommit(Target(url, table.table_id, shape, {}, 0), "another", (), {}, {}, nothing))
        self.restored[url, len(table.commits)] = to
        return len(table.commits)

    def history(self, url: str, newest: int) -> Iterator[LoggedCommit]:
        for commit in super().history(url, newest):
            to = self.restored.get((url, commit.version))
            if to is None:
                yield commit
            else:
                yield LoggedCommit(commit.version, "RESTORE", restored_version=to, read_version=commit.version - 1)


def accept(staging: Staging, tables: MemoryDeltaTables, version: int, position: int, generation: int = 0) -> None:
    """What `bootstrap accept --replay` leaves in the stage."""
    table_id = tables.tables[staging.table].table_id
    positions = {staging.source(0): Position(position)}
    generations = {staging.source(0): generation}
    answer = Resolution("orders", staging.table, table_id, version, Decision.REPLAY, positions, "eve", 5, generations)
    staging.store(staging.stage_url).write(answer.path, answer.to_bytes())


def test_restore_of_a_shared_table_holds_only_the_affected_stream(staging: Staging) -> None:
    other = Staging(staging.root, "payments", app_id="payments")
    shared = settings_for(staging, {}, {"app_id": "payments", "topics": ["payments"]})
    tables = Restorable()
    loader = loader_for(staging, tables, shared)
    staging.flush(0, 0, 10)
    loader.run_pass()
    other.flush(0, 0, 10)
    loader.run_pass()
    tables.restore(staging.table, 1)  # takes the payments, and nothing of the orders
    staging.flush(0, 10, 20)
    orders, payments = loader.run_pass()
    assert not orders.held
    assert [held.reason for held in payments.held.values()] == ["table_restored"]


def test_resolution_of_a_chain_without_markers_is_committed_once_to_its_newest_generation(staging: Staging) -> None:
    """A chain that is rewound to its beginning has no marker; the topic was recreated before."""
    tried: list[TableCommit] = []

    class Watched(Restorable):
        def commit(self, commit: TableCommit) -> CommitOutcome:
            tried.extend([commit] if commit.is_resolution else [])
            return super().commit(commit)

    tables = Watched()
    staging.flush(1, 0, 10)
    loader_for(staging, tables).run_pass()
    begin_again(staging, 1)
    stage_again(staging, 0, 12, None, 1)
    loader_for(staging, tables).run_pass()
    assert tables.tables[staging.table].transactions == {"orders-1": 9, "orders-0@1": 11}
    version = tables.restore(staging.table, 1)
    staging.store(staging.stage_url).delete([f"done/orders/0/{0:020d}.done"])
    accept(staging, tables, version, 0, generation=1)
    (report,) = loader_for(staging, tables).run_pass()
    assert (report.failure, len(tried)) == (None, 1)
    assert tables.tables[staging.table].transactions == {"orders-1": 9, "orders-0@1": -1}
    metadata, first = tables.tables[staging.table].commits[-1].metadata, staging.source(0)
    assert metadata.positions == {first: 0, staging.source(1): 10}, "it names all chains"
    assert metadata.generations == {first: 1}


def test_restore_is_reported_for_the_recreated_topic_and_not_the_old_one(staging: Staging) -> None:
    """The old topic's twenty records are in the table, and none of the new one's twelve."""
    tables = Restorable()
    staging.flush(0, 0, 20)
    loader_for(staging, tables).run_pass()
    staging.store(staging.stage_url).delete(staging.markers())
    begin_again(staging, 1)
    stage_again(staging, 0, 12, None, 1)
    loader_for(staging, tables).run_pass()
    tables.restore(staging.table, 1)
    (report,) = loader_for(staging, tables).run_pass()
    (held,) = report.held.values()
    assert "orders/0 up to 0" in held.problem


def test_resolution_applied_by_another_loader_is_not_applied_twice(staging: Staging) -> None:
    """A loader stalls before it applies a resolution; another applies it and loads up to the same position."""

    class Slow(Restorable):
        stopped = True

        def commit(self, commit: TableCommit) -> CommitOutcome:
            if commit.is_resolution and self.stopped:
                self.stopped = False
                loader_for(staging, self).run_pass()
            return super().commit(commit)

    tables = Slow()
    staging.flush(0, 0, 10)
    loader_for(staging, tables).run_pass()
    staging.flush(0, 10, 20)
    loader_for(staging, tables).run_pass()
    accept(staging, tables, tables.restore(staging.table, 1), 10)
    (report,) = loader_for(staging, tables).run_pass()
    assert report.failure is None
    table = tables.tables[staging.table]
    assert table.transactions == {"orders-0": 19}
    loads = [commit.metadata.spans[staging.source(0)].start for commit in table.commits if commit.files]
    assert loads == [0, 10, 10]  # before the RESTORE and after it


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("properties", [{}, {"delta.constraints.positive": "id >= 0"}], ids=["added", "by Spark"])
def test_table_is_reread_after_a_commit_only_if_more_may_have_changed(
    staging: Staging, properties: dict[str, str], others: int
) -> None:
    """Others' commits right before it have not been seen yet, and Delta's own writer changes identity columns, too."""
    story: list[str] = []

    class Watched(Restorable):
        def state(self, url: str) -> TableState | None:
            story.append("read")
            return super().state(url)

        def commit(self, commit: TableCommit) -> CommitOutcome:
            for _ in range(others):
                other = CommitMetadata("foreign", "another", {}, None)
                self.tables[staging.table].commits.append(replace(commit, files=(), written=(), metadata=other))
            story.append("commit")
            return super().commit(commit)

    tables = Watched()
    staging.flush(0, 0, 10)
    loader_for(staging, tables).run_pass()
    tables.tables[staging.table].properties = properties
    for start in (10, 20):
        staging.flush(0, start, start + 10)
    story.clear()
    loader_for(staging, tables, settings_for(staging, max_files=1)).run_pass()
    first, second = (number for number, event in enumerate(story) if event == "commit")
    assert ("read" in story[first:second]) == bool(properties or others)


@pytest.mark.parametrize("ends", ["put back", "stopped"])
def test_catch_up_ends_on_a_restore_or_a_stop(staging: Staging, ends: str) -> None:
    settings, url = routed_settings_for(staging, ["a"], max_files=1), staging.route("a")
    stopped: list[str] = []

    class Ending(Restorable):
        broken = False

        def commit(self, commit: TableCommit) -> CommitOutcome:
            if commit.target.url != url or commit.metadata.spans[staging.source(0)].start == 0:
                return super().commit(commit)
            if self.broken:
                return Failed("no")
            self.tables[url].commits.append(replace(commit, files=(), metadata=CommitMetadata("w", "other", {}, None)))
            outcome = super().commit(commit)
            if ends == "put back":
                self.restore(url, 1)
            stopped.append(ends)
            return outcome

    tables = Ending()
    for start in (0, 10, 20):
        tables.broken = start > 0
        staging.flush(0, start, start + 10, routed={"a": [start]})
        loader_for(staging, tables, settings).run_pass()
    tables.broken = False
    (report,) = loader_for(staging, tables, settings).run_pass(lambda: "stopped" in stopped)
    assert [held.reason for held in report.held.values()] == ["table_restored"] * (ends == "put back")
    assert len(stopped) == 1


@pytest.mark.parametrize("route", [True, False])
def test_unwritable_rows_hold_only_their_partition(staging: Staging, *, route: bool) -> None:
    settings = routed_settings_for(staging, ["a"])
    url = staging.route("a") if route else staging.table
    tables = MemoryDeltaTables()
    for start in (0, 10):
        for partition in (0, 1):
            staging.flush(partition, start, start + 10, routed={"a": [start + 1]})
        if not start:
            loader_for(staging, tables, settings).run_pass()
    tables.tables[url].properties = {"delta.constraints.positive": "id >= 0"}
    first = staging.source(0)

    def refuses(commit: TableCommit) -> NotWritten | None:
        is_it = commit.target.url == url and any(write.partition == first for write in commit.written)
        return NotWritten("no") if is_it else None

    tables.meanwhile = refuses
    (report,) = loader_for(staging, tables, settings).run_pass()
    assert {partition: held.reason for partition, held in report.held.items()} == {first: "not_written"}
    assert "kafka_columns" not in report.held[first].remedy, "its rows identify their records"
    assert tables.tables[url].transactions == {"orders-0": 9, "orders-1": 19}
    assert tables.tables[staging.table].transactions == {"orders-0": 9, "orders-1": 19}


def test_unwritable_dead_letters_are_reported(staging: Staging) -> None:
    tables = MemoryDeltaTables()
    staging.flush(0, 0, 10, dead=[1])
    dead = staging.dead_letters
    tables.meanwhile = lambda commit: NotWritten("no room") if commit.target.url == dead else None
    (report,) = loader_for(staging, tables).run_pass()
    assert f"dead letters could not be written to {dead}: no room" in required(report.failure).problem
    assert tables.tables[staging.table].transactions["orders-0"] == 9


@pytest.mark.parametrize("position", [0, 40])
def test_load_is_replanned_when_its_table_moves_during_the_dead_letter_commit(staging: Staging, position: int) -> None:
    """During the dead-letter commit another loader resolves or loads, and another program writes to both tables."""

    class Busy(MemoryDeltaTables):
        busy = False

        def commit(self, commit: TableCommit) -> CommitOutcome:
            if self.busy and commit.target.url == staging.dead_letters:
                self.busy = False
                outcome = instance(Committed, super().commit(commit))
                other = CommitMetadata("foreign", "another", {}, None)
                for url in (staging.dead_letters, staging.table):
                    self.tables[url].commits.append(replace(commit, files=(), written=(), metadata=other))
                self.tables[staging.table].transactions["orders-0"] = position - 1
                return Committed(outcome.version + 1)
            return super().commit(commit)

    tables = Busy()
    for start in (0, 10, 20, 30):
        staging.flush(0, start, start + 10, dead=[start])
        if start == 0:
            loader_for(staging, tables).run_pass()
            tables.busy = True
    (report,) = loader_for(staging, tables, settings_for(staging, max_files=2)).run_pass()
    assert report.failure is None
    table = tables.tables[staging.table]
    assert table.transactions == {"orders-0": 39}
    loaded = [commit.metadata.spans[staging.source(0)] for commit in table.commits[2:] if commit.metadata.spans]
    assert [span.start for span in loaded] == ([0, 10, 20, 30] if position == 0 else [])


def test_restore_during_table_creation_stops_the_load(staging: Staging) -> None:
    class Meddled(Restorable):
        def create(self, url: str, shape: TableShape) -> None:
            super().create(url, shape)
            if url == staging.dead_letters:
                self.restore(staging.table, 1)

    tables = Meddled()
    for start in (0, 10):
        staging.flush(0, start, start + 10)
        loader_for(staging, tables).run_pass()
    staging.flush(0, 20, 30, dead=[25])
    (report,) = loader_for(staging, tables).run_pass()
    assert [held.reason for held in report.held.values()] == ["table_restored"]
    assert report.commits == 0
    (report,) = loader_for(staging, tables).run_pass()
    assert [held.reason for held in report.held.values()] == ["table_restored"]


def test_restore_after_dead_letters_of_refused_records_stops_the_load(
    staging: Staging,
) -> None:
    class Both(RefusingTables, Restorable):
        pass

    tables = Both(staging)
    for start in (0, 10):
        staging.flush(0, start, start + 10, dead=[start])
        assert tables.run().failure is None
    tables.refuses, tables.tables[staging.table].properties = {25}, dict(CHECK)

    def restored(commit: TableCommit) -> None:
        if commit.dead_letter_rows:
            tables.restore(staging.table, 1)
            tables.restore(staging.dead_letters, tables.version(staging.dead_letters))  # the loader reads it again

    tables.meanwhile = restored
    staging.flush(0, 20, 30)
    report = tables.run()
    assert [held.reason for held in report.held.values()] == ["table_restored"]
    assert tables.tables[staging.table].commits[-1].app_id == "another", "nothing after the RESTORE"


def test_restore_right_before_a_commit_stops_the_load(staging: Staging) -> None:
    class Meddled(Restorable):
        now = False
        unseen = -1

        def history(self, url: str, newest: int) -> Iterator[LoggedCommit]:
            for commit in super().history(url, newest):
                late = commit.version == self.unseen + 1
                yield replace(commit, read_version=self.unseen - 1) if late else commit

        def commit(self, commit: TableCommit) -> CommitOutcome:
            if self.now:
                self.now = False
                self.unseen = self.restore(staging.table, 1)
            return super().commit(commit)

    tables = Meddled()
    for start in (0, 10, 20, 30):
        staging.flush(0, start, start + 10)
        if start < 20:
            loader_for(staging, tables).run_pass()
    tables.now = True
    (report,) = loader_for(staging, tables, settings_for(staging, max_files=1)).run_pass()
    assert [held.reason for held in report.held.values()] == ["table_restored"]
    assert report.commits == 1, "only the commit that the RESTORE preceded"


def test_marker_of_a_newer_generation_is_neither_loaded_nor_settled_as_old(staging: Staging) -> None:
    """A topic gets a new chain while a pass goes on, and its markers have the names of those that were listed."""

    class Restarted(MemoryDeltaTables):
        now = False

        def commit(self, commit: TableCommit) -> CommitOutcome:
            if self.now:
                self.now = False
                staging.store(staging.stage_url).delete(staging.markers())
                begin_again(staging, 1)
                for start, previous in ((0, None), (10, 0), (20, 10)):
                    stage_again(staging, start, start + 10, previous, 1)
            return super().commit(commit)

    tables = Restarted()
    staging.flush(0, 0, 10)
    loader_for(staging, tables).run_pass()
    for start in (10, 20, 30):
        staging.flush(0, start, start + 10)
    tables.now = True
    settings = settings_for(staging, max_files=1, marker_retention=0)
    loader_for(staging, tables, settings, Later(1)).run_pass()
    assert len(staging.markers()) == 3
    (report,) = loader_for(staging, tables, settings).run_pass()
    assert (report.failure, report.held) == (None, {})
    assert tables.tables[staging.table].transactions["orders-0@1"] == 29


def test_late_claim_of_an_old_topic_does_not_block_settling(staging: Staging) -> None:
    tables = MemoryDeltaTables()
    begin_again(staging, 1)
    for start, previous in ((0, None), (10, 0), (20, 10), (30, 20)):
        stage_again(staging, start, start + 10, previous, 1)
    settings = settings_for(staging, marker_retention=0)
    loader_for(staging, tables, settings, Later(1)).run_pass()
    assert len(staging.markers()) == 1
    staging.previous.clear()
    staging.flush(0, 5, 5_000)
    stage_again(staging, 40, 50, 30, 1)
    loader_for(staging, tables, settings, Later(1)).run_pass()
    assert staging.markers() == [f"done/orders/0/{40:020d}.done"]


def test_markers_that_a_restore_may_need_are_not_settled(staging: Staging) -> None:
    class Meddled(Restorable):
        def commit(self, commit: TableCommit) -> CommitOutcome:
            outcome = super().commit(commit)
            if commit.metadata.spans[staging.source(0)].start:
                self.restore(staging.table, 1)
            return outcome

    tables, settings = Meddled(), settings_for(staging, marker_retention=0)
    staging.flush(0, 0, 10)
    loader_for(staging, tables, settings).run_pass()
    staging.flush(0, 10, 20)
    staging.flush(0, 20, 30)
    (report,) = loader_for(staging, tables, settings, Later(1)).run_pass()
    assert (report.rows, len(staging.markers())) == (20, 3)
    assert [held.reason for held in report.held.values()] == ["table_restored"]


# Replacements


class Replacer:
    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.done: list[str] = []

    def unnamed(self, _request: Request, _urls: tuple[str, ...]) -> int:
        return 0

    def lost(self, request: Request, _urls: tuple[str, ...]) -> int:
        if request.name.request == self.fails:
            raise TableError("cannot read the Delta table: a staged file is damaged", "look at it")
        return 0

    def deletes(self, _request: Request, _url: str, _step: RequestStep) -> bool:
        return True

    def replace(self, request: Request, _url: str, _step: RequestStep, *, keep_stale: bool, metadata: str) -> bool:
        assert metadata
        assert not keep_stale
        self.done.append(request.name.request)
        return True


def ask(staging: Staging, start: int, end: int, digit: str) -> str:
    name = ReplacementName(staging.source(0), Position(start), digit * 32)
    table = ReplacementTable(staging.table, TableKind.ROWS, staging.schema(), ())
    content = Replacement(Span(Position(start), Position(end)), "orders", "eve", int(digit), 0, 0, tables=(table,))
    staging.store(staging.stage_url).write(name.path, replacement_to_bytes(name, content))
    return name.request


def loader_with(
    staging: Staging, tables: MemoryDeltaTables, replacer: Replacer, clock: Clock | None = None
) -> LoaderService:
    settings, stage = settings_for(staging), staging.store(staging.stage_url)
    replacements = Replacements(stage, tables, replacer, lambda: "r", structlog.get_logger())
    ports = ports_for(stage, tables, staging.store, clock=clock or SystemClock(), replacements=replacements)
    return LoaderService(settings.streams, settings.loader, ports)


def test_failed_replacement_does_not_block_others(staging: Staging) -> None:
    tables = MemoryDeltaTables()
    staging.flush(0, 0, 10)
    broken, whole = ask(staging, 0, 5, "1"), ask(staging, 5, 9, "2")
    replacer = Replacer(fails=broken)
    (report,) = loader_with(staging, tables, replacer).run_pass()
    assert (report.failure, replacer.done, report.replacements) == (None, [whole], 1)
    assert "replay requests completed: 1" in as_text([report], [])
    status = status_of(staging)
    assert "the last load was incomplete" in to_text([status])
    assert "a staged file is damaged" in required(status.last_failure).problem
    assert exit_code([status]) == ExitCode.HELD
    replacer.fails = ""
    loader_with(staging, tables, replacer).run_pass()
    assert status_of(staging).last_failure is None
    assert json.loads(as_json([report], []))["streams"][0]["replacements"] == 1
    (held,) = report.held.values()
    assert (held.reason, "a staged file is damaged" in held.problem) == ("replacement_failed", True)


def test_several_slow_requests_do_not_count_as_stuck(staging: Staging) -> None:
    clock, stuck = HandClock(), list[tuple[str, ...]]()

    class Slow(Replacer):
        """Each takes ten minutes; a load counts as stuck after fifteen."""

        def replace(self, request: Request, _url: str, _step: RequestStep, *, keep_stale: bool, metadata: str) -> bool:
            clock.now_s += 600
            stuck.append(service.unfinished.stuck)
            return super().replace(request, _url, _step, keep_stale=keep_stale, metadata=metadata)

    service = loader_with(staging, MemoryDeltaTables(), Slow(), clock)
    staging.flush(0, 0, 10)
    service.run_pass()
    for number in range(3):
        ask(staging, number * 3, number * 3 + 3, str(number + 1))
    (report,) = service.run_pass()
    assert (report.replacements, report.commits, report.steps > 0) == (3, 0, True)
    assert stuck == [(), (), ()]


def test_replacement_waits_after_a_restore_during_the_load(staging: Staging) -> None:
    class Meddled(Restorable):
        """Restores the table right after the last load."""

        def commit(self, commit: TableCommit) -> CommitOutcome:
            outcome = super().commit(commit)
            if commit.metadata.spans[staging.source(0)].start == 10:
                self.restore(staging.table, 1)
            return outcome

    tables, replacer = Meddled(), Replacer()
    staging.flush(0, 0, 10)
    loader_with(staging, tables, replacer).run_pass()
    staging.flush(0, 10, 20)
    ask(staging, 5, 15, "1")
    (report,) = loader_with(staging, tables, replacer).run_pass()
    assert replacer.done == []
    assert report.failure is None
    (report,) = loader_with(staging, tables, replacer).run_pass()
    assert [held.reason for held in report.held.values()] == ["table_restored"]


def test_replacement_of_a_recreated_topic_keeps_the_old_topics_rows(staging: Staging) -> None:
    """The new chain has begun and has no marker yet."""
    tables, replacer = MemoryDeltaTables(), Replacer()
    staging.flush(0, 0, 10)
    loader_with(staging, tables, replacer).run_pass()
    store = staging.store(staging.stage_url)
    store.delete(staging.markers())
    store.write(origin_path(staging.source(0)), origin_to_bytes(ChainOrigin(Position(0), 1, "new")))
    ask(staging, 0, 5, "1")
    (report,) = loader_with(staging, tables, replacer).run_pass()
    assert replacer.done == []
    assert [held.reason for held in report.held.values()] == ["replacement_waits"]


def test_replacement_waits_while_the_chain_is_of_another_topic(staging: Staging) -> None:
    tables, replacer = MemoryDeltaTables(), Replacer()
    staging.topic_id = "old"
    staging.flush(0, 0, 10)
    loader_with(staging, tables, replacer).run_pass()
    staging.topic_id = "new"
    staging.flush(0, 10, 20)
    ask(staging, 0, 5, "1")
    (report,) = loader_with(staging, tables, replacer).run_pass()
    assert (replacer.done, [held.reason for held in report.held.values()]) == ([], ["other_topic"])


def test_held_partition_reports_its_own_reason_over_a_waiting_replacement(staging: Staging) -> None:
    staging.flush(0, 0, 10)
    staging.flush(0, 20, 30, previous=10)
    ask(staging, 5, 15, "1")
    (report,) = loader_with(staging, MemoryDeltaTables(), Replacer()).run_pass()
    assert [held.reason for held in report.held.values()] == ["gap"]


def test_conflicts_ended_by_a_stop_are_not_a_failure(staging: Staging) -> None:
    class Stubborn(Restorable):
        tries = 0

        def commit(self, commit: TableCommit) -> CommitOutcome:
            if not commit.is_resolution:
                return super().commit(commit)
            self.tries += 1
            return Conflicted("another commit")

    tables = Stubborn()
    staging.flush(0, 0, 10)
    loader_for(staging, tables).run_pass()
    staging.flush(0, 10, 20)
    loader_for(staging, tables).run_pass()
    accept(staging, tables, tables.restore(staging.table, 1), 10)
    (report,) = loader_for(staging, tables).run_pass(lambda: tables.tries >= 2)
    assert (report.failure, tables.tries) == (None, 2)
