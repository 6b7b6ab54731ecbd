"""A writer with a topology: rows and state move together, even if a flush fails or is lost."""

from collections.abc import Callable
from pathlib import Path

import pytest

from stage_writer.assignment import CHECK_HELD_EVERY_S
from stage_writer.tasks.look_ups import LookUps, StoreQuery
from stage_writer.tasks.shared import SnapshotsWhen
from stage_writer.topologies.stores import StoreKind
from tests.builders import required
from tests.fakes.counting import FIRST, World, counted
from tests.fakes.metrics import numbers


def test_new_owner_continues_the_counts(tmp_path: Path) -> None:
    world = World(tmp_path, 10)
    world.steps()
    world.grow(15)
    world.new_writer()
    world.grow(21)
    assert world.staged() == counted(21)
    assert [len(state.files.changes) for state in world.states()] == [1, 2, 3]


def test_periodic_snapshot_holds_the_whole_state(tmp_path: Path) -> None:
    world = World(tmp_path, 10)
    world.new_writer(SnapshotsWhen(most_changes=2))
    for end in (10, 12, 14, 16):
        world.grow(end)
    states = world.states()
    assert [(state.files.snapshot is not None, len(state.files.changes)) for state in states] == [
        (False, 1),
        (False, 2),
        (True, 0),
        (True, 1),
    ]
    assert states[2].before == states[1].files
    world.new_writer()
    world.grow(20)
    assert world.staged() == counted(20)


def test_snapshot_follows_once_the_changes_exceed_the_state(tmp_path: Path) -> None:
    world = World(tmp_path, 10)
    world.new_writer(SnapshotsWhen(least_bytes=0))
    for end in range(10, 24):
        world.grow(end)
    changes_above = [len(state.files.changes) for state in world.states()]
    assert (changes_above.count(0), max(changes_above)) == (2, 7), "of seven keys, one in each flush"


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_store_that_was_dropped_comes_back_empty(tmp_path: Path, is_on_disk: bool) -> None:  # noqa: FBT001
    """Its old entries would lack the records since."""
    world = World(tmp_path, 0)
    disk = tmp_path / "disk" if is_on_disk else None
    for store, end in (("counts", 10), ("others", 11), ("others", 14), ("counts", 17)):
        world.new_writer(disk=disk, counts=store)
        world.grow(end)
        world.writer.revoked([FIRST])
    assert [state.files.snapshot is not None for state in world.states()] == [False, True, True, True]
    assert world.staged()[10:] == [(10, 1), (11, 1), (12, 2), (13, 2), (14, 1), (15, 1), (16, 2)]


def test_state_metrics_end_when_the_partition_is_revoked(tmp_path: Path) -> None:
    world = World(tmp_path, 10)
    world.steps()
    size = "state_entries{app_id=orders, partition=0, topic=orders}"
    assert numbers(world.metrics)[size] == 3, "two counts, and a position"
    world.writer.revoked([FIRST])
    assert size not in numbers(world.metrics)


def test_lost_claim_discards_the_state_with_the_rows(tmp_path: Path) -> None:
    world = World(tmp_path, 10)
    world.steps()
    world.group.ends[FIRST] = 14
    world.writer.step(0.2)  # read and counted, but not flushed
    # Another writer stages the same records in the meantime.
    other = World(tmp_path, 13)
    other.names = iter(range(2_000, 3_000))
    other.steps()
    world.grow(20)
    assert world.staged() == counted(20)


def test_rewind_restores_the_older_state(tmp_path: Path) -> None:
    world = World(tmp_path, 10)
    world.steps()
    world.grow(15)
    last = max(item.path for item in world.store.list("done/orders/0"))
    data = world.store.read(last)
    world.store.write(f"stray/{last}", required(data))
    world.store.delete([last])
    world.grow(20)  # the next claim is withdrawn
    world.steps()
    assert world.staged() == counted(20)


def test_missing_state_file_holds_the_partition_until_it_is_back(tmp_path: Path) -> None:
    world = World(tmp_path, 10)
    world.steps()
    (path,) = world.states()[0].files.paths
    data = world.store.read(path)
    assert data is not None
    world.store.delete([path])
    world.new_writer()
    world.grow(12)
    held = world.writer.snapshot().held[FIRST]
    assert (held.reason, path in held.problem) == ("state", True)
    assert "--to 0 --below-table" in held.remedy
    world.store.write(path, data[:-3])
    world.clock.sleep_s(CHECK_HELD_EVERY_S)
    world.steps()
    assert "cannot be read" in world.writer.snapshot().held[FIRST].problem
    world.store.write(path, data)
    world.clock.sleep_s(CHECK_HELD_EVERY_S)
    world.steps()
    assert world.staged() == counted(12)


def test_processor_can_request_a_flush(tmp_path: Path) -> None:
    world = World(tmp_path, 30)
    world.steps()
    for end in (31, 32):
        world.group.ends[FIRST] = end
        world.writer.step(0.01)
        world.writer.step(0.01)
        assert world.staged() == counted(31), "once"


@pytest.mark.parametrize(
    "change", [lambda world: world.writer.lost([FIRST]), lambda world: world.writer.revoked([FIRST])]
)
def test_revoked_or_lost_partition_discards_its_task(tmp_path: Path, change: Callable[[World], None]) -> None:
    world = World(tmp_path, 10)
    world.steps()
    world.group.ends[FIRST] = 14
    world.writer.step(0.2)
    change(world)
    world.group.joined = False
    world.group.positions.clear()
    world.grow(20)
    assert world.staged() == counted(20)


def test_task_resumes_from_disk_without_reading_the_stage(tmp_path: Path) -> None:
    world = World(tmp_path, 0)
    disk = tmp_path / "disk"
    world.new_writer(disk=disk)
    world.grow(10)
    world.writer.revoked([FIRST])
    world.new_writer(disk=disk)
    world.grow(17)
    assert world.restored_bytes() == 0
    # The previous writer still holds its disk: this one uses another folder, and the stage.
    world.new_writer(disk=disk)
    world.grow(21)
    assert world.restored_bytes() > 0
    assert world.staged() == counted(21)


def test_outdated_disk_state_is_discarded(tmp_path: Path) -> None:
    world = World(tmp_path, 0)
    disk = tmp_path / "disk"
    world.new_writer(disk=disk)
    world.grow(10)
    world.writer.revoked([FIRST])
    world.new_writer()
    world.grow(15)
    world.writer.revoked([FIRST])
    world.new_writer(disk=disk)
    world.grow(21)
    assert world.restored_bytes() > 0
    assert world.staged() == counted(21)


def test_lookups_see_unflushed_changes_but_no_revoked_task(tmp_path: Path) -> None:
    world = World(tmp_path, 0)
    look_ups = LookUps()
    world.new_writer(look_ups=look_ups)
    world.grow(10)
    world.group.ends[FIRST] = 14
    world.writer.step(0.2)
    (task,) = look_ups.tasks("orders")
    asked = StoreQuery(keys=(0,))
    assert [entry.value for entry in task.find("counts", StoreKind.KEY_VALUE, asked) or ()] == [7]
    assert len(world.staged()) == 10
    world.writer.lost([FIRST])
    assert task.find("counts", StoreKind.KEY_VALUE, asked) is None
    assert look_ups.tasks("orders") == []
