"""Changelog topics in memory."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from common.errors import BrokerError, ConfigError, StateError
from common.spans import Partition, Position, Topic, TopicPartition
from stage_writer.changelog.changelog import Appended, ChangelogMessage, missing_messages


@dataclass(slots=True)
class MemoryTopics:
    """A `stage_writer.changelog.changelog.ChangelogTopics` whose topics have one partition."""

    logs: dict[Topic, list[ChangelogMessage]] = field(default_factory=dict)
    low: int = 0
    """Messages before this offset are gone, in each topic."""
    topic_id: str = "first"
    fails: list[int] = field(default_factory=list)
    """For each of the next writes that fail: the number of messages written before it fails."""
    refuses: ConfigError | None = None
    """The error for every write, if any."""
    read: list[int] = field(default_factory=list)
    """The offsets that were read."""

    def append(self, topic: Topic, task: TopicPartition, pieces: Sequence[ChangelogMessage]) -> Appended:
        if self.refuses is not None:
            raise self.refuses
        log = self.logs.setdefault(topic, [])
        first = len(log)
        if self.fails:
            log += pieces[: self.fails.pop(0)]
            msg = f"no answer for {task}"
            raise BrokerError(msg)
        log += pieces
        offsets = tuple(Position(first + number) for number in range(len(pieces)))
        return Appended(TopicPartition(topic, Partition(0)), self.topic_id, offsets)

    @contextmanager
    def reader(self) -> "Iterator[MemoryTopics]":
        yield self

    def require_same(self, place: TopicPartition, topic_id: str | None) -> None:
        if topic_id != self.topic_id:
            msg = f"the topic {place.topic} was made again"
            raise StateError(msg)

    def at(self, place: TopicPartition, offset: Position) -> ChangelogMessage:
        log = self.logs[place.topic]
        if not self.low <= offset < len(log):
            raise missing_messages(place, offset, Position(self.low), Position(len(log)))
        self.read.append(offset)
        return log[offset]
