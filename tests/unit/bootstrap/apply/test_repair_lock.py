"""Two operators repair one Kafka partition at the same time: one of them has to inspect it again."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from bootstrap.apply import stage
from bootstrap.apply.repair_lock import RepairLocks
from bootstrap.plans.repair import RewindPlan, plan_rewind
from bootstrap.plans.state import Author, Ends, PartitionState
from common.errors import StoreError, UsageError
from common.ports import CreateOutcome, ObjectStore
from common.remedies import CONFIG
from common.settings import StartAt
from common.spans import MAX_POSITION, Position
from common.stage.chain_origins import BEGIN, ChainOrigin, newest_origin, origin_path
from common.stage.loading import LoadNote
from common.stage.repair_lock import RepairEntry, ended_path, ending, last_repair, repair_path
from common.storage.chunks import ByteChunks
from common.storage.store import FsspecStore
from tests.fakes.markers import ORDERS, chain_of, put
from tests.fakes.stores import TrappedStore, failing


@pytest.fixture
def store(tmp_path: Path) -> FsspecStore:
    return FsspecStore(tmp_path.as_uri())


class Twice(FsspecStore):
    """A store whose requests about origins arrive again, much later; with ``is_late`` they arrive only then."""

    def __init__(self, url: str, *, is_late: bool = False) -> None:
        super().__init__(url)
        self.is_late = is_late
        self.late: list[Callable[[], object]] = []

    def create(self, path: str, data: bytes) -> CreateOutcome:
        if not path.startswith(BEGIN):
            return super().create(path, data)
        self.late.append(partial(super().create, path, data))
        if self.is_late:
            raise StoreError("no answer")
        return super().create(path, data)

    def write(self, path: str, data: bytes) -> None:
        self.late.append(partial(super().write, path, data))
        super().write(path, data)


class Operator:
    """One command: it inspects the partition when created, and acts on the plan made then."""

    def __init__(self, store: FsspecStore, name: str, to: int, *, take_over: int | None = None) -> None:
        author = Author(name, 1_700_000_000_000)
        self.locks = RepairLocks(store, author, name, take_over=take_over)
        repairs = self.locks.read_last(ORDERS)
        staged = stage.staged_markers(store, ORDERS)
        chain_origin = newest_origin(store, ORDERS)
        ends = Ends(Position(0), Position(100))
        state = PartitionState(
            ORDERS, "orders", StartAt.LATEST, ends, None, staged, chain_origin=chain_origin, repairs=repairs
        )
        self.plan: RewindPlan = plan_rewind(state, Position(to), author)
        self.work = f"bootstrap rewind --to {to}"

    def act(self) -> None:
        with self.locks.locked(ORDERS, self.work) as mine:
            stage.rewind(mine, self.plan)


def test_plan_made_stale_by_another_repair_is_refused(store: FsspecStore) -> None:
    put(store, *chain_of(10, 20, 30))
    first, second = Operator(store, "ann", 0), Operator(store, "bob", 5)
    first.act()
    assert second.locks.read_last(ORDERS) == 0, "the number that its plan was made with"
    with pytest.raises(UsageError, match="another repair of orders/0 has started"):
        second.act()
    assert stage.staged_markers(store, ORDERS) == ()  # no marker claims that everything before 5 is done
    assert newest_origin(store, ORDERS) == ChainOrigin(Position(0), number=1)
    with pytest.raises(UsageError, match="staged up to 0 only"):
        Operator(store, "bob", 5)


def test_unfinished_repair_is_named_with_the_remedy(store: FsspecStore) -> None:
    put(store, *chain_of(10, 20, 30))
    first = Operator(store, "ann", 20)
    with first.locks.locked(ORDERS, first.work):
        second = Operator(store, "bob", 20)
        with pytest.raises(
            UsageError, match=r"`bootstrap rewind --to 20` by ann, begun at 2023-11-14T22:13:20\+00:00"
        ) as raised:
            second.act()
    assert repair_path(ORDERS, 1) in raised.value.problem
    assert "--take-over 1" in raised.value.remedy
    Operator(store, "bob", 20).act()


def test_repair_that_was_taken_over_changes_nothing_more(store: FsspecStore) -> None:
    put(store, *chain_of(10, 20, 30, 40))
    first = Operator(store, "ann", 20)
    with first.locks.locked(ORDERS, first.work) as mine:
        Operator(store, "bob", 30, take_over=1).act()
        with pytest.raises(UsageError, match="another repair"):
            stage.rewind(mine, first.plan)
    assert [marker.name.start for marker in stage.staged_markers(store, ORDERS)] == [10, 20]


def test_rewind_holds_when_requests_of_an_earlier_one_arrive_again(store: FsspecStore) -> None:
    """The chain has no marker that could correct it: a higher origin would leave out the records in between."""
    put(store, *chain_of(10, 20, 30))
    first = Twice(store.url)
    Operator(first, "ann", 20).act()
    Operator(store, "bob", 0).act()
    assert stage.staged_markers(store, ORDERS) == ()
    for request in first.late:
        request()
    assert newest_origin(store, ORDERS) == ChainOrigin(Position(0), number=2)


def test_late_origin_of_a_repair_that_was_taken_over_does_not_win(store: FsspecStore) -> None:
    """Its request may arrive after everything that its successor has done."""
    put(store, *chain_of(10, 20, 30, 40))
    first = Twice(store.url, is_late=True)
    with pytest.raises(StoreError, match="no answer"):
        Operator(first, "ann", 20).act()
    assert len(stage.staged_markers(store, ORDERS)) == 3, "none is put aside before its origin is recorded"
    Operator(store, "bob", 0, take_over=1).act()
    for request in first.late:
        request()
    assert [item.path for item in store.list(BEGIN)] == [origin_path(ORDERS, number) for number in range(3)]
    assert newest_origin(store, ORDERS) == ChainOrigin(Position(0), number=2)


def test_repair_with_a_failed_request_has_not_ended(store: FsspecStore) -> None:
    put(store, *chain_of(10, 20, 30))
    first = Operator(TrappedStore(store.url, before=failing("delete", StoreError("no answer"))), "ann", 20)
    with pytest.raises(StoreError, match="no answer"):
        first.act()
    assert store.read(ended_path(ORDERS, 1)) is None
    with pytest.raises(UsageError, match="is still running"):
        Operator(store, "ann", 20).act()
    with pytest.raises(UsageError, match="is still running"):
        Operator(store, "ann", 20, take_over=0).act()
    Operator(store, "ann", 20, take_over=1).act()
    assert [marker.name.start for marker in stage.staged_markers(store, ORDERS)] == [10]
    put(store, *chain_of(10, 20, 30))
    Operator(store, "ann", 20).act()  # the repair that was taken over ended with its successor


def test_unreadable_repair_entry_still_locks_the_partition(store: FsspecStore) -> None:
    put(store, *chain_of(10, 20, 30))
    store.write(repair_path(ORDERS, 7), b"{")
    with pytest.raises(UsageError, match="another repair"):
        Operator(store, "ann", 20).act()
    entry = RepairEntry("ann", 5, "skip", "u")
    assert RepairEntry.from_bytes(entry.to_bytes()) == entry


def taken_over(store: FsspecStore) -> None:
    store.write(repair_path(ORDERS, 2), RepairEntry("bob", 5, "rewind", "u").to_bytes())


@pytest.mark.parametrize(
    "change",
    [
        lambda mine: mine.create("new", b""),
        lambda mine: mine.write("old", b""),
        lambda mine: mine.upload("new", ByteChunks([b"1"])),
        lambda mine: mine.copy("old", "new"),
        lambda mine: mine.delete(["old"]),
    ],
)
def test_no_request_is_made_once_another_repair_has_begun(
    store: FsspecStore, change: Callable[[ObjectStore], object]
) -> None:
    put(store, *chain_of(10, 20, 30))
    store.write("old", b"1")
    first = Operator(store, "ann", 20)
    with first.locks.locked(ORDERS, first.work) as mine:
        assert mine.url == store.url
        taken_over(store)
        with pytest.raises(UsageError, match=repair_path(ORDERS, 2)):
            change(mine)
    assert (store.read("old"), store.read("new")) == (b"1", None)


def test_each_of_several_deletes_checks_the_lock(store: FsspecStore) -> None:
    put(store, *chain_of(10, 20, 30))
    store.write("second", b"1")
    first = Operator(store, "ann", 20)

    def paths() -> Iterator[str]:
        yield "first"
        taken_over(store)
        yield "second"

    with first.locks.locked(ORDERS, first.work) as mine, pytest.raises(UsageError, match="another repair"):
        mine.delete(paths())
    assert store.read("second") == b"1"


def test_last_turn_is_the_highest_number_that_was_claimed_and_ends_by_its_own_object(tmp_path: Path) -> None:
    store, last_turns = FsspecStore(str(tmp_path)), []
    for path in (repair_path(ORDERS, 1), ended_path(ORDERS, 1), repair_path(ORDERS, 2), ended_path(ORDERS, 3)):
        store.create(path, b"{}")
        last = last_repair(store, ORDERS)
        last_turns.append((last.number, last.ended))
    assert last_turns == [(1, False), (1, True), (2, False), (2, False)]


@pytest.mark.parametrize(
    ("work", "remedy"),
    [
        (
            "bootstrap rewind --to 5 --below-table",
            "finish it with `bootstrap rewind {config} {orders} --to 5 --below-table",
        ),
        ("bootstrap restart", "finish it with `bootstrap restart {config} {orders}"),
        ("bootstrap accept --replay", "give its command again (`bootstrap accept --replay`), with"),
        ("rewind", "check its plan and use"),
        ("bootstrap rewind --to 5; id", "check its plan and use"),
    ],
)
def test_remedy_for_an_unfinished_repair_is_its_command(tmp_path: Path, work: str, remedy: str) -> None:
    store = FsspecStore(str(tmp_path))
    store.create(repair_path(ORDERS, 1), RepairEntry("operator", 1_000, work, "0b4a").to_bytes())
    text = ending(ORDERS, last_repair(store, ORDERS))
    end = " --yes`" if "finish" in remedy else ""
    orders = f"--topic {ORDERS.topic} --partition {ORDERS.partition}"
    assert text == f"{remedy} --take-over 1{end}".replace("{orders}", orders).replace("{config}", CONFIG)


def test_note_that_cannot_be_read_stands_for_a_load_of_everything() -> None:
    assert [LoadNote.from_bytes(data).end for data in (b"{", b"[]", b"{}")] == [MAX_POSITION] * 3
