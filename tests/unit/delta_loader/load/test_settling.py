"""Which markers may be deleted, and through what time a table is complete; and loaders that settle at the same time."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from common.ports import StoredObject
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.data_files import waiting_folder
from common.stage.idle import MAX_PARTITION, IdleFact, StreamFact
from common.stage.markers import Marker, MarkerName
from common.storage.store import FsspecStore
from common.tables.transactions import TxnIds
from common.tables.urls import comparable
from delta_loader.load.settle import (
    IdleFacts,
    highest_timestamp_ms,
    newest_fact,
    settle_candidates,
    settled,
    unknown_partitions,
    valid_through_ms,
)
from delta_loader.load.settling import Settling
from delta_loader.plan.plan import AnyMarker, UnreadableMarker
from delta_loader.ports import in_turn
from delta_loader.service import LoaderService
from delta_loader.stage.identity import StreamIdentity
from delta_loader.stage.listed import listing_of
from delta_loader.stage.reading import Stage
from tests.builders import required
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.loading import loader_for, settings_for
from tests.fakes.staging import Staging
from tests.fakes.stores import Trap, TrappedStore, acting
from tests.unit.delta_loader.load.test_interplay import Restorable
from tests.unit.delta_loader.plan.test_plan import SOURCE, by_hand, marker
from tests.unit.delta_loader.test_service import Later

UNREADABLE = UnreadableMarker(MarkerName(SOURCE, Position(0)), "cut short")


def test_settling_keeps_the_last_young_and_unloaded_markers() -> None:
    written_ms = {MarkerName(SOURCE, Position(start)): start for start in (0, 10, 20, 30)}
    candidates = settle_candidates(sorted(written_ms), written_ms, Position(30), 1000)
    assert [name.start for name in candidates] == [0, 10, 20]
    assert [name.start for name in settle_candidates(sorted(written_ms), written_ms, Position(40), 1000)] == [0, 10, 20]
    assert [name.start for name in settle_candidates(sorted(written_ms), written_ms, Position(30), 10)] == [0]
    assert [name.start for name in settle_candidates(sorted(written_ms), written_ms, Position(20), 1000)] == [0, 10]
    assert settle_candidates(sorted(written_ms), written_ms, None, 1000) == ()
    assert [name.start for name in settled([marker(20, 30), marker(0, 10), marker(10, 20)], Position(30))] == [
        0,
        10,
        20,
    ]


def test_settling_goes_from_the_low_end_only() -> None:
    """A writer relies on it: the marker before its own is there only while all above that one are (G2)."""
    written_ms = {MarkerName(SOURCE, Position(start)): age for start, age in ((0, 5), (10, 50), (20, 5), (30, 5))}
    assert [name.start for name in settle_candidates(sorted(written_ms), written_ms, Position(40), 10)] == [0]
    for middle in (marker(10, 35), UnreadableMarker(MarkerName(SOURCE, Position(10)), "cut short")):
        assert [name.start for name in settled([marker(0, 10), middle, marker(20, 30)], Position(30))] == [0]
    assert settled([], Position(30)) == ()


def test_last_loaded_marker_of_a_joined_chain_is_kept() -> None:
    chain = TopicPartition(Topic("orders+payments"), Partition(0))
    markers = [replace(by_hand(start), name=MarkerName(chain, Position(start))) for start in (0, 1, 2, 3)]
    assert [name.start for name in settled(markers, Position(3))] == [0, 1]
    assert settled(markers, Position(0)) == ()


def test_idle_time_is_of_the_newest_fact_of_the_generation_up_to_the_position() -> None:
    facts = [IdleFact(SOURCE, Position(end), ms, number) for end, ms, number in ((5, 70, 0), (5, 60, 0), (6, 80, 0))]
    idle = IdleFacts([*facts, IdleFact(SOURCE, Position(5), 90, 1)])
    assert [idle.through_ms(SOURCE, Position(end), 0) for end in (4, 5, 6)] == [None, 70, 80]
    assert (idle.through_ms(SOURCE, None, 0), idle.through_ms(SOURCE, Position(5), 1)) == (None, 90)


def test_table_is_complete_through_the_slowest_partition() -> None:
    other = TopicPartition(Topic("orders"), Partition(1))
    assert valid_through_ms({SOURCE: 5, other: 3}, 9) == 3
    assert valid_through_ms({SOURCE: 5, other: 3}, 2) == 2, "what was added since then is not known"
    assert valid_through_ms({SOURCE: 5, other: None}, 9) is None
    assert valid_through_ms({}, 9) is None


def test_highest_timestamp_is_of_loaded_markers() -> None:
    timed = [of_time(marker(0, 10), 6), of_time(marker(10, 20), 8), of_time(marker(20, 30), 99)]
    markers: list[AnyMarker] = [UNREADABLE, by_hand(3), of_time(marker(0, 10), None), *timed]
    assert highest_timestamp_ms(markers, Position(20)) == 8
    assert highest_timestamp_ms(markers, Position(19)) == 6
    assert highest_timestamp_ms(markers, None) is None
    assert highest_timestamp_ms([by_hand(3)], Position(4)) is None


def of_time(original: Marker, highest_ms: int | None) -> Marker:
    return replace(original, manifest=replace(required(original.manifest), highest_timestamp_ms=highest_ms))


def test_newest_fact_of_the_stream_counts() -> None:
    facts = [StreamFact("app", 5, {}), StreamFact("app", 7, {}), StreamFact("another", 9, {}), StreamFact("app", 6, {})]
    assert newest_fact("app", facts) == facts[1]
    assert newest_fact("a third", facts) is None


@pytest.mark.parametrize(
    ("partition", "partitions", "markers", "is_unknown"),
    [
        (3, 3, [by_hand(0)], True),
        (3, 3, [by_hand(0), marker(1, 10)], False),
        (3, 3, [marker(0, 10)], False),
        (3, 3, [UNREADABLE], False),
        (3, 3, [], False),
        (3, 4, [by_hand(0)], False),
        (3, None, [by_hand(0)], False),
        (MAX_PARTITION, None, [by_hand(0)], False),
        (MAX_PARTITION + 1, None, [by_hand(0)], True),
    ],
)
def test_partition_with_only_hand_made_markers_and_not_in_kafka_is_unknown(
    partition: int, partitions: int | None, markers: list[AnyMarker], *, is_unknown: bool
) -> None:
    topic_partition = TopicPartition(SOURCE.topic, Partition(partition))
    known = None if partitions is None else StreamFact("app", 0, {SOURCE.topic: partitions})
    assert unknown_partitions({topic_partition: markers}, known) == ({topic_partition} if is_unknown else set())


@dataclass
class Settled:
    """A stage of one stream whose markers a table is past, written at the second 1000 by the store's clock."""

    staging: Staging
    store_s: int = 1000
    positions: dict[int, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    gone_at: tuple[str, int] | None = None
    may_delete: bool = True

    def run(self, now_s: int, keep_s: int) -> int:
        (stream,) = settings_for(self.staging).streams
        stage = Stage(ClockedStore(self), in_turn)
        listed = stage.listing(stream)
        written = {
            partition: [StoredObject(name.path, 0, 1_000_000) for name in listed[partition].names]
            for partition in listed
        }
        listing = listing_of(
            (name, item)
            for items in written.values()
            for item in items
            if (name := MarkerName.parse(item.path)) is not None
        )
        tables = {comparable(url): url for url in stream.tables}
        settling = Settling(stage, tables, self._finished, self._look_again)
        ids = TxnIds("orders", several_topics=False)
        return settling.run(listing, StreamIdentity(stream, ids), now_s * 1000, keep_s * 1000)

    def _finished(self, partition: TopicPartition) -> Position | None:
        position = self.positions.get(int(partition.partition))
        return None if position is None else Position(position)

    def _look_again(self) -> bool:
        self.asked.append("tables")
        return self.may_delete


class ClockedStore(FsspecStore):
    """A stage whose clock a test sets, and in which a marker is gone at the nth time that it is read."""

    def __init__(self, world: Settled) -> None:
        super().__init__(world.staging.stage_url)
        self._world = world

    def stat(self, path: str) -> StoredObject | None:
        self._world.asked.append("time")
        stored = super().stat(path)
        return None if stored is None else replace(stored, modified_ms=self._world.store_s * 1000)

    def read(self, path: str) -> bytes | None:
        self._world.read.append(path)
        if (path, self._world.read.count(path)) == self._world.gone_at:
            super().delete([path])
        return super().read(path)

    def delete(self, paths: Iterable[str]) -> None:
        paths = [*paths]
        self._world.deleted += paths
        super().delete(paths)


@pytest.fixture
def stage(tmp_path: Path) -> Settled:
    staging = Staging.below(tmp_path)
    for start in (0, 10, 20):
        staging.flush(0, start, start + 10, mixed=True)
        staging.flush(1, start, start + 10)
    return Settled(staging, positions={0: 30})


def test_only_loaded_markers_are_deleted_with_their_mixed_files(stage: Settled) -> None:
    stage.positions[1] = 10
    assert stage.run(2000, 0) == 3
    assert stage.asked == ["tables"], "without a retention the store's time is of no interest"
    assert [path.rpartition("/")[2][-7:-5] for path in stage.staging.markers()] == ["20", "10", "20"]
    assert len(mixed_files(stage)) == 1
    assert len(stage.deleted) == 5, "no table's file is looked for in the stage"


def test_marker_that_is_loaded_in_part_keeps_its_mixed_files(stage: Settled) -> None:
    stage.positions[0] = 15
    assert stage.run(2000, 0) == 1
    assert len(mixed_files(stage)) == 2


def mixed_files(stage: Settled) -> list[str]:
    store = stage.staging.store(stage.staging.stage_url)
    return [stored.path for stored in store.list(waiting_folder(stage.staging.table))]


def test_nothing_is_read_while_nothing_is_due(stage: Settled) -> None:
    assert stage.run(1060, 60) == 0
    assert stage.asked == []


@pytest.mark.parametrize(("store_s", "deleted"), [(999, 0), (1060, 0), (1061, 2)])
def test_marker_age_is_by_the_clock_of_the_store(stage: Settled, store_s: int, deleted: int) -> None:
    stage.store_s = store_s
    assert stage.run(1062, 60) == deleted
    assert stage.asked == (["time", "tables"] if deleted else ["time"])


def test_nothing_is_deleted_if_the_tables_do_not_allow_it(stage: Settled) -> None:
    stage.may_delete = False
    assert stage.run(2000, 0) == 0
    assert len(stage.staging.markers()) == 6


@pytest.mark.parametrize("reading", [1, 2])
def test_markers_above_one_that_is_gone_meanwhile_stay(stage: Settled, reading: int) -> None:
    """A rewind took it, and made one below those that the listing names."""
    stage.gone_at = (stage.staging.markers()[0], reading)
    assert stage.run(2000, 0) == 0
    assert [path.rpartition("/")[2][-7:-5] for path in stage.staging.markers()] == ["10", "20", "00", "10", "20"]
    stage.gone_at = (stage.staging.markers()[0], reading + 5)
    assert stage.run(2000, 0) == 1, "a listing of what is there settles again"


class Store(TrappedStore):
    def stat(self, path: str) -> StoredObject | None:
        self.before("stat", path)
        return super().stat(path)


@dataclass
class Trapped(Staging):
    trap: Trap = lambda *_: None

    def store(self, url: str) -> Store:
        return Store(url, self.storage_options, before=self.trap)


def settling(staging: Staging, tables: MemoryDeltaTables) -> LoaderService:
    return loader_for(staging, tables, settings_for(staging, marker_retention=0), Later(1))


def loader_next_to(staging: Staging, tables: MemoryDeltaTables, trap: Trap) -> LoaderService:
    return loader_for(Trapped(staging.root, storage_options=staging.storage_options, trap=trap), tables)


@pytest.mark.parametrize("read", [0, 10, 20, 30])
def test_markers_settled_by_another_loader_are_no_gap(staging: Staging, tables: MemoryDeltaTables, read: int) -> None:
    other = settling(staging, tables)
    staging.flush(0, 0, 10)
    other.run_pass()
    markers = {start: staging.flush(0, start, start + 10) for start in (10, 20, 30)}
    path = markers[read].name.path if read else ""
    slow = loader_next_to(staging, tables, acting("read", other.run_pass, below=path or "done/"))
    (report,) = slow.run_pass()
    assert (report.failure, report.held) == (None, {})
    assert tables.begun(staging.table, "orders-0") == [0, 10, 20, 30]
    assert len(staging.markers()) == 1


def test_files_that_another_loader_loads_and_deletes_are_not_missing(
    staging: Staging, tables: MemoryDeltaTables
) -> None:
    other = settling(staging, tables)
    for start in (0, 10, 20):
        staging.flush(0, start, start + 10, mixed=True)
    staging.flush(0, 30, 40)
    slow = loader_next_to(staging, tables, acting("stat", other.run_pass, below="data/"))
    (report,) = slow.run_pass()
    assert (report.failure, report.held) == (None, {})
    assert tables.begun(staging.table, "orders-0") == [0, 10, 20, 30]


def test_gap_of_markers_that_vanished_is_held(staging: Staging, tables: MemoryDeltaTables) -> None:
    staging.flush(0, 0, 10)
    loader_for(staging, tables).run_pass()
    first, *_ = (staging.flush(0, start, start + 10) for start in (10, 20))
    store = staging.store(staging.stage_url)
    slow = loader_next_to(staging, tables, acting("read", lambda: store.delete([first.name.path]), below="done/"))
    (report,) = slow.run_pass()
    assert [held.reason for held in report.held.values()] == ["gap"]


def test_rollback_seen_after_a_marker_vanished_ends_the_pass(staging: Staging) -> None:
    tables = Restorable()
    other = settling(staging, tables)
    staging.flush(0, 0, 10)
    other.run_pass()
    for start in (10, 20):
        staging.flush(0, start, start + 10)

    def act() -> None:
        other.run_pass()
        tables.restore(staging.table, 1)
        tables.tables[staging.table].transactions["orders-0"] = 9

    slow = loader_next_to(staging, tables, acting("read", act, below="done/"))
    (report,) = slow.run_pass()
    assert "was rolled back during the load" in str(report.failure)
    assert not report.held
    (report,) = slow.run_pass()
    assert [held.reason for held in report.held.values()] == ["table_restored"]
