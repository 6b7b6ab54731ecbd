"""An older copy of a secondary table's folder: its log does not tell, and the main table's log names what it lacks."""

import copy
from dataclasses import replace

import pytest

from bootstrap.plans.accept import AcceptPlan, RollbackEvent, plan_go_on, require_main_too
from common.errors import TableError, UsageError
from common.spans import Position, TopicPartition
from common.stage.resolutions import Resolution
from common.tables.commit_metadata import CommitMetadata, Decision
from common.tables.rollback import Rollback
from common.tables.state import TableState
from common.tables.stream_history import StreamHistory, histories_of
from delta_loader.load.report import StreamReport
from delta_loader.plan.plan import TableShape
from delta_loader.tables.commits import CommitOutcome, TableCommit, Target
from tests.builders import required
from tests.fakes.delta_tables import MemoryDeltaTables, MemoryTable
from tests.fakes.loading import loader_for, routed_settings_for
from tests.fakes.staging import Staging


class Lake:
    """A stream with a route and dead letters, loaded after each flush by a loader of its own."""

    def __init__(self, staging: Staging, tables: MemoryDeltaTables | None = None) -> None:
        self.staging = staging
        self.tables = tables or MemoryDeltaTables()
        self.end = 0
        self.partition: TopicPartition = staging.source(0)
        (self.stream,) = routed_settings_for(staging, ("a",)).streams

    def load(self, *, dead: bool = True) -> StreamReport:
        self.flush(dead=dead)
        return self.one_pass()

    def flush(self, *, dead: bool = True) -> None:
        """Ten records, with one for the route and one dead letter."""
        start, self.end = self.end, self.end + 10
        letters = [start + 2] if dead else []
        self.staging.flush(0, start, self.end, routed={"a": [start + 1]} if dead else {}, dead=letters)

    def one_pass(self) -> StreamReport:
        settings = routed_settings_for(self.staging, ("a",), marker_retention=0, max_files=1)
        (report,) = loader_for(self.staging, self.tables, settings).run_pass()
        return report

    def kept(self, url: str) -> MemoryTable:
        return copy.deepcopy(self.tables.tables[url])

    def histories(self) -> dict[str, StreamHistory]:
        states = {url: state for url in self.stream.tables if (state := self.tables.state(url)) is not None}
        return histories_of(self.stream, states, self.tables.history)

    def rollback(self, url: str) -> Rollback | None:
        return self.histories()[url].rollback

    def accept(self, url: str) -> None:
        """What `bootstrap accept --go-on` leaves in the stage."""
        back, table = required(self.rollback(url)), self.tables.tables[url]
        positions = {self.partition: Position(table.transactions["orders-0"] + 1)} if table.transactions else {}
        resolution = Resolution(
            "orders", url, table.table_id, back.cause.version, Decision.GO_ON, positions, "eve", 5, {}
        )
        self.staging.store(self.staging.stage_url).write(resolution.path, resolution.to_bytes())

    def others_commit(self, url: str) -> None:
        table = self.tables.tables[url]
        target = Target(url, table.table_id, TableShape(table.schema, table.partition_by), {})
        table.commits.append(TableCommit(target, "x", (), {}, {}, CommitMetadata("x", "another", {}, None)))


@pytest.fixture
def lake(staging: Staging) -> Lake:
    return Lake(staging)


@pytest.mark.parametrize("others", [0, 5])
@pytest.mark.parametrize("which", ["route", "dead letters"])
def test_older_copy_of_a_secondary_table_holds_the_stream(lake: Lake, which: str, others: int) -> None:
    url = lake.staging.route("a") if which == "route" else lake.staging.dead_letters
    lake.load()
    older = lake.kept(url)
    assert lake.load().held == {}
    lake.tables.tables[url] = older
    for _ in range(others):
        lake.others_commit(url)
    held = lake.load().held[lake.partition]
    assert held.reason == "table_restored"
    assert held.problem == (
        f"{url} is an older copy of the table, without version 2 of this stream: it has the records of "
        "orders/0 up to 10"
    )
    assert held.remedy == (
        "put the table's newest folder back; or `bootstrap accept ⟨config⟩ --stream orders --go-on --yes`, then "
        "`stage-writer replay ⟨config⟩ --topic orders --partition 0 --from 10 --to 20 --yes`"
    )
    assert lake.tables.tables[lake.staging.table].transactions == {"orders-0": 19}


def test_copy_without_any_load_is_noticed(lake: Lake) -> None:
    lake.load(dead=False)
    lake.tables.create(lake.staging.dead_letters, TableShape('{"type":"struct","fields":[]}', ()))
    empty = lake.kept(lake.staging.dead_letters)
    empty.table_id = "table-dead"
    lake.tables.tables.pop(lake.staging.dead_letters)
    lake.load()
    lake.tables.tables[lake.staging.dead_letters].table_id = "table-dead"
    lake.load(dead=False)
    lake.tables.tables[lake.staging.dead_letters] = empty
    held = lake.one_pass().held[lake.partition]
    assert "has the records of no partition" in held.problem
    assert held.remedy.endswith("--go-on --yes`, then a replay of what 1 other partition may lack")


def test_accepted_copy_is_loaded_on_and_is_not_held_again(lake: Lake) -> None:
    url = lake.staging.dead_letters
    lake.load()
    older = lake.kept(url)
    for _ in range(3):
        lake.load()
    lake.tables.tables[url] = older
    assert lake.one_pass().held
    lake.accept(url)
    assert lake.one_pass().held == {}
    assert lake.rollback(url) is None, "before the next commit to the main table"
    for _ in range(3):
        assert lake.load().held == {}
    assert lake.rollback(url) is None
    assert lake.tables.tables[url].transactions == {"orders-0": lake.end - 1}


def test_table_that_lags_or_is_newer_or_was_made_again_is_not_held(lake: Lake) -> None:
    lake.load()
    for _ in range(3):
        assert lake.load(dead=False).held == {}, "its positions lag, and it lacks nothing"
    older = lake.kept(lake.staging.table)
    newer = lake.kept(lake.staging.dead_letters)
    lake.load()
    lake.tables.tables[lake.staging.table] = older
    assert lake.rollback(lake.staging.dead_letters) is None, "the main table's log is the older one"
    assert len(newer.commits) == 1
    lake.tables.tables.pop(lake.staging.dead_letters)
    lake.load()
    assert lake.load().held == {}, "it was dropped, and made again under another id"


def test_main_table_keeps_the_record_of_a_table_that_was_left_out(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    url = lake.staging.dead_letters
    lake.load()
    older = lake.kept(url)
    lake.load()
    state = lake.tables.state

    def away(of: str) -> TableState | None:
        if of == url:
            raise TableError("its log cannot be read", "see why")
        return state(of)

    monkeypatch.setattr(lake.tables, "state", away)
    lake.flush(dead=False)
    report = lake.load(dead=False)
    assert report.failure is not None
    assert report.commits > 1
    monkeypatch.setattr(lake.tables, "state", state)
    lake.tables.tables[url] = older
    assert lake.one_pass().held


def test_load_of_another_loader_meanwhile_is_not_taken_for_a_copy(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables are read in parallel: the main table after the other loader's commits, and the secondary before."""
    url = lake.staging.dead_letters
    lake.load()
    before = required(lake.tables.state(url))
    lake.load()
    state, asked = lake.tables.state, 0

    def early(of: str) -> TableState | None:
        nonlocal asked
        asked += of == url
        return before if of == url and asked == 1 else state(of)

    monkeypatch.setattr(lake.tables, "state", early)
    assert lake.one_pass().held == {}
    assert asked > 1


def test_loader_that_runs_notices_a_copy_between_plan_and_commit(staging: Staging) -> None:
    url, copies = staging.dead_letters, dict[str, MemoryTable]()

    def put_back(commit: TableCommit) -> CommitOutcome | None:
        if commit.target.url == url and url in copies:
            tables.tables[url] = copies.pop(url)
        return None

    tables = MemoryDeltaTables(put_back)
    lake = Lake(staging, tables)
    lake.load()
    kept = lake.kept(url)
    lake.load()
    copies[url] = kept
    assert lake.load().held[lake.partition].reason == "table_restored"


def test_replay_of_a_copy_is_refused_with_the_commands_that_help(lake: Lake) -> None:
    url = lake.staging.dead_letters
    lake.load()
    older = lake.kept(url)
    lake.load()
    lake.tables.tables[url] = older
    event = RollbackEvent(url, older.table_id, required(lake.rollback(url)))
    plan: AcceptPlan = replace(plan_go_on(event, []), decision=Decision.REPLAY)
    with pytest.raises(UsageError, match="an older copy") as error:
        require_main_too(plan, "orders", {lake.partition: Position(20)})
    assert "replay ⟨config⟩ --topic orders --partition 0 --from 10 --to 20 --yes" in error.value.remedy
