"""Partitions of a group member: what holds them up, where they are read from, and what is dropped with them."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from common.errors import BrokerError, ExitCode, KafkaDeltaExpressError, StoreError, StoreRefusedError
from common.settings import Stream
from common.spans import Position, TopicPartition
from common.stage.chain_origins import ChainOrigin, origin_path, origin_to_bytes
from common.stage.markers import Marker
from common.stage.task_files import OutboxName
from stage_writer.assignment import GIVE_UP_AFTER_S, Outage
from stage_writer.chains import StagedChains
from stage_writer.outbox.ports import Outlet, Outlets
from stage_writer.ports import OUT_OF_RANGE, PartitionFault
from stage_writer.stage import staging
from stage_writer.stage.staging import NewFile, ObjectStage
from tests.builders import required
from tests.fakes.group import HandClock, LonelyMember
from tests.fakes.markers import flush, put
from tests.unit.stage_writer.test_service import FIRST, SECOND, World


def test_success_of_any_partition_ends_an_outage() -> None:
    clock = HandClock()
    outage = Outage(clock)
    for _ in range(3):
        outage.failed(FIRST, StoreError("no answer"))
        clock.now_s += GIVE_UP_AFTER_S
        assert outage.is_on
        outage.ended(SECOND)
        assert not outage.is_on


def test_run_that_waits_for_each_partition_gives_up_one_that_fails_alone() -> None:
    clock = HandClock()
    outage = Outage(clock)
    outage.waits_for_each = True
    outage.failed(FIRST, StoreError("no answer"))
    clock.now_s += GIVE_UP_AFTER_S
    outage.ended(SECOND)
    outage.failed(SECOND, StoreError("no answer"))
    outage.failed(FIRST, StoreError("no answer"))
    clock.now_s += 1
    outage.failed(SECOND, StoreError("no answer"))
    with pytest.raises(KafkaDeltaExpressError, match="no answer"):
        outage.failed(FIRST, StoreError("no answer"))
    outage.forget(FIRST)
    outage.failed(FIRST, StoreError("no answer"))


@pytest.mark.parametrize("error", [StoreError("no"), StoreRefusedError("no"), BrokerError("no")])
def test_outage_that_ends_the_writer_may_be_over_after_a_restart(error: StoreError | BrokerError) -> None:
    clock = HandClock()
    outage = Outage(clock)
    outage.failed(FIRST, error)
    clock.now_s += GIVE_UP_AFTER_S + 1
    with pytest.raises(KafkaDeltaExpressError) as given_up:
        outage.failed(FIRST, error)
    assert given_up.value.exit_code is ExitCode.FAILED


def test_fault_of_a_partition_that_is_not_ours_is_ignored(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps(1)
    world.writer.assignment.fault(PartitionFault(SECOND, "out of range", "", OUT_OF_RANGE))
    assert dict(world.writer.assignment.held) == {}


def test_partition_that_is_started_again_is_read_from_its_chains_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not resumed before its position is set."""
    resumed: list[int] = []

    def resume(group: LonelyMember, partitions: Collection[TopicPartition]) -> None:
        resumed.extend(group.positions[partition] for partition in partitions)
        group.paused -= set(partitions)

    world = World(tmp_path, {FIRST: 10})
    world.steps(1)
    monkeypatch.setattr(LonelyMember, "resume", resume)
    put(world.store, flush(0, 4))  # another writer's
    world.steps()
    assert resumed[:1] == [4]
    assert world.spans() == [(0, 4), (4, 10)]


def test_partition_that_comes_back_is_not_held(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    path = flush(0, 4).name.path
    world.store.write(path, b"{")
    world.steps(1)
    assert list(world.writer.assignment.held) == [FIRST]
    world.store.delete([path])
    assert world.writer.assigned([FIRST]) == {FIRST: 0}
    assert dict(world.writer.assignment.held) == {}


def steps_until(world: World, is_so: Callable[[], bool]) -> None:
    for _ in range(50):
        if is_so():
            return
        world.steps(1, 0.1)
    pytest.fail("it never came to that")


@dataclass
class Opened(Outlets):
    outboxes: list[tuple[str, ...]] = field(default_factory=list)

    def open(self, partition: TopicPartition, stream: Stream, outboxes: tuple[str, ...]) -> Outlet | None:
        del partition, stream
        self.outboxes.append(outboxes)
        return None


@pytest.mark.parametrize("has_marker", [True, False])
def test_undelivered_outboxes_are_known_to_the_next_owner(tmp_path: Path, *, has_marker: bool) -> None:
    """They are named by the chain's last marker, or by its origin, which a rewind leaves."""
    world, opened = World(tmp_path, {FIRST: 10}), Opened()
    world.outlets = opened
    undelivered = (OutboxName(FIRST, Position(0), 0, "a" * 32).path,)
    if has_marker:
        marker = flush(0, 4)
        put(world.store, Marker(marker.name, replace(required(marker.manifest), outboxes=undelivered)))
    else:
        origin = ChainOrigin(Position(4), outboxes=undelivered)
        world.store.write(origin_path(FIRST), origin_to_bytes(origin))
    world.writer = world.new_writer()
    world.steps(1)
    assert opened.outboxes == [undelivered]


def test_flush_of_a_revocation_waits_for_the_one_in_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upload, failures = ObjectStage.upload, [StoreError("no answer")]

    def failing_once(stage: ObjectStage, file: NewFile) -> None:
        if failures:
            raise failures.pop()
        upload(stage, file)

    monkeypatch.setattr(ObjectStage, "upload", failing_once)
    world = World(tmp_path, {FIRST: 10})
    world.steps(1)
    steps_until(world, lambda: required(world.writer.assignment.by_partition.get(FIRST)).in_flight is not None)
    world.group.ends[FIRST] = 15
    world.steps(1, 0.0)
    assert not failures
    world.writer.revoked([FIRST])
    assert world.spans() == [(0, 10), (10, 15)]


def test_flush_that_became_too_old_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, {FIRST: 10})
    with monkeypatch.context() as patched:
        patched.setattr(staging, "LONGEST_FLUSH_S", -1.0)
        steps_until(world, lambda: bool(world.writer.assignment.starting))
    world.group.ends[FIRST] = 12
    world.steps()
    assert sum(end - start for start, end in world.spans()) == 12


def test_chain_that_has_moved_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, {FIRST: 10})
    with monkeypatch.context() as patched:
        patched.setattr(StagedChains, "is_last", lambda *_: False)
        steps_until(world, lambda: bool(world.spans()))
        world.writer._flushes.finish()
    assert list(world.writer.assignment.starting) == [FIRST]
