"""Kafka has other records at the offsets that were loaded: timestamps and topic ids reveal it."""

import json
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from common.spans import Position, Span, Topic, TopicPartition
from common.storage.store import FsspecStore
from common.tables.commit_metadata import CommitMetadata
from common.tables.counts import Counts
from delta_loader.inspect.verify.findings import Finding, Verdict, VerifiedStream
from delta_loader.inspect.verify.kafka_offsets import KafkaOffsets
from delta_loader.inspect.verify.offset_ranges import offset_ranges
from delta_loader.inspect.verify.offsets import BUCKET, STAMP_DIGITS, STAMP_PRIME, Bucket, Stamps
from delta_loader.inspect.verify.same_records import staged_spans
from delta_loader.inspect.verify.verify import Verifier
from delta_loader.ports import in_turn
from tests.fakes.loading import settings_for
from tests.fakes.staging import Staging
from tests.unit.delta_loader.inspect.test_ledger import History, add, loaded, txn
from tests.unit.delta_loader.inspect.test_verify import MINE, Rows

NOON = 1_700_000_000_000
BEGINS = BUCKET - 4
"""Records lie on both sides of a bucket's edge."""


class Table(Rows):
    """Rows with timestamps, in milliseconds; None for a null."""

    def __init__(self, times: Mapping[int, int | None]) -> None:
        super().__init__(MINE)
        self.times = times
        self.is_stamped: set[bool] = set()

    def offsets(self, *_places: tuple[str, int], stamped: bool) -> "Table":
        self.is_stamped.add(stamped)
        return self

    def buckets(self, partition: TopicPartition) -> Iterator[Bucket]:
        assert partition == MINE
        for number in sorted({offset // BUCKET for offset in self.times}):
            times = {offset % BUCKET: time_ms for offset, time_ms in self.times.items() if offset // BUCKET == number}
            known = {place: time_ms % STAMP_PRIME for place, time_ms in times.items() if time_ms is not None}
            digits = [
                sum(1 << place for place, time_ms in known.items() if time_ms >> digit & 1)
                for digit in range(STAMP_DIGITS)
            ]
            stamps = Stamps(sum(1 << place for place in known), tuple(digits))
            yield Bucket(number * BUCKET, len(times), sum(1 << place for place in times), stamps)

    def timestamp_ms(self, _source: TopicPartition, offset: int) -> int | None:
        return self.times.get(offset)


@dataclass(frozen=True)
class Record:
    own_offset: int
    time_ms: int | None
    text: bytes | None = b"{}"

    def offset(self) -> int:
        return self.own_offset

    def value(self) -> bytes | None:
        return self.text

    def timestamp(self) -> tuple[int, int]:
        return (TIMESTAMP_NOT_AVAILABLE, 0) if self.time_ms is None else (TIMESTAMP_CREATE_TIME, self.time_ms)


class Kafka(KafkaOffsets):
    """The real reader over records given by the test."""

    def __init__(self, *records: Record, topic_id: str | None = "one", has_partition: bool = True) -> None:
        self.sent = records
        self._has_partition = has_partition
        self._topic_id = topic_id
        self.was_read = False

    def ends(self, partition: TopicPartition) -> tuple[Position, Position]:
        assert partition == MINE
        return Position(self.sent[0].own_offset), Position(self.sent[-1].own_offset + 1)

    def partitions(self, topic: str) -> list[TopicPartition]:
        assert topic == MINE.topic
        return [MINE] if self._has_partition else []

    def topic_ids(self, topics: Collection[Topic]) -> Mapping[Topic, str | None]:
        return dict.fromkeys(topics, self._topic_id)

    def messages(self, partition: TopicPartition, span: Span) -> Iterator[list[Message]]:
        assert partition == MINE
        self.was_read = True
        yield [cast("Message", record) for record in self.sent if span.covers(Position(record.own_offset))]


def verified(table: Table, kafka: Kafka | None, counts: Counts | None = None, topic_id: str = "one") -> VerifiedStream:
    """A report of a table whose only commit loaded ten positions, or as many records as are counted."""
    stream = settings_for(Staging(f"memory://{uuid.uuid4().hex}")).streams[0]
    span, counted = Span(Position(BEGINS), Position(BEGINS + 10)), counts or Counts(10, 10, 0, 0)
    metadata = CommitMetadata(
        "c", "orders", {MINE: span}, None, {MINE: counted}, positions={MINE: span.end}, topic_ids={MINE: topic_id}
    )
    actions = (
        {"commitInfo": {"operation": "STREAMING UPDATE", "userMetadata": metadata.to_json()}},
        {"add": {"path": "0.parquet", "stats": f'{{"numRecords":{counted.records_with_rows}}}', "dataChange": True}},
        {"txn": {"appId": "orders-0", "version": span.end - 1}},
    )
    log = FsspecStore(stream.table)
    log.write(f"_delta_log/{0:020d}.json", "\n".join(map(json.dumps, actions)).encode())
    log.write("0.parquet", b"rows")
    report = Verifier(FsspecStore, in_turn, table, kafka).verify(stream)
    assert report.failure is None
    return report


def times(first: int = 0, last: int = 10) -> dict[int, int | None]:
    return {BEGINS + number: NOON + number for number in range(first, last)}


def records(given: Mapping[int, int | None]) -> list[Record]:
    return [Record(offset, time_ms) for offset, time_ms in given.items()]


def proved(report: VerifiedStream) -> Finding:
    (finding,) = [finding for finding in report.findings if finding.verdict is Verdict.PROVED]
    return finding


def test_same_records_are_proved_by_their_timestamps() -> None:
    table = Table(times())
    report = verified(table, Kafka(*records(times())))
    assert (report.is_clean, report.partitions[0].proved, table.is_stamped) == (True, True, {True})
    assert proved(report).text.endswith("timestamps compared: 10, all equal; not compared: contents")
    assert verified(table, None).is_clean
    assert table.is_stamped == {True, False}, "without Kafka nothing is compared with timestamps"


@pytest.mark.parametrize("first", [0, 3, 4, 9])
def test_different_records_at_the_same_offsets_are_a_fault(first: int) -> None:
    others = times() | {BEGINS + number: NOON + 60_000 + number for number in range(first, 10)}
    report = verified(Table(times()), Kafka(*records(others)))
    (fault,) = report.faults
    assert (fault.kind, fault.spans) == ("other_records", (Span(Position(BEGINS + first), Position(BEGINS + 10)),))
    many = "1 record of orders/0 has" if first == 9 else f"{10 - first} records of orders/0 have"
    assert f"{many} another timestamp" in fault.text
    moments = f"2023-11-14T22:14:20.00{first}Z in Kafka, 2023-11-14T22:13:20.00{first}Z in the tables"
    assert f"the first one at {BEGINS + first} ({moments})" in fault.text
    assert f"--topic orders --partition 0 --at {BEGINS + first} --yes`" in fault.text
    assert "all_in_tables" not in {finding.kind for finding in report.findings}
    assert not report.partitions[0].proved


def test_single_different_record_is_found() -> None:
    report = verified(Table(times()), Kafka(*records(times() | {BEGINS + 6: NOON})))
    assert [fault.spans for fault in report.faults] == [(Span(Position(BEGINS + 6), Position(BEGINS + 7)),)]


def test_records_without_timestamps_are_reported_as_not_compared() -> None:
    """Kafka has none, the table has none (before 1970, after 9999, a column of another type), or neither has."""
    kafka = times() | {BEGINS: None, BEGINS + 1: 300_000_000_000_000, BEGINS + 2: -1, BEGINS + 3: NOON + 3}
    table = times() | {BEGINS: None, BEGINS + 1: None, BEGINS + 2: None, BEGINS + 3: None}
    report = verified(Table(table), Kafka(*records(kafka)))
    assert report.is_clean
    assert "timestamps compared: 6, all equal; not compared: the timestamps of 4 others" in proved(report).text


def test_tombstones_and_expired_records_are_not_differences() -> None:
    rows = times(0, 9)
    kept = [
        *records(
            {offset: time_ms for offset, time_ms in rows.items() if offset not in (BEGINS, BEGINS + 1, BEGINS + 5)}
        )
    ]
    kafka = Kafka(*kept, Record(BEGINS + 9, NOON + 9, None))
    report = verified(Table(rows), kafka, Counts(10, 9, 1, 0))
    assert report.is_clean
    text = proved(report).text
    assert "timestamps compared: 6, all equal; not compared: 2 loaded records that Kafka no longer has" in text
    assert [
        "has 1 record of orders/0" in finding.text for finding in report.findings if finding.kind == "gone_from_kafka"
    ] == [True]


def test_tombstone_at_a_loaded_records_offset_is_a_different_record() -> None:
    kafka = Kafka(*records(times(0, 9)), Record(BEGINS + 9, NOON + 60_000, None))
    assert [fault.kind for fault in verified(Table(times()), kafka).faults] == ["other_records"]


def test_topic_with_another_id_is_a_fault_and_its_records_are_not_read() -> None:
    kafka = Kafka(*records(times()), topic_id="two")
    report = verified(Table(times()), kafka)
    (fault,) = report.faults
    assert (fault.kind, fault.partition, kafka.was_read) == ("other_topic", MINE, False)
    assert "of a topic with the id one" in fault.text
    assert "is a different one, with the id two" in fault.text
    assert "--topic orders --partition 0 --yes`" in fault.text
    assert not report.partitions[0].proved


def test_partition_that_the_other_topic_does_not_have_is_not_a_fault() -> None:
    report = verified(Table(times()), Kafka(*records(times()), topic_id="two", has_partition=False))
    (finding,) = [finding for finding in report.findings if finding.kind == "other_topic"]
    assert finding.verdict is Verdict.UNPROVED
    assert "without this partition" in finding.text
    assert "restart" not in finding.text
    assert report.is_clean
    assert not report.partitions[0].proved


def test_unknown_topic_id_is_not_a_fault() -> None:
    assert verified(Table(times()), Kafka(*records(times()), topic_id=None)).is_clean


def test_records_loaded_by_another_program_are_not_compared() -> None:
    history = History()
    history.commit(add("ingested", 0, 9, 10), txn(9))
    history.commit(add("ingested too", 10, 19, 10), txn(19))
    history.load(20, 30, 10)
    history.load(30, 40, 10)
    assert staged_spans(offset_ranges(history.ledger, None, MINE)) == [Span(Position(20), Position(40))]


def test_recreated_topic_has_no_known_id_until_a_commit_names_it() -> None:
    history = History()
    first = CommitMetadata("c", "app", {}, None, {}, positions={MINE: Position(10)}, topic_ids={MINE: "one"})
    history.commit(txn(9), ours=replace(first, spans={MINE: Span(Position(0), Position(10))}))
    assert history.ledger.topic_ids == {MINE: "one"}
    history.commit(txn(4, "app-0@1"), ours=loaded(0, 5, 5, generation=1))
    assert history.ledger.topic_ids == {}
