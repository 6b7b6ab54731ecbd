"""The stage's listing as the loader holds it: any spelling of a name in few bytes, and what an idle pass reads."""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from common.ports import StoredObject
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.markers import MarkerName
from delta_loader.ports import in_turn
from delta_loader.service import LoaderService
from delta_loader.stage.listed import Listing, listing_of, without
from delta_loader.stage.reading import Stage
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.loading import loader_for, settings_for
from tests.fakes.staging import Staging
from tests.fakes.stores import TrappedStore

SOURCE = TopicPartition(Topic("orders"), Partition(3))


def _listing(*written: tuple[str, int]) -> Listing:
    objects = (StoredObject(path, 1, written_ms) for path, written_ms in written)
    return listing_of((name, item) for item in objects if (name := MarkerName.parse(item.path)) is not None)


def _name(start: int) -> MarkerName:
    return MarkerName(SOURCE, Position(start))


def test_marker_names_are_sorted_by_position_in_any_spelling() -> None:
    padded = _name(7).path
    listed = _listing((_name(40).path, 4), ("done/orders/3/9.done", 2), (padded, 1), ("done/orders/3/7.done", 1))[
        SOURCE
    ]
    assert list(listed.names) == [_name(7), _name(9), _name(40)]
    assert dict(listed.modified_ms) == {_name(7): 1, _name(9): 2, _name(40): 4}
    assert list(listed.modified_ms.values()) == [1, 2, 4]
    assert listed.paths(_name(7)) == (padded, "done/orders/3/7.done")
    assert listed.paths(_name(9)) == ("done/orders/3/9.done",)
    assert listed.paths(_name(40)) == (_name(40).path,)
    assert _name(9) in listed.modified_ms
    assert _name(8) not in listed.modified_ms
    assert (listed.names[0], listed.names[-1], len(listed.names)) == (_name(7), _name(40), 3)


def test_marker_window_begins_before_the_position() -> None:
    listed = _listing(*((_name(start).path, start) for start in range(0, 100, 10)))[SOURCE]
    assert listed.window_at(None, 2) == [_name(0), _name(10)]
    assert listed.window_at(Position(30), 2) == [_name(20), _name(30), _name(40)]
    assert listed.window_at(Position(35), 2) == [_name(30), _name(40), _name(50)]
    assert listed.window_at(Position(100), 2) == [_name(90)]
    assert [listed.waiting(Position(position)) for position in (0, 30, 35, 100)] == [10, 7, 6, 0]
    assert listed.waiting(None) == 10


def test_removed_markers_and_empty_partitions_are_not_listed() -> None:
    other = TopicPartition(Topic("orders"), Partition(4))
    listing = _listing((_name(0).path, 1), (_name(10).path, 2), (MarkerName(other, Position(0)).path, 3))
    left = without(listing, [_name(0), MarkerName(other, Position(0))])
    assert {partition: list(listed.names) for partition, listed in left.items()} == {SOURCE: [_name(10)]}
    assert list(left[SOURCE].modified_ms.items()) == [(_name(10), 2)]


def test_listed_marker_takes_few_bytes() -> None:
    listed = _listing(*((_name(start).path, start) for start in range(10_000)))[SOURCE]
    assert sys.getsizeof(listed.starts) + sys.getsizeof(listed.written_ms) < 10_000 * 20
    assert not listed.spelled


@pytest.mark.parametrize("apart_s", [60, 0])
def test_idle_pass_reads_few_of_many_kept_markers(tmp_path: Path, apart_s: int) -> None:
    """One marker of each partition; a few more when the store's times do not rule out a late claim."""
    staging = Staging(str(tmp_path))
    for start in range(0, 400, 10):
        for partition in range(2):
            staging.flush(partition, start, start + 10)
    now_s = time.time()
    for path in Path(staging.stage_url).rglob("*.done"):
        written_s = now_s - 6000 + apart_s * int(path.stem) // 10
        os.utime(path, (written_s, written_s))
    tables = MemoryDeltaTables()
    loader_for(staging, tables).run_pass()
    read: list[str] = []
    store = TrappedStore(staging.stage_url, after=lambda _, path: read.append(path))
    settings = settings_for(staging)
    ports = replace(loader_for(staging, tables)._ports, stage=Stage(store, in_turn))
    (report,) = LoaderService(settings.streams, settings.loader, ports).run_pass()
    assert (report.failure, report.commits, report.strays) == (None, 0, 0)
    assert sum(path.startswith("done/") for path in read) <= (2 if apart_s else 2 * 17)
