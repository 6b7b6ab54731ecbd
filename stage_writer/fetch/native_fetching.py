"""Reads messages from librdkafka's queues in bounded portions, like `fetching`, without an object for each.

Rules:

1. Those of `stage_writer.fetch.fetching`. C ends a portion by its bytes; this module ends it by time.
2. The group is served between two waits, so these are short. Messages of the same portion that were read before a
   rebalance moved their partition are dropped, and the portion ends.
"""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as KafkaPartition
from structlog.typing import FilteringBoundLogger

from common.ports import Clock
from common.settings import Stream
from stage_writer.fetch.fetched import ClientEvent, Fetched, batches_of_fetched, fetched_of
from stage_writer.fetch.fetching import Fetcher
from stage_writer.native.fetching import NativeFetch

_LONGEST_WAIT_S = 0.05
_FORWARD_EVERY_S = 0.1
_MOST_MESSAGES = 100


class NativeFetcher:
    def __init__(
        self,
        taking: NativeFetch,
        consumer: Consumer,
        clock: Clock,
        most: int,
        most_bytes: int,
        *,
        with_headers: bool = False,
    ) -> None:
        """Like `Fetcher`; ``with_headers`` is for messages that arrive as Python's objects."""
        self._with_headers = with_headers
        self._taking = taking
        self._consumer = consumer
        self._clock = clock
        self._most = most
        self._most_bytes = most_bytes
        self._forwarded_at_s = clock.monotonic_s()
        self._moved_now: set[tuple[str, int]] = set()
        """Partitions that were assigned or revoked while the group was last served."""
        self.moved: set[tuple[str, int]] = set()
        """Topics and partitions that were assigned or revoked while the last portion was read."""

    def take(self, timeout_s: float, taken_bytes: int = 0) -> Fetched:
        deadline_s = self._clock.monotonic_s() + timeout_s
        most_bytes = self._most_bytes - taken_bytes
        strays: list[Message] = []
        held, self.moved = 0, set()
        while True:
            self._moved_now = set()
            fresh = self._consumer.consume(_MOST_MESSAGES, 0.0)
            self.moved |= self._moved_now
            if self._moved_now and (held or strays):
                return self._fetched(strays, self._moved_now, fresh)
            strays += fresh
            now_s = self._clock.monotonic_s()
            if now_s - self._forwarded_at_s >= _FORWARD_EVERY_S:
                self._forwarded_at_s = now_s
                self._taking.forward()
            left_s = max(0.0, deadline_s - now_s)
            held, held_bytes = self._taking.take(self._most, most_bytes, min(left_s, _LONGEST_WAIT_S))
            if held >= self._most or held_bytes >= most_bytes or left_s == 0.0:
                return self._fetched(strays)

    def assigned(self, partitions: Iterable[KafkaPartition]) -> None:
        kafka_partitions = [(partition.topic, partition.partition) for partition in partitions]
        self._moved_now |= set(kafka_partitions)
        self._taking.take_over(kafka_partitions)

    def unassigned(self, partitions: Iterable[KafkaPartition]) -> None:
        kafka_partitions = [(partition.topic, partition.partition) for partition in partitions]
        self._moved_now |= set(kafka_partitions)
        self._taking.release(kafka_partitions)

    def close(self) -> None:
        self._taking.close()

    def _fetched(
        self, strays: list[Message], stale: Collection[tuple[str, int]] = (), fresh: Sequence[Message] = ()
    ) -> Fetched:
        """What is held, without ``stale`` partitions (rule 2); ``fresh`` ones were assigned at the same time."""
        # Events of no partition arrive by the consumer's own queue, and so does what was queued before it was
        # forwarded.
        taken = self._taking.give()
        other, after = (fetched_of(some, with_headers=self._with_headers) for some in (strays, fresh))
        problems = [
            ClientEvent(error.topic, error.partition, error.offset, KafkaError(error.code, error.text or None))
            for error in taken.errors
        ]
        batches = (*other.batches, *batches_of_fetched(taken))
        kept = [batch for batch in batches if (batch.partition.topic, batch.partition.partition) not in stale]
        current = [
            client_event
            for client_event in (*other.problems, *problems)
            if (client_event.topic, client_event.partition) not in stale
        ]
        count = other.count + after.count + len(taken.offsets) + len(problems)
        return Fetched((*kept, *after.batches), (*current, *after.problems), count)


def fetcher_of(
    consumer: Consumer,
    clock: Clock,
    most: int,
    most_bytes: int,
    *,
    with_headers: Sequence[Stream],
    native: Path | None,
    log: FilteringBoundLogger,
) -> Fetcher | NativeFetcher:
    """Reads without Python objects where the library loads; ``with_headers`` are the streams that use headers."""

    def wants_headers(topic: str) -> bool:
        return any(stream.reads(topic) for stream in with_headers)

    if native is not None:
        try:
            taking = NativeFetch(native, consumer, wants_headers)
            return NativeFetcher(taking, consumer, clock, most, most_bytes, with_headers=bool(with_headers))
        except OSError as error:
            log.info("consuming messages as Python objects, at a higher cost", problem=str(error))
    return Fetcher(consumer, clock, most, most_bytes, with_headers=bool(with_headers))
