"""The report of idle partitions: where nothing is new, until when, and the topics of each stream."""

from collections.abc import Collection, Mapping, Sequence
from typing import cast

import pytest
from structlog import get_logger
from structlog.testing import capture_logs

from common.errors import BrokerRefusedError
from common.metrics import Metrics
from common.settings import Stream
from common.settings.topic_reader import TopicOwners
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.idle import MARGIN_MS, IdleFact, StreamFact
from common.stage.merged import shared_chain
from stage_writer.chain_end import Lineage
from stage_writer.parquet.buffer import Buffer
from stage_writer.partitions.idle_reports import IdleReporter
from stage_writer.partitions.partition import AssignedPartition, InFlightFlush
from stage_writer.ports import Converter, KafkaMetadata
from stage_writer.stage.staging import ObjectStage
from stage_writer.telemetry import WriterTelemetry
from tests.fakes.group import HandClock, LonelyMember
from tests.fakes.markers import ORDERS
from tests.fakes.streams import stream_of


class Metadata:
    def __init__(self, *partitions: tuple[str, int]) -> None:
        self._ends = {TopicPartition(Topic(topic), Partition(number)): Position(0) for topic, number in partitions}

    def end_positions(self, streams: Collection[Stream]) -> Mapping[TopicPartition, Position]:
        del streams
        return self._ends


class Reports:
    def __init__(self) -> None:
        self.idle: Sequence[IdleFact] = ()
        self.streams: Sequence[StreamFact] = ()

    def put_idle(self, idle: Sequence[IdleFact], streams: Sequence[StreamFact], held: object) -> None:
        del held
        self.idle, self.streams = idle, streams


def test_stream_facts_count_the_partitions_of_each_chain() -> None:
    streams = [
        stream_of(app_id="named", topics=["clicks", "orders"]),
        stream_of(app_id="pattern", topics=["^c"], table="memory://lake/other"),
        stream_of(app_id="second", topics=["clicks"], table="memory://lake/second"),
        stream_of(app_id="quiet", topics=["nothing"], table="memory://lake/quiet"),
    ]
    owners = TopicOwners({"clicks": "named"})
    for stream in streams:
        stream.share(owners)
    others, seconds = shared_chain("clicks", "pattern"), shared_chain("clicks", "second")
    metadata = Metadata(
        ("clicks", 0), ("clicks", 1), (others, 0), (others, 1), (seconds, 0), ("orders", 0), ("cars", 0), ("x", 0)
    )
    reports, clock = Reports(), HandClock()
    reporter = IdleReporter(cast("KafkaMetadata", metadata), cast("ObjectStage", reports), clock, get_logger(), streams)
    reporter.report([], {})
    assert {fact.app_id: fact.topics for fact in reports.streams} == {
        "named": {"clicks": 2, "orders": 1},
        "pattern": {others: 2, "cars": 1},
        "second": {seconds: 1},
        "quiet": {},
    }
    assert {fact.time_ms for fact in reports.streams} == {clock.wall_ms() - MARGIN_MS}


class SlowMember(LonelyMember):
    """Its broker takes a second for an end; then the topic may have another id."""

    next_id = "first"

    def high_watermarks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        self.clock.now_s += 1
        self.ids = {ORDERS.topic: self.next_id}
        return super().high_watermarks(partitions)


def idle_of(assigned: AssignedPartition, end: int, *, next_id: str = "first") -> Sequence[IdleFact]:
    reports, clock = Reports(), HandClock()
    member = SlowMember(clock, {ORDERS: end}, ids={ORDERS.topic: "first"})
    member.next_id = next_id
    IdleReporter(member, cast("ObjectStage", reports), clock, get_logger(), [stream_of()]).report([assigned], {})
    return reports.idle


def assigned_at(position: int, *, read_to: int = 0, records: int = 0) -> AssignedPartition:
    buffer, converter = Buffer.begin(Position(position), ()), cast("Converter", None)
    buffer.records = records
    lineage = Lineage(generation=2, topic_id="first")
    return AssignedPartition(ORDERS, converter, None, lineage, buffer, 0.0, read_to=Position(read_to))


def test_nothing_is_new_until_the_question_and_not_until_its_answer() -> None:
    """A record may arrive between the end that the broker read and the moment that its answer takes."""
    asked_ms = HandClock().wall_ms()
    assert idle_of(assigned_at(10), 10) == [IdleFact(ORDERS, Position(10), asked_ms - MARGIN_MS, 2)]


@pytest.mark.parametrize(
    ("assigned", "end", "is_idle"),
    [
        (assigned_at(10), 11, False),
        (assigned_at(10, read_to=12), 12, True),
        (assigned_at(10, read_to=12), 10, False),
        (assigned_at(10, read_to=8), 10, True),
        (assigned_at(10, records=1), 10, False),
    ],
)
def test_partition_is_idle_where_all_that_was_read_is_staged(
    assigned: AssignedPartition, end: int, *, is_idle: bool
) -> None:
    """What was read may end behind the last record: there are offsets of aborted transactions."""
    assert bool(idle_of(assigned, end)) is is_idle


def test_flush_in_progress_is_not_staged_yet() -> None:
    assigned = assigned_at(10)
    assigned.in_flight = cast("InFlightFlush", object())
    assert idle_of(assigned, 10) == []


def test_end_of_a_topic_that_was_recreated_meanwhile_says_nothing() -> None:
    assert idle_of(assigned_at(10), 10, next_id="second") == []


def test_stream_with_a_hidden_topic_is_left_out_of_the_report() -> None:
    class Hiding(Metadata):
        is_hiding = True

        def end_positions(self, streams: Collection[Stream]) -> Mapping[TopicPartition, Position]:
            if self.is_hiding and any(stream.app_id == "hidden" for stream in streams):
                raise BrokerRefusedError("cannot look up the topic hidden", "allow it")
            return super().end_positions(streams)

    streams = [
        stream_of(app_id="hidden", topics=["hidden", "clicks"]),
        stream_of(app_id="orders", topics=["orders"], table="memory://lake/orders"),
    ]
    metadata, reports = Hiding(("orders", 0), ("clicks", 0)), Reports()
    kafka, stage = cast("KafkaMetadata", metadata), cast("ObjectStage", reports)
    telemetry = WriterTelemetry(HandClock(), get_logger(), Metrics())
    reporter = IdleReporter(kafka, stage, HandClock(), get_logger(), streams, report_hidden=telemetry.note_hidden)
    with capture_logs() as logs:
        for _ in range(2):
            reporter.report([], {}, now=True)
    assert {fact.app_id: fact.topics for fact in reports.streams} == {"orders": {"orders": 1}}
    assert [(entry["event"], entry["app_id"]) for entry in logs] == [("topic not read", "hidden")]
    assert telemetry.notes == ("hidden: cannot look up the topic hidden → allow it",)
    metadata.is_hiding = False
    reporter.report([], {}, now=True)
    assert [fact.app_id for fact in reports.streams] == ["hidden", "orders"]
    assert list(telemetry.notes) == []
