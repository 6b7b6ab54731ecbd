"""Loads and rewinds of a chain of several topics: when they overlap, only one of the two takes effect.

The same for the first load of a chain, and a rewind to before it: the table must not be past what the rewind stages.
"""

import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from bootstrap.apply import stage as operator
from bootstrap.apply.loaders import require_not_loading
from bootstrap.apply.partition_state import partition_state
from bootstrap.apply.repair_lock import RepairLocks
from bootstrap.apply.stage import restart
from bootstrap.plans.repair import RewindPlan, plan_rewind, plan_skip
from bootstrap.plans.restart import Restart
from bootstrap.plans.state import Author, Ends, PartitionState
from bootstrap.work import Work
from common.clock import SystemClock
from common.errors import StoreError, TableError, UsageError
from common.ports import ObjectStore
from common.settings import Settings
from common.settings.route_tables import OtherTable
from common.spans import Position, TopicPartition
from common.stage.chain_origins import ChainOrigin
from common.stage.loading import LOADING, LoadNote, loading_path
from common.stage.repair_lock import LastRepair, ended_path, last_repair, repair_path
from common.storage.store import FsspecStore
from delta_loader.load.merged import MergedLoads
from delta_loader.load.report import StreamReport
from delta_loader.plan.held import Held
from delta_loader.plan.plan import Load
from delta_loader.ports import in_turn
from delta_loader.stage.reading import Stage
from delta_loader.status.collecting import stream_status
from delta_loader.tables.commits import CommitOutcome, Committed, Failed, NotWritten, TableCommit, Unknown
from tests.builders import required
from tests.fakes.clock import IdleClock
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.loading import loader_for, routed_settings_for, settings_for, status_of
from tests.fakes.staging import JoinedStaging, Staging
from tests.fakes.stores import TrappedStore, acting
from tests.unit.common.tables.test_delta_log import METADATA, PROTOCOL, commit, txn

Positions = Mapping[TopicPartition, Position | None]
Origins = Callable[[TopicPartition], Position | None]


class Tables(MemoryDeltaTables):
    def __init__(self) -> None:
        super().__init__()
        self.at_commit: Callable[[], CommitOutcome | None] = lambda: None

    def commit(self, commit: TableCommit) -> CommitOutcome:
        return self.at_commit() or super().commit(commit)


class Chain:
    """A chain, its stage and its stream's tables."""

    staging: Staging
    tables: Tables

    @property
    def partition(self) -> TopicPartition:
        return self.staging.source(0)

    @property
    def stage(self) -> FsspecStore:
        return self.staging.store(self.staging.stage_url)

    @property
    def notes(self) -> list[str]:
        return [stored.path for stored in self.stage.list(f"{LOADING}/")]

    def load(self, **loader: object) -> StreamReport:
        settings = settings_for(self.staging, **loader)
        (report,) = loader_for(self.staging, self.tables, settings, IdleClock()).run_pass()
        return report


@dataclass
class World(Chain):
    """A chain of two topics, four records of which are loaded and six more are staged."""

    staging: JoinedStaging = field(default_factory=lambda: JoinedStaging(f"memory://{uuid.uuid4().hex}"))
    tables: Tables = field(default_factory=Tables)
    table: Position = Position(4)  # noqa: RUF009 - a number

    def __post_init__(self) -> None:
        self.staging.flush(0, 0, 4)
        self.load()
        self.staging.flush(0, 4, 10)

    def would_rewind(self, remedy: str) -> RewindPlan:
        (to,) = re.findall(
            r"`bootstrap rewind ⟨config⟩ --topic orders\+payments --partition 0 --to (\d+) --yes`", remedy
        )
        (stream,) = settings_for(self.staging).streams
        ends = Ends(self.staging.position(0, 0), self.staging.position(0, 1000))
        state = partition_state(self.stage, stream, self.partition, ends=ends, table=None, topic_id=None)
        return plan_rewind(replace(state, table=Position(self.loaded)), Position(int(to)), Author("operator", 1))

    def status_says(self) -> Held | None:
        """What holds the chain, by `delta-loader status`."""
        (stream,) = settings_for(self.staging).streams
        status = stream_status(stream, Stage(self.stage, in_turn), self.staging.store, lambda _: {})
        (partition,) = status.partitions
        return partition.held

    @property
    def loaded(self) -> int:
        (last,) = self.tables.tables[self.staging.table].transactions.values()
        return last + 1

    def rewind(self, to: int) -> None:
        locks = RepairLocks(self.stage, Author("operator", 1), uuid.uuid4().hex)
        locks.read_last(self.partition)
        plan = RewindPlan(Position(to), Position(to), (), None, self.partition)
        with locks.locked(self.partition, "rewind") as store:
            require_not_loading(store, plan, lambda: self.table)


def test_rewind_below_a_running_load_is_refused() -> None:
    world, problems = World(), list[str]()

    def rewind() -> None:
        with pytest.raises(UsageError) as refused:
            world.rewind(4)
        problems.append(str(refused.value))
        world.rewind(10)

    world.tables.at_commit = rewind
    assert not world.load().held
    assert "started to load orders+payments/0 up to 10" in problems[0]
    assert (world.loaded, world.notes) == (10, [])
    world.table = Position(10)
    with pytest.raises(UsageError, match=r"now has .* up to 10"):
        world.rewind(4)


def test_note_of_a_load_that_ends_meanwhile_refuses_no_rewind() -> None:
    world = World()
    path = loading_path(world.partition, "of one that ends")
    world.stage.create(path, LoadNote(Position(10), 1).to_bytes())
    store = TrappedStore(world.staging.stage_url)
    store.before = acting("read", lambda: world.stage.delete([path]), below=path)
    require_not_loading(store, RewindPlan(Position(4), Position(4), (), None, world.partition), lambda: world.table)
    assert world.notes == []


def test_nothing_is_loaded_during_a_repair() -> None:
    world = World()
    locks = RepairLocks(world.stage, Author("operator", 1), "a")
    locks.read_last(world.partition)
    with locks.locked(world.partition, "rewind"):
        held = world.load().held[world.partition]
        assert (held.reason, "--take-over 1" in held.remedy) == ("under_repair", True)
        assert world.status_says() == held
    assert (world.loaded, world.notes) == (4, [])
    assert not world.load().held
    assert world.loaded == 10


@pytest.mark.parametrize("ends", [True, False])
def test_repair_begun_after_the_markers_were_read_is_seen_before_the_commit(
    monkeypatch: pytest.MonkeyPatch, *, ends: bool
) -> None:
    world = World()

    class Interrupted(MergedLoads):
        """At whose first load a repair begins."""

        def begin(self, load: Load, positions: Positions, origin_of: Origins) -> bool:
            world.stage.create(repair_path(world.partition, 1), b"{}")
            if ends:
                world.stage.create(ended_path(world.partition, 1), b"{}")
            return super().begin(load, positions, origin_of)

    monkeypatch.setattr("delta_loader.load.stream_load.MergedLoads", Interrupted)
    assert world.load().held[world.partition].reason == ("repaired" if ends else "under_repair")
    assert (world.loaded, world.notes) == (4, [])


def test_load_note_of_a_dead_loader_stays_until_the_table_has_the_load() -> None:
    world = World()

    def die() -> CommitOutcome:
        msg = "no answer"
        raise TableError(msg, "")

    world.tables.at_commit = die
    assert world.load().failure is not None
    (note,) = world.notes
    with pytest.raises(UsageError, match=re.escape(note)):
        world.rewind(4)
    world.stage.create(loading_path(world.partition, "another"), LoadNote(Position(10), 1).to_bytes())
    world.tables.at_commit = lambda: None
    assert not world.load().held
    world.staging.flush(0, 10, 12)
    world.load()
    assert (world.loaded, world.notes) == (12, [])


def test_load_note_of_a_dead_loader_holds_up_no_first_load() -> None:
    staging, tables = JoinedStaging(f"memory://{uuid.uuid4().hex}"), Tables()
    staging.flush(0, 0, 4)
    note = loading_path(staging.source(0), "of one that died")
    staging.store(staging.stage_url).create(note, LoadNote(Position(4), 1).to_bytes())
    (report,) = loader_for(staging, tables, settings_for(staging), IdleClock()).run_pass()
    assert (report.failure, report.held, report.commits) == (None, {}, 1)


def test_load_note_of_a_larger_load_stays() -> None:
    world = World()
    note = loading_path(world.partition, "of one that also loads what is staged now")
    world.stage.create(note, LoadNote(Position(12), 1).to_bytes())
    assert not world.load().held
    assert (world.loaded, world.notes) == (10, [note])


def test_load_that_could_not_begin_leaves_no_note(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()

    class Unanswered(MergedLoads):
        """Whose note is there when the store says no more."""

        def begin(self, load: Load, positions: Positions, origin_of: Origins) -> bool:
            super().begin(load, positions, origin_of)
            assert world.notes
            msg = "no answer"
            raise StoreError(msg, "")

    monkeypatch.setattr("delta_loader.load.stream_load.MergedLoads", Unanswered)
    assert world.load().failure is not None
    assert world.notes == []


def test_chain_can_be_rewound_to_the_position_of_the_table_after_any_wait() -> None:
    world = World()
    world.staging.flush(0, 10, 12)
    (lost,) = (path for path in world.staging.markers() if path.endswith("04.done"))
    world.stage.delete([lost])
    report = world.load(marker_retention=0)
    held = report.held[world.partition]
    assert (report.settled, held.reason, "skip" in held.remedy) == (0, "gap", False)
    plan = world.would_rewind(held.remedy)
    assert (plan.position, plan.marker, len(plan.put_aside)) == (4, None, 1)
    world.stage.delete([marker.path for marker in plan.put_aside])
    world.staging.flush(0, 4, 12, previous=0)
    report = world.load(marker_retention=0)
    assert (report.held, report.settled, world.loaded, len(world.staging.markers())) == ({}, 0, 12, 2)


def test_stray_across_the_position_of_the_table_is_not_kept() -> None:
    world = World()
    world.staging.flush(0, 8, 12, previous=4)
    world.staging.flush(0, 12, 15, previous=8)
    report = world.load(marker_retention=0)
    held = report.held[world.partition]
    assert (held.reason, report.settled, world.loaded) == ("straddle", 1, 10)
    assert world.would_rewind(held.remedy).position == 10


def test_records_that_exist_nowhere_are_reported_with_a_remedy() -> None:
    """No rewind is: the own table has it."""
    world = World()
    settings = routed_settings_for(world.staging, ("aside",))
    world.staging.flush(0, 10, 12, routed={"aside": [11]})
    outcomes = iter([Failed("no room")])
    world.tables.at_commit = lambda: next(outcomes, None)

    def load() -> StreamReport:
        (report,) = loader_for(world.staging, world.tables, settings, IdleClock()).run_pass()
        return report

    assert load().failure is not None
    world.stage.delete([path for path in world.staging.markers() if path.endswith("10.done")])
    failure = load().failure
    assert failure is not None
    assert "lacks the records of 10 to 12" in failure.problem
    assert ("rewind" in failure.remedy, "another app_id" in failure.remedy) == (False, True), failure


def test_restarted_chain_has_no_notes_of_the_former_one() -> None:
    world = World()
    world.stage.create(loading_path(world.partition, "of one that died"), LoadNote(Position(5000), 1).to_bytes())
    restart(world.stage, Restart(world.partition, None, ()))
    assert world.notes == []


def test_load_note_is_written_before_the_repairs_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rewind claims its turn before it reads the notes: one of the two sees the other."""
    world, are_noted = World(), list[bool]()

    def reads(store: ObjectStore, partition: TopicPartition) -> LastRepair:
        are_noted.append(bool(world.notes))
        return last_repair(store, partition)

    monkeypatch.setattr("delta_loader.load.merged.last_repair", reads)
    assert not world.load().held
    assert are_noted == [False, True]


@pytest.mark.parametrize("outcome", [NotWritten("a file is damaged"), Failed("no room")])
def test_load_that_cannot_be_written_leaves_no_note(outcome: CommitOutcome) -> None:
    world = World()
    world.tables.at_commit = lambda: outcome
    assert world.load().failure is not None
    assert world.notes == []
    world.rewind(4)


def test_while_the_end_of_a_commit_is_unknown_nothing_of_it_may_be_rewound() -> None:
    """The request may still arrive: the note stays until the table has moved, also over later passes that fail."""
    world = World()
    late: list[TableCommit] = []

    class NoAnswer(Tables):
        def commit(self, commit: TableCommit) -> CommitOutcome:
            late.append(commit)
            return Unknown("java.net.SocketTimeoutException")

    reached, world.tables = world.tables, NoAnswer()
    world.tables.tables = reached.tables
    for _ in range(2):
        failure = world.load().failure
        assert failure is not None
        assert "it is unknown whether" in failure.problem
        assert "nothing was written" not in f"{failure.problem} {failure.remedy}"
        assert world.notes
        with pytest.raises(UsageError, match="started to load"):
            world.rewind(4)

    assert isinstance(reached.commit(late[0]), Committed)
    world.tables = reached
    report = world.load()
    assert (report.failure, report.commits, world.loaded) == (None, 0, 10)
    world.staging.flush(0, 10, 12)
    assert world.load().failure is None
    assert (world.loaded, world.notes) == (12, [])


AUTHOR = Author("operator", 1)


@dataclass
class FirstWorld(Chain):
    """A chain whose origin is 20, and whose first marker is staged."""

    staging: Staging = field(default_factory=lambda: Staging(f"memory://{uuid.uuid4().hex}"))
    tables: Tables = field(default_factory=Tables)
    start: int = 20

    def __post_init__(self) -> None:
        operator.begin(self.stage, self.partition, ChainOrigin(Position(self.start)))
        self.staging.flush(0, self.start, 33)

    @property
    def loaded(self) -> int | None:
        table = self.tables.tables.get(self.staging.table)
        return None if table is None or not table.transactions else next(iter(table.transactions.values())) + 1

    def locks(self) -> RepairLocks:
        locks = RepairLocks(self.stage, AUTHOR, uuid.uuid4().hex)
        locks.read_last(self.partition)
        return locks

    def rewind(self, to: int) -> None:
        (stream,) = settings_for(self.staging).streams
        ends = Ends(Position(0), Position(100))
        state = partition_state(self.stage, stream, self.partition, ends=ends, table=None, topic_id=None)
        plan = plan_rewind(state, Position(to), AUTHOR)
        with self.locks().locked(self.partition, "rewind") as store:
            require_not_loading(store, plan, lambda: None)
            operator.rewind(store, plan)


def test_rewind_below_the_chain_is_refused_during_its_first_load() -> None:
    world, refusals = FirstWorld(), list[str]()

    def rewind() -> None:
        if world.notes:
            with pytest.raises(UsageError) as refused:
                world.rewind(0)
            refusals.append(str(refused.value))
            world.rewind(20)  # not to before it

    world.stage.create(loading_path(world.partition, "of one that died"), LoadNote(Position(30), 1).to_bytes())
    world.tables.at_commit = rewind
    assert not world.load().held
    assert "started to load orders/0 up to 3" in refusals[0]
    assert (world.loaded, world.notes) == (33, [])


def test_first_load_is_held_while_a_repair_may_rewind_below_it() -> None:
    world = FirstWorld()
    with world.locks().locked(world.partition, "rewind"):
        held = world.load().held[world.partition]
        assert (held.reason, "--take-over 1" in held.remedy) == ("under_repair", True)
        (stream,) = settings_for(world.staging).streams
        (status,) = stream_status(stream, Stage(world.stage, in_turn), world.staging.store, lambda _: {}).partitions
        assert status.held == held
    assert (world.loaded, world.notes) == (None, [])
    assert not world.load().held
    assert world.loaded == 33


def act_before(patch: pytest.MonkeyPatch, step: str, act: Callable[[], None]) -> None:
    """Have something happen right before a step of `MergedLoads`."""
    real = getattr(MergedLoads, step)

    def late(loads: MergedLoads, *args: object) -> object:
        act()
        return real(loads, *args)

    patch.setattr(MergedLoads, step, late)


@pytest.mark.parametrize("to", [0, 5])
def test_first_load_planned_before_a_rewind_is_not_committed(monkeypatch: pytest.MonkeyPatch, to: int) -> None:
    world = FirstWorld()

    with monkeypatch.context() as patch:
        act_before(patch, "begin", lambda: world.rewind(to))
        assert world.load().held[world.partition].reason == "repaired"
    assert (world.loaded, world.notes) == (None, [])
    again = Staging(world.staging.root).flush(0, to, 40, previous=to - 1 if to else None)
    assert not world.load().held
    assert world.loaded == 40
    assert world.tables.tables[world.staging.table].paths == [file.path for file in again.tables[0].files]


def test_rewind_between_listing_and_check_is_seen_by_the_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stale writer's first claim has the name of the marker that was listed."""
    world = FirstWorld()

    def rewind() -> None:
        world.rewind(0)
        Staging(world.staging.root).flush(0, 20, 40)

    act_before(monkeypatch, "check_repairs", rewind)
    assert world.load().held[world.partition].reason == "repaired"
    assert world.loaded is None


def test_repair_after_the_check_causes_a_new_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    world = FirstWorld()

    def repair() -> None:
        world.stage.create(repair_path(world.partition, 1), b"{}")
        world.stage.create(ended_path(world.partition, 1), b"{}")

    with monkeypatch.context() as patch:
        act_before(patch, "begin", repair)
        assert world.load().held[world.partition].reason == "repaired"
    assert not world.load().held
    assert world.loaded == 33


def test_marker_of_an_older_topic_below_the_chain_does_not_hold_its_first_load() -> None:
    world = FirstWorld(staging=Staging(f"memory://{uuid.uuid4().hex}", generation=1), start=0)
    world.stage.delete(world.staging.markers())
    operator.begin(world.stage, world.partition, ChainOrigin(Position(20), generation=1, number=1))
    Staging(world.staging.root).flush(0, 0, 50)
    Staging(world.staging.root, generation=1).flush(0, 20, 33)
    report = world.load()
    assert (report.held, report.strays) == ({}, 1)
    assert world.loaded == 33


@pytest.mark.parametrize("start", [0, 20])
def test_only_the_first_load_of_a_chain_that_may_have_more_before_it_is_noted(start: int) -> None:
    world, noted = FirstWorld(start=start), list[bool]()
    world.tables.at_commit = lambda: noted.append(bool(world.notes))
    world.load()
    world.staging.flush(0, 33, 40)
    world.load()
    assert (noted[0], noted[-1]) == (start > 0, False)


@dataclass
class Settled:
    """A chain whose records up to 30 are loaded, of which only the last marker is left."""

    staging: Staging = field(default_factory=lambda: Staging(f"memory://{uuid.uuid4().hex}"))
    tables: MemoryDeltaTables = field(default_factory=MemoryDeltaTables)

    def __post_init__(self) -> None:
        for start in (0, 10, 20):
            self.staging.flush(0, start, start + 10, dead=[start])
        assert self.held() is None
        assert len(self.staging.markers()) == 1

    def settings(self, *before: str) -> Settings:
        """With other tables that are named before the one that is staged."""
        urls = (*before, self.staging.table)
        routing = {"table": urls[0], "other_tables": tuple(OtherTable(table=url) for url in urls[1:])}
        settings = settings_for(self.staging, marker_retention=0)
        stream = settings.streams[0].model_copy(update={**routing, "dead_letters": self.staging.dead_letters})
        return settings.model_copy(update={"streams": (stream,)})

    def held(self, *before: str) -> Held | None:
        """What the loader holds, after a pass; `status` says the same."""
        settings, staging = self.settings(*before), self.staging
        (report,) = loader_for(staging, self.tables, settings, IdleClock()).run_pass()
        for url, table in self.tables.tables.items():
            actions = [txn(name, version) for name, version in table.transactions.items()]
            commit(staging.store(url), 0, PROTOCOL, METADATA, *actions)
        (shown,) = status_of(staging, stream=settings.streams[0]).partitions
        assert shown.held == report.held.get(staging.source(0))
        return shown.held

    def repair(self, decide: Callable[[Work, PartitionState], None]) -> None:
        work, (stream,) = Work(self.settings(), SystemClock()), self.settings().streams
        ends = Ends(Position(0), Position(100))
        decide(work, work._state(stream, ends, self.staging.source(0), None, None))


def test_new_table_of_a_settled_chain_is_named_as_the_problem() -> None:
    chain = Settled()
    new, old = f"{chain.staging.root}/tables/new", chain.staging.table
    for start in (30, 40):
        held = required(chain.held(new))
        assert held.reason == "no_root"
        assert f"the table {new} is new: it lacks orders/0" in held.problem
        assert held.problem.endswith(f"{old} has orders/0 up to 30")
        assert held.remedy.startswith(f"make {old} the stream's main table again")
        chain.staging.flush(0, start, start + 10)
    assert chain.held() is None
    assert chain.tables.tables[old].transactions == {"orders-0": 49}


def rewound(work: Work, state: PartitionState) -> None:
    work.rewind(work._rewind_of(state, Position(10)))


def skipped(work: Work, state: PartitionState) -> None:
    work.skip(plan_skip(state, Position(20), AUTHOR))


@pytest.mark.parametrize("repair", [rewound, skipped])
def test_remedies_for_a_deleted_table_work_where_another_table_is_ahead(
    repair: Callable[[Work, PartitionState], None],
) -> None:
    """The table for dead letters is still there."""
    chain = Settled()
    del chain.tables.tables[chain.staging.table]
    log = chain.staging.store(chain.staging.table)
    log.delete([item.path for item in log.list("_delta_log/")])
    held = required(chain.held())
    assert f"the table {chain.staging.table} was deleted" in held.problem
    commands = [text for text in held.remedy.split("`") if text.startswith(("bootstrap", "stage-writer"))]
    assert [command.split(" --partition 0 ")[1] for command in commands] == [
        "--to 10 --yes",
        "--from 0 --to 10 --yes",
        "--to 20 --yes",
    ]
    chain.repair(repair)
    if repair is rewound:
        chain.staging.flush(0, 10, 30, previous=9)
    assert chain.held() is None
    assert chain.tables.tables[chain.staging.table].transactions == {"orders-0": 29}
