"""What `delta-loader status` says of a Kafka partition, also next to a loader that loads and settles meanwhile."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from common.ports import StoredObject
from common.spans import Position
from common.stage.chain_origins import ChainOrigin, origin_path, origin_to_bytes
from common.stage.markers import Marker
from delta_loader.ports import in_turn
from delta_loader.stage.reading import Stage
from delta_loader.status.collecting import stream_status
from delta_loader.status.values import LeaseStatus, PartitionStatus, to_json, to_text
from tests.builders import instance
from tests.fakes.loading import settings_for, status_of
from tests.fakes.markers import chain_of, put
from tests.fakes.staging import Staging
from tests.fakes.stores import TrappedStore
from tests.unit.common.tables.test_delta_log import METADATA, PROTOCOL, commit, txn


def loaded_to(staging: Staging, position: int) -> None:
    commit(staging.store(staging.table), 0, PROTOCOL, METADATA, txn("orders-0", position - 1))


def partition_of(staging: Staging, end: int | None = None, *, kafka_columns: bool = True) -> PartitionStatus:
    stream = settings_for(staging).streams[0].model_copy(update={"kafka_columns": kafka_columns})
    ends = {} if end is None else {staging.source(0): Position(end)}
    (partition,) = status_of(staging, ends, stream).partitions
    return partition


def test_long_backlog_is_staged_to_its_last_marker(staging: Staging) -> None:
    put(staging.store(staging.stage_url), *chain_of(*range(41)))
    partition = partition_of(staging)
    assert (partition.staged_to, partition.waiting_markers) == (40, 40)


def test_partition_that_was_never_loaded_says_so(staging: Staging) -> None:
    staging.flush(0, 0, 10)
    line = next(line for line in to_text([status_of(staging)]).splitlines() if "orders/0" in line)
    assert line.split() == ["orders/0", "10", "nothing", "–", "–", "–"]


@pytest.mark.parametrize(("kafka_columns", "held"), [(True, None), (False, "straddle")])
def test_marker_that_straddles_the_position_is_held_without_offsets(
    staging: Staging, *, kafka_columns: bool, held: str | None
) -> None:
    staging.flush(0, 0, 10)
    loaded_to(staging, 5)
    partition = partition_of(staging, kafka_columns=kafka_columns)
    assert (partition.loaded_to, partition.held.reason if partition.held else None) == (5, held)


@pytest.mark.parametrize(
    ("origin", "held"),
    [
        (ChainOrigin(Position(3)), "gap"),
        (ChainOrigin(Position(5)), None),
        (ChainOrigin(Position(7), staged_from=Position(3)), "gap"),
        (ChainOrigin(Position(7), staged_from=Position(5)), None),
    ],
)
def test_chain_that_begins_above_its_origin_is_held(staging: Staging, origin: ChainOrigin, held: str | None) -> None:
    path = origin_path(staging.source(0))
    staging.store(staging.stage_url).create(path, origin_to_bytes(origin))
    staging.flush(0, 5, 10)
    partition = partition_of(staging)
    assert (partition.held.reason if partition.held else None) == held


@pytest.mark.parametrize("secondary", [False, True])
def test_file_is_missed_while_its_table_lacks_it(staging: Staging, *, secondary: bool) -> None:
    url = staging.dead_letters if secondary else staging.table
    staging.flush(0, 0, 10, dead=[4])
    assert partition_of(staging).held is None
    table = staging.store(url)
    table.delete([item.path for item in table.list("") if item.path.endswith(".parquet")])
    assert (held := partition_of(staging).held) is not None
    assert held.reason == "missing_file"
    if secondary:
        commit(table, 0, PROTOCOL, METADATA, txn("orders-0", 9))
        assert partition_of(staging).held is None


def test_marker_made_by_hand_may_be_ahead_of_kafka(staging: Staging) -> None:
    staging.flush(0, 0, 10)
    staging.touch(0, 19)
    partition = partition_of(staging, end=15)
    assert (partition.staged_to, partition.kafka_end, partition.writers_hold) == (20, 15, None)
    assert partition_of(staging, end=9).writers_hold is not None


def test_position_of_the_table_is_not_that_of_another_streams_markers(staging: Staging) -> None:
    loaded_to(staging, 5)
    staging.app_id = "returns"
    staging.flush(0, 0, 10)
    partition = partition_of(staging)
    assert (partition.loaded_to, partition.held is not None) == (None, True)


LEASE = LeaseStatus("a", 7, released=False, renewed_ms=0, grants=(("a", frozenset({"orders"})), ("b", frozenset())))


@pytest.mark.parametrize(
    ("grants", "unheld"),
    [
        ((("a", frozenset({"orders"})),), ["returns"]),
        ((("a", frozenset({"orders"})), ("b", frozenset({"returns"}))), []),
        ((("old", None),), []),
        ((), ["orders", "returns"]),
    ],
)
def test_streams_without_a_loader_are_those_that_no_grant_has(
    grants: tuple[tuple[str, frozenset[str] | None], ...], unheld: list[str]
) -> None:
    assert replace(LEASE, grants=grants).unheld(["orders", "returns"]) == unheld


def test_released_lease_has_no_holder(staging: Staging) -> None:
    def shown(lease: LeaseStatus) -> tuple[object, object]:
        document = instance(dict, instance(dict, to_json([], lease))["lease"])
        return document["holder"], document["last_holder"]

    assert shown(LEASE) == ("a", "a")
    assert shown(replace(LEASE, released=True)) == (None, "a")
    status, released = status_of(staging), replace(LEASE, released=True, grants=())
    assert "no loader holds the lease of orders" in to_text([status], replace(LEASE, grants=()))
    assert "no loader holds" not in to_text([status], released)


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
