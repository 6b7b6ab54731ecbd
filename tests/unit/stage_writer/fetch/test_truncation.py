"""Records that Kafka lost under the same topic id, seen through a scripted consumer."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import pytest
import structlog
from confluent_kafka import KafkaError, Message
from confluent_kafka import TopicPartition as KafkaPartition

from common.errors import BrokerError
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.markers import LastRecord
from stage_writer.fetch import connection
from stage_writer.fetch.kafka import KafkaSource
from stage_writer.fetch.shared.source import SharedTopicSource
from stage_writer.fetch.truncation import OVERDUE_S
from stage_writer.ports import OUT_OF_RANGE, TRUNCATED
from tests.builders import settings_of
from tests.fakes.group import HandClock

ORDERS = TopicPartition(Topic("orders"), Partition(0))
LAST = LastRecord(99, 5_000, 2)
END = KafkaError._PARTITION_EOF
RESET = KafkaError._AUTO_OFFSET_RESET
TRUNCATION = (
    "Partition log truncation detected at offset 99 (leader epoch 2): broker end offset is 50 (offset leader epoch 0). "
    "Reset to INVALID.: Local: Partition log truncation detected (broker 1)"
)


def record(offset: int, timestamp_ms: int = 5_000, epoch: int = 2) -> Message:
    return Message(
        topic="orders", partition=0, offset=offset, value=b"{}", timestamp=(1, timestamp_ms), leader_epoch=epoch
    )


def problem(code: int, offset: int, text: str = "") -> Message:
    return Message(topic="orders", partition=0, offset=offset, error=KafkaError(code, text or None))


@dataclass
class Consumer:
    answers: list[list[Message]] = field(default_factory=list)
    begins: list[KafkaPartition] = field(default_factory=list)

    def consume(self, _most: int, _timeout: float) -> list[Message]:
        return self.answers.pop(0) if self.answers else []

    def incremental_assign(self, places: list[KafkaPartition]) -> None:
        self.begins += places

    def incremental_unassign(self, places: list[KafkaPartition]) -> None: ...

    def seek(self, place: KafkaPartition) -> None:
        self.begins.append(place)

    def pause(self, places: list[KafkaPartition]) -> None: ...

    def resume(self, places: list[KafkaPartition]) -> None: ...

    @property
    def offsets(self) -> list[tuple[int, int | None]]:
        return [(place.offset, place.leader_epoch) for place in self.begins]


@dataclass
class TruncationCase:
    source: KafkaSource
    consumer: Consumer
    clock: HandClock

    def poll(self, *messages: Message) -> tuple[list[int], list[tuple[str, str]], list[int]]:
        self.consumer.answers = [list(messages)]
        polled = self.source.poll(0.0)
        offsets = [offset for batch in polled.batches for offset in batch.offsets.tolist()]
        faults = [(fault.reason, fault.problem + fault.remedy) for fault in polled.faults]
        return offsets, faults, list(polled.ends.values())


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> TruncationCase:
    consumer, clock = Consumer(), HandClock()
    monkeypatch.setattr(connection, "Consumer", lambda *_args, **_more: consumer)
    settings = settings_of({"app_id": "a", "table": "file:///t"}, folder="file://")
    source = KafkaSource(settings, clock, structlog.get_logger())

    class Listener:
        def assigned(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
            source.expect(dict.fromkeys(partitions, LAST))
            return dict.fromkeys(partitions, Position(100))

        def revoked(self, partitions: Collection[TopicPartition]) -> None: ...

        def lost(self, partitions: Collection[TopicPartition]) -> None: ...

    source._listener = Listener()  # as `subscribe` does, without a cluster
    source._on_assign(consumer, [KafkaPartition("orders", 0)])
    assert consumer.offsets == [(99, 2)], "reading starts at the last record that was read"
    return TruncationCase(source, consumer, clock)


def ends_at(monkeypatch: pytest.MonkeyPatch, reading: TruncationCase, low: int, high: int) -> None:
    answers = iter([low, high])

    def one_after_the_other(specs: Collection[TopicPartition], *_level: object) -> dict[TopicPartition, Position]:
        return {partition: Position(next(answers)) for partition in specs}

    monkeypatch.setattr(reading.source.metadata, "offsets", one_after_the_other)


@pytest.mark.parametrize("known", [record(99), record(99, epoch=-1)], ids=["epoch", "no epoch"])
def test_record_that_is_still_there_is_skipped(reading: TruncationCase, known: Message) -> None:
    assert reading.poll(known, record(100, 6_000, 3)) == ([100], [], [])
    assert reading.poll(record(101)) == ([101], [], [])
    assert reading.consumer.offsets == [(99, 2)]


def test_older_records_that_a_client_repeats_are_dropped(reading: TruncationCase) -> None:
    assert reading.poll(record(97), record(98)) == ([], [], [])
    assert reading.poll(record(99), record(100)) == ([100], [], [])
    assert reading.consumer.offsets == [(99, 2)]


@pytest.mark.parametrize("other", [record(99, timestamp_ms=5_001), record(99, epoch=3)], ids=["timestamp", "epoch"])
def test_different_record_at_the_last_offset_is_a_truncation(reading: TruncationCase, other: Message) -> None:
    assert reading.poll(other, record(100)) == ([], [], []), (
        "librdkafka is asked first: it may know the offset of the truncation"
    )
    assert reading.consumer.offsets == [(99, 2), (99, 2)]
    offsets, ((reason, text),), _ = reading.poll(other, record(100), record(101, epoch=4))
    assert (offsets, reason) == ([], TRUNCATED)
    assert "Kafka lost the record at 99 of orders/0" in text
    assert "bootstrap restart ⟨config⟩ --topic orders --partition 0 --at" in text


def test_truncation_is_reported_at_the_offset_that_librdkafka_knows(reading: TruncationCase) -> None:
    offsets, ((reason, text),), _ = reading.poll(problem(RESET, -1001, TRUNCATION))
    assert (offsets, reason) == ([], TRUNCATED)
    assert "different ones from 50 on" in text
    assert "(`delta-loader verify ⟨config⟩ --kafka` names it; if it names none, it is 50)" in text
    assert "--at OFFSET --yes" in text, "where leader epochs repeat, it may be an earlier one"


def test_record_removed_by_compaction_is_checked_by_leader_epoch(reading: TruncationCase) -> None:
    assert reading.poll(record(104)) == ([], [], [])
    assert reading.consumer.offsets == [(99, 2), (99, 2)], "by a seek, with its epoch"
    assert reading.poll(record(104)) == ([104], [], [])


def test_last_record_removed_by_retention_is_not_a_gap(
    reading: TruncationCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_at(monkeypatch, reading, 100, 120)
    assert reading.poll(problem(RESET, 99)) == ([], [], [])
    assert reading.consumer.offsets[-1] == (100, None)
    assert reading.poll(record(100)) == ([100], [], [])


def test_unread_records_removed_by_retention_are_a_gap(
    reading: TruncationCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_at(monkeypatch, reading, 110, 120)
    _, ((reason, text),), _ = reading.poll(problem(RESET, 99))
    assert reason == OUT_OF_RANGE
    assert "no longer has [100, 110)" in text


@pytest.mark.parametrize("code", [RESET, END])
def test_topic_that_ends_before_its_chain_has_lost_records(
    reading: TruncationCase, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """It may end exactly at the last record, which is not an out-of-range position."""
    ends_at(monkeypatch, reading, 0 if code == RESET else 99, 99)
    _, ((reason, text),), ends = reading.poll(problem(code, 99))
    assert (reason, ends) == (TRUNCATED, [])
    assert "ends at 99 in Kafka, before position 100" in text
    assert "a hand-made marker or the stream's `start` is ahead of it" in text
    assert "if `start` was too high, correct it, and give that command the offset" in text
    assert "if it names none, it is 99), and" in text
    assert "--at OFFSET --yes" in text, "records before the end may be new ones"
    assert "otherwise once the writer is started again" in text


def test_end_that_a_new_leader_does_not_know_yet_is_checked_again(
    reading: TruncationCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_at(monkeypatch, reading, 100, 100)
    assert reading.poll(problem(END, 99)) == ([], [], [])
    assert reading.poll(record(99), problem(END, 100)) == ([], [], [100])


def test_last_record_is_checked_again_after_all_brokers_were_down(reading: TruncationCase) -> None:
    reading.poll(record(99), record(100), record(101, 7_000, 3))
    reading.source._connection.record(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    assert reading.poll(record(101, 7_000, 3), record(102, 7_000, 3)) == ([102], [], [])
    assert reading.consumer.offsets == [(99, 2), (101, 3)]
    reading.source._connection.record(KafkaError(KafkaError._TRANSPORT))
    reading.poll()
    assert len(reading.consumer.offsets) == 2, "the loss of one broker is normal"


def test_seek_position_is_not_checked_against_earlier_reads(reading: TruncationCase) -> None:
    """A writer that drops messages reads them again from its position, even if all brokers go down in between."""
    reading.poll(record(99), record(100), record(101))
    reading.source.seek(ORDERS, Position(100))
    reading.source._connection.record(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    assert reading.poll(record(100)) == ([100], [], [])
    assert reading.consumer.offsets[-1] == (100, None)


def test_existing_record_that_is_not_delivered_ends_the_process(
    reading: TruncationCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka believes no leader whose epoch is lower than the one that it has seen."""
    ends_at(monkeypatch, reading, 110, 110)
    later(reading)
    reading.source.pause([ORDERS])
    for _ in range(3):  # a partition paused by backpressure is not overdue
        later(reading)
    reading.source.resume([ORDERS])
    later(reading)
    with pytest.raises(BrokerError, match="does not deliver the record at 99 of orders/0"):
        later(reading)


def test_undelivered_record_is_detected_when_two_chains_take_turns(
    reading: TruncationCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each move of the read position starts another check."""
    chains = {Topic("orders"): Position(100), Topic("orders@b"): Position(50)}
    shared = SharedTopicSource(reading.source, lambda _: list(chains), reading.clock)

    class Listener:
        def assigned(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
            shared.expect({partition: LastRecord(chains[partition.topic] - 1, 5_000, 2) for partition in partitions})
            return {partition: chains[partition.topic] for partition in partitions}

        def revoked(self, partitions: Collection[TopicPartition]) -> None: ...

        def lost(self, partitions: Collection[TopicPartition]) -> None: ...

    shared._listener = Listener()
    monkeypatch.setattr(reading.source, "_listener", shared)
    reading.source._on_assign(reading.consumer, [KafkaPartition("orders", 0)])
    ends_at(monkeypatch, reading, 110, 110)

    def wait() -> None:
        for _ in range(20):
            reading.clock.now_s += OVERDUE_S / 5
            shared.poll(0.0)

    with pytest.raises(BrokerError, match="does not deliver the record at 49 of orders/0"):
        wait()


def test_undelivered_record_beyond_the_topics_end_is_a_truncation(
    reading: TruncationCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_at(monkeypatch, reading, 60, 60)
    later(reading)
    _, faults, _ = later(reading)
    ((reason, text),) = faults
    assert reason == TRUNCATED
    assert "ends at 60 in Kafka" in text


def later(reading: TruncationCase) -> tuple[list[int], list[tuple[str, str]], list[int]]:
    """An empty poll after the time for the next check."""
    reading.clock.now_s += OVERDUE_S
    return reading.poll()
