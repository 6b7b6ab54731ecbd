"""A partition that librdkafka stopped is read again in both kinds of group, and the others continue."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from common.spans import Partition, Topic, TopicPartition
from stage_writer.fetch.reading import ReadPositions
from tests.fakes.shared_topics import Log

FIRST, SECOND = (TopicPartition(Topic("t"), Partition(number)) for number in range(2))
Places = list[tuple[int, int]]


class Consumer:
    """Records its calls; a seek in partition 0 fails with ``error``."""

    def __init__(self, error: int) -> None:
        self.error = error
        self.calls: list[tuple[str, Places]] = []

    def seek(self, place: KafkaPartition) -> None:
        if place.partition == 0:
            raise KafkaException(KafkaError(self.error))
        self._note("seek", [place])

    def _note(self, name: str, places: list[KafkaPartition]) -> None:
        self.calls.append((name, [(place.partition, place.offset) for place in places]))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any of the consumer's other calls
        return lambda places=(): self._note(name, places)


def reading_of(
    *paused: TopicPartition, is_cooperative: bool, error: int = KafkaError._STATE
) -> tuple[ReadPositions, list[tuple[str, Places]]]:
    consumer = Consumer(error)
    reading = ReadPositions(consumer, is_cooperative=is_cooperative)
    reading.assign([KafkaPartition("t", 0, 5), KafkaPartition("t", 1, 5)])
    log = Log()
    log.append(9)
    reading.read([log.batch(SECOND, 5, 2)])
    reading.pause(paused)
    consumer.calls.clear()
    return reading, consumer.calls


def test_cooperative_group_reassigns_only_the_stopped_partition() -> None:
    reading, calls = reading_of(SECOND, is_cooperative=True)
    reading.seek(KafkaPartition("t", 0, 8))
    assert calls == [("incremental_unassign", [(0, -1001)]), ("incremental_assign", [(0, 8)])]


def test_eager_group_reassigns_all_partitions_at_their_positions_and_pauses() -> None:
    reading, calls = reading_of(SECOND, TopicPartition(Topic("gone"), Partition(0)), is_cooperative=False)
    reading.seek(KafkaPartition("t", 0, 8))
    assert calls == [("assign", [(0, 8), (1, 7)]), ("pause", [(1, -1001)])]
    reading.resume([SECOND])
    calls.clear()
    reading.seek(KafkaPartition("t", 1, 3))
    reading.seek(KafkaPartition("t", 0, 6))
    assert calls == [("seek", [(1, 3)]), ("assign", [(0, 6), (1, 3)]), ("pause", [])]


def test_revoked_partition_is_not_reassigned() -> None:
    reading, calls = reading_of(SECOND, is_cooperative=False)
    reading.unassign([KafkaPartition("t", 0), KafkaPartition("t", 1)])
    reading.read([Log({1: 1}, end=2).batch(SECOND, 0, 1)])
    reading.assign([KafkaPartition("t", 0, 1)])
    calls.clear()
    reading.seek(KafkaPartition("t", 0, 8))
    assert calls == [("assign", [(0, 8)]), ("pause", [])]


@pytest.mark.parametrize("is_cooperative", [True, False])
def test_other_seek_errors_are_raised(*, is_cooperative: bool) -> None:
    reading, calls = reading_of(is_cooperative=is_cooperative, error=KafkaError._TRANSPORT)
    with pytest.raises(KafkaException):
        reading.seek(KafkaPartition("t", 0, 8))
    assert calls == []
