"""Claims: one test for each history in which a late writer (a zombie) could do harm."""

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
from stage_writer.chains import StagedChains
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
from tests.builders import instance, required, settings_of
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
        lineage: Lineage | None = None,
        guard: ClaimGuard = always,
    ) -> Job:
        buffer = Buffer.begin(Position(start), [self.format])
        rows = pa.table({"n": list(range(start, end))}, schema=self.format.arrow_schema)
        buffer.add(StagedRows(Position(end), end - start, 0, {}, None, (rows,)), now_s=0.0)
        flush = FlushIdentity(SOURCE, self.stream, buffer, tail, lineage or Lineage(generation))
        return (stage or self.stage()).flush_job(flush, guard)

    def seal(self, start: int, end: int, tail: Tail | None, *, generation: int = 0) -> Sealed:
        outcome = self.job(start, end, tail, generation=generation).run()
        assert isinstance(outcome, Sealed)
        return outcome

    def rewind(self, *starts: int) -> None:
        """As the bootstrap command does: copy each marker below stray/, then delete it."""
        for start in starts:
            path = MarkerName(SOURCE, Position(start)).path
            self.store.write(stray_path(path), self.store.read(path) or b"")
        self.settle(*starts)

    def markers(self) -> list[str]:
        return sorted(stored.path for stored in self.store.list("done/"))

    def settle(self, *starts: int) -> None:
        self.store.delete(MarkerName(SOURCE, Position(start)).path for start in starts)

    def files(self) -> set[str]:
        return {stored.path for stored in self.table.list("")}

    def without_a_response(self) -> ObjectStage:
        """A stage whose first create succeeds but loses its response."""
        return self.stage(TrappedStore(self.store.url, after=failing("create", StoreError("no response"), times=1)))

    def meanwhile(self, act: Callable[[], object]) -> ObjectStage:
        """A stage that calls ``act`` right before it creates its first marker."""
        return self.stage(TrappedStore(self.store.url, before=acting("create", act)))

    def vanishing(self, *starts: int) -> ObjectStage:
        """A stage whose markers are deleted, one at a time, right before they are read."""
        gone = [MarkerName(SOURCE, Position(start)).path for start in starts]

        def vanish(request: str, path: str) -> None:
            if request == "read" and path in gone:
                gone.remove(path)
                self.store.delete([path])

        return self.stage(TrappedStore(self.store.url, before=vanish))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_one_of_two_owners_wins_the_claim(world: World) -> None:
    zombie = world.job(0, 7, None)
    first = world.seal(0, 5, None)
    assert isinstance(zombie.run(), LostClaim)
    tail = world.stage().chains.tail(SOURCE)
    assert tail == first.tail
    assert tail is not None
    assert tail.end == 5
    world.seal(5, 7, tail)
    assert world.markers() == [MarkerName(SOURCE, Position(start)).path for start in (0, 5)]


def test_retry_after_a_lost_response_finds_its_own_marker(world: World) -> None:
    job = world.job(0, 5, None, world.without_a_response())
    with pytest.raises(StoreError):
        job.run()
    assert isinstance(job.run(), Sealed)
    assert len(world.files()) == 1


def test_zombie_can_claim_a_freed_position_but_no_writer_continues_from_it(world: World) -> None:
    """The loader settled a marker; a late writer claims the freed position with a longer span."""
    first = world.seal(0, 10, None)
    zombie = world.job(10, 90, first.tail)
    second = world.seal(10, 20, first.tail)
    third = world.seal(20, 30, second.tail)
    world.settle(0, 10)
    outcome = zombie.run()
    assert isinstance(outcome, Sealed)
    assert outcome.chain_moved, "the zombie must read the chain again"
    assert world.stage().chains.tail(SOURCE) == third.tail, "and a later owner must not start at its end"


def test_lost_claim_deletes_no_data_files(world: World) -> None:
    """The first try won but lost its response, was loaded and settled; then a zombie took the name."""
    job = world.job(0, 5, None, world.without_a_response())
    with pytest.raises(StoreError):
        job.run()
    loaded = world.files()
    world.settle(0)
    zombie = world.job(0, 9, None)
    assert isinstance(zombie.run(), Sealed)
    assert isinstance(job.run(), LostClaim)
    assert loaded <= world.files()


def test_settling_right_after_the_claim_only_costs_a_refresh(world: World) -> None:
    first = world.seal(0, 10, None)
    job = world.job(10, 20, first.tail)
    world.settle(0)
    outcome = job.run()
    assert isinstance(outcome, Sealed)
    assert outcome.chain_moved
    assert world.stage().chains.tail(SOURCE) == outcome.tail


def test_zombie_without_a_previous_marker_must_reload_the_chain(world: World) -> None:
    """The loader settled the chain's first marker; a writer that saw no chain claims its position again."""
    others: list[Sealed] = []

    def meanwhile() -> None:
        others.append(world.seal(0, 10, None))
        others.append(world.seal(10, 20, others[0].tail))
        world.settle(0)

    outcome = world.job(0, 90, None, world.meanwhile(meanwhile)).run()
    assert isinstance(outcome, Sealed)
    assert outcome.chain_moved, "the zombie must read the chain again"
    assert world.stage().chains.tail(SOURCE) == others[1].tail, "and a later owner must not start at its end"


def test_zombie_that_knew_no_chain_claims_nothing_once_one_exists(world: World) -> None:
    zombie = world.job(0, 90, None)
    second = world.seal(10, 20, world.seal(0, 10, None).tail)
    world.settle(0)
    assert isinstance(zombie.run(), LostClaim)
    assert world.markers() == [second.tail.path]


@pytest.mark.parametrize("moved", [ChainOrigin(Position(0)), ChainOrigin(Position(100), generation=1)])
def test_first_claim_is_lost_if_the_chain_origin_moved(world: World, moved: ChainOrigin) -> None:
    """A rewind to 0, or a new generation, of a chain that started at the end of its topic and has no marker."""
    world.stage().chains.begin(SOURCE, ChainOrigin(Position(100)))
    late = world.job(100, 120, None)
    world.store.write(origin_path(SOURCE, 1), origin_to_bytes(moved))
    assert isinstance(late.run(), LostClaim)
    assert world.markers() == []


def test_origin_that_moves_during_the_first_claim_forces_a_chain_reload(world: World) -> None:
    def rewind() -> None:
        world.store.write(origin_path(SOURCE, 1), origin_to_bytes(ChainOrigin(Position(0))))

    world.stage().chains.begin(SOURCE, ChainOrigin(Position(100)))
    outcome = world.job(100, 120, None, world.meanwhile(rewind)).run()
    assert isinstance(outcome, Sealed)
    assert outcome.chain_moved
    assert world.job(0, 10, None).run() == LostClaim(), "the chain has a marker now"


def test_first_claim_at_an_unchanged_origin_is_sealed(world: World) -> None:
    world.stage().chains.begin(SOURCE, ChainOrigin(Position(100), generation=2))
    assert not world.seal(100, 120, None, generation=2).chain_moved


@pytest.mark.parametrize("generation", [0, 2])
def test_hand_made_marker_takes_the_generation_of_the_chain_origin(world: World, generation: int) -> None:
    """Otherwise, markers above it would be older than the rewind and would never be loaded."""
    if generation:
        world.stage().chains.begin(SOURCE, ChainOrigin(Position(100), generation=generation))
    world.store.write("done/orders/0/100.done", b"")
    tail = world.stage().chains.tail(SOURCE)
    assert tail is not None
    assert tail.lineage == Lineage(generation)


def test_claim_is_lost_if_the_origin_is_unreadable(world: World) -> None:
    world.store.write(origin_path(SOURCE), b"{")
    assert isinstance(world.job(0, 10, None).run(), LostClaim)


def test_zombie_does_not_mistake_another_zombies_marker_for_its_predecessor(world: World) -> None:
    first = world.seal(0, 10, None)
    second = world.seal(10, 20, first.tail)
    early, late = world.job(10, 25, first.tail), world.job(20, 90, second.tail)
    third = world.seal(20, 30, second.tail)
    fourth = world.seal(30, 40, third.tail)
    world.settle(0, 10, 20)
    assert isinstance(early.run(), Sealed)
    outcome = late.run()
    assert isinstance(outcome, Sealed)
    assert outcome.chain_moved, "there is a marker at 10 again, but it is another one"
    assert world.stage().chains.tail(SOURCE) == fourth.tail


def test_zombie_does_not_continue_from_a_resurrected_settled_marker(world: World) -> None:
    """The network delivers the first claim again after it was settled; a late writer continued from it."""
    first = world.seal(0, 10, None)
    zombie = world.job(10, 90, first.tail)
    again = (world.store.read(first.tail.path) or b"", first.tail.path)
    second = world.seal(10, 20, first.tail)
    third = world.seal(20, 30, second.tail)
    world.settle(0, 10)
    world.store.create(again[1], again[0])
    outcome = zombie.run()
    assert isinstance(outcome, Sealed)
    assert outcome.chain_moved, "its predecessor is there, byte for byte, but the chain has moved on"
    assert world.stage().chains.tail(SOURCE) == third.tail


def test_claim_behind_a_marker_restaged_after_a_rewind_is_withdrawn(world: World) -> None:
    """The marker before it has the same name but another end: [7, 10) would be in no marker."""
    first = world.seal(0, 10, None)
    late = world.job(10, 20, first.tail)
    world.rewind(0)
    again = world.seal(0, 7, None)
    assert isinstance(late.run(), LostClaim)
    assert world.stage().chains.tail(SOURCE) == again.tail


@pytest.mark.parametrize("has_origin", [True, False])
def test_only_marker_is_withdrawn_only_if_an_origin_gives_the_position(world: World, *, has_origin: bool) -> None:
    first = world.seal(0, 10, None)
    late = world.job(10, 20, first.tail)
    if has_origin:
        world.stage().chains.begin(SOURCE, ChainOrigin(Position(0)))
    world.rewind(0)
    outcome = late.run()
    if has_origin:
        assert isinstance(outcome, LostClaim)
        assert world.markers() == []
    else:
        assert isinstance(outcome, Sealed)
        assert outcome.chain_moved
        assert world.stage().chains.tail(SOURCE) == outcome.tail


def test_withdrawal_spares_another_writers_marker_of_the_same_name(world: World) -> None:
    """The rewind removes the claim too, and another writer takes its name before the late one checks."""
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
    """A recreated topic counts from 0, below all markers of its predecessor."""
    old = world.seal(500, 510, None, generation=0)
    world.stage().chains.begin(SOURCE, ChainOrigin(Position(0), generation=1))

    def meanwhile() -> None:
        world.seal(600, 610, old.tail, generation=generation_above)

    outcome = world.job(0, 10, None, world.meanwhile(meanwhile), generation=1).run()
    assert isinstance(outcome, Sealed)
    assert outcome.chain_moved is moved


def test_every_marker_above_a_claim_must_be_of_an_older_generation(world: World) -> None:
    world.seal(30, 40, world.seal(20, 30, None).tail, generation=1)
    assert not world.stage().chains.is_last(MarkerName(SOURCE, Position(10)), Lineage(1))
    assert world.stage().chains.is_last(MarkerName(SOURCE, Position(10)), Lineage(2))


def test_every_marker_above_a_claim_must_be_of_an_older_origin(world: World) -> None:
    """A claim after a rewind is continued, though a late request has created a marker above it."""
    world.store.create(origin_path(SOURCE, 4), origin_to_bytes(ChainOrigin(Position(20))))
    above = world.job(20, 30, None, lineage=Lineage(origin=4)).run()
    assert required(instance(Sealed, above).marker.manifest).chain_origin == 4
    assert not world.stage().chains.is_last(MarkerName(SOURCE, Position(10)), Lineage(origin=4))
    assert world.stage().chains.is_last(MarkerName(SOURCE, Position(10)), Lineage(origin=5))


def test_new_generation_does_not_continue_from_old_markers(world: World) -> None:
    world.seal(500, 510, None)
    world.stage().chains.begin(SOURCE, ChainOrigin(Position(0), generation=1))
    assert world.stage().chains.tail(SOURCE) is None
    new = world.seal(0, 10, None, generation=1)
    assert world.stage().chains.tail(SOURCE) == new.tail


def test_marker_with_content_wins_over_an_empty_one_for_the_same_position(world: World) -> None:
    last = world.seal(5, 9, world.seal(0, 5, None).tail)
    world.store.create("done/orders/0/5.done", b"")
    assert world.stage().chains.tail(SOURCE) == last.tail


def test_postponed_claim_is_retried_with_the_same_files(world: World) -> None:
    asked: list[set[str]] = []

    def guard() -> ClaimVerdict:
        asked.append(world.files())
        return ClaimVerdict.WAIT if len(asked) == 1 else ClaimVerdict.CLAIM

    job = world.job(0, 5, None, guard=guard)
    assert isinstance(job.run(), Postponed)
    assert world.markers() == []
    assert isinstance(job.run(), Sealed)
    assert len(world.markers()) == 1
    assert len(asked[0]) == 1, "the guard is asked once only the claim is left to do"
    assert asked == [world.files(), world.files()]


def test_claim_is_refused_if_the_topic_may_be_another_one(world: World) -> None:
    assert world.job(0, 5, None, guard=lambda: OtherTopic("new")).run() == OtherTopic("new")
    assert world.markers() == []


def test_claim_is_not_withdrawn_for_an_older_rewind_or_a_late_claim(world: World) -> None:
    """stray/ has copies under the name of the marker before it, but none is a copy of that marker."""
    world.store.write(stray_path(MarkerName(SOURCE, Position(0)).path), b"of an old rewind")
    late = MarkerName(SOURCE, Position(0)).path
    first = world.seal(0, 10, None)
    world.store.write(late_path(late, world.store.read(late) or b""), world.store.read(late) or b"")
    job = world.job(10, 20, first.tail)
    world.store.create(MarkerName(SOURCE, Position(5)).path, b"")
    world.settle(0)
    outcome = job.run()
    assert isinstance(outcome, Sealed)
    assert outcome.chain_moved


def test_claim_behind_a_copied_but_not_deleted_marker_stays(world: World) -> None:
    """An operator's rewind stopped between the copy and the delete."""
    first = world.seal(0, 10, None)
    world.store.write(stray_path(first.tail.path), world.store.read(first.tail.path) or b"")
    second = world.seal(10, 20, first.tail)
    assert not second.chain_moved
    assert world.stage().chains.tail(SOURCE) == second.tail


def test_second_rewind_of_the_same_position_is_recognized(world: World) -> None:
    path = MarkerName(SOURCE, Position(10)).path
    first = world.seal(0, 10, None)
    world.store.write(stray_path(path), b"of the first rewind")
    second = world.seal(10, 20, first.tail)
    job = world.job(20, 30, second.tail)
    world.store.write(stray_path(path, 2), world.store.read(path) or b"")
    world.settle(10)
    assert isinstance(job.run(), LostClaim)
    assert world.stage().chains.tail(SOURCE) == first.tail


def test_files_old_enough_for_a_cleanup_are_not_claimed(world: World) -> None:
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


def test_hand_made_marker_keeps_the_pending_outboxes(world: World) -> None:
    sealed = sealed_with(world, 0, None, Waiting(OUTBOX), sends=True)
    first, own = sealed.tail.outboxes
    assert first == OUTBOX
    assert world.store.read(own) is not None
    for offset in (1, 2):
        world.store.write(f"done/orders/0/{offset}.done", b"")
    tail = world.stage().chains.tail(SOURCE)
    assert tail is not None
    assert (tail.end, tail.outboxes) == (3, (first, own))
    assert world.seal(3, 4, tail).tail.outboxes == (first, own), "a writer without outlets still lists them"


def test_only_one_of_many_hand_made_markers_is_read(world: World) -> None:
    first = sealed_with(world, 0, None, Waiting(OUTBOX))
    for offset in range(1, 8):
        world.store.write(f"done/orders/0/{offset}.done", b"")
    requests: list[str] = []
    watched = TrappedStore(world.store.url, before=lambda request, path: requests.append(f"{request} {path}"))
    tail = world.stage(watched).chains.tail(SOURCE)
    assert tail is not None
    assert (tail.end, tail.outboxes) == (8, (OUTBOX,))
    read = [request for request in requests if request.startswith("read done/")]
    assert read == ["read done/orders/0/7.done", f"read {first.tail.path}"]


def test_last_flush_lists_the_pending_outboxes(world: World) -> None:
    first = sealed_with(world, 0, None, Waiting(OUTBOX))
    second = sealed_with(world, 1, first.tail, Waiting())
    assert world.stage().chains.tail(SOURCE) == second.tail
    world.store.write("done/orders/0/2.done", b"")
    tail = world.stage().chains.tail(SOURCE)
    assert tail is not None
    assert (tail.end, tail.outboxes) == (3, ())


def test_hand_made_marker_without_a_flush_has_no_pending_outboxes(world: World) -> None:
    world.store.write("done/orders/0/2.done", b"")
    tail = world.stage().chains.tail(SOURCE)
    assert tail is not None
    assert (tail.end, tail.outboxes) == (3, ())


def test_marker_that_vanishes_during_the_read_is_not_the_tail(world: World) -> None:
    first = world.seal(0, 10, None)
    world.seal(10, 20, first.tail)
    assert world.vanishing(10).chains.tail(SOURCE) == first.tail


def test_flush_below_a_hand_made_marker_may_vanish(world: World) -> None:
    first = sealed_with(world, 0, None, Waiting(OUTBOX))
    sealed_with(world, 1, first.tail, Waiting())
    world.store.write("done/orders/0/2.done", b"")
    tail = world.vanishing(1).chains.tail(SOURCE)
    assert tail is not None
    assert tail.outboxes == (OUTBOX,)


def test_chain_that_vanishes_during_the_read_is_an_error(world: World) -> None:
    tail = None
    for start in range(6):
        tail = world.seal(start, start + 1, tail).tail
    with pytest.raises(StoreError, match="disappear while they are read"):
        world.vanishing(*range(6)).chains.tail(SOURCE)


def test_chain_s_end_names_its_newest_origin(world: World) -> None:
    """What is claimed next belongs to that one: the number is of the origin, or a later one, if that was lost."""
    world.job(0, 10, None, lineage=Lineage(origin=2)).run()
    chains = world.stage().chains
    assert required(chains.tail(SOURCE)).lineage.origin == 2
    world.store.create(origin_path(SOURCE, 3), origin_to_bytes(ChainOrigin(Position(10))))
    assert required(chains.tail(SOURCE)).lineage.origin == 3
    world.store.create("done/orders/0/11.done", b"")
    assert required(chains.tail(SOURCE)).lineage.origin == 3
    other = TopicPartition(Topic("orders_2"), Partition(0))
    world.store.create(origin_path(other, 9), b"")
    assert chains.newest_origins(SOURCE.topic) == {SOURCE: 3}, "of the topic's chains alone"


def test_chain_is_read_again_if_its_origin_moves_meanwhile(world: World) -> None:
    """What is staged after it would name an origin that no longer counts."""
    assert required(world.seal(0, 10, None).marker.manifest).chain_origin == 0
    numbers = itertools.count(1)

    def move() -> None:
        world.store.create(origin_path(SOURCE, next(numbers)), origin_to_bytes(ChainOrigin(Position(5))))

    def chains(times: int) -> StagedChains:
        return world.stage(
            TrappedStore(world.store.url, before=acting("list", move, below="done/", times=times))
        ).chains

    assert required(chains(0).tail(SOURCE)).lineage.origin == 0
    assert chains(1).tail(SOURCE) is None, "a rewind to 5 leaves nothing of [0, 10)"
    with pytest.raises(StoreError, match="the origin of orders/0 moves while its markers are read"):
        chains(10).tail(SOURCE)


def test_loader_notification_is_named_after_the_writer(world: World) -> None:
    world.stage().put_notification("orders")
    assert [stored.path for stored in world.store.list("news/")] == [notification_path("orders", "w")]


@pytest.mark.parametrize(("generation", "is_last"), [(0, False), (1, True)])
def test_vanished_marker_above_a_claim_matters_only_in_the_first_generation(
    world: World, generation: int, *, is_last: bool
) -> None:
    world.seal(20, 30, None)
    name = MarkerName(SOURCE, Position(10))
    assert world.vanishing(20).chains.is_last(name, Lineage(generation)) is is_last


def test_non_marker_file_is_not_above_a_claim(world: World) -> None:
    world.store.write("done/orders/0/notes.txt", b"of an operator")
    assert not world.seal(0, 10, None).chain_moved
