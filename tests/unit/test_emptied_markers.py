"""A writer's marker that was emptied is not taken for one made by hand, and loses no record."""

from dataclasses import replace

import pytest

from bootstrap.apply import stage as operator
from bootstrap.apply.partition_state import partition_state
from bootstrap.plans.repair import plan_rewind, plan_skip
from bootstrap.plans.state import Author, Ends, PartitionState
from common.clock import SystemClock
from common.errors import MarkerError, UsageError
from common.ports import ObjectStore
from common.spans import Position, Span
from common.stage.chain_origins import ChainOrigin, origin_path, origin_to_bytes
from common.stage.markers import Marker, MarkerName, digest_of, marker_to_bytes
from stage_writer.chains import StagedChains
from stage_writer.parquet.buffer import Buffer
from stage_writer.ports import FlushIdentity, Sealed
from stage_writer.stage.staging import ObjectStage
from tests.builders import instance, required
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.loading import loader_for, settings_for
from tests.fakes.staging import Staging
from tests.fakes.writers import always


@pytest.fixture
def store(staging: Staging) -> ObjectStore:
    return staging.store(staging.stage_url)


def state(staging: Staging, store: ObjectStore, tables: MemoryDeltaTables) -> PartitionState:
    (stream,) = settings_for(staging).streams
    ends, table = Ends(Position(0), Position(100)), tables.state(staging.table)
    return partition_state(store, stream, staging.source(0), ends=ends, table=table, topic_id=None)


def flush_behind(staging: Staging, store: ObjectStore, start: int, end: int) -> None:
    """A flush, whose marker has the digest of the one before it, as a writer's has."""
    before = required(StagedChains(store).tail(staging.source(0)))
    marker = staging.flush(0, start, end)
    manifest = replace(required(marker.manifest), previous_digest=before.digest)
    store.write(marker.name.path, marker_to_bytes(Marker(marker.name, manifest)))


def empty(staging: Staging, store: ObjectStore, start: int) -> None:
    store.write(MarkerName(staging.source(0), Position(start)).path, b"")


@pytest.mark.parametrize("end", [11, 20], ids=["one record", "ten records"])
def test_emptied_marker_is_held_and_its_records_are_staged_again(
    end: int, staging: Staging, store: ObjectStore, tables: MemoryDeltaTables
) -> None:
    staging.flush(0, 0, 10)
    flush_behind(staging, store, 10, end)
    flush_behind(staging, store, end, 30)
    empty(staging, store, 10)
    (report,) = loader_for(staging, tables).run_pass()
    held = report.held[staging.source(0)]
    assert (held.reason, tables.tables[staging.table].transactions) == ("unreadable_marker", {"orders-0": 9})
    assert f"it is empty, but the marker at {end} continues" in held.problem
    assert "--to 10" in held.remedy
    with pytest.raises(UsageError, match="it is empty, but"):
        plan_skip(state(staging, store, tables), Position(40), Author("operator", 1_000))
    operator.rewind(store, plan_rewind(state(staging, store, tables), Position(10), Author("operator", 1_000)))
    staging.flush(0, 10, 30, previous=0)
    (report,) = loader_for(staging, tables).run_pass()
    assert (dict(report.held), tables.tables[staging.table].transactions) == ({}, {"orders-0": 29})


def require_rewound_and_loaded(
    staging: Staging, store: ObjectStore, tables: MemoryDeltaTables, *, previous: int
) -> None:
    """A rewind to 10 is possible; the records that are staged again behind ``previous`` are loaded."""
    operator.rewind(store, plan_rewind(state(staging, store, tables), Position(10), Author("operator", 1_000)))
    assert required(StagedChains(store).tail(staging.source(0))).end == 10
    staging.flush(0, 10, 30, previous=previous)
    (report,) = loader_for(staging, tables).run_pass()
    assert (dict(report.held), tables.tables[staging.table].transactions) == ({}, {"orders-0": 29})


def test_emptied_last_marker_is_held_by_loader_and_writer_and_its_records_are_staged_again(
    staging: Staging, store: ObjectStore, tables: MemoryDeltaTables
) -> None:
    for start in (0, 10):
        staging.flush(0, start, start + 10)
    empty(staging, store, 10)
    with pytest.raises(MarkerError, match="its content is probably lost") as refused:
        StagedChains(store).tail(staging.source(0))
    assert "--partition 0 --to 10 --yes" in refused.value.remedy
    (report,) = loader_for(staging, tables).run_pass()
    held = report.held[staging.source(0)]
    assert (held.reason, tables.tables[staging.table].transactions) == ("unreadable_marker", {"orders-0": 9})
    assert "--to 10" in held.remedy
    with pytest.raises(UsageError, match="it is empty, follows a flush"):
        plan_skip(state(staging, store, tables), Position(20), Author("operator", 1_000))
    require_rewound_and_loaded(staging, store, tables, previous=0)


def test_emptied_only_marker_at_the_chain_s_origin_is_held_by_loader_and_writer(
    staging: Staging, store: ObjectStore, tables: MemoryDeltaTables
) -> None:
    """Writers record where a chain starts that does not start with the topic; nothing else shows who made it."""
    StagedChains(store).begin(staging.source(0), ChainOrigin(Position(10)))
    staging.flush(0, 10, 20)
    empty(staging, store, 10)
    with pytest.raises(MarkerError, match="is where the chain starts") as refused:
        StagedChains(store).tail(staging.source(0))
    assert "--partition 0 --to 10 --yes" in refused.value.remedy
    (report,) = loader_for(staging, tables).run_pass()
    assert report.held[staging.source(0)].reason == "unreadable_marker"
    assert tables.tables == {}
    with pytest.raises(UsageError, match="it is empty, is where the chain starts"):
        plan_skip(state(staging, store, tables), Position(20), Author("operator", 1_000))
    require_rewound_and_loaded(staging, store, tables, previous=9)


def test_chain_that_begins_by_hand_behind_its_origin_is_continued(staging: Staging, store: ObjectStore) -> None:
    StagedChains(store).begin(staging.source(0), ChainOrigin(Position(10)))
    staging.touch(0, 10)
    assert required(StagedChains(store).tail(staging.source(0))).end == 11
    store.delete([item.path for item in store.list("done")])
    empty(staging, store, 30)
    assert required(StagedChains(store).tail(staging.source(0))).end == 31


def test_marker_made_by_hand_at_the_end_of_a_chain_gives_up_one_record(
    staging: Staging, store: ObjectStore, tables: MemoryDeltaTables
) -> None:
    staging.flush(0, 0, 10)
    staging.touch(0, 10)
    assert required(StagedChains(store).tail(staging.source(0))).end == 11
    (report,) = loader_for(staging, tables).run_pass()
    assert (dict(report.held), tables.tables[staging.table].transactions) == ({}, {"orders-0": 10})


def test_marker_made_by_hand_for_a_recreated_topic_does_not_follow_a_flush_of_the_old_one(
    staging: Staging, store: ObjectStore
) -> None:
    staging.flush(0, 0, 10)
    store.create(origin_path(staging.source(0), 1), origin_to_bytes(ChainOrigin(Position(0), generation=1, number=1)))
    empty(staging, store, 10)
    assert required(StagedChains(store).tail(staging.source(0))).end == 11


def test_writer_continues_after_an_emptied_last_marker_that_the_table_has_loaded(
    staging: Staging, store: ObjectStore, tables: MemoryDeltaTables
) -> None:
    for start in (0, 10):
        staging.flush(0, start, start + 10)
    loader_for(staging, tables).run_pass()
    empty(staging, store, 10)
    (report,) = loader_for(staging, tables).run_pass()
    with pytest.raises(UsageError) as refused:
        plan_rewind(state(staging, store, tables), Position(10), Author("operator", 1_000))
    assert "--to 20" in refused.value.remedy
    skip = plan_skip(state(staging, store, tables), Position(30), Author("operator", 1_000))
    assert skip.marker.span == Span(Position(20), Position(30))
    operator.rewind(store, plan_rewind(state(staging, store, tables), Position(20), Author("operator", 1_000)))
    assert required(StagedChains(store).tail(staging.source(0))).end == 20
    staging.flush(0, 20, 30, previous=19)
    (report,) = loader_for(staging, tables).run_pass()
    assert (dict(report.held), tables.tables[staging.table].transactions) == ({}, {"orders-0": 29})


def test_emptied_marker_at_the_end_of_a_plan_is_held(
    staging: Staging, store: ObjectStore, tables: MemoryDeltaTables
) -> None:
    staging.flush(0, 0, 1)
    for start in range(1, 18):
        flush_behind(staging, store, start, start + 1)
    empty(staging, store, 15)
    (report,) = loader_for(staging, tables, settings_for(staging, max_files=16)).run_pass()
    assert report.held[staging.source(0)].reason == "unreadable_marker"
    assert tables.tables[staging.table].transactions == {"orders-0": 14}


def test_emptied_marker_that_the_table_has_loaded_is_settled(
    staging: Staging, store: ObjectStore, tables: MemoryDeltaTables
) -> None:
    staging.flush(0, 0, 10)
    for start in (10, 20):
        flush_behind(staging, store, start, start + 10)
    loader_for(staging, tables).run_pass()
    empty(staging, store, 10)
    (report,) = loader_for(staging, tables, settings_for(staging, marker_retention=0)).run_pass()
    assert (dict(report.held), staging.markers()) == ({}, [MarkerName(staging.source(0), Position(20)).path])


def test_flush_has_the_digest_of_the_marker_before_it(staging: Staging, store: ObjectStore) -> None:
    (stream,) = settings_for(staging).streams
    writer = ObjectStage(store, lambda _: store, SystemClock(), lambda: "0b4a", "writer")
    staging.touch(0, 41)
    for start in (42, 43):
        tail = required(writer.chains.tail(staging.source(0)))
        buffer = Buffer(Position(start), Position(start + 1), (), records=1)
        sealed = instance(
            Sealed, writer.flush_job(FlushIdentity(staging.source(0), stream, buffer, tail), always).run()
        )
        assert required(sealed.marker.manifest).previous_digest == digest_of(required(store.read(tail.path)))
