"""Late and repeated records and ends from a Kafka client (stage_writer/intake.py)."""

from pathlib import Path

import pytest

from common.errors import StoreError
from common.spans import Position
from stage_writer.stage.staging import ObjectStage
from tests.staged import manifests
from tests.unit.stage_writer import test_unexpected as exploding
from tests.unit.stage_writer.test_service import FIRST, World


def staged(world: World) -> list[tuple[int, int, int]]:
    """Each marker's start, end and number of rows."""
    markers = manifests(world.store, "done/orders/0")
    return sorted(
        (marker.span.start, marker.span.end, sum(table.rows for table in marker.tables)) for marker in markers
    )


def test_records_before_the_position_of_a_new_owner_are_dropped(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps()
    world.writer = world.new_writer()
    world.steps(1)
    world.group.positions[FIRST] = 4
    world.group.ends[FIRST] = 12
    world.steps()
    assert staged(world) == [(0, 10, 10), (10, 12, 2)]


def test_records_already_in_the_buffer_are_dropped(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps(1, 0.0)
    world.group.positions[FIRST] = 4
    world.steps()
    assert staged(world) == [(0, 10, 10)]


def test_end_before_the_buffer_end_shortens_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps(1, 0.0)
    world.writer.assignment.by_partition[FIRST].reach_end(Position(4))
    world.group.paused.add(FIRST)  # no later end is reported
    world.steps()
    assert staged(world) == [(0, 10, 10)]


def test_end_counts_once_all_records_before_it_are_buffered(tmp_path: Path) -> None:
    world = exploding.World(tmp_path)
    world.steps(3, 0.1)
    world.group.produce(exploding.BOMBS, *[{"id": number, "items": list(range(8))} for number in range(40)])
    world.steps(1, 0.1)
    partition = world.writer.assignment.by_partition[exploding.BOMBS]
    assert 0 < partition.buffer.end < 40, "slices wait"
    assert partition.read_to == 0
    world.steps(30)
    markers = manifests(world.store, "done/bombs")
    assert [item.span.start for item in markers[1:]] == [item.span.end for item in markers[:-1]]
    assert (markers[-1].span.end, sum(item.tables[0].rows for item in markers)) == (40, 320)


def test_what_was_read_waits_unconverted_while_memory_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise StoreError("unavailable")

    world = exploding.World(tmp_path, memory_bytes=1)
    world.steps(3, 0.1)
    world.group.produce(exploding.BOMBS, *[{"id": number, "items": list(range(8))} for number in range(40)])
    with monkeypatch.context() as patched:
        patched.setattr(ObjectStage, "upload", fails)
        world.steps(1, 0.1)
        partition = world.writer.assignment.by_partition[exploding.BOMBS]
        converted = partition.buffer.end
        assert 0 < converted < 40
        world.steps(10, 0.1)
        assert partition.buffer.end == converted
    world.steps(60)
    assert manifests(world.store, "done/bombs")[-1].span.end == 40
