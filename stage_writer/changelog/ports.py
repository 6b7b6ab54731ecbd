"""What the writer asks of changelog topics, and what these ask of Kafka.

A simulation hands them its own; production hands them Kafka's clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from common.errors import StateError
from common.spans import Position

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from common.spans import Topic, TopicPartition
    from common.stage.changelogs import TopicChanges
    from common.stage.state_files import StateFileName
    from common.storage.pieces import Pieces


@dataclass(frozen=True, slots=True)
class Piece:
    """A message of a changelog topic."""

    value: bytes
    headers: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Appended:
    """Where pieces are."""

    place: TopicPartition
    topic_id: str | None
    """Asked for after they were there."""
    offsets: tuple[Position, ...]
    """Of each piece, in their order."""


class PieceReader(Protocol):
    """Reads messages of topics, one after the other."""

    def require_same(self, place: TopicPartition, topic_id: str | None) -> None:
        """Raises StateError for a topic that is gone, or another one than that; and BrokerError."""

    def at(self, place: TopicPartition, offset: Position) -> Piece:
        """A message. Raises StateError for one that Kafka does not have (any more), and BrokerError."""


class ChangelogTopics(Protocol):
    """Kafka's topics, as far as changelogs need them. Used from several threads."""

    def append(self, topic: Topic, task: TopicPartition, pieces: Sequence[Piece]) -> Appended:
        """Write them, and wait until they are there for good.

        ``task`` chooses the Kafka partition. Raises BrokerError: then some may be there all the same, or come later.
        """

    def reader(self) -> AbstractContextManager[PieceReader]:
        """One that is used by one thread, and let go of at the end."""


class LooksAtTopics(Protocol):
    """Kafka's topics, as far as it is to be known whether they keep what they are given."""

    def require_fit(self, topic: Topic) -> int:
        """The number of partitions of a topic that does. Raises ConfigError for another one, and BrokerError."""


class WatchesTopics(Protocol):
    """What the writer's loop asks of who looks at the topics (watch.py)."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person has to know. Safe to call from any thread."""

    def look(self) -> None:
        """Look, if it is time; never waits."""


class NoWatch:
    """Of a writer that writes to none."""

    notes: tuple[str, ...] = ()

    def look(self) -> None:
        """At nothing."""


NO_WATCH = NoWatch()


class Changelog(Protocol):
    """The changes of tasks' states in topics."""

    def write(self, topic: Topic, app_id: str, name: StateFileName, data: Pieces) -> TopicChanges:
        """Write a flush's changes. Raises BrokerError, and ConfigError for a topic that does not do any more."""

    def reading(self) -> AbstractContextManager[ReadsChanges]:
        """Reads as many as are wanted; makes no connection before the first."""


class ReadsChanges(Protocol):
    """Reads changes that markers name."""

    def read(self, changes: TopicChanges) -> bytes:
        """All of a flush's. Raises StateError and BrokerError."""


class NoChangelog:
    """For who neither runs topologies nor restores them."""

    def write(self, topic: Topic, app_id: str, name: StateFileName, data: Pieces) -> TopicChanges:
        """Nowhere."""
        raise NotImplementedError(topic, app_id, name, data)

    def reading(self) -> AbstractContextManager[ReadsChanges]:
        """From nowhere."""
        msg = "the state of this chain is in a Kafka topic, and this program reads none"
        raise StateError(msg, "let a stage writer read it")


NO_CHANGELOG = NoChangelog()


def missing_pieces(place: TopicPartition, offset: Position, low: Position, high: Position) -> StateError:
    """A message that a marker names is not there."""
    has = f"of it Kafka has offsets {low} to {high - 1}" if low < high else f"it is empty, and continues at {high}"
    return StateError(f"the changes of a task's state at offset {offset} of {place} are gone: {has}")


def iterate(changes: TopicChanges) -> Iterator[Position]:
    """The offsets of the pieces, in their order."""
    for span in changes.spans:
        yield from map(Position, range(span.start, span.end))
