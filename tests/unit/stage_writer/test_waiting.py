"""Only the partitions that need an unavailable registry wait for it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.errors import RegistryError
from common.settings import Stream
from common.spans import Partition, TopicPartition
from stage_writer.convert import StreamConverter
from stage_writer.decode.batch import MessageBatch
from stage_writer.decode.dependency import Dependency
from stage_writer.loop import StageWriter
from stage_writer.partitions.dependency_wait import GIVE_UP_AFTER_S
from stage_writer.shape.slicing import Staged
from stage_writer.stage.staging import ObjectStage
from tests.fakes.writers import limits_with, new_writer, runtime_of
from tests.unit.stage_writer.test_service import FIRST, ORDERS, SECOND, World


@dataclass
class Missing(Dependency):
    is_there: bool = False
    asked: int = 0
    changes_columns: bool = False
    is_expected: bool = False
    is_over_at_once: bool = False

    @property
    def error(self) -> RegistryError:
        return RegistryError("the registry is away", "bring it back")

    def is_over(self) -> bool:
        self.asked += 1
        return self.is_there or self.is_over_at_once


class Gated(StreamConverter):
    """Needs the missing dependency for records of the first partition from an offset on."""

    def __init__(self, stream: Stream, missing: Missing, first: int) -> None:
        super().__init__(stream)
        self.missing, self.first = missing, first

    def waits(self, batch: MessageBatch) -> Dependency | None:
        needs = batch.partition == FIRST and len(batch) and batch.end > self.first
        return self.missing if needs and not self.missing.is_there else None

    def slices(self, batches: Sequence[MessageBatch]) -> Iterator[Staged]:
        assert all(self.waits(batch) is None for batch in batches)
        return super().slices(batches)


class Waits(World):
    """A world whose first partition needs a dependency from an offset on."""

    def __init__(self, folder: Path, ends: dict[TopicPartition, int], first: int = 0) -> None:
        self.missing, self.first = Missing(), first
        super().__init__(folder, ends)

    def new_writer(self, **limits: int) -> StageWriter:
        names = iter(range(1_000))
        writer = new_writer(
            Gated(self.settings.streams[0], self.missing, self.first),
            source=self.group,
            stage=ObjectStage(self.store, lambda _: self.table, self.clock, lambda: f"{next(names):032x}", "w"),
            runtime=runtime_of(self.clock),
            limits=limits_with(**limits),
        )
        self.group.subscribe(self.settings.streams, writer)
        return writer


def test_waiting_partition_stages_nothing_while_others_continue(tmp_path: Path) -> None:
    world = Waits(tmp_path, {FIRST: 10, SECOND: 10})
    world.steps()
    assert (world.chain(FIRST), world.chain(SECOND)) == ([], [(0, 10, "first", 0)])
    assert world.problems() == "1 partition waiting: the registry is away → bring it back"
    assert world.group.paused == {FIRST}
    world.group.ends |= {FIRST: 15, SECOND: 20}
    world.steps()
    assert (world.chain(FIRST), world.chain(SECOND)[1:]) == ([], [(10, 20, "first", 0)])
    world.missing.is_there = True
    world.steps()
    assert world.chain(FIRST) == [(0, 15, "first", 0)]
    assert (world.problems(), world.group.paused) == ("", set())


def test_records_before_the_wait_are_flushed_when_due(tmp_path: Path) -> None:
    world = Waits(tmp_path, {FIRST: 5}, first=5)
    world.steps(1, 0.1)
    world.group.ends[FIRST] = 9
    world.steps(10)
    assert world.chain(FIRST) == [(0, 5, "first", 0)]
    world.missing.is_there = True
    world.steps()
    assert world.chain(FIRST) == [(0, 5, "first", 0), (5, 9, "first", 0)]


def test_records_before_the_wait_are_flushed_at_once_if_the_columns_change(tmp_path: Path) -> None:
    world = Waits(tmp_path, {FIRST: 5}, first=5)
    world.missing = Missing(changes_columns=True, is_over_at_once=True)
    world.writer = world.new_writer(flush_after_s=20)
    world.steps(1, 0.1)
    assert world.chain(FIRST) == []
    world.group.ends[FIRST] = 9
    world.steps(1, 0.1)
    assert world.group.paused == {FIRST}, "not resumed while the buffer has rows with the old columns"
    assert world.chain(FIRST) == [(0, 5, "first", 0)]
    world.missing.is_there = True
    world.steps(2, 0.1)
    assert world.group.paused == set()
    world.steps(30, 1.0)
    assert world.chain(FIRST)[-1] == (5, 9, "first", 0)


def test_stop_ends_the_writer_while_a_partition_waits(tmp_path: Path) -> None:
    world = Waits(tmp_path, {FIRST: 10, SECOND: 10})
    world.steps(2, 0.1)
    world.writer.stop()
    world.writer.run(until_caught_up=False)
    assert (world.chain(FIRST), world.chain(SECOND)) == ([], [(0, 10, "first", 0)])


def test_until_caught_up_gives_up_with_the_dependency_error(tmp_path: Path) -> None:
    world = Waits(tmp_path, {FIRST: 10, TopicPartition(ORDERS, Partition(7)): 10})
    began_s = world.clock.now_s
    with pytest.raises(RegistryError, match="the registry is away"):
        world.writer.run(until_caught_up=True)
    assert GIVE_UP_AFTER_S < world.clock.now_s - began_s < GIVE_UP_AFTER_S + 10


def test_memory_pressure_does_not_resume_a_waiting_partition(tmp_path: Path) -> None:
    """Backpressure pauses and resumes partitions too, and must not resume this one."""
    world = Waits(tmp_path, {FIRST: 5, SECOND: 2_000}, first=5)
    world.writer = world.new_writer(memory_bytes=20_000)
    world.steps(1, 0.1)
    world.group.ends |= {FIRST: 9}
    for end in range(3_000, 9_000, 1_000):
        world.group.ends |= {SECOND: end}
        world.steps(2)
    assert FIRST in world.group.paused
    world.missing.is_there = True
    world.steps()
    assert world.chain(FIRST)[-1][1] == 9
