"""Worlds whose tasks write their changes to a Kafka topic, which loses acknowledgements, delays messages, cuts off in
the middle of a flush, duplicates messages and deletes old ones. Some processes have the setting, others not.

Rule: anything that a broker may do to a message happens to each chunk separately, and more: duplicates that an
idempotent producer's broker would drop are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar, cast

from common.errors import BrokerError, StateError, StoreError
from common.metrics import Metrics
from common.spans import Partition, Position, Topic, TopicPartition
from stage_writer.changelog.changelog import PIECE, TASK, Appended, ChangelogMessage, TopicChangelog, missing_messages
from stage_writer.ports import Changelog, Converter
from stage_writer.tasks.shared import SnapshotsWhen, TaskEnvironment
from stage_writer.tasks.topology import TopologyConverter
from tests.simulation.counting import TOPOLOGY, build
from tests.simulation.kinds import Context, Counting, settings_of
from tests.simulation.world import Process, World, WorldClock

Result = TypeVar("Result")
TOPIC, TOPIC_ID = Topic("orders-changes"), "the only one"
_PARTITIONS = 2
_PIECE_BYTES = 100
_KEPT_MS = 3 * 3_600_000
_OLDEST_S = 90.0
_WITHOUT = 0.2
"""The fraction of started processes that lack the setting."""


@dataclass(slots=True)
class Log:
    """One partition of the topic: the time and content of each message."""

    messages: list[tuple[int, ChangelogMessage]] = field(default_factory=list)
    low: int = 0


@dataclass(slots=True)
class SimulatedTopics:
    world: World
    logs: dict[TopicPartition, Log] = field(default_factory=dict)

    def place(self, topic: Topic, task: TopicPartition) -> TopicPartition:
        return TopicPartition(topic, Partition(task.partition % _PARTITIONS))

    def append(self, topic: Topic, task: TopicPartition, pieces: Sequence[ChangelogMessage]) -> Appended:
        """Chunk by chunk; each may fail and have arrived nevertheless."""
        place = self.place(topic, task)
        log = self.logs.setdefault(place, Log())

        def put(piece: ChangelogMessage) -> Position:
            log.messages.append((self.world.now_ms, piece))
            return Position(len(log.messages) - 1)

        offsets = [self._asked(f"produce to {place}", lambda sent=piece: put(sent), changes=True) for piece in pieces]  # type: ignore[misc]
        return Appended(place, TOPIC_ID, tuple(offsets))

    @contextmanager
    def reader(self) -> Iterator[SimulatedTopics]:
        yield self

    def require_same(self, place: TopicPartition, topic_id: str | None) -> None:
        if (place.topic, topic_id) != (TOPIC, TOPIC_ID):
            msg = f"there is no {place} of {topic_id}"
            raise StateError(msg)

    def at(self, place: TopicPartition, offset: Position) -> ChangelogMessage:
        """A message that has not expired yet."""

        def read() -> ChangelogMessage:
            log = self.logs.setdefault(place, Log())
            while log.low < len(log.messages) and self.world.now_ms - log.messages[log.low][0] > _KEPT_MS:
                log.low += 1
            if not log.low <= offset < len(log.messages):
                raise missing_messages(place, offset, Position(log.low), Position(len(log.messages)))
            return log.messages[offset][1]

        return self._asked(f"read offset {offset} of {place}", read, changes=False)

    def _asked(self, name: str, call: Callable[[], Result], *, changes: bool) -> Result:
        try:
            return self.world.effect(name, call, changes=changes)
        except StoreError as error:
            raise BrokerError(error.problem, "") from error


def written_after(
    changelog: TopicChangelog, place: TopicPartition, offset: Position, task: TopicPartition
) -> Iterator[tuple[str, bytes]]:
    """All complete changes of a task in the topic from an offset on, by any writer."""
    topics = cast("SimulatedTopics", changelog.topics)
    whole: list[bytes] = []
    for _, piece in topics.logs[place].messages[offset:]:
        headers = dict(piece.headers)
        number, _, count = headers[PIECE].decode().partition("/")
        if headers[TASK].decode() == str(task):
            whole = [*(whole if number != "1" else []), piece.value]
            if len(whole) == int(number) == int(count):
                yield "written later", b"".join(whole)


class InTopic(Counting):
    with_changelog = settings_of(**TOPOLOGY, state_changelog=TOPIC)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.written = SimulatedTopics(context.world)

    def converter(self, process: Process) -> Converter:
        """The real converter, mostly with the setting."""
        del process
        without = self.context.world.rng.random() < _WITHOUT
        stream = (self.settings if without else self.with_changelog).streams[0]
        when = SnapshotsWhen(most_changes=6, least_bytes=2_000, oldest_s=_OLDEST_S)
        context = TaskEnvironment(WorldClock(self.context.world).wall_ms, Metrics(), when=when)
        return TopologyConverter(stream, build().check(), context)

    def changelog(self, process: Process) -> Changelog:
        """The real changelog, over this world's topic."""
        del process
        return TopicChangelog(self.written, WorldClock(self.context.world), Metrics(), _PIECE_BYTES)
