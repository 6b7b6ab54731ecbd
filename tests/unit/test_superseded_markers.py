"""A marker that a rewind puts aside: ignored from then on, also where a late request creates it again."""

import json
from dataclasses import replace

import pytest

from bootstrap.apply import stage as operator
from bootstrap.apply.partition_state import partition_state
from bootstrap.apply.repair_lock import RepairLocks
from bootstrap.plans.plan import Make, plan_partition
from bootstrap.plans.repair import plan_rewind, plan_skip
from bootstrap.plans.state import Author, Ends, PartitionState
from common.errors import MarkerError
from common.ports import ObjectStore
from common.spans import Position
from common.stage.chain_origins import ChainOrigin, is_superseded, newest_origin
from common.stage.markers import Marker, MarkerName, Origin, manifest_from_bytes, manifest_to_bytes
from common.tables.urls import comparable
from delta_loader.ports import in_turn
from delta_loader.stage.generations import put_older_aside
from delta_loader.stage.reading import Stage
from stage_writer.chains import StagedChains
from tests.builders import instance, required
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.loading import loader_for, settings_for
from tests.fakes.markers import ORDERS, by_hand, flush
from tests.fakes.staging import Staging

AUTHOR = Author("operator", 1_000)


@pytest.fixture
def store(staging: Staging) -> ObjectStore:
    return staging.store(staging.stage_url)


def state(staging: Staging, store: ObjectStore) -> PartitionState:
    (stream,) = settings_for(staging).streams
    ends = Ends(Position(0), Position(100))
    return partition_state(store, stream, staging.source(0), ends=ends, table=None, topic_id=None)


def start_at(staging: Staging, store: ObjectStore, position: int) -> Marker:
    planned = plan_partition(state(staging, store), Position(position), "", AUTHOR)
    marker = instance(Make, planned.outcome).marker
    operator.make(store, marker)
    return marker


def rewind(staging: Staging, store: ObjectStore, to: int) -> Marker | None:
    plan = plan_rewind(state(staging, store), Position(to), AUTHOR)
    operator.rewind(store, plan)
    return plan.marker


def test_operator_s_marker_names_its_origin(staging: Staging, store: ObjectStore) -> None:
    first = start_at(staging, store, 20)
    skip = plan_skip(state(staging, store), Position(30), AUTHOR).marker
    lower = required(rewind(staging, store, 9))
    assert [required(marker.manifest).chain_origin for marker in (first, skip, lower)] == [0, 0, 1]
    assert newest_origin(store, staging.source(0)) == ChainOrigin(Position(9), number=1)


@pytest.mark.parametrize("by", ["write", "rewind", "flush"])
def test_marker_recreated_after_a_later_rewind_is_a_stray(staging: Staging, store: ObjectStore, by: str) -> None:
    again = start_at(staging, store, 20)
    if by == "rewind":
        again = required(rewind(staging, store, 9))
    if by == "flush":
        staging.chain_origin, staging.previous[0] = 0, Position(19)
        staging.flush(0, 20, 30)
        again = staging.flush(0, 30, 40)
    rewind(staging, store, 0)
    operator.make(store, again)
    writer = StagedChains(store)
    assert writer.tail(staging.source(0)) is None, "writers read from the origin on"
    assert state(staging, store).staged == ()
    tables = MemoryDeltaTables()
    (report,) = loader_for(staging, tables).run_pass()
    assert (report.strays, dict(report.held), staging.markers()) == (1, {}, [])
    staging.chain_origin, staging.previous = 2, {}
    staging.flush(0, 0, 25)
    loader_for(staging, tables).run_pass()
    assert tables.tables[staging.table].transactions == {"orders-0": 24}
    assert tables.tables[staging.table].commits[-1].metadata.spans[staging.source(0)].start == 0


def test_marker_that_a_repair_is_moving_is_left_to_it(staging: Staging, store: ObjectStore) -> None:
    """A writer may claim its name as soon as the repair has moved it; the loader would delete that claim."""
    start_at(staging, store, 20)
    locks = RepairLocks(store, AUTHOR, "0b4a")
    locks.read_last(staging.source(0))
    with locks.locked(staging.source(0), "rewind"):
        operator.begin(store, staging.source(0), ChainOrigin(Position(0), number=1))
        (report,) = loader_for(staging, MemoryDeltaTables()).run_pass()
        assert (report.strays, len(staging.markers())) == (0, 1)
        assert [held.reason for held in report.held.values()] == ["under_repair"]
    (report,) = loader_for(staging, MemoryDeltaTables()).run_pass()
    assert (report.strays, staging.markers()) == (1, [])


def test_rewind_takes_effect_for_all_when_its_origin_is_created(staging: Staging, store: ObjectStore) -> None:
    """The markers that it has yet to put aside are neither continued nor loaded, and nothing is settled meanwhile."""
    staging.chain_origin, tables = 0, MemoryDeltaTables()
    first = staging.flush(0, 0, 10)
    staging.flush(0, 10, 20)
    loader_for(staging, tables).run_pass()
    loader = loader_for(staging, tables, settings_for(staging, marker_retention="0s"))
    locks = RepairLocks(store, AUTHOR, "0b4a")
    locks.read_last(staging.source(0))
    with locks.locked(staging.source(0), "rewind"):
        operator.begin(store, staging.source(0), ChainOrigin(Position(10), number=1))
        assert required(StagedChains(store).tail(staging.source(0))).end == 10
        (report,) = loader.run_pass()
        assert [held.reason for held in report.held.values()] == ["under_repair"]
        assert len(staging.markers()) == 2
    (report,) = loader.run_pass()
    assert (report.strays, staging.markers()) == (1, [first.name.path])


def test_last_marker_of_a_chain_that_was_rewound_is_always_checked(staging: Staging, store: ObjectStore) -> None:
    """A late one there would be continued, and the chain's own last one settled."""
    staging.chain_origin = 0
    staging.flush(0, 0, 10)
    late = staging.flush(0, 10, 20)
    rewind(staging, store, 10)
    operator.make(store, late)
    stage, (stream,) = Stage(store, in_turn), settings_for(staging).streams
    tables = {comparable(url): url for url in stream.tables}
    listing, moved, held = put_older_aside(stage, stage.listing(stream), stage.origins(stream), (), tables)
    assert (moved, held, len(listing[staging.source(0)].names)) == ((late,), {}, 1)


def test_marker_kept_by_a_rewind_is_part_of_the_chain(staging: Staging, store: ObjectStore) -> None:
    start_at(staging, store, 9)
    staging.previous[0] = Position(8)
    staging.flush(0, 9, 20)
    staging.flush(0, 20, 30)
    rewind(staging, store, 20)
    assert [marker.name.start for marker in state(staging, store).staged] == [8, 9]
    tables = MemoryDeltaTables()
    (report,) = loader_for(staging, tables).run_pass()
    assert (report.strays, dict(report.held)) == (0, {})
    assert tables.tables[staging.table].transactions == {"orders-0": 19}


def named(number: int | None, start: int = 8, end: int = 9, generation: int = 0) -> Marker:
    manifest = replace(required(flush(start, end).manifest), origin=Origin.BOOTSTRAP)
    return Marker(MarkerName(ORDERS, Position(start)), replace(manifest, chain_origin=number, generation=generation))


@pytest.mark.parametrize(
    ("marker", "is_stray"),
    [
        (named(2), True),
        (named(0), True),
        (named(3), False),  # the origin's own
        (named(4), False),  # of a later origin that the reader has not seen
        (named(None), False),  # made by an older release
        (by_hand(8), False),
        (named(2, 3, 6), False),  # the rewind kept it
        (named(2, 3, 7), True),
        (named(2, generation=2), False),  # the origin was lost
        (named(3, generation=0), False),
    ],
)
def test_superseded_marker_reaches_beyond_a_later_origin(marker: Marker, *, is_stray: bool) -> None:
    assert is_superseded(marker, ChainOrigin(Position(6), number=3)) is is_stray
    assert not is_superseded(marker, None)
    assert is_superseded(marker, ChainOrigin(Position(6), 3, number=3)) is (marker.manifest is not None)


@pytest.mark.parametrize("number", [None, 0, 7])
def test_origin_number_is_stored_if_it_is_known(number: int | None) -> None:
    marker = named(number)
    data = manifest_to_bytes(ORDERS, required(marker.manifest))
    assert manifest_from_bytes(marker.name, data) == marker.manifest
    assert ("chain_origin" in json.loads(data)) is (number is not None)
    with pytest.raises(MarkerError, match="chain_origin"):
        manifest_from_bytes(marker.name, json.dumps({**json.loads(data), "chain_origin": -1}).encode())


def test_next_rewind_completes_an_interrupted_one(staging: Staging, store: ObjectStore) -> None:
    """The first one's origin is recorded, and the marker that it was to put aside is still there."""
    start_at(staging, store, 20)
    operator.begin(store, staging.source(0), ChainOrigin(Position(0), number=1))
    assert state(staging, store).staged == ()
    assert rewind(staging, store, 0) is None
    assert staging.markers() == []
    assert [item.path for item in store.list("stray")] == [f"stray/done/orders/0/{19:020d}.done"]
    assert newest_origin(store, staging.source(0)) == ChainOrigin(Position(0), number=2)
