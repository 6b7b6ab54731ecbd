"""A sample of a stream's records, to infer columns from: the oldest and the newest of each topic.

Rules:

1. No group is joined and nothing is committed. A running writer is not affected.
2. A message that is not a record (a frame that cannot be read, no JSON object) is left out: it becomes a dead letter.
"""

import json
from collections.abc import Iterator, Sequence

from common.kafka.reader import KafkaReader
from common.schema.inference import JsonShape
from common.settings import Settings, Stream
from common.spans import Position, Span, TopicPartition
from stage_writer.fetch.consumer_properties import consumer_properties
from stage_writer.shape.opening import opener_of

SAMPLE_RECORDS = 1_000
"""Of each topic and end, approximately."""
_MOST_PARTITIONS = 8
_AT_A_TIME = 500


def sample_records(settings: Settings, stream: Stream) -> JsonShape:
    """The structure of some of a stream's records; empty without records.

    Raises BrokerError and ConfigError.
    """
    json_shape, opened = JsonShape(), opener_of(stream)
    reader = KafkaReader(consumer_properties(settings), _AT_A_TIME)
    try:
        for topic in reader.topics() if stream.pattern is not None else stream.topics:
            if stream.reads(topic):
                for value in _values(reader, reader.partitions(topic)):
                    record = None if value is None else opened(value)
                    if record is not None:
                        _add(json_shape, record)
    finally:
        reader.close()
    return json_shape


def _values(reader: KafkaReader, partitions: Sequence[TopicPartition]) -> Iterator[bytes | None]:
    ends = {partition: reader.ends(partition) for partition in partitions}
    filled = [partition for partition, (low, high) in ends.items() if low < high]
    some = filled[:: -(-len(filled) // _MOST_PARTITIONS)] if filled else []
    per_partition = -(-SAMPLE_RECORDS // len(some)) if some else 0
    for partition in some:
        low, high = ends[partition]
        middle = Position(min(low + per_partition, high))
        for start, end in ((low, middle), (Position(max(high - per_partition, middle)), high)):
            if start < end:
                for messages in reader.messages(partition, Span(start, end)):
                    yield from (message.value() for message in messages)


def _add(shape: JsonShape, record: bytes) -> None:
    try:
        document = json.loads(record.decode())
    except (ValueError, RecursionError):
        return
    if isinstance(document, dict):
        shape.add(document)
