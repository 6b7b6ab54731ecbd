"""Fetches: how many messages, how large, and which are dropped when the group moves a partition."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import pytest
from confluent_kafka import Consumer, Message
from confluent_kafka import TopicPartition as KafkaPartition

from stage_writer.fetch.fetching import Fetcher
from tests.fakes.group import HandClock


@dataclass
class Sent:
    size: int
    place: int = 0
    key_size: int = 0
    header_size: int = 0

    def key(self) -> bytes | None:
        return b"k" * self.key_size or None

    def headers(self) -> list[tuple[str, bytes]] | None:
        return [("trace", b"h" * self.header_size)] if self.header_size else None

    def __len__(self) -> int:
        return self.size

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return self.place


@dataclass
class Queue:
    """librdkafka's queue; a function in it stands for a rebalance callback."""

    clock: HandClock
    waiting: list[Sent | Callable[[], None]]
    asked: list[int] = field(default_factory=list)

    def consume(self, most: int, timeout_s: float) -> list[Sent]:
        self.asked.append(most)
        messages: list[Sent] = []
        while self.waiting and len(messages) < most:
            item = self.waiting.pop(0)
            if isinstance(item, Sent):
                messages.append(item)
            else:
                item()
        if not messages:
            self.clock.now_s += timeout_s
        return messages


def taker(queue: Queue, most: int = 1000, most_bytes: int = 10_000) -> Fetcher:
    return Fetcher(cast("Consumer", queue), queue.clock, most, most_bytes)


def sizes(messages: list[Message]) -> list[int]:
    return [len(message) for message in messages]


def test_fetch_size_adapts_to_the_size_of_messages() -> None:
    queue = Queue(HandClock(), [Sent(4000) for _ in range(20)])
    large = taker(queue)
    for _ in range(5):
        assert 1 <= len(large.messages(0.2)) <= 4
    queue.waiting = [Sent(10) for _ in range(5000)]
    assert 30 < len(large.messages(0.2)) <= 40
    assert max(queue.asked) < 1000
    assert len(taker(queue, most_bytes=10**6).messages(0.2)) == 1000


@pytest.mark.parametrize("sent", [Sent(0, key_size=1000), Sent(0, header_size=1000)])
def test_tombstones_with_keys_or_headers_count_toward_the_size(sent: Sent) -> None:
    """They have no value, and one poll once took gigabytes of them."""
    queue = Queue(HandClock(), [sent] * 5000)
    counted = taker(queue)
    for _ in range(5):
        assert 1 <= len(counted.messages(0.2)) <= 16


def test_empty_messages_are_limited_by_their_number() -> None:
    queue = Queue(HandClock(), [Sent(0)] * 5000)
    assert 1 <= len(taker(queue).messages(0.2)) <= 60


def test_message_larger_than_a_fetch_is_returned_alone() -> None:
    queue = Queue(HandClock(), [Sent(50_000), Sent(60_000)])
    alone = taker(queue)
    assert sizes(alone.messages(0.2)) == [50_000]
    assert sizes(alone.messages(0.2)) == [60_000]


def test_fetch_does_not_wait_longer_than_its_timeout() -> None:
    clock = HandClock()
    queue = Queue(clock, [Sent(1)])
    assert sizes(taker(queue).messages(0.2)) == [1]
    assert taker(queue).messages(0.2) == []
    assert clock.now_s <= 1000.0 + 0.4 + 1e-6


def test_messages_fetched_before_their_partition_moved_are_dropped() -> None:
    """Reading resumes at the chain's end: messages after the move are in order; earlier ones would leave a gap."""
    queue = Queue(HandClock(), [])
    moving = taker(queue)
    queue.waiting = [
        Sent(1, 0),
        Sent(2, 1),
        Sent(3, 0),
        lambda: moving.unassigned([KafkaPartition("orders", 0)]),
        Sent(4, 0),
        Sent(5, 1),
    ]
    queue.consume = _one_by_one(queue)  # type: ignore[method-assign,assignment]
    assert sizes(moving.messages(0.2)) == [2, 4, 5]


def _one_by_one(queue: Queue) -> Callable[[int, float], list[Sent]]:
    consume = queue.consume
    return lambda _most, timeout_s: consume(1, timeout_s)
