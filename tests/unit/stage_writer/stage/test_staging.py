"""Claims, one after the other: histories in which a late writer would do harm, each with its own test."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from common.clock import SystemClock
from common.errors import StoreError
from common.schema import parse_ddl, schema_to_json, to_arrow_schema
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.chain_origins import ChainOrigin, origin_path, origin_to_bytes
from common.stage.data_files import LONGEST_FLUSH_S
from common.stage.markers import MarkerName, TableKind, late_path, stray_path
from common.stage.notifications import notification_path
from common.storage.store import FsspecStore
from stage_writer.chain_end import Lineage, Tail
from stage_writer.outbox.records import SCHEMA as SCHEMA_OF_OUTGOING
from stage_writer.parquet.buffer import Buffer, StagedRows, TableFormat
from stage_writer.ports import (
    ClaimGuard,
    ClaimVerdict,
    FlushIdentity,
    LostClaim,
    OtherTopic,
    Outdated,
    Postponed,
    Sealed,
)
from stage_writer.stage.staging import Job, ObjectStage
from tests.builders import settings_of
from tests.fakes.clock import IdleClock
from tests.fakes.stores import TrappedStore, acting, failing
from tests.fakes.writers import always

SOURCE = TopicPartition(Topic("orders"), Partition(0))
SCHEMA = parse_ddl("n BIGINT")


class World:
    def __init__(self, folder: Path) -> None:
        self.store = FsspecStore(f"{folder}/stage")
        self.table = FsspecStore(f"{folder}/table")
        self.stream = settings_of({"columns": "n INT"}, folder=str(folder)).streams[0]
        self.format = TableFormat(
            f"{folder}/table", TableKind.ROWS, schema_to_json(SCHEMA), to_arrow_schema(SCHEMA), ()
        )
        self.numbers = itertools.count()

    def stage(self, store: FsspecStore | None = None) -> ObjectStage:
        return ObjectStage(
            store or self.store, lambda _url: self.table, SystemClock(), lambda: f"{next(self.numbers):032x}", "w"
        )

    def job(
        self,
        start: int,
        end: int,
        tail: Tail | None,
        stage: ObjectStage | None = None,
        *,
        generation: int = 0,
        guard: ClaimGuard = always,
    ) -> Job:
        buffer = Buffer.begin(Position(start), [self.format])
        rows = pa.table({"n": list(range(start, end))}, schema=self.format.arrow_schema)
        buffer.add(StagedRows(Position(end), end - start, 0, {}, None, (rows,)), now_s=0.0)
        flush = FlushIdentity(SOURCE, self.stream, buffer, tail, Lineage(generation))
        return (stage or self.stage()).flush_job(flush, guard)

    def seal(self, start: int, end: int, tail: Tail | None, *, generation: int = 0) -> Sealed:
        outcome = self.job(start, end, tail, generation=generation).run()
        assert isinstance(outcome, Sealed)
        return outcome

    def rewind(self, *starts: int) -> None:
        """What the bootstrap command does: a copy of each marker below stray/, then the marker is deleted."""
        for start in starts:
            path = MarkerName(SOURCE, Position(start)).path
            self.store.write(stray_path(path), self.store.read(path) or b"")
        self.settle(*starts)

    def markers(self) -> list[str]:
        return sorted(found.path for found in self.store.list("done/"))

    def settle(self, *starts: int) -> None:
        self.store.delete(MarkerName(SOURCE, Position(start)).path for start in starts)

    def files(self) -> set[str]:
        return {found.path for found in self.table.list("")}

    def without_an_answer(self) -> ObjectStage:
        """A stage whose first creation is done and not answered."""
        return self.stage(TrappedStore(self.store.url, after=failing("create", StoreError("no answer"), times=1)))

    def meanwhile(self, act: Callable[[], object]) -> ObjectStage:
        """A stage in which something happens right before its user's first marker is created."""
        return self.stage(TrappedStore(self.store.url, before=acting("create", act)))

    def vanishing(self, *starts: int) -> ObjectStage:
        """A stage whose markers are put aside, one more at each listing, before they are read."""
        gone = [MarkerName(SOURCE, Position(start)).path for start in starts]

        def vanish(request: str, path: str) -> None:
            if request == "read" and path in gone:
                gone.remove(path)
                self.store.delete([path])

        return self.stage(TrappedStore(self.store.url, before=vanish))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_of_two_owners_one_wins_and_the_other_goes_on_behind_it(world: World) -> None:
    zombie = world.job(0, 7, None)
    first = world.seal(0, 5, None)
    assert isinstance(zombie.run(), LostClaim)
    tail = world.stage().chains.tail(SOURCE)
    assert tail == first.tail
    assert tail is not None
    assert tail.end == 5


def test_a_lost_answer_is_our_own_marker(world: World) -> None:
    job = world.job(0, 5, None, world.without_an_answer())
    with pytest.raises(StoreError):
        job.run()
    assert isinstance(job.run(), Sealed)
    assert len(world.files()) == 1


def test_a_zombie_takes_a_freed_position_and_no_writer_continues_it(world: World) -> None:
    """The loader has settled a marker, a late writer claims the freed position again with a longer span."""
    first = world.seal(0, 10, None)
    zombie = world.job(10, 90, first.tail)
    second = world.seal(10, 20, first.tail)
    third = world.seal(20, 30, second.tail)
    world.settle(0, 10)
    outcome = zombie.run()
    assert isinstance(outcome, Sealed)
    assert outcome.chain_moved, "the zombie must read the chain again"
    assert world.stage().chains.tail(SOURCE) == third.tail, "and a later owner must not begin at its end"


def test_a_loser_deletes_nothing_because_the_table_may_have_its_files(world: World) -> None:
    """Its first try had won without an answer, was loaded and settled; then a zombie took the name."""
    job = world.job(0, 5, None, world.without_an_answer())
    with pytest.raises(StoreError):
        job.run()
    loaded = world.files()
    world.settle(0)
    zombie = world.job(0, 9, None)
    assert isinstance(zombie.run(), Sealed)
    assert isinstance(job.run(), LostClaim)
    assert loaded <= world.files()


def test_settling_right_after_the_claim_only_costs_a_look(world: World) -> None:
    first = world.seal(0, 10, None)
    job = world.job(10, 20, first.tail)
    world.settle(0)
    outcome = job.run()
    assert isinstance(outcome, Sealed)
    assert outcome.chain_moved
    assert world.stage().chains.tail(SOURCE) == outcome.tail


def test_a_zombie_without_a_marker_before_it_does_not_go_on_either(world: World) -> None:
    """The loader has settled the chain's first marker; its position is claimed again by one who saw no chain."""
    others: list[Sealed] = []

    def meanwhile() -> None:
        others.append(world.seal(0, 10, None))
        others.append(world.seal(10, 20, others[0].tail))
        world.settle(0)

    outcome = world.job(0, 90, None, world.meanwhile(meanwhile)).run()
    assert isinstance(outcome, Sealed)
    assert outcome.chain_moved, "the zombie must read the chain again"
    assert world.stage().chains.tail(SOURCE) == others[1].tail, "and a later owner must not begin at its end"


def test_a_zombie_that_finds_a_chain_where_it_knew_of_none_claims_nothing(world: World) -> None:
    zombie = world.job(0, 90, None)
    second = world.seal(10, 20, world.seal(0, 10, None).tail)
    world.settle(0)
    assert isinstance(zombie.run(), LostClaim)
    assert world.markers() == [second.tail.path]


@pytest.mark.parametrize("moved", [ChainOrigin(Position(0)), ChainOrigin(Position(100), generation=1)])
def test_the_first_claim_of_a_chain_is_not_made_where_its_origin_has_moved(world: World, moved: ChainOrigin) -> None:
    """A rewind to 0, or a restart, of a chain that began at the end of its topic, and has no marker yet."""
    world.stage().chains.begin(SOURCE, ChainOrigin(Position(100)))
    late = world.job(100, 120, None)
    world.store.write(origin_path(SOURCE, 1), origin_to_bytes(moved))
    assert isinstance(late.run(), LostClaim)
    assert world.markers() == []


def test_an_origin_that_moves_during_the_first_claim_has_the_chain_read_again(world: World) -> None:
    def rewind() -> None:
        world.store.write(origin_path(SOURCE, 1), origin_to_bytes(ChainOrigin(Position(0))))

    world.stage().chains.begin(SOURCE, ChainOrigin(Position(100)))
    outcome = world.job(100, 120, None, world.meanwhile(rewind)).run()
    assert isinstance(outcome, Sealed)
    assert outcome.chain_moved
    assert world.job(0, 10, None).run() == LostClaim(), "it has a marker now"


def test_the_first_claim_is_made_where_the_chain_begins_as_before(world: World) -> None:
    world.stage().chains.begin(SOURCE, ChainOrigin(Position(100), generation=2))
    assert not world.seal(100, 120, None, generation=2).chain_moved


@pytest.mark.parametrize("generation", [0, 2])
def test_a_marker_made_by_hand_is_of_the_generation_of_its_chains_origin(world: World, generation: int) -> None:
    """What is staged above it would otherwise be older than the rewind, and never be loaded."""
    if generation:
        world.stage().chains.begin(SOURCE, ChainOrigin(Position(100), generation=generation))
    world.store.write(MarkerName(SOURCE, Position(100)).path, b"")
    tail = world.stage().chains.tail(SOURCE)
    assert tail is not None
    assert tail.lineage == Lineage(generation)


def test_no_claim_is_made_where_the_origin_cannot_be_read(world: World) -> None:
    world.store.write(origin_path(SOURCE), b"{")
    assert isinstance(world.job(0, 10, None).run(), LostClaim)


def test_a_zombie_does_not_take_another_zombies_marker_for_the_one_it_knew(world: World) -> None:
    first = world.seal(0, 10, None)
    second = world.seal(10, 20, first.tail)
    early, late = world.job(10, 25, first.tail), world.job(20, 90, second.tail)
    third = world.seal(20, 30, second.tail)
    fourth = world.seal(30, 40, third.tail)
    world.settle(0, 10, 20)
    assert isinstance(early.run(), Sealed)
    outcome = late.run()
    assert isinstance(outcome, Sealed)
    assert outcome.chain_moved, "a marker stands at 10 again, and it is not the one that was there"
    assert world.stage().chains.tail(SOURCE) == fourth.tail


def test_a_zombie_does_not_go_on_from_a_settled_marker_whose_request_arrives_again(world: World) -> None:
    """The network delivers the first claim once more, after it was settled; a late writer had gone on from it."""
    first = world.seal(0, 10, None)
    zombie = world.job(10, 90, first.tail)
    again = (world.store.read(first.tail.path) or b"", first.tail.path)
    second = world.seal(10, 20, first.tail)
    third = world.seal(20, 30, second.tail)
    world.settle(0, 10)
    world.store.create(again[1], again[0])
    outcome = zombie.run()
    assert isinstance(outcome, Sealed)
    assert outcome.chain_moved, "what it knew is there, byte for byte, and the chain is elsewhere"
    assert world.stage().chains.tail(SOURCE) == third.tail


def test_a_claim_behind_a_marker_that_was_staged_again_after_a_rewind_is_withdrawn(world: World) -> None:
    """The marker before it has its name again, and ends elsewhere: [7, 10) would be in no marker."""
    first = world.seal(0, 10, None)
    late = world.job(10, 20, first.tail)
    world.rewind(0)
    again = world.seal(0, 7, None)
    assert isinstance(late.run(), LostClaim)
    assert world.stage().chains.tail(SOURCE) == again.tail


@pytest.mark.parametrize("has_beginning", [True, False])
def test_the_only_marker_is_withdrawn_only_where_a_beginning_says_where_reading_goes_on(
    world: World, *, has_beginning: bool
) -> None:
    first = world.seal(0, 10, None)
    late = world.job(10, 20, first.tail)
    if has_beginning:
        world.stage().chains.begin(SOURCE, ChainOrigin(Position(0)))
    world.rewind(0)
    outcome = late.run()
    if has_beginning:
        assert isinstance(outcome, LostClaim)
        assert world.markers() == []
    else:
        assert isinstance(outcome, Sealed)
        assert outcome.chain_moved
        assert world.stage().chains.tail(SOURCE) == outcome.tail


def test_only_the_claim_itself_is_withdrawn_and_not_what_has_its_name_since(world: World) -> None:
    """The rewind takes the claim away as well, and another writer takes its name before the late one looks."""
    others: list[Sealed] = []

    def rewind() -> None:
        world.rewind(20)
        others.append(world.seal(10, 20, world.stage().chains.tail(SOURCE)))
        others.append(world.seal(20, 35, others[0].tail))

    first = world.seal(0, 10, None)
    late_store = TrappedStore(world.store.url, before=acting("read", rewind, below="stray/"))
    late = world.job(20, 30, world.seal(10, 20, first.tail).tail, world.stage(late_store))
    world.rewind(10)
    assert isinstance(late.run(), LostClaim)
    assert world.stage().chains.tail(SOURCE) == others[-1].tail


@pytest.mark.parametrize(("generation_above", "moved"), [(0, False), (1, True)])
def test_only_markers_of_an_older_generation_may_be_above_a_claim(
    world: World, generation_above: int, *, moved: bool
) -> None:
    """A topic that was created again counts from 0, below all that its predecessor has left."""
    old = world.seal(500, 510, None, generation=0)
    world.stage().chains.begin(SOURCE, ChainOrigin(Position(0), generation=1))

    def meanwhile() -> None:
        world.seal(600, 610, old.tail, generation=generation_above)

    outcome = world.job(0, 10, None, world.meanwhile(meanwhile), generation=1).run()
    assert isinstance(outcome, Sealed)
    assert outcome.chain_moved is moved


def test_of_several_markers_above_a_claim_each_has_to_be_older(world: World) -> None:
    world.seal(30, 40, world.seal(20, 30, None).tail, generation=1)
    assert not world.stage().chains.is_last(MarkerName(SOURCE, Position(10)), 1)
    assert world.stage().chains.is_last(MarkerName(SOURCE, Position(10)), 2)


def test_a_chain_of_a_new_generation_does_not_go_on_from_the_old_topics_markers(world: World) -> None:
    world.seal(500, 510, None)
    world.stage().chains.begin(SOURCE, ChainOrigin(Position(0), generation=1))
    assert world.stage().chains.tail(SOURCE) is None
    new = world.seal(0, 10, None, generation=1)
    assert world.stage().chains.tail(SOURCE) == new.tail


def test_of_two_markers_for_the_last_position_the_one_with_content_is_gone_on_from(world: World) -> None:
    last = world.seal(5, 9, world.seal(0, 5, None).tail)
    world.store.create("done/orders/0/5.done", b"")
    assert world.stage().chains.tail(SOURCE) == last.tail


def test_a_guard_that_says_wait_is_asked_again_with_the_same_files(world: World) -> None:
    asked: list[set[str]] = []

    def guard() -> ClaimVerdict:
        asked.append(world.files())
        return ClaimVerdict.WAIT if len(asked) == 1 else ClaimVerdict.CLAIM

    job = world.job(0, 5, None, guard=guard)
    assert isinstance(job.run(), Postponed)
    assert world.markers() == []
    assert isinstance(job.run(), Sealed)
    assert len(world.markers()) == 1
    assert len(asked[0]) == 1, "the guard is asked when nothing but the claim is left to do"
    assert asked == [world.files(), world.files()]


def test_what_may_be_of_another_topic_is_not_claimed(world: World) -> None:
    assert world.job(0, 5, None, guard=lambda: OtherTopic("new")).run() == OtherTopic("new")
    assert world.markers() == []


def test_a_claim_is_not_withdrawn_because_of_an_older_rewind_or_a_late_claim_put_aside(world: World) -> None:
    """Copies lie below stray/ for the name of the marker before it, and none is of that very marker."""
    world.store.write(stray_path(MarkerName(SOURCE, Position(0)).path), b"of a rewind, long ago")
    late = MarkerName(SOURCE, Position(0)).path
    first = world.seal(0, 10, None)
    world.store.write(late_path(late, world.store.read(late) or b""), world.store.read(late) or b"")
    job = world.job(10, 20, first.tail)
    world.store.create(MarkerName(SOURCE, Position(5)).path, b"")
    world.settle(0)
    outcome = job.run()
    assert isinstance(outcome, Sealed)
    assert outcome.chain_moved


def test_a_claim_behind_a_marker_that_is_copied_and_still_there_stays(world: World) -> None:
    """An operator's rewind has copied it, and ended before it deleted it."""
    first = world.seal(0, 10, None)
    world.store.write(stray_path(first.tail.path), world.store.read(first.tail.path) or b"")
    second = world.seal(10, 20, first.tail)
    assert not second.chain_moved
    assert world.stage().chains.tail(SOURCE) == second.tail


def test_the_second_rewind_of_one_place_is_recognised_too(world: World) -> None:
    path = MarkerName(SOURCE, Position(10)).path
    first = world.seal(0, 10, None)
    world.store.write(stray_path(path), b"of the first rewind")
    second = world.seal(10, 20, first.tail)
    job = world.job(20, 30, second.tail)
    world.store.write(stray_path(path, 2), world.store.read(path) or b"")
    world.settle(10)
    assert isinstance(job.run(), LostClaim)
    assert world.stage().chains.tail(SOURCE) == first.tail


def test_files_that_a_clean_up_may_be_removing_are_not_claimed(world: World) -> None:
    clock = IdleClock()
    stage = ObjectStage(world.store, lambda _url: world.table, clock, lambda: f"{next(world.numbers):032x}", "w")
    verdicts = [ClaimVerdict.WAIT, ClaimVerdict.CLAIM]
    job = world.job(0, 2, None, stage, guard=lambda: verdicts.pop(0))
    assert isinstance(job.run(), Postponed)
    clock.sleep_s(LONGEST_FLUSH_S + 1)
    assert isinstance(job.run(), Outdated)
    assert world.markers() == []
    assert isinstance(world.job(0, 2, None, stage).run(), Sealed)
    assert len(world.files()) == 2


class Waiting:
    def __init__(self, *paths: str) -> None:
        self._paths = paths

    def pending(self) -> tuple[str, ...]:
        return self._paths

    def sealed(self, paths: tuple[str, ...]) -> None:
        """Nothing is delivered."""

    def leave(self) -> None: ...


OUTBOX = "outbox/orders/0/00000000000000000000-0-0a.records"


def sealed_with(world: World, start: int, tail: Tail | None, outlet: Waiting, *, sends: bool = False) -> Sealed:
    buffer = Buffer.begin(Position(start), [world.format])
    rows = pa.table({"n": [0]}, schema=world.format.arrow_schema)
    outgoing = pa.table([["out"], [b"k"], [b"v"], [1], [None], [0], [0]], schema=SCHEMA_OF_OUTGOING) if sends else None
    buffer.add(StagedRows(Position(start + 1), 1, 0, {}, None, (rows,), outgoing=outgoing), now_s=0.0)
    outcome = world.stage().flush_job(FlushIdentity(SOURCE, world.stream, buffer, tail, outlet=outlet), always).run()
    assert isinstance(outcome, Sealed)
    return outcome


def test_a_marker_made_by_hand_forgets_nothing_that_waits_for_kafka(world: World) -> None:
    sealed = sealed_with(world, 0, None, Waiting(OUTBOX), sends=True)
    first, own = sealed.tail.outboxes
    assert first == OUTBOX
    assert world.store.read(own) is not None
    for offset in (1, 2):
        world.store.write(f"done/orders/0/{offset}.done", b"")
    tail = world.stage().chains.tail(SOURCE)
    assert tail is not None
    assert (tail.end, tail.outboxes) == (3, (first, own))
    assert world.seal(3, 4, tail).tail.outboxes == (first, own), "a writer without outlets names them on"


def test_the_last_flush_says_what_waits_for_kafka(world: World) -> None:
    first = sealed_with(world, 0, None, Waiting(OUTBOX))
    second = sealed_with(world, 1, first.tail, Waiting())
    assert world.stage().chains.tail(SOURCE) == second.tail
    world.store.write("done/orders/0/2.done", b"")
    tail = world.stage().chains.tail(SOURCE)
    assert tail is not None
    assert (tail.end, tail.outboxes) == (3, ())


def test_before_the_first_flush_nothing_waits_for_kafka(world: World) -> None:
    world.store.write("done/orders/0/2.done", b"")
    tail = world.stage().chains.tail(SOURCE)
    assert tail is not None
    assert (tail.end, tail.outboxes) == (3, ())


def test_a_marker_that_vanishes_while_it_is_read_is_no_end(world: World) -> None:
    first = world.seal(0, 10, None)
    world.seal(10, 20, first.tail)
    assert world.vanishing(10).chains.tail(SOURCE) == first.tail


def test_a_flush_below_a_marker_made_by_hand_may_vanish(world: World) -> None:
    first = sealed_with(world, 0, None, Waiting(OUTBOX))
    sealed_with(world, 1, first.tail, Waiting())
    world.store.write("done/orders/0/2.done", b"")
    tail = world.vanishing(1).chains.tail(SOURCE)
    assert tail is not None
    assert tail.outboxes == (OUTBOX,)


def test_a_chain_that_vanishes_while_it_is_read_is_not_taken_for_none(world: World) -> None:
    tail = None
    for start in range(6):
        tail = world.seal(start, start + 1, tail).tail
    with pytest.raises(StoreError, match="disappear while they are read"):
        world.vanishing(*range(6)).chains.tail(SOURCE)


def test_a_loader_is_notified_below_the_writers_name(world: World) -> None:
    world.stage().put_notification("orders")
    assert [found.path for found in world.store.list("news/")] == [notification_path("orders", "w")]


@pytest.mark.parametrize(("generation", "is_last"), [(0, False), (1, True)])
def test_a_marker_above_that_vanishes_is_no_reason_to_go_on_in_a_first_generation(
    world: World, generation: int, *, is_last: bool
) -> None:
    world.seal(20, 30, None)
    name = MarkerName(SOURCE, Position(10))
    assert world.vanishing(20).chains.is_last(name, generation) is is_last


def test_what_is_no_marker_is_not_above_a_claim(world: World) -> None:
    world.store.write("done/orders/0/notes.txt", b"of an operator")
    assert not world.seal(0, 10, None).chain_moved
