"""The first load of a chain, and a rewind to before it: the table must not be past what the rewind stages."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from bootstrap.apply import stage as operator
from bootstrap.apply.loaders import require_not_loading
from bootstrap.apply.partition_state import partition_state
from bootstrap.apply.repair_lock import RepairLocks
from bootstrap.plans.repair import plan_rewind, plan_skip
from bootstrap.plans.state import Author, Ends, PartitionState
from bootstrap.work import Work
from common.clock import SystemClock
from common.errors import UsageError
from common.settings import Settings
from common.settings.route_tables import OtherTable
from common.spans import Position, TopicPartition
from common.stage.chain_origins import ChainOrigin
from common.stage.loading import LOADING, LoadNote, loading_path
from common.stage.markers import MarkerName
from common.stage.repair_lock import ended_path, repair_path
from common.storage.store import FsspecStore
from delta_loader.load.merged import MergedLoads
from delta_loader.load.report import StreamReport
from delta_loader.plan.held import Held
from delta_loader.plan.plan import Load
from delta_loader.ports import in_turn
from delta_loader.stage.reading import Stage
from delta_loader.status.collecting import stream_status
from delta_loader.tables.commits import CommitOutcome, TableCommit
from tests.builders import required
from tests.fakes.clock import IdleClock
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.loading import loader_for, settings_for, status_of
from tests.fakes.staging import Staging
from tests.unit.common.tables.test_delta_log import METADATA, PROTOCOL, commit, txn

AUTHOR = Author("operator", 1)


class Tables(MemoryDeltaTables):
    """Tables at whose commits something else happens first."""

    def __init__(self) -> None:
        super().__init__()
        self.at_commit: Callable[[], object] = lambda: None

    def commit(self, commit: TableCommit) -> CommitOutcome:
        self.at_commit()
        return super().commit(commit)


@dataclass
class World:
    """A chain whose origin is 20, and whose first marker is staged."""

    staging: Staging = field(default_factory=lambda: Staging(f"memory://{uuid.uuid4().hex}"))
    tables: Tables = field(default_factory=Tables)
    start: int = 20

    def __post_init__(self) -> None:
        operator.begin(self.stage, self.partition, ChainOrigin(Position(self.start)))
        self.staging.flush(0, self.start, 33)

    @property
    def partition(self) -> TopicPartition:
        return self.staging.source(0)

    @property
    def stage(self) -> FsspecStore:
        return self.staging.store(self.staging.stage_url)

    def load(self) -> StreamReport:
        (report,) = loader_for(self.staging, self.tables, settings_for(self.staging), IdleClock()).run_pass()
        return report

    @property
    def loaded(self) -> int | None:
        table = self.tables.tables.get(self.staging.table)
        return None if table is None or not table.transactions else next(iter(table.transactions.values())) + 1

    @property
    def notes(self) -> list[str]:
        return [stored.path for stored in self.stage.list(f"{LOADING}/")]

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
    world, refusals = World(), list[str]()

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
    world = World()
    with world.locks().locked(world.partition, "rewind"):
        held = world.load().held[world.partition]
        assert (held.reason, "--take-over 1" in held.remedy) == ("under_repair", True)
        (stream,) = settings_for(world.staging).streams
        (status,) = stream_status(stream, Stage(world.stage, in_turn), world.staging.store, lambda _: {}).partitions
        assert status.held == held
    assert (world.loaded, world.notes) == (None, [])
    assert not world.load().held
    assert world.loaded == 33


@pytest.mark.parametrize("to", [0, 5])
def test_first_load_planned_before_a_rewind_is_not_committed(monkeypatch: pytest.MonkeyPatch, to: int) -> None:
    world = World()

    class Late(MergedLoads):
        """The rewind comes between the plan and the load."""

        def begin(
            self,
            load: Load,
            positions: Mapping[TopicPartition, Position | None],
            origin_of: Callable[[TopicPartition], Position | None],
        ) -> bool:
            world.rewind(to)
            return super().begin(load, positions, origin_of)

    with monkeypatch.context() as patch:
        patch.setattr("delta_loader.load.stream_load.MergedLoads", Late)
        assert world.load().held[world.partition].reason == "repaired"
    assert (world.loaded, world.notes) == (None, [])
    again = Staging(world.staging.root).flush(0, to, 40, previous=to - 1 if to else None)
    assert not world.load().held
    assert world.loaded == 40
    assert world.tables.tables[world.staging.table].paths == [file.path for file in again.tables[0].files]


def test_rewind_between_listing_and_check_is_seen_by_the_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stale writer's first claim has the name of the marker that was listed."""
    world = World()

    class Late(MergedLoads):
        def check_repairs(
            self,
            waiting: Mapping[TopicPartition, Sequence[MarkerName]],
            position_of: Callable[[TopicPartition], Position | None],
        ) -> None:
            world.rewind(0)
            Staging(world.staging.root).flush(0, 20, 40)
            super().check_repairs(waiting, position_of)

    monkeypatch.setattr("delta_loader.load.stream_load.MergedLoads", Late)
    assert world.load().held[world.partition].reason == "repaired"
    assert world.loaded is None


def test_repair_after_the_check_causes_a_new_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()

    class Late(MergedLoads):
        def begin(
            self,
            load: Load,
            positions: Mapping[TopicPartition, Position | None],
            origin_of: Callable[[TopicPartition], Position | None],
        ) -> bool:
            world.stage.create(repair_path(world.partition, 1), b"{}")
            world.stage.create(ended_path(world.partition, 1), b"{}")
            return super().begin(load, positions, origin_of)

    with monkeypatch.context() as patch:
        patch.setattr("delta_loader.load.stream_load.MergedLoads", Late)
        assert world.load().held[world.partition].reason == "repaired"
    assert not world.load().held
    assert world.loaded == 33


def test_marker_of_an_older_topic_below_the_chain_does_not_hold_its_first_load() -> None:
    world = World(staging=Staging(f"memory://{uuid.uuid4().hex}", generation=1), start=0)
    world.stage.delete(world.staging.markers())
    operator.begin(world.stage, world.partition, ChainOrigin(Position(20), generation=1, number=1))
    Staging(world.staging.root).flush(0, 0, 50)
    Staging(world.staging.root, generation=1).flush(0, 20, 33)
    report = world.load()
    assert (report.held, report.strays) == ({}, 1)
    assert world.loaded == 33


@pytest.mark.parametrize("start", [0, 20])
def test_only_the_first_load_of_a_chain_that_may_have_more_before_it_is_noted(start: int) -> None:
    world, noted = World(start=start), list[bool]()
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
