"""Messages out of librdkafka's queue, in bounded portions.

Rules:

1. A portion ends with the time, with a number of messages, or with a number of bytes, whichever comes first. librdkafka
   knows the first two only: a call that waits for ten thousand messages of 10 MB takes all that the brokers can send
   meanwhile. So a call either waits for one message, or takes what is in the queue already; how much that may be is
   judged by the size of the messages before.
2. A call serves the group too. Messages that an earlier call of the same portion took of a partition that then went, or
   came, are dropped: reading goes on elsewhere, and they would lie behind a gap. (Within a call librdkafka does that.)
3. A message is counted with its key, its headers and what it costs by itself: a tombstone has no value, and a million
   of them are not nothing.
4. What was taken is not held here any longer than it is wanted: it may be most of a writer's memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from confluent_kafka import Consumer, Message
    from confluent_kafka import TopicPartition as KafkaPartition

    from common.ports import Clock

_FIRST_GUESS_BYTES = 64 * 1024
"""Of a message, before one was seen."""


_MESSAGE_BYTES = 256
"""What a message costs beside its bytes, as librdkafka's and as Python's."""


def size_of(message: Message) -> int:
    """Bytes that a message holds (rule 3)."""
    headers = message.headers()
    more = 0 if headers is None else sum(len(name) + len(value or b"") for name, value in headers)
    return _MESSAGE_BYTES + len(message) + len(message.key() or b"") + more


class Taker:
    """Takes portions from one consumer."""

    def __init__(self, consumer: Consumer, clock: Clock, most: int, most_bytes: int) -> None:
        """``most`` messages at a time, and about ``most_bytes``, but one message always."""
        self._consumer = consumer
        self._clock = clock
        self._most = most
        self._most_bytes = most_bytes
        self._size_bytes = min(_FIRST_GUESS_BYTES, most_bytes)
        """Of a message, as the last ones were."""
        self._taken: list[Message] = []
        self.moved: set[tuple[str, int]] = set()
        """Topics and partitions that came or went while the last portion was taken."""

    def take(self, timeout_s: float, taken_bytes: int = 0) -> list[Message]:
        """The next portion, errors and ends of partitions included; it waits that long at most.

        ``taken_bytes`` is what has been taken of the portion already.
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
            found = self._taken[first:]
            found_bytes = sum(map(size_of, found))
            self._size_bytes = max(1, found_bytes // max(1, len(found)))
            taken_bytes += found_bytes
        taken, self._taken = self._taken, []
        return taken

    def assigned(self, partitions: Iterable[KafkaPartition]) -> None:
        """These are about to come; called while the group is served (rule 2)."""
        self.forget(partitions)

    def unassigned(self, partitions: Iterable[KafkaPartition]) -> None:
        """These are about to go; called while the group is served (rule 2)."""
        self.forget(partitions)

    def close(self) -> None:
        """Before the consumer is: nothing of it is held."""

    def forget(self, partitions: Iterable[KafkaPartition]) -> None:
        """These went, or came; called while the group is served (rule 2)."""
        gone = {(found.topic, found.partition) for found in partitions}
        self.moved |= gone
        self._taken = [message for message in self._taken if (message.topic(), message.partition()) not in gone]

    def _call(self, most: int, timeout_s: float) -> bool:
        """Append what one call brings; whether it brought anything."""
        found: list[Message] = self._consumer.consume(most, timeout_s)
        self._taken += found
        return bool(found)
