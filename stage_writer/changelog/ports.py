"""The ports of changelog topics: the writer's, and Kafka's.

A simulation provides its own; production provides Kafka's clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from common.errors import StateError
from common.spans import Position, Topic, TopicPartition
from common.stage.task_files import TopicChanges


@dataclass(frozen=True, slots=True)
class ChangelogMessage:
    value: bytes
    headers: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Appended:
    partition: TopicPartition
    topic_id: str | None
    """The topic's id, requested after they were written."""
    offsets: tuple[Position, ...]


class ChangelogReader(Protocol):
    def require_same(self, partition: TopicPartition, topic_id: str | None) -> None:
        """Raises StateError for a topic that is gone or was recreated; and BrokerError."""

    def at(self, partition: TopicPartition, offset: Position) -> ChangelogMessage:
        """A message. Raises StateError if Kafka does not have it (any more), and BrokerError."""


class ChangelogTopics(Protocol):
    """Kafka's topics, as changelogs need them. Used from several threads."""

    def append(self, topic: Topic, task: TopicPartition, messages: Sequence[ChangelogMessage]) -> Appended:
        """Write them, and wait until they are durable.

        ``task`` chooses the Kafka partition. Raises BrokerError: some may still have been written, or be written later.
        """

    def reader(self) -> AbstractContextManager[ChangelogReader]:
        """A reader for use by one thread, closed at the end."""


class TopicChecker(Protocol):
    """Checks whether Kafka's topics keep their messages long enough."""

    def require_suitable(self, topic: Topic) -> int:
        """The number of partitions of a suitable topic. Raises ConfigError for an unsuitable one, and BrokerError."""


class TopicWatch:
    """The topic checks of the writer's loop (watch.py). This class is for a writer that writes to no topics."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Problems that an operator must know. Safe to call from any thread."""
        return ()

    def check(self) -> None:
        """Check, if that is due; never waits."""


NO_WATCH = TopicWatch()


def missing_messages(partition: TopicPartition, offset: Position, low: Position, high: Position) -> StateError:
    has = (
        f"Kafka has only offsets {low} to {high - 1} of it"
        if low < high
        else f"the partition is empty, and continues at {high}"
    )
    return StateError(f"the changes of a task's state at offset {offset} of {partition} are gone: {has}")


def iterate(changes: TopicChanges) -> Iterator[Position]:
    """The offsets of the pieces, in order."""
    for span in changes.spans:
        yield from map(Position, range(span.start, span.end))
