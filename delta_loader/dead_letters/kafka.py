"""Kafka for the dead letters that the loader makes: reads their records.

Rules:

1. Records that are near one another are read in one go, skipping the records in between. No group is joined.
2. The client is created when it is first needed: a loader whose tables refuse nothing never connects to Kafka.
3. Records of a recreated topic are not those that were staged: the broker's topic id is compared, where both are known.
"""

from collections.abc import Collection, Iterator, Mapping

from common.kafka.reader import KafkaReader
from common.settings import Settings
from common.spans import Offset, Position, Span, TopicPartition
from common.stage.merged import kafka_topic
from delta_loader.load.ports import RawRecord

_NEAR = 1000
_AT_A_TIME = 1000


class RawRecordFetcher:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __call__(
        self, partition: TopicPartition, offsets: Collection[Offset], topic_id: str | None, /
    ) -> Mapping[Offset, RawRecord]:
        """The records that Kafka still has; none if the topic has a new id. Raises BrokerError, ConfigError."""
        given = {
            key: value
            for key, value in self._settings.kafka.items()
            if value is not None and not key.startswith("group.") and key != "partition.assignment.strategy"
        }
        reader = KafkaReader({**given, "group.id": "delta-loader-originals"}, _AT_A_TIME)
        try:
            topic = kafka_topic(partition.topic)
            now = reader.topic_ids([topic]).get(topic)
            if topic_id is not None and now is not None and now != topic_id:
                return {}
            return _read(reader, partition, offsets)
        finally:
            reader.close()


def _read(reader: KafkaReader, partition: TopicPartition, offsets: Collection[Offset]) -> dict[Offset, RawRecord]:
    low, high = reader.ends(partition)
    wanted = {offset for offset in offsets if low <= offset < high}
    raw_records: dict[Offset, RawRecord] = {}
    for span in _spans(sorted(wanted)):
        for message in (message for some in reader.messages(partition, span) for message in some):
            offset = Offset(int(message.offset() or 0))
            if offset in wanted:
                kind, timestamp_ms = message.timestamp()
                raw_records[offset] = RawRecord(
                    timestamp_ms if kind else None, _bytes(message.key()), _bytes(message.value())
                )
    return raw_records


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _spans(offsets: list[Offset]) -> Iterator[Span]:
    """Ranges that contain all of them (rule 1)."""
    start: Offset | None = None
    last: Offset | None = None
    for offset in offsets:
        if start is None or last is None:
            start = offset
        elif offset - last > _NEAR:
            yield Span(Position(start), Position(last + 1))
            start = offset
        last = offset
    if start is not None and last is not None:
        yield Span(Position(start), Position(last + 1))
