"""When ``--until-caught-up`` is done: all that was in Kafka at the start is staged, by us or by another member.

Rules:

1. Our partition is caught up when it was read to its end, or to the position that was its end at the start.
2. Any other partition must have an owner: one that is between two owners may become ours. The group is asked about that
   only once our own part is done, and every few seconds.
3. An owner may be dead, and the group notices only after a session. So, once our own part is staged, another owner's
   partition counts when its chain has reached the end, or when that owner has had it for a whole session and for as
   long as a flush may take: it lives.
4. Every wait is bounded. A missing topic is an error at once; a partition without an owner and a group that keeps
   rebalancing become errors after a while. Each error names what it waited for.
5. A stream with a topic that this user may not see is left out and noted, so the run is not complete; where that is so
   of all streams, it ends at once.
"""

from collections.abc import Collection, Iterable, Sequence

from common.errors import BrokerError, ConfigError, HeldError, KafkaDeltaExpressError, MarkerError, StoreError
from common.http.pages import with_remedy
from common.ports import Clock
from common.settings import Stream
from common.spans import Position, TopicPartition
from common.stage.merged import has_reached, topics_of
from stage_writer.partitions.hidden_topics import seen_end_positions
from stage_writer.partitions.partition import AssignedPartition
from stage_writer.ports import KafkaMetadata
from stage_writer.stage.staging import ObjectStage

ASK_EVERY_S = 2.0
NO_OWNER_AFTER_S = 60.0
NO_REST_AFTER_S = 300.0
FLUSHED_WITHIN_S = 300.0
"""The longest wait for a flush of another member."""


class CatchingUp:
    """The end offsets at startup, and whether the group has assigned the partitions to its members."""

    def __init__(
        self,
        metadata: KafkaMetadata,
        stage: ObjectStage,
        clock: Clock,
        streams: Collection[Stream],
        alive_after_s: float,
    ) -> None:
        """Reads the end offsets. Raises ConfigError for a missing topic, and BrokerError (rule 5).

        An owner that keeps a partition for ``alive_after_s`` is taken for a living one (rule 3).
        """
        self._metadata = metadata
        self._stage = stage
        self._clock = clock
        self._began_s = clock.monotonic_s()
        self._alive_after_s = alive_after_s
        self._staged: set[TopicPartition] = set()
        self._others: frozenset[TopicPartition] = frozenset()
        self._others_since_s = 0.0
        self._stage_requested_at_s: float | None = None
        self._targets, self._hidden = seen_end_positions(metadata, streams)
        self._requested_at_s: float | None = None
        self._waiting_since_s: float | None = None
        self._answer = False
        there = {topic for target in self._targets for topic in topics_of(target.topic)}
        refusals = list(self._hidden.values())
        if refusals and len(refusals) == len(streams):
            raise refusals[0]
        for stream in streams:
            if stream.app_id in self._hidden:
                continue
            missing = [topic for topic in stream.topics if stream.pattern is None and topic not in there]
            if missing:
                raise missing_topic(stream, missing[0])

    @property
    def notes(self) -> list[str]:
        """A line for each stream that is left out (rule 5)."""
        return [with_remedy(f"{app_id}: {error.problem}", error.remedy) for app_id, error in self._hidden.items()]

    @property
    def is_nothing(self) -> bool:
        """Whether there is nothing to read at all: a pattern that matches no topic."""
        return not self._targets

    def is_reached(self, partition: TopicPartition, position: Position) -> bool:
        """Whether a position has reached its partition's end at startup; always true for a partition added later."""
        return has_reached(position, self._targets.get(partition, Position(0)))

    def is_done(self, ours: Iterable[AssignedPartition]) -> bool:
        """Whether these partitions have reached the goal and the rest has owners. Raises as the latter does."""
        if not all(assigned.caught_up or self.is_reached(assigned.partition, assigned.buffer.end) for assigned in ours):
            return False
        return self.others_have_the_rest()

    def require_joining(self) -> None:
        """Raises BrokerError once this writer has not become a member of its group for a while (rule 4)."""
        waited_s = self._clock.monotonic_s() - self._began_s
        if waited_s > NO_REST_AFTER_S:
            msg = f"this writer has not joined its consumer group within {waited_s:.0f} s"
            remedy = "see the brokers' log for the reason; they may refuse kafka.session.timeout.ms, for example"
            raise BrokerError(msg, remedy)

    def others_have_the_rest(self) -> bool:
        """Whether each partition has an owner (rules 2 and 3). Raises BrokerError."""
        now_s = self._clock.monotonic_s()
        if self._requested_at_s is not None and now_s - self._requested_at_s < ASK_EVERY_S:
            return self._answer
        self._requested_at_s = now_s
        try:
            ownerless = self._metadata.ownerless(self._targets)
        except BrokerError:
            self._answer = False
            if self._waits_s(now_s) > NO_REST_AFTER_S:
                raise
            return False
        self._answer = ownerless is not None and not ownerless
        if self._answer:
            self._waiting_since_s = None
        else:
            self._stage_requested_at_s = None  # an owner that comes has its own time
            self._wait(self._waits_s(now_s), ownerless)
        return self._answer

    def others_have_staged(self, ours: Collection[TopicPartition]) -> bool:
        """Whether the partitions that are not ours are staged, or have living owners (rule 3)."""
        others = frozenset(self._targets).difference(ours)
        now_s = self._clock.monotonic_s()
        if others != self._others or self._stage_requested_at_s is None:
            self._others, self._others_since_s = others, now_s
        elif now_s - self._others_since_s >= self._alive_after_s:
            return True
        elif now_s - self._stage_requested_at_s < ASK_EVERY_S:
            return False
        self._stage_requested_at_s = now_s
        return all(self._is_staged(partition) for partition in sorted(others - self._staged))

    def _is_staged(self, partition: TopicPartition) -> bool:
        try:
            tail = self._stage.chains.tail(partition)
            origin = None if tail is not None else self._stage.chains.origin(partition)
        except (StoreError, MarkerError):
            return False
        end = tail.end if tail is not None else Position(0) if origin is None else origin.position
        if self.is_reached(partition, end):
            self._staged.add(partition)
        return partition in self._staged

    def _waits_s(self, now_s: float) -> float:
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
        return now_s - self._waiting_since_s

    def _wait(self, waited_s: float, ownerless: Collection[TopicPartition] | None) -> None:
        if ownerless is None and waited_s > NO_REST_AFTER_S:
            msg = f"the consumer group has been rebalancing for {waited_s:.0f} s"
            raise BrokerError(msg, "look for members that join and leave repeatedly; what this writer had is staged")
        if ownerless and waited_s > NO_OWNER_AFTER_S:
            named = ", ".join(str(partition) for partition in sorted(ownerless)[:5])
            msg = f"no member of the consumer group has read {named} for {waited_s:.0f} s"
            remedy = "use the same streams for all writers of a group, or another writer.group_id for each config"
            raise BrokerError(msg, remedy)


def missing_topic(stream: Stream, topic: str) -> ConfigError:
    """The error for a stream that names a topic which Kafka does not have."""
    msg = f"the stream {stream.app_id!r} names the topic {topic!r}, which does not exist in Kafka"
    return ConfigError(msg, "create the topic, or correct streams[].topics")


def require_all(held: Sequence[str], *, stopped: bool) -> None:
    """Raises when the run did not stage everything; ``held`` has one line per Kafka partition that waits."""
    if stopped:
        raise KafkaDeltaExpressError("stopped before everything was staged", "nothing is lost; run it again")
    if held:
        raise HeldError("not everything could be staged: " + "; ".join(held), "follow the remedies, and run it again")


def undelivered(problems: Sequence[KafkaDeltaExpressError]) -> KafkaDeltaExpressError:
    """The error for a run after which records for Kafka topics wait in the stage; ``problems`` say why, if known."""
    msg = "everything is staged, but records for Kafka topics are not delivered yet"
    if not problems:
        return KafkaDeltaExpressError(msg, "nothing is lost; run it again")
    return HeldError(f"{msg}: {'; '.join(each.problem for each in problems)}", problems[0].remedy)
