"""Rows on their way into buffers, a slice at a time: each record that was read gets there once, or is read again."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

import pytest

from common.http.pages import Pausing
from common.schema import StructType, parse_ddl
from common.schema.evolution import NO_COLUMNS
from common.settings import Stream
from common.spans import Position
from common.stage.paused import StreamPart
from common.stage.paused_streams import REFRESH_EVERY_S
from stage_writer.assignment import AssignedPartitions
from stage_writer.backpressure import Backpressure
from stage_writer.chain_end import Lineage
from stage_writer.decode.batch import MessageBatch
from stage_writer.intake import SLICES_A_STEP, Intake
from stage_writer.parquet.buffer import Buffer, StagedRows
from stage_writer.partitions.buffers import Buffers
from stage_writer.partitions.dependency_wait import GIVE_UP_AFTER_S, DependencyWaits, problems
from stage_writer.partitions.flush_decision import FlushReason
from stage_writer.partitions.partition import AssignedPartition
from stage_writer.partitions.pauses import Pauses
from stage_writer.ports import Converter
from tests.builders import required, settings_of
from tests.fakes.group import Done, HandClock, InTurn, LonelyMember
from tests.fakes.markers import ORDERS
from tests.fakes.pauses import paused_streams
from tests.fakes.writers import limits_with, runtime_of
from tests.unit.stage_writer.test_waiting import Missing

MORE = parse_ddl("more STRING")
STREAM = settings_of().streams[0]
STOP = "it breaks the rule"
Result = TypeVar("Result")


@dataclass(eq=False)
class Each:
    """A converter that makes a slice of each message; some of them stop the partition, offer a field, or fail."""

    stream: Stream = STREAM
    stops: Sequence[int] = ()
    offers: Sequence[int] = ()
    fails: Sequence[int] = ()
    formats: tuple[()] = ()

    def waits(self, _batch: MessageBatch) -> None:
        return None

    def slices(self, batches: Sequence[MessageBatch]) -> Iterator[list[tuple[MessageBatch, StagedRows]]]:
        for batch in batches:
            for index, offset in enumerate(batch.offsets.tolist()):
                yield [(batch.part(index, index + 1), self._rows(offset))]

    def _rows(self, offset: int) -> StagedRows:
        if offset in self.fails:
            raise ZeroDivisionError
        if offset in self.stops:
            return StagedRows.stopped(Position(offset), STOP)
        offered: StructType = MORE if offset in self.offers else NO_COLUMNS
        return StagedRows(Position(offset + 1), 1, 0, {}, None, (), offered=offered)


@dataclass
class Owned:
    """`AssignedPartitions` of one partition."""

    by_partition: dict[object, AssignedPartition]
    held: list[AssignedPartition] = field(default_factory=list)

    def unexpected(self, assigned: AssignedPartition, _error: Exception) -> None:
        self.held.append(assigned)


class Kept:
    """`Buffers` that keep their columns, and wait for those that are offered."""

    def refresh(self, assigned: AssignedPartition) -> None:
        pass

    def dependency_of(self, _assigned: AssignedPartition, _offered: StructType) -> Missing:
        return Missing(changes_columns=True)


class World:
    def __init__(self, *, stops: Sequence[int] = (), offers: Sequence[int] = (), fails: Sequence[int] = ()) -> None:
        self.clock = HandClock()
        self.runtime = runtime_of(self.clock)
        self.group = LonelyMember(self.clock, {ORDERS: 100})
        self.converter = cast("Converter", Each(stops=stops, offers=offers, fails=fails))
        self.assigned = self.new()
        self.owned = Owned({ORDERS: self.assigned})
        self.pauses = Pauses(None, None, self.group, InTurn(), self.clock)
        self.assignment = cast("AssignedPartitions", self.owned)
        waits = DependencyWaits(self.group, self.clock, self.runtime.log)
        self.intake = Intake(self.assignment, cast("Buffers", Kept()), waits, self.pauses, self.runtime)

    def new(self) -> AssignedPartition:
        return AssignedPartition(ORDERS, self.converter, None, Lineage(), Buffer.begin(Position(0), ()), 0.0)

    def take(self, start: int, end: int) -> None:
        self.group.positions, self.group.ends = {ORDERS: start}, {ORDERS: end}
        self.intake.take([self.group._batch(ORDERS)])

    @property
    def buffered(self) -> tuple[int, int]:
        """The number of records, and the end."""
        return self.assigned.buffer.records, int(self.assigned.buffer.end)

    def convert_all(self) -> None:
        for _ in range(100):
            self.intake.convert()

    def take_and_convert(self, *spans: tuple[int, int]) -> None:
        for start, end in spans:
            self.take(start, end)
        self.convert_all()


def test_record_that_arrives_again_while_slices_wait_is_buffered_once() -> None:
    world = World()
    world.take(0, 10)
    world.intake.convert()
    assert world.buffered == (SLICES_A_STEP, SLICES_A_STEP)
    world.take(2, 12)
    world.convert_all()
    assert world.buffered == (12, 12)
    assert required(world.assigned.buffer.last_record).offset == 11


def test_writer_that_stops_converts_one_slice_at_most() -> None:
    world = World()
    world.take(0, 10)
    world.runtime.stopping.begin()
    world.intake.convert()
    assert world.buffered == (1, 1)


def test_nothing_from_a_record_on_that_may_not_be_staged_is_buffered() -> None:
    world = World(stops=[3])
    world.take_and_convert((0, 6), (6, 8))
    world.take_and_convert((8, 10))
    assert (world.buffered, world.assigned.taken) == ((3, 3), 8)
    assert STOP in required(world.assigned.stop).problem


@pytest.mark.parametrize(("first", "end"), [(0, 5), (5, 0)])
def test_span_before_a_record_that_may_not_be_staged_has_records(first: int, end: int) -> None:
    """The offsets between hold none; a span of only such offsets is no flush."""
    world = World(stops=[5])
    world.group.holes = {1, 2, 3, 4}
    world.take(first, 8)
    world.convert_all()
    assert world.buffered == (min(end, 1), end)


def test_nothing_behind_a_field_without_a_column_is_buffered() -> None:
    world = World(offers=[3])
    world.take_and_convert((0, 6), (6, 8))
    world.take_and_convert((8, 10))
    assert world.buffered == (3, 3)
    assert (world.assigned.taken, world.group.paused) == (3, {ORDERS})


def test_rows_of_a_partition_that_was_started_again_are_dropped() -> None:
    world = World()
    world.take(0, 10)
    before, world.assigned = world.assigned, world.new()
    world.owned.by_partition[ORDERS] = world.assigned
    world.convert_all()
    assert (before.buffer.records, world.assigned.buffer.records) == (0, 0)


@pytest.mark.parametrize("is_ours", [True, False])
def test_failed_conversion_holds_only_what_is_ours(*, is_ours: bool) -> None:
    world = World(fails=[1])
    world.take(0, 4)
    if not is_ours:
        world.owned.by_partition[ORDERS] = world.new()
    world.convert_all()
    assert world.owned.held == [world.assigned] * is_ours


# Reading, meanwhile.


def backpressure_of(world: World, **limits: int) -> Backpressure:
    return Backpressure(world.assignment, limits_with(**limits), world.group, world.pauses, world.runtime)


def test_nothing_is_read_while_slices_wait() -> None:
    world, flushes = World(), list[FlushReason]()
    backpressure = backpressure_of(world)
    for waits in (True, False):
        backpressure.apply(lambda _, reason: flushes.append(reason), conversion_waits=waits)
        assert world.group.paused == ({ORDERS} if waits else set())
    assert not flushes


def test_partition_that_waits_is_not_resumed_with_the_others() -> None:
    world = World()
    backpressure = backpressure_of(world)
    backpressure.apply(lambda *_: None, conversion_waits=True)
    world.assigned.wait = Missing()
    backpressure.apply(lambda *_: None, conversion_waits=False)
    assert world.group.paused == {ORDERS}


def test_stream_is_flushed_by_its_own_limits() -> None:
    world, flushes = World(), list[FlushReason]()
    world.converter = cast("Converter", Each(settings_of({"flush_records": 1}).streams[0]))
    world.assigned.converter = world.converter
    world.take(0, 1)
    world.convert_all()
    backpressure_of(world).apply(lambda _, reason: flushes.append(reason), conversion_waits=False)
    assert flushes == [FlushReason.RECORDS]


def test_wait_that_is_over_sets_the_position_and_resumes_what_is_not_paused() -> None:
    for paused in (False, True):
        world = World()
        waits = DependencyWaits(world.group, world.clock, world.runtime.log)
        waits.begin(world.assigned, Missing(is_over_at_once=True))
        world.assigned.paused = paused
        world.group.positions[ORDERS] = 50
        waits.resume_ready([world.assigned], is_patient=True)
        assert (world.assigned.wait, world.group.positions[ORDERS]) == (None, 0)
        assert world.group.paused == ({ORDERS} if paused else set())


def test_only_a_run_with_an_end_gives_up_what_it_waits_for() -> None:
    world = World()
    waits = DependencyWaits(world.group, world.clock, world.runtime.log)
    waits.begin(world.assigned, Missing(is_expected=True))
    assert problems([world.assigned]) == ()
    world.assigned.wait = Missing()
    assert problems([world.assigned, world.new()]) == ("1 partition waiting: the registry is away → bring it back",)
    world.clock.now_s += GIVE_UP_AFTER_S + 1
    waits.resume_ready([world.assigned], is_patient=True)
    with pytest.raises(type(Missing().error), match="the registry is away"):
        waits.resume_ready([world.assigned], is_patient=False)


def test_messages_that_were_dropped_are_read_again_once() -> None:
    world = World()
    world.assigned.skipped = True
    world.group.positions[ORDERS] = 50
    world.pauses.read_again([world.assigned])
    assert (world.assigned.skipped, world.group.positions[ORDERS]) == (False, 0)
    world.group.positions[ORDERS] = 50
    world.pauses.read_again([world.assigned])
    assert world.group.positions[ORDERS] == 50


@dataclass
class Process:
    """A process that an operator has paused, or not."""

    is_on: bool
    notes: tuple[str, ...] = ()


def test_paused_process_reads_none_of_its_partitions() -> None:
    world = World()
    for is_on in (True, False):
        pauses = Pauses(cast("Pausing", Process(is_on)), None, world.group, InTurn(), world.clock)
        assert pauses.among([world.assigned]) == ({ORDERS} if is_on else set())


class Hanging(InTurn):
    """A store that does not answer keeps its request waiting."""

    started = 0

    def start(self, job: Callable[[], Result]) -> Done[Result]:
        del job
        self.started += 1
        return Unending(ZeroDivisionError())


class Unending(Done[Result]):
    def done(self) -> bool:
        return False


def test_pauses_are_not_asked_for_again_while_the_store_hangs() -> None:
    world, workers = World(), Hanging()
    pauses = Pauses(None, paused_streams(part=StreamPart.STAGING), world.group, workers, world.clock)
    for _ in range(3):
        pauses.refresh()
        world.clock.now_s += REFRESH_EVERY_S
    assert workers.started == 1
