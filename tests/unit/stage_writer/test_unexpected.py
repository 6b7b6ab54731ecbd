"""Unexpected exceptions hold the partitions where they occur, and end no writer."""

from pathlib import Path

import pyarrow as pa
import pytest

from common.errors import ConfigError
from common.schema import parse_ddl, to_arrow_schema
from common.spans import Partition, Topic, TopicPartition
from common.stage.markers import TableKind
from common.stage.versions import Evolved
from common.storage.store import FsspecStore
from stage_writer.assignment import CHECK_HELD_EVERY_S
from stage_writer.convert import StreamConverter, table_format
from stage_writer.parquet.buffer import TableRows
from stage_writer.ports import ClaimGuard, Converter, FlushIdentity
from stage_writer.schemas import LOOK_AT_SCHEMAS_S
from stage_writer.shape.slicing import ExplodeLimits
from stage_writer.stage.staging import Job, ObjectStage
from tests.builders import settings_of
from tests.fakes.group import HandClock, JsonMember
from tests.fakes.writers import limits_with, new_writer, runtime_of
from tests.staged import manifests

BOMBS, ORDERS = (TopicPartition(Topic(name), Partition(0)) for name in ("bombs", "orders"))


class World:
    """A writer of two streams: one explodes in many slices, one gains columns."""

    def __init__(self, folder: Path, **limits: int) -> None:
        self.settings = settings_of(
            {
                "app_id": "bombs",
                "topics": ["bombs"],
                "table": f"{folder}/bombs",
                "columns": "id BIGINT, items ARRAY<BIGINT>",
                "explode": "items",
                "kafka_columns": False,
            },
            {"table": f"{folder}/orders", "unknown_fields": "evolve", "kafka_columns": False},
            folder=str(folder),
        )
        self.store, self.clock = FsspecStore(f"{folder}/stage"), HandClock()
        self.group = JsonMember(self.clock, {BOMBS: 0, ORDERS: 0})
        names = iter(range(10_000))
        self.stage = ObjectStage(self.store, FsspecStore, self.clock, lambda: f"{next(names):032x}", "w")
        bombs, orders = self.settings.streams
        converters: list[Converter] = [
            StreamConverter(bombs, limits=ExplodeLimits(slice_bytes=64)),
            StreamConverter(orders),
        ]
        runtime = runtime_of(self.clock)
        self.writer = new_writer(
            *converters, source=self.group, stage=self.stage, runtime=runtime, limits=limits_with(**limits)
        )
        self.group.subscribe(self.settings.streams, self.writer)

    def steps(self, number: int = 8, timeout_s: float = 0.5) -> None:
        for _ in range(number):
            self.writer.step(timeout_s)

    def markers(self, partition: TopicPartition) -> int:
        return len(list(self.store.list(f"done/{partition.topic}/{partition.partition}")))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_batch_that_waits_for_another_stream_keeps_its_buffers_columns(world: World) -> None:
    """Its batch waits behind many slices while its partition is flushed and gains a column: it is read again."""
    world.steps(3, 0.1)
    world.group.produce(ORDERS, {"id": 1})
    world.steps(1, 0.1)  # a buffer with the old columns stands
    gained = Evolved("orders", 1, parse_ddl("x BIGINT"))
    world.store.create(gained.path, gained.to_bytes())
    world.clock.now_s += LOOK_AT_SCHEMAS_S  # the buffer is due, and so is the schema refresh
    world.group.produce(BOMBS, *[{"id": number, "items": list(range(8))} for number in range(40)])
    world.group.produce(ORDERS, {"id": 2, "x": 2})
    world.steps(30)
    assert world.writer.health().problems == ()
    assert (world.markers(ORDERS), world.markers(BOMBS)) == (2, 1)
    before, after = (item.tables[0].schema for item in manifests(world.store, "done/orders"))
    assert ('"name":"x"' in before, '"name":"x"' in after) == (False, True)


def test_rows_with_other_columns_are_refused_by_the_buffer() -> None:
    old, new = parse_ddl("id BIGINT"), parse_ddl("id BIGINT, x BIGINT")
    rows = TableRows(table_format("/orders", TableKind.ROWS, new, ()))
    with pytest.raises(ValueError, match="other columns than their buffer: x: int64"):
        rows.add(pa.table({"id": [1]}, to_arrow_schema(old)))


@pytest.mark.parametrize("where", ["flush", "seal", "rows", "conversion"])
def test_unexpected_exception_holds_only_its_partition(
    world: World, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def fails(*_arguments: object, **_more: object) -> object:
        raise ZeroDivisionError(where)

    real = world.stage.flush_job

    def flush_job(flush: FlushIdentity, guard: ClaimGuard) -> Job:
        job = real(flush, guard)
        if flush.partition == ORDERS:
            if where == "seal":
                fails()
            monkeypatch.setattr(type(job), "run", fails)
        return job

    world.steps(3, 0.1)
    orders = world.writer.assignment.by_partition[ORDERS]
    with monkeypatch.context() as patched:
        if where in {"flush", "seal"}:
            patched.setattr(world.stage, "flush_job", flush_job)
        elif where == "rows":
            patched.setattr(orders.buffer.tables[0], "add", fails)
        else:
            patched.setattr(orders.converter, "slices", lambda _: iter(fails, None))
        world.group.produce(ORDERS, {"id": 1})
        world.steps(6)
        (problem,) = world.writer.health().problems
        assert f"orders/0 cannot be staged: unexpected ZeroDivisionError: {where}" in problem
        assert (world.markers(ORDERS), world.markers(BOMBS)) == (0, 0)
        monkeypatch.undo()
    world.group.produce(BOMBS, {"id": 1, "items": [1]})
    world.steps(6)
    assert world.markers(BOMBS) == 1, "the other partitions continue"
    world.clock.now_s += CHECK_HELD_EVERY_S
    world.steps(8)
    assert (world.markers(ORDERS), world.writer.health().problems) == (1, ()), (
        "the partition is read again from its chain's end"
    )


def test_expected_error_of_a_conversion_ends_the_writer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_arguments: object) -> object:
        raise ConfigError("the expression cannot be evaluated")

    world.steps(3, 0.1)
    monkeypatch.setattr(world.writer.assignment.by_partition[ORDERS].converter, "slices", lambda _: iter(fails, None))
    world.group.produce(ORDERS, {"id": 1})
    with pytest.raises(ConfigError, match="cannot be evaluated"):
        world.steps(6)
