"""`delta-loader status` next to a loader that loads and settles what the command is reading."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from common.ports import StoredObject
from common.spans import Position
from common.stage.markers import Marker
from delta_loader.ports import in_turn
from delta_loader.stage.reading import Stage
from delta_loader.status.collecting import stream_status
from tests.fakes.loading import settings_for
from tests.fakes.staging import Staging
from tests.fakes.stores import TrappedStore
from tests.unit.common.tables.test_delta_log import METADATA, PROTOCOL, commit, txn


class Store(TrappedStore):
    def stat(self, path: str) -> StoredObject | None:
        self.before("stat", path)
        return super().stat(path)


class World:
    """Markers of ten offsets each; the loader loads and settles one whenever the trap of a test springs."""

    def __init__(self, folder: Path, markers: int, *, mixed: bool = False) -> None:
        self.staging = Staging.below(folder)
        self.waiting = [self.staging.flush(0, start * 10, start * 10 + 10, mixed=mixed) for start in range(markers)]
        self.version = -1
        self.commit(PROTOCOL, METADATA)
        self.load()

    def commit(self, *actions: object) -> None:
        self.version += 1
        commit(self.staging.store(self.staging.table), self.version, *actions)

    def load(self) -> None:
        marker = self.waiting.pop(0)
        self.commit(txn("orders-0", int(marker.span.end) - 1))
        self.settle(marker)

    def settle(self, marker: Marker) -> None:
        stage = self.staging.store(self.staging.stage_url)
        stage.delete(
            [marker.name.path, *(file.path for table in marker.tables for file in table.files if file.is_mixed)]
        )

    def reasons(self, trap: Callable[[str, str], None] = lambda *_: None, ends: Iterable[int] = ()) -> list[str | None]:
        """Why partitions are held; ``ends`` are Kafka's answers, one after the other."""
        (stream,) = settings_for(self.staging).streams
        stage = Stage(Store(self.staging.stage_url, before=trap), in_turn)
        answers = ({self.staging.source(0): Position(end)} for end in ends)
        status = stream_status(stream, stage, self.staging.store, lambda _: next(answers, None))
        return [held.reason if held else None for each in status.partitions for held in (each.held, each.writers_hold)]


@pytest.mark.parametrize("loads", [1, 4])
def test_markers_that_are_settled_while_they_are_read_are_no_gap(tmp_path: Path, loads: int) -> None:
    world, listed = World(tmp_path, 9), False

    def trap(request: str, path: str) -> None:
        nonlocal listed, loads
        listed = listed or (request == "list" and path.startswith("done"))
        if loads and listed and (request, path) == ("read", world.waiting[0].name.path):
            loads, listed = loads - 1, False  # once for each listing
            world.load()

    assert world.reasons(trap) == [None, None]
    assert loads == 0


def test_staged_file_that_is_loaded_while_it_is_looked_for_is_not_missing(tmp_path: Path) -> None:
    world = World(tmp_path, 3, mixed=True)
    first = world.waiting[0]

    def trap(request: str, path: str) -> None:
        if (request, path) == ("stat", first.tables[0].files[0].path) and first in world.waiting:
            world.load()

    assert world.reasons(trap) == [None, None]


def test_gap_is_reported(tmp_path: Path) -> None:
    world = World(tmp_path, 4)
    world.settle(world.waiting[0])
    ends = iter([15, 40, 40])  # each look at a chain that is ahead of the first answer asks again
    assert world.reasons(ends=ends) == ["gap", None]
    assert not list(ends)
    world.load()
    assert world.reasons() == [None, None]
