"""The topics of each stream, in the report of idle partitions."""

from collections.abc import Collection, Mapping, Sequence
from typing import cast

from structlog import get_logger

from common.settings import Stream
from common.settings.topic_reader import TopicOwners
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.idle import MARGIN_MS, StreamFact
from common.stage.merged import shared_chain
from stage_writer.partitions.idle_reports import IdleReporter
from stage_writer.ports import KafkaMetadata
from stage_writer.stage.staging import ObjectStage
from tests.fakes.group import HandClock
from tests.fakes.streams import stream_of


class Metadata:
    def __init__(self, *partitions: tuple[str, int]) -> None:
        self._ends = {TopicPartition(Topic(topic), Partition(number)): Position(0) for topic, number in partitions}

    def end_positions(self, streams: Collection[Stream]) -> Mapping[TopicPartition, Position]:
        del streams
        return self._ends


class Reports:
    def __init__(self) -> None:
        self.streams: Sequence[StreamFact] = ()

    def put_idle(self, idle: object, streams: Sequence[StreamFact], held: object) -> None:
        del idle, held
        self.streams = streams


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
