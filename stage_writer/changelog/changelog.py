"""Writes and reads the changes of tasks' states in topics: a `stage_writer.ports.Changelog`.

Rules:

1. A write returns the offset of each piece once all are durable, so a marker names no others. After a failure all of
   them are written again: a duplicate is named only once.
2. Nothing is written to a topic that is known to be unsuitable (watch.py).
3. Only the messages that a marker names are read, by offset: never to the topic's end, and nothing in between.
4. The pieces' bytes, concatenated, are those of a changes file (stage_writer/topologies/stores/files.py). None is
   longer than a message may be. Each has headers, for debugging and for the reader: the task, the flush, the piece's
   number and the number of pieces, and its checksum.
5. No piece has a key. So Kafka rejects them if the topic was changed to a compacted one, instead of discarding them.
6. A message that differs from the written one is refused, with its topic, partition and offset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Protocol
from zlib import crc32

from common import metrics as all_metrics
from common.errors import BrokerError, ConfigError, StateError
from common.metrics import Metrics
from common.ports import Clock
from common.spans import Position, Topic, TopicPartition
from common.stage.task_files import StateFileName, TopicChanges, changes_digest, spans_of
from common.storage.chunks import ByteChunks
from stage_writer.ports import Changelog

MESSAGE_BYTES = 256 * 2**10
APP, TASK, FLUSH, PIECE, CHECKSUM = "kdx.app", "kdx.task", "kdx.flush", "kdx.piece", "kdx.crc32"


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


def cut(app_id: str, name: StateFileName, data: ByteChunks, piece_bytes: int) -> list[ChangelogMessage]:
    starts = range(0, max(len(data), 1), piece_bytes)
    values = [data[start : start + piece_bytes] for start in starts]
    about = (
        (APP, app_id.encode()),
        (TASK, str(name.partition).encode()),
        (FLUSH, f"{name.start}-{name.generation}".encode()),
    )
    return [
        ChangelogMessage(value, (*about, (PIECE, _number(number, len(values))), (CHECKSUM, _checksum(value))))
        for number, value in enumerate(values, 1)
    ]


def joined(changes: TopicChanges, messages: Iterable[tuple[Position, ChangelogMessage]]) -> bytes:
    """The inverse of `cut`, for the offsets that a marker names. Raises StateError."""
    values: list[bytes] = []
    for number, (offset, piece) in enumerate(messages, 1):
        headers = dict(piece.headers)
        if headers.get(PIECE) != _number(number, changes.pieces) or headers.get(CHECKSUM) != _checksum(piece.value):
            msg = f"the message at offset {offset} of {changes.place} is not the one that a marker names"
            raise StateError(msg)
        values.append(piece.value)
    data = b"".join(values)
    if (len(data), changes_digest(data)) != (changes.size_bytes, changes.digest):
        msg = f"the messages at offset {changes.spans[0].start} of {changes.place} are not those that a marker names"
        raise StateError(msg)
    return data


def _number(number: int, of: int) -> bytes:
    return f"{number}/{of}".encode()


def _checksum(value: bytes) -> bytes:
    return f"{crc32(value):08x}".encode()


@dataclass(frozen=True, slots=True)
class TopicChangelog(Changelog):
    topics: ChangelogTopics
    clock: Clock
    metrics: Metrics
    piece_bytes: int = MESSAGE_BYTES
    unsuitable: Collection[str] = frozenset()

    def write(self, topic: Topic, app_id: str, name: StateFileName, data: ByteChunks) -> TopicChanges:
        """Write a flush's changes (rule 1). Raises BrokerError, and ConfigError for an unsuitable topic."""
        if topic in self.unsuitable:  # rule 2
            msg = f"the topic {topic!r} cannot store state changes"
            raise ConfigError(msg, "see the warning about this topic in the log")
        written_ms = self.clock.wall_ms()
        messages = cut(app_id, name, data, self.piece_bytes)
        appended = self.topics.append(topic, name.partition, messages)
        self.metrics.add(all_metrics.WRITER_CHANGELOG_WRITTEN_BYTES, len(data), topic=topic)
        self.metrics.add(all_metrics.WRITER_CHANGELOG_WRITTEN, len(messages), topic=topic)
        try:
            spans = spans_of(appended.offsets)
        except ValueError as error:
            msg = f"Kafka has the changes of {name.partition} in {appended.partition} in a different order: {error}"
            raise BrokerError(msg, "they are written again") from error
        digest = changes_digest(data.to_bytes())
        return TopicChanges(appended.partition, appended.topic_id, spans, len(data), digest, written_ms)

    @contextmanager
    def reading(self) -> Iterator[ChangelogReading]:
        with ExitStack() as held:
            yield ChangelogReading(self.topics, held, self.metrics)


@dataclass(slots=True)
class ChangelogReading:
    """A `stage_writer.ports.ChangeReader`."""

    topics: ChangelogTopics
    held: ExitStack
    metrics: Metrics
    _reader: ChangelogReader | None = None
    _known: set[tuple[TopicPartition, str | None]] = field(default_factory=set)

    def read(self, changes: TopicChanges) -> bytes:
        """All changes of a flush (rule 3). Raises StateError and BrokerError."""
        reader = self._reader = self._reader or self.held.enter_context(self.topics.reader())
        topic = (changes.place, changes.topic_id)
        if topic not in self._known:
            reader.require_same(*topic)
            self._known.add(topic)
        data = joined(changes, ((offset, reader.at(changes.place, offset)) for offset in iterate(changes)))
        self.metrics.add(all_metrics.WRITER_CHANGELOG_READ_BYTES, len(data), topic=changes.place.topic)
        self.metrics.add(all_metrics.WRITER_CHANGELOG_READ, changes.pieces, topic=changes.place.topic)
        return data
