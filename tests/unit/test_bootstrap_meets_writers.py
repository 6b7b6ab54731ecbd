"""A rewind while a stage writer runs: the two share only the stage."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from bootstrap.apply import stage as operator
from bootstrap.apply.repair_lock import RepairLocks
from bootstrap.plans.repair import plan_rewind, plan_skip
from bootstrap.plans.state import Author, Ends, PartitionState
from common.clock import SystemClock
from common.errors import StoreError, UnderRepairError
from common.remedies import CONFIG
from common.settings import StartAt, Stream
from common.spans import Position
from common.stage.chain_origins import ChainOrigin, origin_path, origin_to_bytes
from common.stage.repair_lock import ended_path
from common.storage.store import FsspecStore
from stage_writer.chain_end import Tail
from stage_writer.parquet.buffer import Buffer
from stage_writer.partitions.resume_points import ResumePoints
from stage_writer.ports import FlushIdentity, FlushOutcome, LostClaim, Sealed
from stage_writer.stage.staging import ObjectStage
from tests.builders import instance, required
from tests.fakes.markers import ORDERS, chain_of, put
from tests.fakes.writers import always

if TYPE_CHECKING:
    from stage_writer.ports import KafkaMetadata

STREAM = Stream.model_validate({"app_id": "orders", "topics": ["orders"], "table": "/t", "columns": "id BIGINT"})
AUTHOR = Author("operator", 1_000)


@pytest.fixture
def store(tmp_path: Path) -> FsspecStore:
    return FsspecStore(tmp_path.as_uri())


@pytest.fixture
def writer(store: FsspecStore) -> ObjectStage:
    return ObjectStage(store, lambda _: store, SystemClock(), lambda: "0b4a", "writer")


def seal(writer: ObjectStage, tail: Tail | None, start: int, end: int) -> FlushOutcome:
    """The outcome of a flush of ``[start, end)``."""
    buffer = Buffer(Position(start), Position(end), (), records=end - start)
    return writer.flush_job(FlushIdentity(ORDERS, STREAM, buffer, tail), always).run()


def partition_state(store: FsspecStore) -> PartitionState:
    ends = Ends(Position(0), Position(100))
    return PartitionState(ORDERS, "orders", StartAt.EARLIEST, ends, None, operator.staged_markers(store, ORDERS))


def rewind(store: FsspecStore, to: int) -> None:
    operator.rewind(store, plan_rewind(partition_state(store), Position(to), AUTHOR))


def end(writer: ObjectStage) -> int:
    tail = required(writer.chains.tail(ORDERS))
    return tail.end


def test_running_writer_continues_at_the_rewind_position(store: FsspecStore, writer: ObjectStage) -> None:
    put(store, *chain_of(0, 10, 20, 30))
    tail = writer.chains.tail(ORDERS)  # the writer has read the chain, and buffers from 30 on
    rewind(store, 10)
    assert isinstance(seal(writer, tail, 30, 40), LostClaim)
    assert end(writer) == 10
    outcome = instance(Sealed, seal(writer, writer.chains.tail(ORDERS), 10, 40))
    assert not outcome.chain_moved
    assert partition_state(store).chain.end == 40
    assert partition_state(store).chain.strays == ()


def test_running_writer_continues_at_an_origin_before_its_chain(store: FsspecStore, writer: ObjectStage) -> None:
    put(store, *chain_of(50, 60, 70))
    tail = writer.chains.tail(ORDERS)
    rewind(store, 20)
    assert isinstance(seal(writer, tail, 70, 80), LostClaim)
    assert end(writer) == 20


@pytest.mark.parametrize("to", [0, 10])
def test_writer_waits_for_a_rewind_that_was_cut_off(
    store: FsspecStore, writer: ObjectStage, monkeypatch: pytest.MonkeyPatch, to: int
) -> None:
    """Each of its claims would be lost, and each flush has uploaded a file by then."""
    for marker in chain_of(0, 10, 20, 30):
        put(store, replace(marker, manifest=replace(required(marker.manifest), chain_origin=0)))
    locks = RepairLocks(store, AUTHOR, "0b4a")
    locks.read_last(ORDERS)
    plan = plan_rewind(partition_state(store), Position(to), AUTHOR)
    points = ResumePoints(cast("KafkaMetadata", None), writer)
    assert points.of(ORDERS, STREAM).position == 30

    def killed(*_: object) -> None:
        raise StoreError("the process was killed")

    def cut_off() -> None:
        with locks.locked(ORDERS, f"bootstrap rewind --to {to}"):
            operator.rewind(store, plan)

    with monkeypatch.context() as patch:
        patch.setattr(FsspecStore, "delete", killed)
        with pytest.raises(StoreError):
            cut_off()
    with pytest.raises(UnderRepairError) as raised:
        points.of(ORDERS, STREAM)
    finish = f"bootstrap rewind {CONFIG} --topic orders --partition 0 --to {to} --take-over 1 --yes"
    assert finish in raised.value.remedy
    store.create(ended_path(ORDERS, 1), b"{}")
    with pytest.raises(UnderRepairError, match="has not moved it yet") as raised:
        points.of(ORDERS, STREAM)
    assert "the loader moves it" in raised.value.remedy
    operator.rewind(store, plan)
    assert points.of(ORDERS, STREAM).position == to


def test_writer_does_not_wait_for_a_marker_that_belongs_to_the_chain(store: FsspecStore, writer: ObjectStage) -> None:
    """Another writer made it after this one had read the chain's end: the next claim is lost, and read again."""
    put(store, *chain_of(0, 10, 20))
    store.create(origin_path(ORDERS, 1), origin_to_bytes(ChainOrigin(Position(0), 0, number=1)))
    writer.chains.require_free(ORDERS, Position(10))


def test_claim_holds_when_the_previous_marker_was_settled(store: FsspecStore, writer: ObjectStage) -> None:
    put(store, *chain_of(0, 10, 20, 30))
    tail = required(writer.chains.tail(ORDERS))
    store.delete([tail.path])  # loaded and settled; only a very late writer sees this
    outcome = instance(Sealed, seal(writer, tail, 30, 40))
    assert outcome.chain_moved


def test_running_writer_continues_at_zero_after_a_rewind_to_zero(store: FsspecStore, writer: ObjectStage) -> None:
    put(store, *chain_of(0, 10))
    tail = writer.chains.tail(ORDERS)
    rewind(store, 0)
    assert isinstance(seal(writer, tail, 10, 20), LostClaim), (
        "no marker is left, and the origin says where the chain continues"
    )
    assert writer.chains.tail(ORDERS) is None
    assert writer.chains.origin(ORDERS) == ChainOrigin(Position(0), number=1)


def test_sole_marker_without_an_origin_is_never_withdrawn(store: FsspecStore, writer: ObjectStage) -> None:
    put(store, *chain_of(0, 10))
    tail = writer.chains.tail(ORDERS)
    rewind(store, 0)
    store.delete([origin_path(ORDERS), origin_path(ORDERS, 1)])
    assert isinstance(seal(writer, tail, 10, 20), Sealed)
    assert end(writer) == 20


def test_running_writer_loses_its_claim_to_a_skip_and_continues_after_it(
    store: FsspecStore, writer: ObjectStage
) -> None:
    put(store, *chain_of(0, 10))
    tail = writer.chains.tail(ORDERS)
    operator.make(store, plan_skip(partition_state(store), Position(25), AUTHOR).marker)
    assert isinstance(seal(writer, tail, 10, 30), LostClaim)
    assert end(writer) == 25
