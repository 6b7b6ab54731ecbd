"""Reads a partition's records from Kafka one by one and keeps them as bits.

Rules:

1. It has its own consumer, which joins no group, commits nothing, and reads committed records only
   (common/kafka/reader.py).
2. Records are read and dropped: only a bucket of offsets and timestamps is kept, and it is returned when it is full.
"""

from collections.abc import Iterator

import numpy as np
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message
from numpy.typing import NDArray

from common.kafka.reader import KafkaReader
from common.settings import Settings
from common.spans import Position, Span, TopicPartition
from delta_loader.inspect.verify.offsets import BUCKET, NO_STAMPS, STAMP_DIGITS, STAMP_PRIME, Bucket, Stamps

_AT_A_TIME = 10_000


class KafkaOffsets(KafkaReader):
    def __init__(self, settings: Settings) -> None:
        """Raises ConfigError for properties that librdkafka refuses."""
        given = {
            key: value for key, value in settings.kafka.items() if value is not None and not key.startswith("group.")
        }
        given.pop("partition.assignment.strategy", None)
        # The group is required by the client; it is never joined.
        own = {**given, "group.id": "delta-loader-verify", "queued.max.messages.kbytes": 16384}
        super().__init__(own, _AT_A_TIME)

    def buckets(self, partition: TopicPartition, start: Position, end: Position) -> Iterator[tuple[Bucket, Bucket]]:
        if start >= end:
            return
        taken = _BucketRecords(start // BUCKET)
        for message in self._records(partition, Span(start, end)):
            offset = int(message.offset() or 0)
            if offset // BUCKET != taken.number:
                yield taken.buckets()
                taken = _BucketRecords(offset // BUCKET)
            taken.take(offset % BUCKET, message)
        yield taken.buckets()

    def timestamp_ms(self, partition: TopicPartition, offset: int) -> int | None:
        span = Span(Position(offset), Position(offset + 1))
        return next((_time_of(message) for message in self._records(partition, span)), None)

    def _records(self, partition: TopicPartition, span: Span) -> Iterator[Message]:
        for messages in self.messages(partition, span):
            yield from messages


class _BucketRecords:
    def __init__(self, number: int) -> None:
        self.number = number
        self._live = np.zeros(BUCKET, np.bool_)
        self._gone = np.zeros(BUCKET, np.bool_)
        self._known = np.zeros(BUCKET, np.bool_)
        self._times = np.zeros(BUCKET, np.int64)

    def take(self, index: int, message: Message) -> None:
        (self._gone if message.value() is None else self._live)[index] = True
        time_ms = _time_of(message)
        if time_ms is not None:
            self._known[index] = True
            self._times[index] = time_ms

    def buckets(self) -> tuple[Bucket, Bucket]:
        remainders = np.mod(self._times, STAMP_PRIME)
        digits = tuple(_bits((remainders >> digit & 1).astype(np.bool_)) for digit in range(STAMP_DIGITS))
        return self._bucket(self._live, Stamps(_bits(self._known), digits)), self._bucket(self._gone, NO_STAMPS)

    def _bucket(self, flags: NDArray[np.bool_], stamps: Stamps) -> Bucket:
        bits = _bits(flags)
        return Bucket(self.number * BUCKET, bits.bit_count(), bits, stamps)


def _time_of(message: Message) -> int | None:
    kind, time_ms = message.timestamp()
    return None if kind == TIMESTAMP_NOT_AVAILABLE or time_ms < 0 else int(time_ms)


def _bits(flags: NDArray[np.bool_]) -> int:
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")
