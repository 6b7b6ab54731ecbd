"""What Kafka has of a partition, read record by record and kept as bits.

Rules:

1. A consumer of its own: it joins no group, commits nothing, and reads committed records only (common/kafka/reader.py).
2. Records are looked at and let go: a bucket of offsets is all that stays, and it is handed on when it is full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.kafka.reader import KafkaReader
from common.spans import Span
from delta_loader.core.offsets import BUCKET, Bucket

if TYPE_CHECKING:
    from collections.abc import Iterator

    from common.settings import Settings
    from common.spans import Position, TopicPartition

_AT_A_TIME = 10_000
_BYTES = BUCKET // 8


class KafkaOffsets(KafkaReader):
    """The records of a cluster's partitions, as bits."""

    def __init__(self, settings: Settings) -> None:
        """Raises ConfigError for properties that librdkafka refuses."""
        given = {
            key: value for key, value in settings.kafka.items() if value is not None and not key.startswith("group.")
        }
        given.pop("partition.assignment.strategy", None)
        fixed = {
            "group.id": "delta-loader-verify",  # the client asks for one; it is never joined
            "isolation.level": given.get("isolation.level", "read_committed"),
            "queued.max.messages.kbytes": 16384,
        }
        super().__init__({**given, **fixed}, _AT_A_TIME)

    def buckets(self, source: TopicPartition, start: Position, end: Position) -> Iterator[tuple[Bucket, Bucket]]:
        """Records with a value, and tombstones, of ``[start, end)``, bucket by bucket."""
        if start >= end:
            return
        live, gone, bucket = bytearray(_BYTES), bytearray(_BYTES), start // BUCKET
        for offset, has_value in self._records(source, Span(start, end)):
            if offset // BUCKET != bucket:
                yield _bucket(bucket, live), _bucket(bucket, gone)
                live, gone, bucket = bytearray(_BYTES), bytearray(_BYTES), offset // BUCKET
            bits = live if has_value else gone
            bits[offset % BUCKET // 8] |= 1 << (offset % 8)
        yield _bucket(bucket, live), _bucket(bucket, gone)

    def _records(self, source: TopicPartition, span: Span) -> Iterator[tuple[int, bool]]:
        for messages in self.messages(source, span):
            for message in messages:
                yield int(message.offset() or 0), message.value() is not None


def _bucket(number: int, bits: bytearray) -> Bucket:
    found = int.from_bytes(bits, "little")
    return Bucket(number * BUCKET, found.bit_count(), found)
