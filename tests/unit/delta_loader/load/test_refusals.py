"""Records that a table refuses: each is a dead letter once, or waits, regardless of what happens in between."""

import uuid
from collections.abc import Callable

import pytest

from common.errors import BrokerError, TableError
from common.remedies import CONFIG
from common.schema import schema_to_json
from common.spans import Position, Span
from common.tables.dead_letters import DEAD_LETTER_SCHEMA
from delta_loader.load.ports import RefusalPorts
from delta_loader.plan.plan import TableShape
from delta_loader.tables.commits import Conflicted, Failed, NotWritten, TableCommit
from tests.fakes.loading import loader_for, routed_settings_for, settings_for
from tests.fakes.refusals import CHECK, SOURCE, RefusingTables
from tests.fakes.staging import JoinedStaging, Staging


@pytest.fixture
def world() -> RefusingTables:
    world = RefusingTables(Staging(f"memory://{uuid.uuid4().hex}"))
    world.staging.flush(0, 0, 4)
    world.run()
    world.tables[world.staging.table].properties = dict(CHECK)
    return world


def test_refused_record_is_a_dead_letter_and_not_a_row(world: RefusingTables) -> None:
    world.refuses = {5, 7}
    world.staging.flush(0, 4, 10, dead=[6])
    report = world.run()
    assert (report.failure, report.held) == (None, {})
    assert world.buried == [5, 7] == world.left_out
    counts = world.tables[world.staging.table].commits[-1].metadata.counts[SOURCE]
    assert (counts.records, counts.rows, counts.dead_letters) == (6, 3, 3)
    assert counts.add_up
    letters = world.tables[world.staging.dead_letters].commits
    assert [len(commit.files) for commit in letters] == [1, 0], "what writers staged, and what the table refused"


def test_crash_after_the_dead_letters_does_not_duplicate_them(world: RefusingTables) -> None:
    world.refuses, world.dies = {5, 7}, True
    world.staging.flush(0, 4, 10)
    assert world.run().failure is not None
    assert (world.buried, world.left_out) == ([5, 7], [])
    world.dies, world.refuses = False, {5, 7, 8}
    assert world.run().failure is None
    assert world.buried == [5, 7, 8] == world.left_out
    counts = world.tables[world.staging.table].commits[-1].metadata.counts[SOURCE]
    assert (counts.rows, counts.dead_letters) == (3, 3)


@pytest.mark.parametrize("own_rows", [True, False])
def test_commit_has_no_counts_when_a_routes_table_refused_a_record(world: RefusingTables, *, own_rows: bool) -> None:
    settings = routed_settings_for(world.staging, ["a"])
    world.staging.flush(0, 4, 6, routed={"a": [4]})
    world.run(settings)
    world.refuses = {7}
    world.tables[world.staging.table].properties = {}
    world.tables[world.staging.route("a")].properties = dict(CHECK)
    world.staging.flush(0, 6, 10, routed={"a": [6, 7] if own_rows else [6, 7, 8, 9]})
    report = world.run(settings)
    assert (report.failure, report.held, world.buried) == (None, {}, [7])
    last = world.tables[world.staging.table].commits[-1]
    assert last.metadata.spans[SOURCE] == Span(Position(6), Position(10))
    assert last.metadata.counts == {}, "a dead letter more than was staged is not taken for one too many"


def test_dead_letters_of_another_loader_in_a_new_table_are_not_repeated(world: RefusingTables) -> None:
    world.refuses = {5, 7}
    world.staging.flush(0, 4, 10)

    def another_loader_dies() -> None:
        world.dies = True
        assert world.run().failure is not None
        world.dies = False

    world.before_creating = another_loader_dies
    assert world.run().failure is None
    assert world.buried == [5, 7] == world.left_out


def standing_still() -> tuple[list[TableCommit], Callable[[TableCommit], None]]:
    """A loader that stands still in its first commit of dead letters, and that commit."""
    late: list[TableCommit] = []

    def stands_still(commit: TableCommit) -> None:
        if commit.dead_letter_rows and not late:
            late.append(commit)
            raise TableError("the loader stands still")

    return late, stands_still


def test_late_dead_letters_conflict_after_another_loader_loaded_the_records(
    world: RefusingTables,
) -> None:
    """A loader stands still in their commit; the check is dropped, and the records are rows by another loader."""
    late, stands_still = standing_still()
    world.refuses, world.meanwhile = {5}, stands_still
    world.staging.flush(0, 4, 10, dead=[6])
    world.run()
    world.refuses = set()
    world.staging.flush(0, 10, 14, dead=[11])
    assert not world.run().held
    assert world.tables[world.staging.table].transactions["orders-0"] == 13
    assert isinstance(world.commit(late[0]), Conflicted)
    assert (world.buried, world.left_out) == ([], [])


@pytest.mark.parametrize("is_dropped", [True, False], ids=["the check is dropped", "the check is another one"])
def test_late_dead_letters_conflict_after_another_loader_had_none(world: RefusingTables, *, is_dropped: bool) -> None:
    """The other loader has nothing to commit to the dead-letter table but that it goes on."""
    world.staging.flush(0, 4, 6, dead=[5])
    assert world.run().failure is None
    late, stands_still = standing_still()
    world.refuses, world.meanwhile = {7}, stands_still
    world.staging.flush(0, 6, 10)
    world.run()
    world.refuses = set()
    table = world.tables[world.staging.table]
    table.properties, table.protocol = ({} if is_dropped else {"delta.constraints.even": "id > 1"}), (3, frozenset())
    assert not world.run().held
    assert table.transactions["orders-0"] == 9
    assert isinstance(world.commit(late[0]), Conflicted)
    assert (world.buried, world.left_out) == ([], [])


def test_late_refusals_of_other_loaders_are_ended_once_per_checks_of_a_table(world: RefusingTables) -> None:
    world.staging.flush(0, 4, 6, dead=[5])
    refusing = RefusalPorts(world, world.raw_records)
    loader = loader_for(world.staging, world, refusing=refusing)
    loader.run_pass()
    table, letters = world.tables[world.staging.table], world.tables[world.staging.dead_letters]
    made = []
    for start, check in enumerate(["id > 0", "id > 0", "id > 1", "id > 1"], 6):
        table.properties = {"delta.constraints.odd": check}
        world.staging.flush(0, start, start + 1)
        assert not loader.run_pass()[0].held
        made.append(len(letters.commits))
    assert [number - made[0] for number in made] == [0, 0, 1, 1]
    assert table.transactions["orders-0"] == 9


def test_dead_letter_does_not_become_a_row_when_the_check_is_dropped(world: RefusingTables) -> None:
    world.refuses, world.dies = {5, 7}, True
    world.staging.flush(0, 4, 10)
    world.run()
    world.dies, world.refuses = False, set()
    world.tables[world.staging.table].properties = {}
    assert world.run().failure is None
    assert world.buried == [5, 7] == world.left_out
    assert not world.tables[world.staging.table].commits[-1].metadata.counts, "how many rows these were is not known"
    world.staging.flush(0, 10, 12)
    world.run()
    assert world.tables[world.staging.table].commits[-1].files, "the next ones are added again"


@pytest.mark.parametrize(
    "leaves",
    [
        pytest.param((3, frozenset()), id="a writer version"),
        pytest.param((7, frozenset({"checkConstraints"})), id="a constraint's feature"),
        pytest.param((7, frozenset({"typeWidening"})), id="a wider column, to which values are no longer cast"),
    ],
)
def test_load_waits_while_dead_letters_are_unreadable(
    world: RefusingTables, leaves: tuple[int, frozenset[str]]
) -> None:
    """Which of its records a loader that died made dead letters of is not known."""
    world.refuses, world.dies = {5, 7}, True
    world.staging.flush(0, 4, 10)
    world.run()
    world.dies, world.refuses, world.unreadable = False, set(), {world.staging.dead_letters}
    table = world.tables[world.staging.table]
    table.properties = {}
    table.protocol = leaves
    assert "some may already be dead letters" in str(world.run().failure)
    assert world.left_out == []
    world.unreadable = set()
    assert world.run().failure is None
    assert world.buried == [5, 7] == world.left_out


def test_dead_letter_with_an_unknown_commit_outcome_is_not_a_row(world: RefusingTables) -> None:
    """A commit that failed as far as the loader knows, and a check that is dropped before it plans again."""
    world.refuses = {5}
    world.staging.flush(0, 4, 10, dead=[6])
    world.run()
    world.refuses, world.lost = {12}, {world.staging.dead_letters}
    world.staging.flush(0, 10, 14)
    world.staging.flush(1, 0, 5)
    assert world.run().failure is not None
    world.refuses, world.lost = set(), set()
    world.run()
    assert world.buried == [5, 12] == world.left_out


def test_record_in_a_joined_chain_is_a_dead_letter_of_its_own_topic() -> None:
    staging = JoinedStaging(f"memory://{uuid.uuid4().hex}")
    world = RefusingTables(staging)
    staging.flush(0, 0, 4)
    world.run()
    world.tables[staging.table].properties = dict(CHECK)
    world.refuses, world.dies = {2}, True
    staging.flush(0, 4, 10)
    assert world.run().failure is not None
    (buried,) = (letter for commit in world.tables[staging.dead_letters].commits for letter in commit.dead_letter_rows)
    assert (buried.partition, buried.offset, buried.value) == (SOURCE, 2, b"sent 2")
    world.dies, world.refuses = False, set()
    report = world.run()
    assert (report.failure, report.held) == (None, {})
    assert world.buried == [2] == world.left_out
    left_out = {
        refused
        for commit in world.tables[staging.table].commits
        for write in commit.written
        for refused in write.without
    }
    assert left_out == {(SOURCE, 2)}, "the payment of that offset is a row"
    staging.flush(0, 10, 12)
    world.run()
    assert not any(write.without for write in world.tables[staging.table].commits[-1].written)


def test_refused_record_missing_from_kafka_holds_its_joined_chain() -> None:
    staging = JoinedStaging(f"memory://{uuid.uuid4().hex}")
    world = RefusingTables(staging)
    staging.flush(0, 0, 4)
    world.run()
    world.tables[staging.table].properties = dict(CHECK)
    world.refuses, world.in_kafka = {2}, set()
    staging.flush(0, 4, 10)
    assert {str(partition): held.reason for partition, held in world.run().held.items()} == {
        "orders+payments/0": "refused_record"
    }


@pytest.mark.parametrize("has_dead_letters", [False, True])
def test_refused_record_missing_from_kafka_holds_its_partition(
    world: RefusingTables, *, has_dead_letters: bool
) -> None:
    if has_dead_letters:
        world.create(world.staging.dead_letters, TableShape(schema_to_json(DEAD_LETTER_SCHEMA), ()))
    world.refuses, world.in_kafka = {5, 7}, {7}
    world.staging.flush(0, 4, 10)
    world.staging.flush(1, 0, 5)
    report = world.run()
    assert {str(partition): held.reason for partition, held in report.held.items()} == {"orders/0": "refused_record"}
    assert "Kafka no longer has it" in report.held[SOURCE].problem
    assert world.buried == []
    assert world.tables[world.staging.table].transactions == {"orders-0": 3, "orders-1": 4}
    world.refuses = set()
    assert not world.run().held, "once the table takes it"


def test_refused_record_holds_its_partition_while_kafka_is_away(
    world: RefusingTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise BrokerError("no broker answers", "start it")

    world.refuses = {5}
    world.staging.flush(0, 4, 10)
    world.staging.flush(1, 0, 5)
    monkeypatch.setattr(world, "raw_records", away)
    report = world.run()
    assert (report.failure, [held.reason for held in report.held.values()]) == (None, ["refused_record"])
    assert "Kafka does not return it: no broker answers" in report.held[SOURCE].problem
    assert world.tables[world.staging.table].transactions == {"orders-0": 3, "orders-1": 4}


def test_table_that_never_refused_a_row_does_not_wait_for_unreadable_dead_letters() -> None:
    world = RefusingTables(Staging(f"memory://{uuid.uuid4().hex}"))
    world.staging.flush(0, 0, 4, dead=[1])
    world.run()
    world.unreadable = {world.staging.dead_letters}
    world.staging.flush(0, 4, 10)
    assert f"{world.staging.dead_letters} is skipped" in str(world.run().failure)
    assert world.tables[world.staging.table].transactions == {"orders-0": 9}


def test_table_that_refuses_nearly_everything_is_held(world: RefusingTables) -> None:
    world.refuses = set(range(20_000))
    world.staging.flush(0, 4, 10)
    report = world.run()
    assert [held.reason for held in report.held.values()] == ["too_many_refused"]
    assert f"`bootstrap rewind {CONFIG} --topic orders --partition 0 --to 4 --yes`" in report.held[SOURCE].remedy
    assert world.buried == []


def test_unwritable_dead_letters_hold_the_partition(world: RefusingTables) -> None:
    world.refuses, world.may_create = {5}, False
    world.staging.flush(0, 4, 10)
    report = world.run()
    assert [held.reason for held in report.held.values()] == ["refused_record"]
    assert "no right to create" in report.held[SOURCE].problem
    world.may_create = True
    assert not world.run().held
    assert world.buried == [5]


def test_dead_letter_table_unreadable_after_its_commit_holds_the_partition(world: RefusingTables) -> None:
    assert not world.run().held
    world.refuses, world.breaks = {5}, True
    world.staging.flush(0, 4, 10)
    assert [held.reason for held in world.run().held.values()] == ["refused_record"]
    world.breaks = False
    world.unreadable.clear()
    assert not world.run().held
    assert (world.buried, world.left_out) == ([5], [5])


def test_earlier_refusals_are_known_while_the_dead_letter_table_is_full(world: RefusingTables) -> None:
    world.refuses, world.dies = {5}, True
    world.staging.flush(0, 4, 10)
    world.run()
    world.dies, world.refuses = False, set()
    world.staging.flush(0, 10, 14, dead=[11])
    dead_letters = world.staging.dead_letters
    world.meanwhile = lambda commit: Failed("it is full") if commit.target.url == dead_letters else None
    assert f"{dead_letters} is skipped, the stream's other tables continue" in str(world.run().failure)
    assert world.tables[world.staging.table].transactions["orders-0"] == 13
    assert (world.buried, {*world.left_out}) == ([5], {5})


def test_partition_held_by_one_table_during_catch_up_waits_in_all(world: RefusingTables) -> None:
    settings, (a, b) = routed_settings_for(world.staging, ["a", "b"]), map(world.staging.route, "ab")
    world.staging.flush(0, 4, 6, routed={"a": [4], "b": [5]})
    world.run(settings)
    world.unreadable = {a, b}
    world.staging.flush(0, 6, 8, routed={"a": [6], "b": [7]})
    assert world.run(settings).failure is not None
    world.unreadable = set()
    world.tables[a].properties = dict(CHECK)
    outcomes = iter([NotWritten("no value for a column")])
    world.meanwhile = lambda commit: next(outcomes, None) if commit.target.url == a else None
    assert "no value for a column" in world.run(settings).held[SOURCE].problem
    assert [world.tables[url].transactions["orders-0"] for url in (a, b)] == [5, 5]
    assert world.run(settings).held == {}
    assert [world.tables[url].transactions["orders-0"] for url in (a, b)] == [7, 7]


def test_dead_letter_beyond_the_current_load_applies_to_a_later_one(world: RefusingTables) -> None:
    world.refuses, world.dies = {5, 12}, True
    world.staging.flush(0, 4, 10)
    world.staging.flush(0, 10, 14)
    world.run()
    assert world.buried == [5, 12]
    world.dies, world.refuses = False, set()
    assert world.run(settings_for(world.staging, max_files=1)).failure is None
    assert world.buried == [5, 12] == world.left_out
