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
from common.stage.changelogs import TopicChanges
from common.stage.state_files import StateFileName
from common.storage.chunks import ByteChunks


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


class Changelog(Protocol):
    """The changes of tasks' states in topics."""

    def write(self, topic: Topic, app_id: str, name: StateFileName, data: ByteChunks) -> TopicChanges:
        """Write a flush's changes. Raises BrokerError, and ConfigError for a topic that is no longer suitable."""

    def reading(self) -> AbstractContextManager[ChangeReader]:
        """A reader for any number of changes; connects on first use."""


class ChangeReader(Protocol):
    def read(self, changes: TopicChanges) -> bytes:
        """All changes of a flush. Raises StateError and BrokerError."""


class NoChangelog:
    """For a process that neither runs topologies nor restores them."""

    def write(self, topic: Topic, app_id: str, name: StateFileName, data: ByteChunks) -> TopicChanges:
        raise NotImplementedError(topic, app_id, name, data)

    def reading(self) -> AbstractContextManager[ChangeReader]:
        msg = "the state of this chain is in a Kafka topic, which this program does not read"
        raise StateError(msg, "read it with a stage writer")


NO_CHANGELOG = NoChangelog()


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
