"""Where reading of a Kafka partition starts: at its chain's end, or at the origin of a chain without a marker.

Rules:

1. The chain decides; the stream's ``start`` is used only for a partition that has neither a marker nor an origin.
2. A ``start`` that would be another position tomorrow (latest, a time, an offset) is recorded before anything is read.
3. ``latest`` skips the records that existed when the stream started. A partition that is added to a topic later starts
   at its first record. Partition 0 tells them apart: the writer that starts a topic records the origins of all its
   partitions, from the highest to the lowest, so a partition without one is new if partition 0 has one. It asks for
   the ends before it looks at partition 0: another writer may start the topic meanwhile, and then a partition be added.
4. A chain's records are of one topic. Where the broker's id for the topic differs from the chain's, the topic was
   deleted and recreated, and nothing may be read into the chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from common.errors import BrokerError, MarkerError, StoreError
from common.remedies import CONFIG, new_chain, repair
from common.settings import Start, StartAt, Stream
from common.spans import Partition, Position, TopicPartition
from common.stage.chain_origins import ChainOrigin
from common.stage.merged import is_merged, known_as, require_inputs
from common.stage.task_files import EMPTY_STATE, StateFiles
from stage_writer.chain_end import Lineage, Tail
from stage_writer.ports import OUT_OF_RANGE, TRUNCATED, UNEXPECTED, KafkaMetadata, PartitionFault, Workers
from stage_writer.stage.staging import ObjectStage


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where to read a partition from, and the chain that its records go into."""

    tail: Tail | None
    position: Position
    lineage: Lineage
    origin: ChainOrigin | None = None
    """The chain's origin, where reading starts there."""

    @property
    def state(self) -> StateFiles:
        """The state of the partition's task there; empty without a task."""
        known = self.tail or self.origin
        return EMPTY_STATE if known is None or known.state is None else known.state

    @property
    def outboxes(self) -> tuple[str, ...]:
        """The chain's outboxes not known to be delivered there, oldest first."""
        known = self.tail or self.origin
        return () if known is None else known.outboxes

    def differs(self, held: ResumePoint) -> bool:
        """Whether the chain now ends elsewhere, or is another one."""
        return self.position != held.position or self.lineage.generation != held.lineage.generation


ResumeOutcome = ResumePoint | MarkerError | StoreError | BrokerError


class ResumePoints:
    """Finds where partitions start, in the stage and in Kafka."""

    def __init__(self, metadata: KafkaMetadata, stage: ObjectStage) -> None:
        self._metadata = metadata
        self._stage = stage

    def of_all(self, wanted: Mapping[TopicPartition, Stream], workers: Workers) -> dict[TopicPartition, ResumeOutcome]:
        """Where reading of each partition starts now, or why that is unknown.

        All are looked up concurrently: a thousand lookups on S3, one after the other, take longer than a group waits.
        Exception: streams that start at the end, whose origins are recorded in order (rule 3).
        """
        at_once = {partition: stream for partition, stream in wanted.items() if stream.start is not StartAt.LATEST}
        checked = dict(
            zip(at_once, workers.map(lambda request: self._resume_point_of(*request), at_once.items()), strict=True)
        )
        in_turn = {
            partition: self._resume_point_of(partition, stream)
            for partition, stream in wanted.items()
            if partition not in at_once
        }
        return {**checked, **in_turn}

    def is_reached(self, partition: TopicPartition, resume_point: ResumePoint) -> bool:
        """Whether Kafka has reached the position of a chain whose last marker is empty and may be ahead of Kafka.

        Never true for a chain that ends with records: a topic that ends before them may have lost some, and its next
        records have their offsets. Raises BrokerError.
        """
        if resume_point.tail is None or not resume_point.tail.is_bare or is_merged(partition.topic):
            return False
        first = self._metadata.resolve(partition, StartAt.EARLIEST)
        return first <= resume_point.position <= self._metadata.high_watermarks([partition])[partition]

    def _resume_point_of(self, partition: TopicPartition, stream: Stream) -> ResumeOutcome:
        try:
            return self.of(partition, stream)
        except (MarkerError, StoreError, BrokerError) as error:
            return error

    def of(self, partition: TopicPartition, stream: Stream) -> ResumePoint:
        """Where reading of a partition starts now. Raises MarkerError, StoreError and BrokerError."""
        resume_point = self._of(partition, stream)
        if resume_point.lineage.generation or resume_point.lineage.origin:
            self._stage.chains.require_free(partition, resume_point.position)
        return resume_point

    def _of(self, partition: TopicPartition, stream: Stream) -> ResumePoint:
        tail = self._tail(partition, stream)
        if tail is not None:
            require_inputs(partition, tail.end)
            return ResumePoint(tail, tail.end, tail.lineage)
        chain_origin = self._stage.chains.origin(partition)
        if chain_origin is None and stream.start is StartAt.LATEST:
            chain_origin = self._begin_at_the_end(partition, stream)
        if chain_origin is None:
            start = StartAt.EARLIEST if stream.start is StartAt.LATEST else stream.start  # rule 3
            position = self._metadata.resolve(partition, start)
            if not _stays(start, position):
                self._stage.chains.begin(partition, ChainOrigin(position))
                chain_origin = self._stage.chains.origin(partition)
            if chain_origin is None:
                return ResumePoint(None, position, Lineage())
        # Another writer may have started the chain, and staged, since it was read.
        tail = self._tail(partition, stream)
        if tail is not None:
            require_inputs(partition, tail.end)
            return ResumePoint(tail, tail.end, tail.lineage)
        require_inputs(partition, chain_origin.position)
        origin = chain_origin
        if stream.topology is not None:
            origin = replace(origin, state=self._stage.state_at(partition, None, origin))
        lineage = Lineage(origin.generation, origin.topic_id, origin.number)
        return ResumePoint(None, origin.position, lineage, origin)

    def _tail(self, partition: TopicPartition, stream: Stream) -> Tail | None:
        """The chain's end, with the state of the partition's task where there is one."""
        tail = self._stage.chains.tail(partition)
        if tail is None or stream.topology is None:
            return tail
        return replace(tail, state=self._stage.state_at(partition, tail))

    def _begin_at_the_end(self, partition: TopicPartition, stream: Stream) -> ChainOrigin | None:
        """The origin of a partition whose stream starts at the end; None for a partition that was added later."""
        first = TopicPartition(partition.topic, Partition(0))
        ends = self._metadata.end_positions([stream])  # first, so that none of them was added after partition 0 began
        if not self._has_chain(first):
            for partition_at_end, end in sorted(ends.items(), reverse=True):
                if partition_at_end.topic == partition.topic and not self._has_chain(partition_at_end):
                    self._stage.chains.begin(partition_at_end, ChainOrigin(end))
        return self._stage.chains.origin(partition)

    def _has_chain(self, partition: TopicPartition) -> bool:
        return self._stage.chains.tail(partition) is not None or self._stage.chains.origin(partition) is not None


def _stays(start: Start, position: Position) -> bool:
    """Whether a start will be the same position tomorrow, so that it need not be recorded."""
    return start is StartAt.EARLIEST or position == 0


def is_other(lineage: Lineage, topic_id: str | None) -> bool:
    """Whether a topic differs from a chain's topic (rule 4); False where either id is unknown."""
    return topic_id is not None and lineage.topic_id is not None and topic_id != lineage.topic_id


def for_chain_without_records(fault: PartitionFault, resume_point: ResumePoint) -> PartitionFault:
    """The fault, if Kafka has lost records: a chain without records merely has its position past Kafka's end."""
    has_none = resume_point.tail is None or resume_point.tail.is_bare
    return replace(fault, reason=OUT_OF_RANGE) if fault.reason == TRUNCATED and has_none else fault


def unexpected(partition: TopicPartition, error: Exception) -> PartitionFault:
    """An exception that no code here raises on purpose; other partitions are unaffected."""
    text = (str(error).splitlines() or [""])[0][:500]
    return PartitionFault(
        partition,
        f"{partition} cannot be staged: unexpected {type(error).__name__}{f': {text}' if text else ''}",
        "report it with the log; the writer reads the partition again every half minute, and nothing is lost",
        UNEXPECTED,
    )


def other_topic(partition: TopicPartition) -> PartitionFault:
    """The topic of a chain no longer exists."""
    topic = known_as(partition.topic)
    return PartitionFault(
        partition,
        f"the topic {topic} was deleted and created again: the chain of {partition} belongs to the old one",
        new_chain(partition),
        "topic_recreated",
    )


def breaks_rule(partition: TopicPartition, position: Position, problem: str) -> PartitionFault:
    """A record may not be staged: it breaks a rule whose `on_fail` is ``hold``."""
    skip = repair("skip", partition, position + 1, "--yes")
    return PartitionFault(
        partition,
        f"the record at offset {position} of {partition} breaks a rule with on_fail: hold: {problem}",
        f"change the rule, or its on_fail to dead_letter or count, in streams[].expect of {CONFIG}, and restart the "
        f"writer; or skip the record with `{skip}`, which loses nothing before it",
        "expectation",
    )
