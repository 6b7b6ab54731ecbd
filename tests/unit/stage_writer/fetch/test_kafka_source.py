"""librdkafka's messages become batches, with sequences that a real broker does not produce at will."""

from collections.abc import Callable, Collection, Mapping

import pytest
import structlog
from confluent_kafka import KafkaError, Message
from confluent_kafka import TopicPartition as KafkaPartition

from common.clock import SystemClock
from common.errors import BrokerError
from common.spans import Position, TopicPartition
from stage_writer.fetch import connection
from stage_writer.fetch.fetched import batches_of
from stage_writer.fetch.kafka import KafkaSource
from tests.builders import settings_of

FULL = 4


def message(topic: str, partition: int, offset: int, value: bytes | None = b"{}") -> Message:
    return Message(topic=topic, partition=partition, offset=offset, value=value, timestamp=(1, 1000 + offset))


class ScriptedConsumer:
    """Runs one scripted call per consume: it may rebalance, and returns messages."""

    def __init__(self, calls: "list[Callable[[ScriptedConsumer], list[Message]]]") -> None:
        self.calls = calls
        self.timeouts: list[float] = []

    def consume(self, _most: int, timeout: float) -> list[Message]:
        self.timeouts.append(timeout)
        return self.calls.pop(0)(self) if self.calls else []

    def incremental_unassign(self, _places: list[KafkaPartition]) -> None:
        pass


class Listener:
    def assigned(self, _sources: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        return {}

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        pass

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        pass


def source_of(monkeypatch: pytest.MonkeyPatch, *calls: Callable[[ScriptedConsumer], list[Message]]) -> KafkaSource:
    consumer = ScriptedConsumer(list(calls))
    monkeypatch.setattr(connection, "Consumer", lambda *_args, **_more: consumer)
    stream = {"app_id": "a", "topics": ["t"], "table": "file:///t", "columns": "id BIGINT"}
    settings = settings_of(stream, folder="file://", writer={"consume_records": FULL})
    source = KafkaSource(settings, SystemClock(), structlog.get_logger(), with_headers=settings.streams)
    source._listener = Listener()  # as `subscribe` does, without a cluster
    return source


def test_full_batches_are_combined_and_a_short_one_ends_the_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of(
        monkeypatch,
        lambda _: [message("t", 0, offset) for offset in range(4)],
        lambda _: [message("t", 0, 4)],
        lambda _: [],
        lambda _: [message("t", 0, 5)],
    )
    polled = source.poll(0.2)
    assert [batch.offsets.tolist() for batch in polled.batches] == [[0, 1, 2, 3], [4]]
    assert [batch.offsets.tolist() for batch in source.poll(0.2).batches] == [[5]]


def test_keys_and_headers_count_toward_the_poll_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tombstones have no value, and one poll once took a whole queue of them."""

    def tombstones(_: ScriptedConsumer) -> list[Message]:
        keyed = [Message(topic="t", partition=0, offset=offset, key=b"k" * 2**21) for offset in range(2)]
        traced = [
            Message(topic="t", partition=0, offset=2 + number, headers=[("h", b"h" * 2**21)]) for number in range(2)
        ]
        return keyed + traced

    source = source_of(monkeypatch, *[tombstones] * 50)
    taken = sum(len(batch) for batch in source.poll(0.2).batches)
    assert FULL <= taken <= 4 * FULL, "the share of a poll is 16 MiB"


def test_messages_read_before_a_rebalance_of_their_partition_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition may return in the same poll at an earlier position: keeping them would leave a gap."""

    def moved(consumer: ScriptedConsumer) -> list[Message]:
        source._on_lost(consumer, [KafkaPartition("t", 1)])
        return [message("t", 1, 3)]

    source = source_of(
        monkeypatch, lambda _: [message("t", 0, 0), message("t", 1, 7), message("t", 0, 1), message("t", 1, 8)], moved
    )
    offsets = [(int(batch.partition.partition), batch.offsets.tolist()) for batch in source.poll(0.2).batches]
    assert offsets == [(0, [0, 1]), (1, [3])]


def test_end_or_fault_from_before_a_rebalance_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would count as the end for the new position, and the records between would never be read."""

    def problem(partition: int, offset: int, code: int) -> Message:
        return Message(topic="t", partition=partition, offset=offset, error=KafkaError(code))

    def moved(consumer: ScriptedConsumer) -> list[Message]:
        source._on_lost(consumer, [KafkaPartition("t", 1), KafkaPartition("t", 2)])
        return [message("t", 1, 90)]

    full = [
        problem(0, 100, KafkaError._PARTITION_EOF),
        problem(1, 100, KafkaError._PARTITION_EOF),
        problem(2, 100, KafkaError.OFFSET_OUT_OF_RANGE),
        problem(3, 100, KafkaError.OFFSET_OUT_OF_RANGE),
    ]
    source = source_of(monkeypatch, lambda _: full, moved)
    polled = source.poll(0.2)
    assert {int(partition.partition): end for partition, end in polled.ends.items()} == {0: 100}
    assert [int(fault.partition.partition) for fault in polled.faults] == [3]
    assert [batch.offsets.tolist() for batch in polled.batches] == [[90]]


@pytest.mark.parametrize(
    "places",
    [
        [("b", 1, 5), ("a", 1, 9), ("b", 0, 2), ("a", 1, 10), ("b", 1, 6), ("a", 0, 1)],
        [("b", 1, 5), ("b", 1, 6), ("a", 1, 9), ("a", 1, 11), ("a", 0, 3)],
        [("a", 0, 7), ("a", 0, 8)],
        [("a", 2, 7), ("a", 1, 8), ("a", 0, 9)],
        [],
    ],
)
def test_messages_are_split_by_partition_in_order(places: list[tuple[str, int, int]]) -> None:
    messages = [message(*place, b"%s/%d/%d" % (place[0].encode(), *place[1:])) for place in places]
    batches = batches_of(messages, with_headers=True)
    offsets = {
        (str(batch.partition.topic), int(batch.partition.partition)): batch.offsets.tolist() for batch in batches
    }
    assert len(offsets) == len(batches)
    assert offsets == {
        (topic, partition): [place[2] for place in places if place[:2] == (topic, partition)]
        for topic, partition, _ in places
    }
    for batch in batches:
        topic, partition = batch.partition.topic, batch.partition.partition
        assert batch.values.to_pylist() == [f"{topic}/{partition}/{offset}".encode() for offset in batch.offsets]
        assert batch.timestamps_ms.tolist() == [1000 + offset for offset in batch.offsets]
        assert batch.headers is not None
        assert batch.keys.null_count == batch.headers.null_count == len(batch)


def test_batch_keeps_values_and_timestamps() -> None:
    (batch,) = batches_of([message("t", 0, 1, b"{}"), message("t", 0, 2, None)], with_headers=False)
    assert batch.values.to_pylist() == [b"{}", None]
    assert batch.timestamps_ms.tolist() == [1001, 1002]
    assert batch.keys.to_pylist() == [None, None]


def test_brokers_without_the_consumer_protocol_fail_with_the_setting_to_remove(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """librdkafka reports it once, without a partition; otherwise, the writer would wait forever."""
    text = "Fatal error: Broker: API version not supported: ConsumerGroupHeartbeat fatal error"
    fatal = Message(error=KafkaError(KafkaError._FATAL, text))
    source = source_of(monkeypatch, lambda _: [fatal])
    with pytest.raises(BrokerError, match="API version not supported") as raised:
        source.poll(0.2)
    assert raised.value.remedy.startswith("remove kafka.group.protocol")
