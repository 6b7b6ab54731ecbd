"""The records that a table refuses, as Kafka has them."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from common.settings.section import Option
from common.spans import Offset, Partition, Position, Span, Topic, TopicPartition
from delta_loader.dead_letters.kafka import RawRecordFetcher
from delta_loader.load.ports import RawRecord
from tests.builders import settings_of, span

ORDERS = TopicPartition(Topic("orders"), Partition(2))


@dataclass
class Record:
    number: int

    def offset(self) -> int:
        return self.number

    def timestamp(self) -> tuple[int, int]:
        return self.number % 2, 1_000 + self.number

    def key(self) -> str:
        return f"k{self.number}"

    def value(self) -> bytes:
        return b"v%d" % self.number


@dataclass
class Reader:
    """A `KafkaReader` of a partition with the offsets from 10 to 5000."""

    properties: Mapping[str, Option]
    at_a_time: int
    spans: list[Span] = field(default_factory=list)
    closed: bool = False

    def topic_ids(self, topics: Collection[Topic]) -> Mapping[Topic, str | None]:
        return dict.fromkeys(topics, "now")

    def ends(self, partition: TopicPartition) -> tuple[Position, Position]:
        assert partition == ORDERS
        return Position(10), Position(5000)

    def messages(self, partition: TopicPartition, span: Span) -> Iterator[list[Record]]:
        assert partition == ORDERS
        self.spans.append(span)
        for offset in range(span.start, span.end):
            yield [Record(offset)]

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> list[Reader]:
    made: list[Reader] = []

    def reader(properties: Mapping[str, Option], at_a_time: int) -> Reader:
        made.append(Reader(properties, at_a_time))
        return made[-1]

    monkeypatch.setattr("delta_loader.dead_letters.kafka.KafkaReader", reader)
    return made


def test_only_wanted_records_are_returned_and_those_nearby_are_read_together(readers: list[Reader]) -> None:
    wanted = [Offset(offset) for offset in (4999, 9, 30, 10, 1029, 2500, 5000)]
    records = RawRecordFetcher(settings_of({}))(ORDERS, wanted, None)
    assert records == {
        offset: RawRecord(1_000 + offset if offset % 2 else None, b"k%d" % offset, b"v%d" % offset)
        for offset in (10, 30, 1029, 2500, 4999)
    }
    (reader,) = readers
    assert reader.spans == [span(10, 1030), span(2500, 2501), span(4999, 5000)]
    assert reader.closed


@pytest.mark.parametrize(
    ("topic_id", "now", "count"), [("now", "now", 1), (None, "now", 1), ("old", "now", 0), ("old", None, 1)]
)
def test_records_of_a_recreated_topic_are_not_those_that_were_staged(
    readers: list[Reader], monkeypatch: pytest.MonkeyPatch, topic_id: str | None, now: str | None, count: int
) -> None:
    monkeypatch.setattr(Reader, "topic_ids", lambda _self, topics: dict.fromkeys(topics, now))
    assert len(RawRecordFetcher(settings_of({}))(ORDERS, [Offset(11)], topic_id)) == count
    assert readers[0].closed


def test_reader_takes_no_name_of_a_group_from_the_settings(readers: list[Reader]) -> None:
    kafka: Mapping[str, Option] = {"bootstrap.servers": "b:1", "group.id": "writers", "group.instance.id": "one"}
    settings = settings_of({}).model_copy(update={"kafka": kafka})
    RawRecordFetcher(settings)(ORDERS, [Offset(11)], None)
    assert readers[0].properties == {"bootstrap.servers": "b:1", "group.id": "delta-loader-originals"}
