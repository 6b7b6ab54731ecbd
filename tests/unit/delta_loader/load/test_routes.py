"""A stream with several tables: each gets its own; one that fails is reported, left out, and gets the rest later."""

import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest

from common.errors import StoreError, TableError
from common.metrics import Metrics
from common.settings import Settings
from common.spans import Position, Span
from common.stage.appeared_routes import agree_on, with_appeared
from common.tables.commit_metadata import CommitMetadata
from common.tables.state import TableState
from delta_loader.load.deferred import excluded_spans, first_part
from delta_loader.load.report import StreamReport
from delta_loader.plan.plan import Load, Overlap, Run, TableShape
from delta_loader.stage.listed import Listing
from delta_loader.stage.reading import Stage
from delta_loader.tables.commits import CommitOutcome, Conflicted, Failed, TableCommit
from tests.builders import required, settings_of
from tests.fakes.clock import IdleClock
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.loading import loader_for, routed_settings_for, settings_for
from tests.fakes.markers import chain_of, put
from tests.fakes.metrics import values
from tests.fakes.staging import Staging

AWAY = StoreError("it is away", "wait")


class Broken(MemoryDeltaTables):
    """Tables of which some do not work, in one way or another."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: set[str] = set()
        self.creates: set[str] = set()
        self.commits: set[str] = set()
        self.loses_answers: set[str] = set()
        self.was_read = False
        self.order: list[str] = []
        self.created: list[str] = []

    def state(self, url: str) -> TableState | None:
        self.was_read = True
        if url in self.reads:
            raise TableError("its log is broken", "fix it")
        return super().state(url)

    def create(self, url: str, shape: TableShape) -> None:
        if url in self.creates:
            raise AWAY
        self.created.append(url)
        super().create(url, shape)

    def commit(self, commit: TableCommit) -> CommitOutcome:
        if commit.target.url in self.commits:
            raise AWAY
        self.order.append(commit.target.url)
        outcome = super().commit(commit)
        if commit.target.url in self.loses_answers:
            raise AWAY
        return outcome

    def fix(self) -> None:
        for broken in (self.reads, self.creates, self.commits, self.loses_answers):
            broken.clear()


@pytest.fixture
def tables() -> Broken:
    return Broken()


def one_pass(staging: Staging, tables: MemoryDeltaTables, **loader: object) -> StreamReport:
    settings = routed_settings_for(staging, ("a", "b"), **loader)
    (report,) = loader_for(staging, tables, settings, IdleClock()).run_pass()
    return report


def rows(tables: MemoryDeltaTables, url: str) -> int:
    table = tables.tables.get(url)
    return 0 if table is None else sum(file.rows for commit in table.commits for file in commit.files)


def counted(staging: Staging, tables: MemoryDeltaTables) -> tuple[int, int, int, int]:
    """Rows of the own table, of both routes, and dead letters."""
    urls = (staging.table, staging.route("a"), staging.route("b"), staging.dead_letters)
    own, a, b, dead = (rows(tables, url) for url in urls)
    for url in urls:
        if url in tables.tables:
            paths = tables.tables[url].paths
            assert len(paths) == len(set(paths)), "a file was added twice"
    return own, a, b, dead


def staged(staging: Staging) -> None:
    """Three flushes: for all tables, for none but the own and one route, and for all again."""
    staging.flush(0, 0, 10, routed={"a": [1, 2], "b": [3]}, dead=[4])
    staging.flush(0, 10, 20, routed={"a": [11]})
    staging.flush(0, 20, 30, routed={"a": [21], "b": [22, 23]}, dead=[24, 25])


WHOLE = (30 - 4 - 3 - 3, 4, 3, 3)


def test_main_table_is_committed_after_all_others(staging: Staging, tables: Broken) -> None:
    staged(staging)
    assert one_pass(staging, tables).failure is None
    assert counted(staging, tables) == WHOLE
    assert tables.order == [staging.route("a"), staging.route("b"), staging.dead_letters, staging.table]


def test_table_without_new_rows_is_not_committed_to(staging: Staging, tables: Broken) -> None:
    staging.flush(0, 0, 10, routed={"a": [1]})
    one_pass(staging, tables, marker_retention=0)
    for start in range(10, 100, 10):
        staging.flush(0, start, start + 10, routed={"b": [start]})
        one_pass(staging, tables, marker_retention=0)
    assert tables.tables[staging.route("a")].transactions == {"orders-0": 9}
    assert len(staging.markers()) == 1
    staging.flush(0, 100, 110, routed={"a": [101]})
    report = one_pass(staging, tables)
    assert (report.failure, report.held) == (None, {})
    assert counted(staging, tables)[:3] == (110 - 2 - 9, 2, 9)


def _unreadable(tables: Broken, url: str) -> None:
    tables.reads.add(url)


def _not_created(tables: Broken, url: str) -> None:
    tables.creates.add(url)


def _refusing(tables: Broken, url: str) -> None:
    tables.commits.add(url)


def _mute(tables: Broken, url: str) -> None:
    tables.loses_answers.add(url)


def test_commit_still_names_the_newest_one_of_a_table_that_cannot_be_read(staging: Staging, tables: Broken) -> None:
    def named() -> dict[str, int]:
        return dict(tables.tables[staging.table].commits[-1].metadata.secondary_versions)

    for start in (0, 10):
        staging.flush(0, start, start + 10, routed={"a": [start]})
        one_pass(staging, tables)
    before = named()
    tables.reads.add(staging.route("a"))
    staging.flush(0, 20, 30)
    one_pass(staging, tables)
    assert (named(), len(before)) == (before, 1)


@pytest.mark.parametrize("which", ["a", "b", "dead letters"])
@pytest.mark.parametrize("how", [_unreadable, _not_created, _refusing, _mute])
def test_broken_table_is_reported_and_holds_no_other(
    staging: Staging, tables: Broken, how: Callable[[Broken, str], None], which: str
) -> None:
    url = staging.dead_letters if which == "dead letters" else staging.route(which)
    how(tables, url)
    staged(staging)
    report = one_pass(staging, tables, marker_retention=0)
    assert url in required(report.failure).problem
    assert (report.held, rows(tables, staging.table)) == ({}, WHOLE[0])
    assert (url in tables.created) is (how in (_refusing, _mute)), "one that cannot be read may exist"
    others = {staging.route("a"), staging.route("b"), staging.dead_letters} - {url}
    assert all(rows(tables, other) for other in others)
    # Nothing that it lacks is settled, however old.
    assert len(staging.markers()) == 3
    tables.fix()
    assert one_pass(staging, tables, marker_retention=0).failure is None
    assert counted(staging, tables) == WHOLE
    assert len(staging.markers()) == 1


@pytest.mark.parametrize("how", [_unreadable, _not_created, _refusing])
def test_deferred_range_of_a_broken_table_grows_and_is_loaded_in_order(
    staging: Staging, tables: Broken, how: Callable[[Broken, str], None]
) -> None:
    url = staging.route("a")
    how(tables, url)
    for start in range(0, 50, 10):
        staging.flush(0, start, start + 10, routed={"a": [start]} if start != 20 else {"b": [start]})
        assert url in required(one_pass(staging, tables, marker_retention=0).failure).problem
        assert tables.tables[staging.table].transactions["orders-0"] == start + 9, "the others go on"
    tables.fix()
    staging.flush(0, 50, 60, routed={"a": [50]})
    assert one_pass(staging, tables, marker_retention=0, max_files=3).failure is None
    assert counted(staging, tables)[:3] == (60 - 6, 5, 1)
    offsets = [commit.advances["orders-0"] for commit in tables.tables[url].commits]
    assert offsets == sorted(set(offsets))
    assert tables.tables[url].transactions["orders-0"] == 59


def test_table_that_failed_is_left_alone_for_the_rest_of_the_pass(
    staging: Staging, tables: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conflict makes the loader read all tables again, and each try may take as long as a store takes to fail."""
    tried: list[str] = []
    commit, conflicts = tables.commit, iter([Conflicted("another commit")])

    def watched(asked: TableCommit) -> CommitOutcome:
        tried.append(asked.target.url)
        conflict = next(conflicts, None) if asked.target.url == staging.table else None
        return conflict or commit(asked)

    monkeypatch.setattr(tables, "commit", watched)
    tables.commits.add(staging.route("a"))
    staged(staging)
    one_pass(staging, tables)
    assert (tried.count(staging.route("a")), tried.count(staging.table)) == (1, 2)
    assert rows(tables, staging.table) == WHOLE[0]


def test_table_that_works_again_is_counted_until_it_has_all_rows(staging: Staging, tables: Broken) -> None:
    tables.commits.add(staging.route("a"))
    staged(staging)
    one_pass(staging, tables)
    tables.fix()
    metrics, label = Metrics(), (("app_id", "orders"),)
    service = loader_for(staging, tables, routed_settings_for(staging, ("a", "b")), IdleClock(), metrics=metrics)

    def left_out(*, cut_short: bool) -> float:
        tables.was_read = False
        (report,) = service.run_pass(lambda: cut_short and tables.was_read)
        assert (report.failure, report.held) == (None, {})
        return values(metrics)["delta_loader_tables_left_out", label]

    assert [left_out(cut_short=cut_short) for cut_short in (True, False)] == [1, 0]


def test_table_catches_up_from_its_own_position(staging: Staging, tables: Broken) -> None:
    """What it has of the range may be gone from the stage."""
    url = staging.route("a")
    tables.commits.add(url)
    staged(staging)
    one_pass(staging, tables)
    tables.fix()
    tables.meanwhile = lambda commit: Failed("no") if commit.target.url == url and tables.tables[url].commits else None
    one_pass(staging, tables, max_files=1)
    staging.store(staging.stage_url).delete(staging.markers()[:1])
    tables.meanwhile = lambda _: None
    assert one_pass(staging, tables).failure is None
    assert rows(tables, url) == WHOLE[1]


def test_deferred_range_extended_by_another_loader_is_not_complete(staging: Staging, tables: Broken) -> None:
    url = staging.route("a")
    tables.commits.add(url)
    staged(staging)
    one_pass(staging, tables)
    tables.fix()

    def extends(commit: TableCommit) -> None:
        if commit.target.url == url:
            tables.meanwhile = lambda commit: Failed("no") if commit.target.url == url else None
            staging.flush(0, 30, 40, routed={"a": [31]})
            one_pass(staging, tables)
            tables.meanwhile = lambda _: None
            metadata = CommitMetadata("foreign", "another", {}, None)
            tables.tables[url].commits.append(replace(commit, files=(), metadata=metadata))

    tables.meanwhile = extends
    for _ in range(2):
        one_pass(staging, tables)
    assert rows(tables, url) == WHOLE[1] + 1


def test_deferred_range_extended_while_its_end_is_recorded_is_not_complete(staging: Staging, tables: Broken) -> None:
    url = staging.route("a")
    tables.commits.add(url)
    staged(staging)
    one_pass(staging, tables)
    tables.fix()

    def extends(commit: TableCommit) -> None:
        if commit.target.url == staging.table and not commit.metadata.spans:
            tables.meanwhile = lambda _: None
            tables.reads.add(url)
            staging.flush(0, 30, 40, routed={"a": [31]})
            one_pass(staging, tables)
            tables.fix()

    tables.meanwhile = extends
    for _ in range(2):
        one_pass(staging, tables)
    assert rows(tables, url) == WHOLE[1] + 1


def test_table_that_another_loader_left_out_gets_nothing_before_what_it_lacks(staging: Staging, tables: Broken) -> None:
    url = staging.route("a")
    for start in (0, 10, 20):
        staging.flush(0, start, start + 10, routed={"a": [start]})

    def loads_two_without_it(commit: TableCommit) -> None:
        if commit.target.url == staging.table:
            tables.meanwhile = lambda other: (
                Failed("no") if other.target.url == url or other.advances.get("orders-0") == 29 else None
            )
            one_pass(staging, tables, max_files=4)
            tables.meanwhile = lambda _: None

    tables.meanwhile = loads_two_without_it
    for _ in range(2):
        one_pass(staging, tables, max_files=1)
    assert counted(staging, tables)[:2] == (30 - 3, 3)


def test_missing_file_of_a_deferred_range_is_reported_with_its_remedy(staging: Staging, tables: Broken) -> None:
    url = staging.route("a")
    tables.commits.add(url)
    staged(staging)
    one_pass(staging, tables)
    tables.fix()
    store = staging.store(url)
    store.delete([min(item.path for item in store.list(""))])
    report = one_pass(staging, tables)
    assert "a data file of the range that it lacks is gone" in required(report.failure).problem
    assert "--to 0 --below-table" in required(report.failure).remedy


@pytest.mark.parametrize(
    ("which", "kafka_columns", "is_loaded"), [("dead letters", False, True), ("a", False, False), ("a", True, True)]
)
def test_deferred_part_of_a_marker_is_loaded_if_its_rows_have_offsets(
    staging: Staging, tables: Broken, which: str, *, kafka_columns: bool, is_loaded: bool
) -> None:
    url = staging.dead_letters if which == "dead letters" else staging.route(which)
    settings = routed_settings_for(staging, ("a",))
    stream = settings.streams[0].model_copy(update={"kafka_columns": kafka_columns})
    settings = settings.model_copy(update={"streams": (stream,)})
    staging.flush(0, 0, 10, routed={"a": [1]}, dead=[2])
    loader_for(staging, tables, settings).run_pass()
    tables.commits.add(url)
    staging.flush(0, 10, 20, routed={"a": [11]}, dead=[12])
    loader_for(staging, tables, settings).run_pass()
    tables.fix()
    staging.store(staging.stage_url).delete(staging.markers())
    staging.flush(0, 5, 20, routed={"a": [6, 11]}, dead=[7, 12], previous=0)
    (report,) = loader_for(staging, tables, settings).run_pass()
    assert (report.failure is None, len(tables.tables[url].commits) == 2) == (is_loaded, is_loaded)


class OtherFirst(Broken):
    """Another loader makes the first commits to the main table, right before this one creates it."""

    def __init__(self, table: str, other: Callable[["OtherFirst"], object]) -> None:
        super().__init__()
        self.waiting = [other]
        self.table = table

    def create(self, url: str, shape: TableShape) -> None:
        if url == self.table and self.waiting:
            self.waiting.pop()(self)
        super().create(url, shape)


def test_load_is_checked_again_after_the_first_commit_of_another_loader(staging: Staging) -> None:
    """Two configs with one app_id and a topic each: the second one's topic looks like a new name of the first one's."""
    later = Staging(staging.root, "payments")
    tables = OtherFirst(staging.table, lambda tables: one_pass(staging, tables))
    staging.flush(0, 0, 10)
    later.flush(0, 0, 20)
    assert [held.reason for held in one_pass(later, tables).held.values()] == ["other_topic"]
    assert tables.tables[staging.table].transactions == {"orders-0": 9}


def test_deferred_range_has_the_txn_id_of_the_first_commit(
    staging: Staging,
) -> None:
    """A config of two topics names both in its txn actions, and one of the second topic alone goes on with that."""
    later, store = Staging(staging.root, "payments"), staging.store(staging.stage_url)
    staging.flush(0, 0, 10, dead=[4])
    later.flush(0, 0, 20, dead=[3])
    last = later.flush(0, 20, 30, dead=[25])

    def loads_both(tables: OtherFirst) -> None:
        store.delete([last.name.path])  # it has not seen that one yet
        stream = routed_settings_for(staging, ("a", "b")).streams[0]
        both = {**stream.model_dump(include={"table", "route", "routes"}), "topics": ["orders", "payments"]}
        loader_for(staging, tables, settings_of(both, stage={"url": staging.stage_url})).run_pass()
        put(store, last)

    tables = OtherFirst(staging.table, loads_both)
    tables.commits.add(staging.dead_letters)
    one_pass(later, tables)
    assert tables.tables[staging.table].transactions["orders-payments-0"] == 29
    noted = {name.partition(":")[0] for name in tables.tables[staging.table].transactions if ":" in name}
    assert noted == {"orders-orders-0", "orders-payments-0"}
    tables.fix()
    one_pass(later, tables, marker_retention=0)
    assert rows(tables, staging.dead_letters) == 2


def test_crash_between_two_tables_is_repaired_by_the_next_loader() -> None:
    for dies_after in range(1, 5):

        class Dying(Broken):
            commits_left = dies_after

            def commit(self, commit: TableCommit) -> CommitOutcome:
                if not self.commits_left:
                    raise KeyboardInterrupt
                self.commits_left -= 1
                return super().commit(commit)

        fresh, dying = Staging(f"memory://{uuid.uuid4().hex}"), Dying()
        staged(fresh)
        if dies_after < 4:
            with pytest.raises(KeyboardInterrupt):
                one_pass(fresh, dying)
        dying.commits_left = 1000
        assert one_pass(fresh, dying).failure is None
        assert counted(fresh, dying) == WHOLE


def test_deferred_range_without_markers_is_reported_with_its_remedy(staging: Staging, tables: Broken) -> None:
    tables.commits.add(staging.route("a"))
    staged(staging)
    one_pass(staging, tables)
    tables.fix()
    store = staging.store(staging.stage_url)
    store.delete([staging.markers()[0]])
    report = one_pass(staging, tables)
    assert report.failure is not None
    assert "lacks the records of 0 to 30 of orders/0" in report.failure.problem
    assert "--to 0 --below-table" in report.failure.remedy
    assert counted(staging, tables)[1] == 0
    # Staged again, in other flushes than before.
    for marker in staging.markers():
        store.delete([marker])
    staging.flush(0, 0, 15, routed={"a": [1, 2, 11], "b": [3]}, dead=[4])
    staging.flush(0, 15, 40, routed={"a": [21], "b": [22, 23]}, dead=[24, 25])
    assert one_pass(staging, tables).failure is None
    assert counted(staging, tables)[1] == 4


def test_incompatible_files_of_one_table_hold_no_other(staging: Staging, tables: Broken) -> None:
    url = staging.route("a")
    staging.flush(0, 0, 10, routed={"a": [1]})
    one_pass(staging, tables)
    tables.tables[url].schema = '{"type":"struct","fields":[]}'
    staging.flush(0, 10, 20, routed={"a": [11], "b": [12]})
    report = one_pass(staging, tables)
    assert url in required(report.failure).problem
    assert counted(staging, tables)[:3] == (17, 1, 1)


def test_file_of_an_unknown_table_holds_the_partition(staging: Staging, tables: Broken) -> None:
    staging.flush(0, 0, 10, routed={"c": [1]})
    report = one_pass(staging, tables)
    (held,) = report.held.values()
    assert staging.route("c") in held.problem
    assert tables.tables == {}


def test_failed_table_lacks_nothing_below_the_position_of_the_load(staging: Staging) -> None:
    marker = staging.flush(0, 5, 20)
    partition = marker.name.topic_partition
    load = Load({partition: Overlap(Position(12), marker)})
    assert excluded_spans(load, staging.table, [partition]) == {partition: Span(Position(12), Position(20))}
    assert first_part(load.runs[partition], Position(99)) == load.runs[partition]


@pytest.mark.parametrize(("end", "markers"), [(1, 1), (10, 1), (11, 2), (20, 2), (99, 3), (0, 1)])
def test_catch_up_takes_markers_that_begin_before_the_end_of_the_deferred_range(end: int, markers: int) -> None:
    run = Run(tuple(chain_of(0, 10, 20, 30)))
    assert first_part(run, Position(end)) == Run(run.markers[:markers])


@pytest.fixture
def staging() -> Staging:
    return Staging(f"memory://{uuid.uuid4().hex}")


def appearing_settings(staging: Staging) -> Settings:
    return settings_for(staging, {"route": "name", "route_table": staging.route("{route}")})


def appear(staging: Staging, *routes: str) -> None:
    agree_on(staging.store(staging.stage_url), "orders", routes, 10)


def offered_rows(staging: Staging, tables: MemoryDeltaTables) -> dict[str, int]:
    urls = {"own": staging.table, "a": staging.route("a"), "b": staging.route("b")}
    return {
        name: sum(file.rows for commit in tables.tables[url].commits for file in commit.files)
        for name, url in urls.items()
        if url in tables.tables
    }


def test_running_loader_loads_into_tables_that_appear(staging: Staging) -> None:
    tables = MemoryDeltaTables()
    loader = loader_for(staging, tables, appearing_settings(staging))
    staging.flush(0, 0, 10)
    assert loader.run_pass()[0].failure is None
    assert offered_rows(staging, tables) == {"own": 10}
    appear(staging, "a")
    staging.flush(0, 10, 20, routed={"a": [11, 12]})
    (report,) = loader.run_pass()
    assert (report.failure, report.held) == (None, {})
    assert offered_rows(staging, tables) == {"own": 18, "a": 2}


def test_table_that_appears_just_before_the_listing_is_known(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = MemoryDeltaTables()
    loader = loader_for(staging, tables, appearing_settings(staging))
    listing = Stage.listing
    before: list[str] = ["b", "a"]

    def listed(stage: Stage, stream: object) -> Listing:
        if before:
            route = before.pop()
            appear(staging, route)
            first = 10 * (1 - len(before))
            staging.flush(0, first, first + 10, routed={route: [first + 1]})
        return listing(stage, stream)  # type: ignore[arg-type]

    monkeypatch.setattr(Stage, "listing", listed)
    (report,) = loader.run_pass()
    assert (report.failure, report.held) == (None, {})
    assert offered_rows(staging, tables) == {"own": 18, "a": 1, "b": 1}


def test_marker_for_a_table_that_has_not_appeared_is_held(staging: Staging) -> None:
    tables = MemoryDeltaTables()
    staging.flush(0, 0, 10, routed={"a": [1]})
    (report,) = loader_for(staging, tables, appearing_settings(staging)).run_pass()
    (held,) = report.held.values()
    assert held.reason == "unreadable_marker"
    assert offered_rows(staging, tables) == {}


def test_settings_with_appeared_tables_list_their_routes(staging: Staging) -> None:
    appear(staging, "a", "b")
    (stream,) = with_appeared(appearing_settings(staging), staging.store(staging.stage_url)).streams
    assert stream.secondary_tables == (staging.route("a"), staging.route("b"), staging.dead_letters)
