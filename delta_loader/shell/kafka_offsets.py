"""What Kafka has of a partition, read record by record and kept as bits.

Rules:

1. A consumer of its own: it joins no group, commits nothing, and reads committed records only.
2. Records are looked at and let go: a bucket of offsets is all that stays, and it is handed on when it is full.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from common.errors import BrokerError
from common.kafka import QUIET
from common.spans import Position
from delta_loader.core.offsets import BUCKET, Bucket

if TYPE_CHECKING:
    from collections.abc import Iterator

    from common.settings import Settings
    from common.spans import TopicPartition

_TIMEOUT_S = 30.0
_LOOK_S = 0.5
_AT_A_TIME = 10_000
_BYTES = BUCKET // 8
_END = KafkaError._PARTITION_EOF  # noqa: SLF001 - librdkafka's own codes begin with an underscore


class KafkaOffsets:
    """The records of a cluster's partitions, as bits."""

    def __init__(self, settings: Settings) -> None:
        """Raises BrokerError for properties that librdkafka refuses."""
        given = {
            key: value for key, value in settings.kafka.items() if value is not None and not key.startswith("group.")
        }
        fixed = {
            "group.id": "delta-loader-verify",  # the client asks for one; it is never joined
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": given.get("isolation.level", "read_committed"),
            "queued.max.messages.kbytes": 16384,
        }
        given.pop("partition.assignment.strategy", None)
        with _errors("start a consumer"):
            self._consumer = Consumer({**given, **fixed}, logger=QUIET)

    def ends(self, source: TopicPartition) -> tuple[Position, Position]:
        """The first position that Kafka still has, and the end."""
        with _errors(f"look up the ends of {source}"):
            low, high = self._consumer.get_watermark_offsets(_kafka(source), timeout=_TIMEOUT_S)
        return Position(low), Position(high)

    def buckets(self, source: TopicPartition, start: Position, end: Position) -> Iterator[tuple[Bucket, Bucket]]:
        """Records with a value, and tombstones, of ``[start, end)``, bucket by bucket."""
        if start >= end:
            return
        self._consumer.assign([KafkaPartition(source.topic, source.partition, start)])
        live, gone, bucket = bytearray(_BYTES), bytearray(_BYTES), start // BUCKET
        for offset, has_value in self._records(source, end):
            if offset // BUCKET != bucket:
                yield _bucket(bucket, live), _bucket(bucket, gone)
                live, gone, bucket = bytearray(_BYTES), bytearray(_BYTES), offset // BUCKET
            bits = live if has_value else gone
            bits[offset % BUCKET // 8] |= 1 << (offset % 8)
        yield _bucket(bucket, live), _bucket(bucket, gone)

    def close(self) -> None:
        """Let go of the connections."""
        self._consumer.close()

    def _records(self, source: TopicPartition, end: Position) -> Iterator[tuple[int, bool]]:
        heard_s = time.monotonic()
        while True:
            with _errors(f"read {source}"):
                # It waits until it has as many or the time is over, also at the partition's end.
                messages = self._consumer.consume(_AT_A_TIME, _LOOK_S)
                for problem in (message.error() for message in messages):
                    if problem is not None and problem.code() != _END:
                        raise KafkaException(problem)
            if messages:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > _TIMEOUT_S:
                msg = f"Kafka did not send anything of {source} for {_TIMEOUT_S:.0f} seconds"
                raise BrokerError(msg, "see whether the brokers are well, and run the command again")
            for message in messages:
                if (message.topic(), message.partition()) != (source.topic, source.partition):
                    continue  # of the partition that was read before
                if message.error() is not None or message.offset() >= end:
                    return
                yield int(message.offset()), message.value() is not None


def _bucket(number: int, bits: bytearray) -> Bucket:
    found = int.from_bytes(bits, "little")
    return Bucket(number * BUCKET, found.bit_count(), found)


def _kafka(source: TopicPartition) -> KafkaPartition:
    return KafkaPartition(source.topic, source.partition)


@contextmanager
def _errors(what: str) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        cause = error.args[0] if error.args else error
        reason = cause.str() if isinstance(cause, KafkaError) else str(cause)
        msg = f"cannot {what}: {reason}"
        raise BrokerError(msg, "check the settings below kafka, and that the brokers are up") from error
