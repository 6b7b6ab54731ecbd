"""The steps of a pass in their order, and that none of them begins after a request to stop or a rollback."""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from common.settings import Stream
from common.spans import Position, TopicPartition
from common.tables.state import TableState
from common.tables.transactions import TxnIds
from delta_loader.load.replace_ranges import ReplacementOutcome, Replacements
from delta_loader.load.report import StreamReport
from delta_loader.plan.held import Held
from delta_loader.service import LoaderService
from delta_loader.tables.commits import CommitOutcome, Failed, TableCommit, Target
from tests.fakes.loading import ports_for, routed_settings_for
from tests.fakes.staging import Staging
from tests.fakes.stores import TrappedStore, acting
from tests.unit.delta_loader.load.test_interplay import Restorable
from tests.unit.delta_loader.test_service import Later

LOAD, REPLACE, SETTLE, SEND = "load", "replace", "settle", "send"
ROUTE = "a"


@dataclass
class World(Restorable):
    """A loader's tables, and what it does around them; the first marker is loaded, and a second one waits."""

    staging: Staging
    steps: list[str] = field(default_factory=list)
    when: dict[str, Callable[[], object]] = field(default_factory=dict)
    """What happens during a step, once."""
    stopped: bool = False
    positions: list[Position | None] = field(default_factory=list)
    """Where the replacements and the sender of dead letters found the partition."""
    held: dict[TopicPartition, Held] = field(default_factory=dict)
    """What the replacements hold."""
    carried_out: int = 0
    dead_letters_topic: str | None = "errors"

    def __post_init__(self) -> None:
        super().__init__()
        self.staging.flush(0, 0, 10, dead=[3], routed={ROUTE: [1]})
        assert self.run().failure is None
        self.steps.clear()
        self.positions.clear()
        self.staging.flush(0, 10, 20, dead=[13], routed={ROUTE: [11]})

    def step(self, name: str) -> None:
        self.steps.append(name)
        self.when.pop(name, lambda: None)()

    def state(self, url: str) -> TableState | None:
        self.when.pop("settling" if self.positions else "observing", lambda: None)()
        return super().state(url)

    def commit(self, commit: TableCommit) -> CommitOutcome:
        outcome = super().commit(commit)
        if commit.target.url == self.staging.table:
            self.step(LOAD)
        return outcome

    def replacements(
        self,
        _stream: Stream,
        position: Callable[[TopicPartition], Position | None],
        _stop: Callable[[], bool],
        stepped: Callable[[], None],
    ) -> ReplacementOutcome:
        self.step(REPLACE)
        stepped()
        self.positions.append(position(self.staging.source(0)))
        return ReplacementOutcome(self.carried_out, self.held)

    def send(self, _stream: Stream, letters: Target, _ids: TxnIds, finished: Mapping[TopicPartition, Position]) -> int:
        assert letters.url == self.staging.dead_letters
        self.step(SEND)
        self.positions.append(finished.get(self.staging.source(0)))
        return 0

    def run(self) -> StreamReport:
        """A pass that may delete markers, in a new process."""
        given = routed_settings_for(self.staging, (ROUTE,), marker_retention=0)
        stream = given.streams[0].model_copy(update={"dead_letters_topic": self.dead_letters_topic})
        settling = acting("delete", lambda: self.step(SETTLE), below="done/")
        stage = TrappedStore(self.staging.stage_url, self.staging.storage_options, before=settling)
        replacements = cast("Replacements", _Replacer(self.replacements))
        more: dict[str, Any] = {"clock": Later(1), "replacements": replacements, "sends_refused": self.send}
        loader = LoaderService((stream,), given.loader, ports_for(stage, self, self.staging.store, **more))
        (report,) = loader.run_pass(lambda: self.stopped)
        return report

    def stop(self) -> None:
        self.stopped = True

    def put_back(self, to: int = 1) -> None:
        self.restore(self.staging.table, to)


@dataclass(frozen=True)
class _Replacer:
    run: Callable[..., ReplacementOutcome]


@pytest.fixture
def world() -> World:
    return World(Staging(f"memory://{uuid.uuid4().hex}"))


def test_pass_takes_its_steps_in_order(world: World) -> None:
    report = world.run()
    assert (report.failure, report.held, world.steps) == (None, {}, [LOAD, REPLACE, SETTLE, SEND])
    assert world.positions == [20, 20]
    assert report.settled == 1


@pytest.mark.parametrize(
    ("during", "taken"),
    [(LOAD, [LOAD]), (REPLACE, [LOAD, REPLACE]), (SETTLE, [LOAD, REPLACE, SETTLE])],
)
def test_no_step_begins_after_a_request_to_stop(world: World, during: str, taken: list[str]) -> None:
    world.when[during] = world.stop
    report = world.run()
    assert (report.failure, world.steps) == (None, taken)
    assert report.seen, "what was done is still reported"


def test_no_step_begins_if_the_request_comes_while_tables_are_read(world: World) -> None:
    world.when["observing"] = world.stop
    assert (world.run().failure, world.steps) == (None, [])


def test_no_step_begins_while_a_table_is_put_back(world: World) -> None:
    world.put_back(0)
    before = world.staging.markers()
    report = world.run()
    assert [held.reason for held in report.held.values()] == ["table_restored"]
    assert (report.failure, world.steps, world.staging.markers()) == (None, [], before)


@pytest.mark.parametrize("moment", ["while ranges are replaced", "before markers are deleted"])
def test_no_step_begins_after_a_table_was_put_back(world: World, moment: str) -> None:
    if moment == "while ranges are replaced":
        world.when[REPLACE], position = world.put_back, None
    else:
        world.when[REPLACE], position = lambda: world.when.update(settling=world.put_back), Position(20)
    before = world.staging.markers()
    report = world.run()
    assert [held.reason for held in report.held.values()] == ["table_restored"]
    assert (report.failure, world.steps, world.positions) == (None, [LOAD, REPLACE], [position])
    assert world.staging.markers() == before


def test_replacements_are_reported_and_hold_what_nothing_else_holds(world: World) -> None:
    waits, (first, second) = Held("replacement_waits", "it waits", "wait"), map(world.staging.source, (0, 1))
    world.staging.flush(1, 50, 60, previous=40)
    world.carried_out, world.held = 2, {first: waits, second: waits}
    report = world.run()
    assert (report.replacements, report.held[first], report.held[second].reason) == (2, waits, "no_root")


def test_dead_letters_are_sent_only_to_a_topic_of_the_stream(world: World) -> None:
    world.dead_letters_topic = None
    assert world.run().failure is None
    assert world.steps == [LOAD, REPLACE, SETTLE]


def test_table_that_fails_fails_the_pass_after_all_its_steps(world: World) -> None:
    is_route = world.staging.route(ROUTE).__eq__
    world.meanwhile = lambda commit: Failed("no") if is_route(commit.target.url) else None
    report = world.run()
    assert "failed: no" in str(report.failure)
    assert world.steps == [LOAD, REPLACE, SETTLE, SEND]
    assert world.positions == [10, 10], "what all tables have"
    assert len(world.staging.markers()) == 1
