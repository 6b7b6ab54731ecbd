"""Reads messages from librdkafka's queues in bounded portions: as Python objects, or in C without an object for each.

Rules:

1. A portion ends with the time, with a number of messages, or with a number of bytes, whichever comes first. librdkafka
   supports only the first two: a call that waits for ten thousand messages of 10 MB reads everything the brokers can
   send meanwhile. So a call either waits for one message, or takes what is already in the queue; how much that may be
   is estimated from the size of the previous messages.
2. A call serves the group too. Messages that an earlier call of the same portion took from a partition that was then
   revoked or assigned are dropped: reading continues elsewhere, and they would lie behind a gap. (Within a call
   librdkafka does that.)
3. A message is counted with its key, its headers and its own overhead: a tombstone has no value, but a million of them
   still take memory.
4. Messages are not held here longer than needed: they may be most of a writer's memory.
5. `NativeFetcher` keeps rules 1 to 4 too. C ends a portion by its bytes, Python by time. The group is served between
   two waits, so these are short. Where a rebalance moved a partition of which the portion has messages, it ends.
"""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as KafkaPartition
from structlog.typing import FilteringBoundLogger

from common.ports import Clock
from common.settings import Stream
from stage_writer.fetch.fetched import ClientEvent, Fetched, batches_of_fetched, fetched_of
from stage_writer.native.fetching import NativeFetch

_INITIAL_BYTES = 64 * 1024
"""The assumed size of a message before any was seen."""
_MESSAGE_BYTES = 256
"""A message's overhead in addition to its bytes, in librdkafka and in Python."""


def size_of(message: Message) -> int:
    """Bytes that a message holds (rule 3)."""
    headers = message.headers()
    more = 0 if headers is None else sum(len(name) + len(value or b"") for name, value in headers)
    return _MESSAGE_BYTES + len(message) + len(message.key() or b"") + more


class Fetcher:
    def __init__(
        self, consumer: Consumer, clock: Clock, most: int, most_bytes: int, *, with_headers: bool = False
    ) -> None:
        """At most ``most`` messages at a time, and about ``most_bytes``, but always at least one message."""
        self._consumer = consumer
        self._clock = clock
        self._most = most
        self._most_bytes = most_bytes
        self._with_headers = with_headers
        self._size_bytes = min(_INITIAL_BYTES, most_bytes)
        """Bytes per message, estimated from the previous ones."""
        self._taken: list[Message] = []
        self.moved: set[tuple[str, int]] = set()
        """Topics and partitions that were assigned or revoked while the last portion was read."""

    def take(self, timeout_s: float, taken_bytes: int = 0) -> Fetched:
        return fetched_of(self.messages(timeout_s, taken_bytes), with_headers=self._with_headers)

    def messages(self, timeout_s: float, taken_bytes: int = 0) -> list[Message]:
        """The next portion, including errors and ends of partitions; waits up to the given time.

        ``taken_bytes`` is what the portion already holds.
        """
        deadline_s = self._clock.monotonic_s() + timeout_s
        self._taken, self.moved = [], set()
        while len(self._taken) < self._most and taken_bytes < self._most_bytes:
            left_s = deadline_s - self._clock.monotonic_s()
            if (self._taken and left_s <= 0) or not self._call(1, max(0.0, left_s)):
                break
            first = len(self._taken) - 1
            wanted = min(self._most - len(self._taken), (self._most_bytes - taken_bytes) // self._size_bytes - 1)
            if wanted > 0:
                self._call(wanted, 0.0)
            messages = self._taken[first:]
            found_bytes = sum(map(size_of, messages))
            self._size_bytes = max(1, found_bytes // max(1, len(messages)))
            taken_bytes += found_bytes
        taken, self._taken = self._taken, []
        return taken

    def assigned(self, partitions: Iterable[KafkaPartition]) -> None:
        """Record partitions that are about to be assigned; called while the group is served (rule 2)."""
        gone = {(partition.topic, partition.partition) for partition in partitions}
        self.moved |= gone
        self._taken = [message for message in self._taken if (message.topic(), message.partition()) not in gone]

    def unassigned(self, partitions: Iterable[KafkaPartition]) -> None:
        """Record partitions that are about to be revoked; called while the group is served (rule 2)."""
        self.assigned(partitions)

    def close(self) -> None:
        """Call this before the consumer is closed: releases everything of it."""

    def _call(self, most: int, timeout_s: float) -> bool:
        """Append the result of one call; returns whether there was any."""
        messages: list[Message] = self._consumer.consume(most, timeout_s)
        self._taken += messages
        return bool(messages)


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
        """What is held, without ``stale`` partitions (rule 5); ``fresh`` ones were assigned at the same time."""
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
