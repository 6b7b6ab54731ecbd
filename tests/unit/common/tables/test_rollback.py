"""Detection of rollbacks, from hand-written histories."""

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from common.errors import UsageError
from common.remedies import CONFIG
from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.markers import Origin
from common.stage.resolutions import Resolution
from common.storage.store import FsspecStore
from common.tables.commit_metadata import CommitMetadata, Decision, Resolved
from common.tables.counts import Counts, Replaced
from common.tables.history import LoggedCommit, read_history, store_lines
from common.tables.rollback import (
    RollbackKind,
    described,
    find_rollback,
    own_history,
    turning_points,
    unknown_positions,
    unknown_since,
    without_txn,
)
from delta_loader.load.rollback import held_by
from tests.builders import required, settings_of
from tests.fakes.markers import flush

P0 = TopicPartition(Topic("orders"), Partition(0))
P1 = TopicPartition(Topic("orders"), Partition(1))


def own(
    version: int,
    *spans: tuple[TopicPartition, int, int],
    read: int | None = None,
    app_id: str = "orders",
    generation: int = 0,
) -> LoggedCommit:
    loaded = {partition: Span(Position(start), Position(end)) for partition, start, end in spans}
    metadata = CommitMetadata(f"c{version}", app_id, loaded, None, generations=dict.fromkeys(loaded, generation))
    return LoggedCommit(
        version, "STREAMING UPDATE", read_version=version - 1 if read is None else read, metadata=metadata
    )


def answer(version: int, to: int, **positions: int) -> LoggedCommit:
    ends = {TopicPartition(Topic("orders"), Partition(int(name[1:]))): Position(end) for name, end in positions.items()}
    metadata = CommitMetadata(f"a{version}", "orders", {}, None, answers=Resolved(to, Decision.REPLAY, ends))
    return LoggedCommit(version, "STREAMING UPDATE", read_version=version - 1, metadata=metadata)


def restore(version: int, to: int | None) -> LoggedCommit:
    return LoggedCommit(version, "RESTORE", restored_version=to, read_version=version - 1)


def other(version: int, operation: str = "OPTIMIZE") -> LoggedCommit:
    return LoggedCommit(version, operation, read_version=version - 1)


def newest_first(*commits: LoggedCommit) -> Iterator[LoggedCommit]:
    assert [commit.version for commit in commits] == list(range(len(commits)))
    yield from reversed(commits)


CREATED = other(0, "CREATE TABLE")
FIRST, SECOND, THIRD = own(1, (P0, 0, 10)), own(2, (P0, 10, 20)), own(3, (P0, 20, 30))


def positions(*commits: LoggedCommit) -> dict[TopicPartition, int]:
    rollback = find_rollback(newest_first(*commits), "orders")
    return {} if rollback is None else {partition: int(position) for partition, position in rollback.positions.items()}


BEGUN = own(1, (P0, 41, 50), (P1, 7, 9))
BOTH = own(1, (P0, 0, 10), (P1, 0, 5))
ANSWERED = (CREATED, FIRST, SECOND, restore(3, 1), answer(4, 3, p0=10))
HISTORIES: dict[str, tuple[tuple[LoggedCommit, ...], dict[TopicPartition, int]]] = {
    "loads": ((CREATED, FIRST, SECOND), {}),
    "changes of others": ((CREATED, FIRST, other(2), other(3, "MERGE"), other(4, "DELETE"), other(5, "TRUNCATE")), {}),
    "rows of others": ((CREATED, FIRST, other(2, "WRITE")), {}),
    "a restore to before the first load": ((CREATED, BEGUN, restore(2, 0)), {P0: 41, P1: 7}),
    "a restore that one of two partitions lost by": ((CREATED, BOTH, own(2, (P0, 10, 20)), restore(3, 1)), {P0: 10}),
    "a restore to the last load": ((CREATED, FIRST, other(2, "DELETE"), restore(3, 1)), {}),
    "a restore to after the last load": ((CREATED, FIRST, SECOND, other(3, "DELETE"), other(4), restore(5, 2)), {}),
    "a restore that undoes a restore": ((CREATED, FIRST, SECOND, restore(3, 1), restore(4, 2)), {}),
    # The content of its version is what the first restore left, though its txn actions have higher positions.
    "a restore to a restored version": (
        (CREATED, FIRST, SECOND, restore(3, 1), other(4), restore(5, 4)),
        {P0: 10},
    ),
    "a restore to an unknown version": ((CREATED, FIRST, SECOND, restore(3, None)), {P0: 0}),
    "a restore of another stream's rows": ((CREATED, own(1, (P0, 0, 10), app_id="others"), restore(2, 0)), {}),
    "a restore with another stream's load above it": (
        (CREATED, FIRST, restore(2, 0), own(3, (P1, 0, 10), app_id="others")),
        {P0: 0},
    ),
    "a restore that two of two partitions lost by": (
        (CREATED, BOTH, SECOND, own(3, (P0, 20, 30), (P1, 5, 9)), restore(4, 2)),
        {P0: 20, P1: 5},
    ),
    "a restore of a chain that had begun again at a lower offset": (
        (CREATED, BEGUN, restore(2, 0), own(3, (P0, 30, 60)), restore(4, 0)),
        {P0: 30, P1: 7},
    ),
    "a restore to a resolution that left out what was lost": (
        (CREATED, FIRST, SECOND, restore(3, 1), answer(4, 3, p0=20), own(5, (P0, 20, 30)), restore(6, 4)),
        {P0: 20},
    ),
    "an answered restore": (ANSWERED, {}),
    "an answered restore with a load above it": ((*ANSWERED, own(5, (P0, 10, 20))), {}),
}


@pytest.mark.parametrize(("history", "lost"), HISTORIES.values(), ids=HISTORIES)
def test_positions_lost_by_a_restore(history: tuple[LoggedCommit, ...], lost: dict[TopicPartition, int]) -> None:
    assert positions(*history) == lost


def test_only_one_commit_is_read_when_the_newest_is_our_own() -> None:
    def history() -> Iterator[LoggedCommit]:
        yield SECOND
        raise AssertionError

    assert find_rollback(history(), "orders") is None


def test_restore_undoes_all_commits_after_its_version() -> None:
    rollback = required(find_rollback(newest_first(CREATED, FIRST, SECOND, THIRD, restore(4, 1), other(5)), "orders"))
    assert (rollback.kind, rollback.cause.version, rollback.positions) == (RollbackKind.RESTORED, 4, {P0: 10})


def test_dead_letter_positions_before_the_chain_origin_are_not_replayed() -> None:
    counts = {P0: Counts(9, 8, 0, 0, (Span(Position(41), Position(42)),))}
    counts[P1] = Counts(2, 1, 0, 0, (Span(Position(8), Position(9)),))  # given up within what it loaded
    begun = replace(BEGUN, metadata=replace(required(BEGUN.metadata), counts=counts))
    assert positions(CREATED, begun, restore(2, 0)) == {P0: 42, P1: 7}


@pytest.mark.parametrize("operation", ["REPLACE TABLE", "CREATE OR REPLACE TABLE AS SELECT", "CLONE"])
def test_replacement_loses_all_positions(operation: str) -> None:
    rollback = required(find_rollback(newest_first(CREATED, FIRST, SECOND, other(3, operation)), "orders"))
    assert (rollback.kind, rollback.positions) == (RollbackKind.REPLACED, {P0: 0})
    has_kept = "SELECT" in operation
    assert ("gone (but for the rows that it selected), from" in described("/orders", rollback)) == has_kept
    stream = settings_of({"app_id": "orders", "topics": ["orders"], "table": "/orders", "columns": "id INT"}).streams[0]
    remedy = held_by("/orders", stream, rollback, {}).remedy
    assert ("--replay` loads everything again, also rows that the query has kept, `" in remedy) == has_kept
    assert find_rollback(newest_first(other(0, operation), FIRST), "orders") is None


def test_second_restore_needs_its_own_resolution() -> None:
    answered = (CREATED, FIRST, SECOND, restore(3, 1), answer(4, 3, p0=10), own(5, (P0, 10, 20)))
    rollback = required(find_rollback(newest_first(*answered, restore(6, 1)), "orders"))
    assert (rollback.cause.version, rollback.positions) == (6, {P0: 10})
    # To the version before the first restore: the same records.
    assert positions(*answered, restore(6, 2)) == {}
    # To the version just after the resolution.
    assert positions(*answered, restore(6, 4)) == {P0: 10}


def test_positions_recovered_by_a_resolution_survive_a_later_restore() -> None:
    p2 = TopicPartition(Topic("orders"), Partition(2))
    answered = (CREATED, FIRST, own(2, (P1, 0, 5)), restore(3, 1), answer(4, 3, p1=0))
    assert positions(*answered, own(5, (P0, 10, 20)), own(6, (p2, 0, 5)), restore(7, 5)) == {p2: 0}


def test_rows_that_a_concurrent_commit_added_after_a_restore_are_reported() -> None:
    late = own(4, (P0, 20, 30), read=2)
    rollback = required(find_rollback(newest_first(CREATED, FIRST, SECOND, restore(3, 1), late), "orders"))
    assert (rollback.cause.version, rollback.positions, rollback.over) == (3, {P0: 10}, (4,))
    # The restore that fixes it: back to just before that commit, and then a replay.
    fixed = required(find_rollback(newest_first(CREATED, FIRST, SECOND, restore(3, 1), late, restore(5, 3)), "orders"))
    assert (fixed.positions, fixed.over) == ({P0: 10}, ())


def test_restore_to_rows_added_over_another_restore_does_not_hide_it() -> None:
    late = own(4, (P0, 20, 30), read=2)
    history = (CREATED, FIRST, SECOND, restore(3, 1), late)
    rollback = required(find_rollback(newest_first(*history, other(5), restore(6, 5)), "orders"))
    assert (rollback.cause.version, rollback.positions, rollback.over) == (6, {P0: 10}, (4,))
    rollback = required(find_rollback(newest_first(*history, replaced(5, 5, 15), restore(6, 5)), "orders"))
    assert (rollback.positions, rollback.over) == ({P0: 10}, (5, 4))
    taken_back = (CREATED, FIRST, SECOND, restore(3, 1), replaced(4, 5, 15), restore(5, 3))
    assert required(find_rollback(newest_first(*taken_back), "orders")).over == ()
    # A load that saw the resolution has recovered the positions.
    seen = (CREATED, FIRST, SECOND, restore(3, 1), answer(4, 3, p0=10), own(5, (P0, 10, 20)), other(6), restore(7, 6))
    assert positions(*seen) == {}


def replaced(version: int, start: int, end: int) -> LoggedCommit:
    ranges = {P0: Replaced(Span(Position(start), Position(end)), "a" * 32, Counts(0, 0, 0, 0))}
    metadata = CommitMetadata(f"c{version}", "orders", {}, None, replaced=ranges)
    return LoggedCommit(version, "WRITE", read_version=version - 1, metadata=metadata)


def test_replacement_of_a_range_does_not_resolve_an_earlier_restore() -> None:
    history = CREATED, FIRST, SECOND, restore(3, 1)
    rollback = required(find_rollback(newest_first(*history, replaced(4, 2, 10)), "orders"))
    assert (rollback.cause.version, rollback.positions, rollback.over) == (3, {P0: 10}, ())
    # It wrote rows that a replay would write again.
    rollback = required(find_rollback(newest_first(*history, replaced(4, 5, 15)), "orders"))
    assert (rollback.positions, rollback.over) == ({P0: 10}, (4,))
    assert positions(CREATED, FIRST, SECOND, replaced(3, 5, 15), other(4)) == {}


@pytest.mark.parametrize(
    ("newest", "oldest"),
    [
        (replaced(7, 2, 5), 5),
        (other(7), 5),
        (own(7), 5),
        (own(7, (P0, 10, 20)), None),
        (own(7, (P0, 10, 20), app_id="other"), 5),
        (own(7, (P0, 10, 20), read=4), None),
        (own(7, (P0, 10, 20), read=3), 5),
        (answer(7, 4, p0=10), None),
    ],
    ids=[
        "a replaced range",
        "only commits of others",
        "a deferred range that is complete",
        "a load",
        "another stream's load",
        "a load that saw every missing commit",
        "a load that had not seen a missing commit",
        "a resolution",
    ],
)
def test_only_a_commit_that_saw_the_positions_makes_a_history_known(newest: LoggedCommit, oldest: int | None) -> None:
    """The log begins at version 5."""
    commit = unknown_since(iter([newest, other(6), other(5)]), "orders")
    assert (None if commit is None else commit.version) == oldest
    assert unknown_since(newest_first(CREATED, FIRST, replaced(2, 2, 5)), "orders") is None


def test_expired_txn_stays_one_event_while_other_partitions_advance() -> None:
    first = own_history(newest_first(CREATED, FIRST, own(2, (P1, 0, 5))), "orders")
    later = own_history(newest_first(CREATED, FIRST, own(2, (P1, 0, 5)), own(3, (P1, 5, 9))), "orders")
    causes = [without_txn(past, [P0], [], {})[0].cause.version for past in (first, later)]
    assert causes == [1, 1]


def test_newest_commit_says_which_chains_may_have_been_loaded_before() -> None:
    commits = [
        replace(
            commit,
            metadata=replace(required(commit.metadata), positions={P0: Position(20)}, unproved=frozenset(unproved)),
        )
        for commit, unproved in ((own(7), {(P1, 0)}), (own(6, (P0, 10, 20)), set()))
    ]
    past = own_history(iter([*commits, other(5)]), "orders", [(P0, 0)])
    assert (past.last[P0, 0].version, past.may_have_loaded((P1, 0), None)) == (6, True)


def test_turning_points_are_the_restores_and_replacements_since_a_version() -> None:
    commits = turning_points(newest_first(CREATED, FIRST, other(2), restore(3, 0), other(4, "REPLACE TABLE")), 1)
    assert [commit.version for commit in commits] == [4, 3]
    assert turning_points(newest_first(CREATED, FIRST, other(2), restore(3, 0)), 3) == ()


@pytest.mark.parametrize(("younger_ms", "waits"), [(3_600_000, True), (3_600_001, False)])
def test_markers_over_an_hour_younger_than_the_log_were_not_loaded(younger_ms: int, *, waits: bool) -> None:
    """Clocks of writers and committers differ by less than an hour."""
    marker = flush(0, 10)
    oldest = replace(other(5), timestamp_ms=required(marker.manifest).created_ms - younger_ms)
    placed = {P0: (Position(10), [marker])}
    assert (unknown_positions(oldest, placed, {}, frozenset) is not None) == waits
    assert (unknown_positions(oldest, placed, {}, frozenset, loads=False) is not None) is False
    placed = {P0: (Position(10), [flush(0, 10, origin=Origin.SKIP), flush(10, 20)])}
    assert unknown_positions(oldest, placed, {}, frozenset) is None, "an operator's marker loads nothing"


@pytest.mark.parametrize(
    ("others", "generations", "is_unknown"), [({P0}, {}, True), ({P1}, {}, False), ({P0}, {P0: 1}, False)]
)
def test_position_may_be_another_topic_s_that_the_stage_has(
    others: set[TopicPartition], generations: dict[TopicPartition, int], *, is_unknown: bool
) -> None:
    numbers = {partition.partition for partition in others}
    placed = {P0: (Position(10), [flush(0, 10)])}
    unknown = unknown_positions(other(5), placed, generations, lambda: numbers, loads=False)
    assert (unknown is not None) == is_unknown


def test_expired_txn_and_recreated_table_are_distinguished() -> None:
    past = own_history(newest_first(CREATED, own(1, (P0, 0, 10), (P1, 0, 5)), SECOND), "orders")
    (rollback,) = without_txn(past, [P0], [], {})
    assert (rollback.kind, rollback.positions, rollback.cause.version) == (RollbackKind.EXPIRED, {P0: 20}, 2)
    (rollback,) = without_txn(past, [P0, P1], [], {})
    assert (rollback.positions, rollback.cause.version) == ({P0: 20, P1: 5}, 2), "the newest of several events"
    (rollback,) = without_txn(own_history(newest_first(CREATED, other(1)), "orders"), [P0, P1], [P1], {})
    assert (rollback.kind, list(rollback.positions), rollback.cause.version) == (RollbackKind.RECREATED, [P1], 0)
    # A new partition, and a table whose log does not reach back.
    assert without_txn(past, [TopicPartition(Topic("orders"), Partition(7))], [], {}) == ()
    assert without_txn(own_history(iter([other(9)]), "orders"), [P1], [P1], {}) == ()


# A topic that was deleted and created again begins a new generation.


def test_positions_of_two_generations_are_kept_apart() -> None:
    recreated = own(3, (P0, 0, 7), generation=1), own(4, (P0, 7, 9), generation=1)
    rollback = required(find_rollback(newest_first(CREATED, FIRST, SECOND, *recreated, restore(5, 3)), "orders"))
    assert (rollback.positions, rollback.lost_from) == ({P0: 7}, {P0: 7})
    assert (rollback.generations, rollback.gone) == ({P0: 1}, ())
    rollback = required(find_rollback(newest_first(CREATED, FIRST, SECOND, *recreated, restore(5, 1)), "orders"))
    assert (rollback.positions, rollback.generations) == ({P0: 0}, {P0: 1})
    assert rollback.gone == ((P0, Span(Position(10), Position(20))),)
    assert "[10, 20) of an older topic orders/0 is gone with it" in described("/t", rollback)
    # Lost before the topic was recreated; the new topic has loaded nothing.
    rollback = required(find_rollback(newest_first(CREATED, FIRST, SECOND, restore(3, 1)), "orders"))
    assert (rollback.positions, rollback.generations) == ({P0: 10}, {})


def test_expired_txn_is_recognized_only_for_the_chain_s_own_generation() -> None:
    past = own_history(newest_first(CREATED, FIRST, own(2, (P0, 0, 7), generation=1)), "orders")
    (rollback,) = without_txn(past, [P0], [], {P0: 1})
    assert (rollback.kind, rollback.positions, rollback.generations) == (RollbackKind.EXPIRED, {P0: 7}, {P0: 1})
    (rollback,) = without_txn(past, [P0], [], {})
    assert (rollback.positions, rollback.generations) == ({P0: 10}, {})
    assert without_txn(past, [P0], [P0], {P0: 2}) == ()


def test_metadata_and_resolutions_of_generation_0_have_the_old_format() -> None:
    first = CommitMetadata("c1", "orders", {P0: Span(Position(0), Position(10))}, 7, generations={P0: 0})
    assert first.to_json() == (
        '{"kafka_delta_express":{"version":1,"commit_id":"c1","app_id":"orders","spans":{"orders":{"0":[0,10]}},'
        '"valid_through_ms":7}}'
    )
    second = replace(first, generations={P0: 3})
    assert CommitMetadata.from_json(second.to_json()) == second
    read = required(CommitMetadata.from_json(first.to_json()))
    assert read.generation(P0) == 0
    given = Resolution("orders", "s3://t", "id", 7, Decision.GO_ON, {P0: Position(10)}, "eve", 5)
    assert b"generations" not in given.to_bytes()
    again = replace(given, generations={P0: 2})
    assert Resolution.from_bytes(again.path, again.to_bytes()) == again


def log_of(*commits: list[dict[str, object]]) -> FsspecStore:
    store = FsspecStore(f"memory://{uuid.uuid4().hex}")
    for version, actions in enumerate(commits):
        lines = "\n".join(json.dumps(action) for action in actions)
        store.write(f"_delta_log/{version:020d}.json", lines.encode())
    return store


def info(operation: str, **more: object) -> dict[str, object]:
    return {"commitInfo": {"operation": operation, **more}}


def add(path: str, vector: str | None = None) -> dict[str, object]:
    return {"add": {"path": path, "deletionVector": vector and {"pathOrInlineDv": vector}}}


def remove(path: str, vector: str | None = None) -> dict[str, object]:
    return {"remove": {"path": path, "deletionVector": vector and {"pathOrInlineDv": vector}}}


def test_history_is_read_from_the_log() -> None:
    mine = CommitMetadata("c1", "orders", {P0: Span(Position(0), Position(10))}, 7)
    store = log_of(
        [info("CREATE TABLE")],
        [info("STREAMING UPDATE", userMetadata=mine.to_json(), readVersion=0, timestamp=5), add("a")],
        [add("b")],
        [info("RESTORE", operationParameters={"version": "1"}, userName="eve", engineInfo="spark")],
    )
    history = list(read_history(3, store_lines(store)))
    assert [commit.operation for commit in history] == ["RESTORE", "", "STREAMING UPDATE", "CREATE TABLE"]
    assert (history[0].restored_version, history[0].author) == (1, "eve")
    assert (history[2].metadata, history[2].read_version, history[2].timestamp_ms) == (mine, 0, 5)
    store.delete([f"_delta_log/{1:020d}.json"])
    assert [commit.version for commit in read_history(3, store_lines(store))] == [3, 2]


def test_restored_version_is_found_by_its_files() -> None:
    before = [
        [info("CREATE TABLE")],
        [info("WRITE"), add("a"), add("b")],
        [info("WRITE"), add("c")],
        [info("DELETE"), remove("a"), add("a", "vector")],
        [info("OPTIMIZE"), remove("a", "vector"), remove("b"), remove("c"), add("d")],
    ]
    moment = info("RESTORE", operationParameters={"version": None, "timestamp": "2026-03-01 00:00:00"})
    undone = {
        0: [remove("d")],
        1: [remove("d"), add("a"), add("b")],
        2: [remove("d"), add("a"), add("b"), add("c")],
        3: [remove("d"), add("a", "vector"), add("b"), add("c")],
        4: [],
    }
    for version, actions in undone.items():
        newest = next(read_history(5, store_lines(log_of(*before, [moment, *actions]))))
        assert newest.restored_version == version
    assert next(read_history(5, store_lines(log_of(*before, [moment, add("z")])))).restored_version is None


def test_resolution_round_trips() -> None:
    given = Resolution("o/r", "s3://t", "id", 7, Decision.GO_ON, {P0: Position(10)}, "eve", 5)
    assert given.path == "accept/o%2Fr/id/00000000000000000007.json"
    assert Resolution.from_bytes(given.path, given.to_bytes()) == given
    with pytest.raises(UsageError, match="cannot be read") as raised:
        Resolution.from_bytes(given.path, b"{}")
    assert f"delete {given.path} from the stage" in raised.value.remedy
    assert f"`bootstrap accept {CONFIG} --stream o/r --go-on`" in raised.value.remedy
