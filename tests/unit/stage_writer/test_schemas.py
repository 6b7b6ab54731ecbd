"""When the columns that streams have gained are read, and what waits for that."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest
import structlog

from common.backoff import Backoff
from common.errors import MarkerError, StoreError, StoreRefusedError
from common.schema import StructType, parse_ddl, schema_from_json
from common.settings import Settings, Stream
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.versions import Evolved
from stage_writer.chain_end import Lineage
from stage_writer.convert_by_table import converter_of
from stage_writer.partitions.resume_points import ResumePoint, ResumePoints
from stage_writer.partitions.startup import PartitionStartup, StartedPartition
from stage_writer.ports import Converter, KafkaMetadata, Result, Workers
from stage_writer.schemas import LOOK_AT_SCHEMAS_S, GainedColumns, Schemas
from stage_writer.stage.staging import ObjectStage
from tests.fakes.group import Done, HandClock, InTurn

FIRST_PAUSE_S = Backoff().next_s()


@dataclass
class Later(InTurn):
    """Workers whose jobs run when the test says so."""

    waiting: list[Callable[[], None]] = field(default_factory=list)

    def start(self, job: Callable[[], Result]) -> Done[Result]:
        running = Ended[Result](StoreError("it has not run", ""))
        self.waiting.append(lambda: running.end(super(Later, self).start(job)))
        return running

    def run(self) -> None:
        jobs, self.waiting = self.waiting, []
        for job in jobs:
            job()


class Ended(Done[Result]):
    is_done = False

    def end(self, with_: Done[Result]) -> None:
        self.outcome, self.is_done = with_.outcome, True

    def done(self) -> bool:
        return self.is_done


@dataclass
class Published:
    """A stage with the columns that streams have gained, or why they cannot be read."""

    answers: dict[str, Evolved | Exception | None] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    offers: list[object] = field(default_factory=list)
    states: object = None

    def continued(self, stream: Stream) -> Evolved | None:
        return self._answer(stream.app_id, "first")

    def gained(self, app_id: str, *, by_route: bool) -> Evolved | None:
        assert not by_route
        return self._answer(app_id, "again")

    def gain(self, stream: Stream, offers: object) -> Evolved:
        assert offers
        self.offers.append(offers)
        answer = self._answer(stream.app_id, "gain")
        assert answer is not None
        return answer

    def _answer(self, app_id: str, how: str) -> Evolved | None:
        self.asked.append(f"{app_id} {how}")
        answer = self.answers.get(app_id)
        if isinstance(answer, Exception):
            raise answer
        return answer


class World:
    def __init__(self, workers: InTurn, *names: str) -> None:
        self.clock, self.stage = HandClock(), Published()
        common = {"columns": "id BIGINT", "kafka_columns": False, "unknown_fields": "evolve"}
        streams = [{"app_id": name, "topics": [name], "table": f"memory://{name}", **common} for name in names]
        kafka = {"bootstrap.servers": "nowhere:1"}
        settings = Settings.model_validate({"kafka": kafka, "stage": {"url": "memory://stage"}, "streams": streams})
        self.converters: dict[str, Converter] = {each.app_id: converter_of(each) for each in settings.streams}
        self.schemas = Schemas(
            self.converters.values(),
            cast("ObjectStage", self.stage),
            cast("Workers", workers),
            self.clock,
            structlog.get_logger(),
            columns={},
        )

    def goes_on(self, name: str) -> bool:
        return self.schemas.read_first(self.converters[name])

    def columns(self, name: str) -> tuple[str, ...]:
        return schema_from_json(self.schemas.newest(self.converters[name]).formats[0].schema).names


def gained(name: str, version: int, columns: str) -> Evolved:
    return Evolved(name, version, parse_ddl(columns))


def test_store_that_is_away_delays_no_other_stream() -> None:
    world = World(InTurn(), "away", "well")
    world.stage.answers = {"away": StoreError("the table is away", "wait"), "well": StoreError("a moment", "wait")}
    for name, problem in [("away", "the table is away"), ("well", "a moment")]:
        with pytest.raises(StoreError, match=problem):
            world.goes_on(name)
    world.stage.answers["well"] = gained("well", 1, "x BIGINT")
    world.clock.now_s += FIRST_PAUSE_S
    assert (world.goes_on("well"), "x" in world.columns("well")) == (True, True)
    for _ in range(20):
        with pytest.raises(StoreError, match="the table is away"):
            world.goes_on("away")
        world.clock.now_s += 60
    world.stage.answers["away"] = gained("away", 1, "z BIGINT")
    assert (world.goes_on("away"), "z" in world.columns("away")) == (True, True)


def test_stream_waits_for_its_columns_without_blocking_the_loop() -> None:
    workers = Later()
    world = World(workers, "slow")
    world.stage.answers = {"slow": gained("slow", 1, "x BIGINT")}
    for _ in range(3):
        assert not world.goes_on("slow")
        world.clock.now_s += LOOK_AT_SCHEMAS_S
    assert (world.stage.asked, len(workers.waiting)) == ([], 1)
    workers.run()
    assert (world.goes_on("slow"), "x" in world.columns("slow"), world.stage.asked) == (True, True, ["slow first"])


def test_partition_starts_once_its_columns_are_known() -> None:
    workers, partition = Later(), TopicPartition(Topic("slow"), Partition(0))
    world = World(workers, "slow")
    world.stage.answers = {"slow": gained("slow", 1, "x BIGINT")}
    resume_point, lookups = ResumePoint(None, Position(0), Lineage()), list[int]()

    def of_all(streams: Mapping[TopicPartition, Stream], _: object) -> Mapping[TopicPartition, ResumePoint]:
        lookups.append(len(streams))
        return dict.fromkeys(streams, resume_point)

    startup = PartitionStartup(
        cast("KafkaMetadata", SimpleNamespace(topic_ids=lambda topics: dict.fromkeys(topics, "id"))),
        cast("ResumePoints", SimpleNamespace(of_all=of_all)),
        world.schemas,
        cast("ObjectStage", world.stage),
        cast("Workers", workers),
        clock=world.clock,
        log=structlog.get_logger(),
    )
    startup.add(partition, world.converters["slow"])
    for number in range(6):
        assert (startup.due_outcomes(), list(startup.waiting)) == ({}, [partition])
        world.clock.now_s += 60 * (number % 2)
    assert lookups == [1, 0, 1, 0, 1, 0], "chains are not read in each round meanwhile"
    workers.run()
    started = startup.due_outcomes()[partition]
    assert isinstance(started, StartedPartition)
    assert started.converter is world.schemas.newest(world.converters["slow"])
    assert "x" in world.columns("slow")


@pytest.mark.parametrize("error", [StoreRefusedError("not for you"), MarkerError("damaged", "look at it")])
def test_refused_or_unreadable_columns_are_not_waited_for(error: Exception) -> None:
    world = World(InTurn(), "orders")
    world.stage.answers = {"orders": error}
    assert world.goes_on("orders")
    world.stage.answers = {"orders": gained("orders", 1, "x BIGINT")}
    world.clock.now_s += LOOK_AT_SCHEMAS_S
    world.schemas.refresh()
    assert world.stage.asked == ["orders first"] * 2, "tables are looked at until that is done"
    assert "x" in world.columns("orders")


def test_older_answer_does_not_undo_an_agreement() -> None:
    """Reading and agreeing take turns: with both under way, the older answer could be the later one."""
    workers = Later()
    world = World(workers, "orders")
    world.schemas.refresh()
    workers.run()
    assert world.goes_on("orders")
    world.clock.now_s += LOOK_AT_SCHEMAS_S
    world.schemas.refresh()  # reads
    offered: StructType = parse_ddl("x BIGINT")
    converter = world.converters["orders"]
    assert world.schemas.waits(converter, offered, "marker") is not None
    world.schemas.refresh()
    assert len(workers.waiting) == 1
    workers.run()
    world.schemas.refresh()
    world.schemas.refresh()  # agrees
    world.clock.now_s += LOOK_AT_SCHEMAS_S
    world.schemas.refresh()
    assert len(workers.waiting) == 1
    world.stage.answers = {"orders": gained("orders", 1, "x BIGINT")}
    workers.run()
    world.schemas.refresh()
    assert world.stage.asked == ["orders first", "orders again", "orders gain"]
    assert "x" in world.columns("orders")


def test_fields_that_come_with_one_marker_are_asked_for_together() -> None:
    world = World(InTurn(), "orders")
    assert world.goes_on("orders")
    for columns in ("x BIGINT", "y BIGINT"):
        assert world.schemas.waits(world.converters["orders"], parse_ddl(columns), "marker") is not None
    world.stage.answers = {"orders": gained("orders", 1, "x BIGINT, y BIGINT")}
    world.schemas.refresh()
    assert world.stage.offers == [{"marker": parse_ddl("x BIGINT, y BIGINT")}]


def test_field_that_was_left_out_is_asked_for_again_once_columns_were_published() -> None:
    world, offered = World(InTurn(), "orders"), parse_ddl("x BIGINT")
    assert world.goes_on("orders")

    def waits() -> bool:
        return world.schemas.waits(world.schemas.newest(world.converters["orders"]), offered, "marker") is not None

    assert waits()
    world.stage.answers = {"orders": gained("orders", 1, "y BIGINT")}
    for _ in range(2):
        world.schemas.refresh()
    assert not waits(), "it stays in the rescue column"
    world.stage.answers = {"orders": gained("orders", 2, "y BIGINT, z BIGINT")}
    world.clock.now_s += LOOK_AT_SCHEMAS_S
    world.schemas.refresh()
    assert waits()


def test_only_columns_that_differ_from_those_read_before_are_news() -> None:
    world = World(InTurn(), "orders")
    columns = GainedColumns(
        cast("ObjectStage", world.stage), InTurn(), world.clock, structlog.get_logger(), by_route=False
    )
    first, second = gained("orders", 1, "y BIGINT"), gained("orders", 2, "y BIGINT, z BIGINT")
    for published, is_new in ((first, True), (first, False), (None, False), (second, True), (second, False)):
        world.stage.answers = {"orders": published}
        assert columns.read(world.converters["orders"].stream) is is_new
        world.clock.now_s += LOOK_AT_SCHEMAS_S
    assert columns.columns.names == ("y", "z")


def test_all_that_is_in_a_route_s_field_is_left_out_with_it() -> None:
    world = World(InTurn(), "orders")
    of_route = GainedColumns(
        cast("ObjectStage", world.stage), InTurn(), world.clock, structlog.get_logger(), by_route=True
    )
    world.stage.answers = {"orders": gained("orders", 1, "r STRUCT<y: BIGINT>")}
    of_route.want(parse_ddl("r STRUCT<x: STRUCT<a: BIGINT>>"), "marker")
    stream = world.converters["orders"].stream
    assert [of_route.agree(stream), of_route.agree(stream)] == [False, True]
    assert of_route.is_decided(parse_ddl("r STRUCT<x: STRUCT<b: BIGINT>>"))
    assert not of_route.is_decided(parse_ddl("r STRUCT<z: BIGINT>"))
