"""The partitions of this group member: those that start, those that are read, and those that are held.

Rules:

1. The chain decides. On assignment it is read, and reading starts at its end; after a lost claim the partition is
   dropped with everything it holds until the chain was read again. Kafka's group offsets are never used.
2. Dropping loses nothing: the next owner reads from the chain's end.
3. A partition that cannot continue (its marker is unreadable, Kafka no longer has its position, its topic was recreated
   or has lost records) is held and reported; the others continue. Its chain is checked periodically: when it ends
   elsewhere, it was fixed. One that an operator put ahead of Kafka resumes when Kafka has reached that position, and
   one that this user may not read when it may. In front of a record that may not be staged, a partition is held once
   all before it is staged.
4. An unexpected exception in a flush or a conversion holds its partitions and does not end the service.
"""

from collections.abc import Collection
from typing import assert_never

from common import metrics as all_metrics
from common.errors import BrokerError, KafkaDeltaExpressError, MarkerError, StoreError
from common.ports import Clock
from common.settings.overlap import TopicReaders
from common.spans import Position, TopicPartition
from common.stage.chain_origins import ChainOrigin
from common.stage.markers import LastRecord
from stage_writer.outbox.ports import Outlets
from stage_writer.partitions.buffers import Buffers
from stage_writer.partitions.flush_decision import age_fraction_of
from stage_writer.partitions.partition import AssignedPartition, HeldPartition
from stage_writer.partitions.resume_points import (
    ResumePoint,
    for_chain_without_records,
    is_other,
    other_topic,
    unexpected,
)
from stage_writer.partitions.startup import PartitionStartup, StartedPartition, UnusablePartition, topic_ids
from stage_writer.ports import (
    NOT_ALLOWED,
    OUT_OF_RANGE,
    UNEXPECTED,
    Converter,
    Incompatible,
    PartitionFault,
    RecordSource,
)
from stage_writer.runtime import Runtime
from stage_writer.stage.staging import ObjectStage
from stage_writer.stopping import ConversionInterruptedError

GIVE_UP_AFTER_S = 300.0


class Outage:
    """Begins with a failure, and ends with the next success.

    That may be another partition's. A run that ends by itself would then wait without a limit for a partition whose
    store refuses, so it also gives up after one partition's failures.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_s: float | None = None
        self._partitions_since_s: dict[TopicPartition, float] = {}
        self.waits_for_each = False
        """Whether the run ends only when each of its partitions is done."""

    @property
    def is_on(self) -> bool:
        """Whether the last attempt failed."""
        return self._since_s is not None

    def failed(self, partition: TopicPartition, error: StoreError | BrokerError) -> None:
        """Raises the error once failures have lasted for `GIVE_UP_AFTER_S`."""
        now_s = self._clock.monotonic_s()
        if self._since_s is None:
            self._since_s = now_s
        partition_since_s = self._partitions_since_s.setdefault(partition, now_s)
        if now_s - (partition_since_s if self.waits_for_each else self._since_s) > GIVE_UP_AFTER_S:
            # One kind for all, refusals included: access that is denied now may be granted again after a restart.
            raise KafkaDeltaExpressError(error.problem, error.remedy) from error

    def ended(self, partition: TopicPartition) -> None:
        self._since_s = None
        self.forget(partition)

    def forget(self, partition: TopicPartition) -> None:
        """Earlier failures no longer count: another writer may have had the partition since."""
        self._partitions_since_s.pop(partition, None)


CHECK_HELD_EVERY_S = 30.0


class AssignedPartitions:
    """Called from the loop's thread only; other threads read copies of its dictionaries."""

    def __init__(
        self,
        converters: Collection[Converter],
        startup: PartitionStartup,
        *,
        source: RecordSource,
        stage: ObjectStage,
        buffers: Buffers,
        outlets: Outlets,
        runtime: Runtime,
    ) -> None:
        self._converters = {converter.stream.app_id: converter for converter in converters}
        self._readers = TopicReaders([converter.stream for converter in converters])
        self._source = source
        self._stage = stage
        self._buffers = buffers
        self._outlets = outlets
        self._clock, self._log, self._metrics = runtime.clock, runtime.log, runtime.metrics
        self._startup = startup
        self.outage = Outage(runtime.clock)
        self.by_partition: dict[TopicPartition, AssignedPartition] = {}
        self.held: dict[TopicPartition, HeldPartition] = {}
        self.starting = self._startup.waiting
        self.joined = False
        """Whether this writer is a member of its group."""

    def assigned(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Position]:
        """Read the chain of each new partition; those whose chain cannot be read now wait, or are held."""
        self.joined = True
        for partition in partitions:
            self.outage.forget(partition)
            self.held.pop(partition, None)
            for stream in self._readers.taking(partition.topic)[:1]:
                self._startup.add(partition, self._converters[stream.app_id])
        return self._start(partitions)

    def resume(self) -> None:
        """Start waiting partitions, each from its chain's end, and held partitions that were fixed."""
        self._check_held()
        for partition, position in self._start().items():
            self._source.seek(partition, position)
            self._source.resume([partition])

    def _start(self, among: Collection[TopicPartition] | None = None) -> dict[TopicPartition, Position]:
        """Own the partitions that can be read now, each from its chain's end."""
        positions: dict[TopicPartition, Position] = {}
        expected: dict[TopicPartition, LastRecord] = {}
        for partition, outcome in self._startup.due_outcomes(among).items():
            match outcome:
                case StoreError() | BrokerError():
                    self.outage.failed(partition, outcome)
                    continue
                case UnusablePartition(fault, converter, resume_point):
                    self.hold(fault, converter, resume_point)
                case StartedPartition(resume_point, converter, task):
                    positions[partition] = resume_point.position
                    if resume_point.tail is not None and resume_point.tail.last_record is not None:
                        expected[partition] = resume_point.tail.last_record
                    buffer, now_s = self._buffers.new(resume_point.position, converter), self._clock.monotonic_s()
                    age_fraction = age_fraction_of(partition)
                    assigned = AssignedPartition(
                        partition,
                        converter,
                        resume_point.tail,
                        resume_point.lineage,
                        buffer,
                        now_s,
                        age_fraction,
                        task=task,
                    )
                    assigned.outlet = self._outlets.open(partition, converter.stream, resume_point.outboxes)
                    self.by_partition[partition] = assigned
                case _:
                    assert_never(outcome)
            self.outage.ended(partition)
        self._source.expect(expected)
        return positions

    def restart(self, assigned: AssignedPartition) -> None:
        """Drop the partition with everything it holds; `resume` starts it again from its chain's end (rule 1)."""
        self.drop([assigned.partition], "chain")
        self._source.pause([assigned.partition])
        self._startup.add(assigned.partition, assigned.converter)

    def drop(self, partitions: Collection[TopicPartition], reason: str) -> None:
        """Forget these, with what their buffers hold (rule 2)."""
        for partition in partitions:
            self.held.pop(partition, None)
            self._startup.drop(partition)
            assigned = self.by_partition.pop(partition, None)
            if assigned is not None and assigned.task is not None:
                assigned.task.close()
            if assigned is not None and assigned.outlet is not None:
                assigned.outlet.leave()
            if assigned is not None and (assigned.in_flight is not None or not assigned.buffer.is_empty):
                self._metrics.add(all_metrics.WRITER_DROPPED, reason=reason)
                self._log.warning("buffer dropped", partition=str(partition), reason=reason)

    def drop_all(self, reason: str) -> None:
        """Forget all partitions, so that leaving the group seals nothing."""
        self.drop([*self.by_partition, *self.starting], reason)

    def fault(self, fault: PartitionFault) -> None:
        """Kafka cannot serve a partition; check whether that is because its topic was recreated."""
        assigned = self.by_partition.get(fault.partition)
        if assigned is None:
            return
        topic_id = topic_ids(self._source.metadata, [fault.partition.topic], self._log).get(fault.partition.topic)
        if is_other(assigned.lineage, topic_id):
            self.topic_recreated(assigned)
        else:
            resume_point = ResumePoint(assigned.tail, assigned.buffer.end, assigned.lineage)
            self.hold(for_chain_without_records(fault, resume_point), assigned.converter, resume_point)

    def topic_recreated(self, assigned: AssignedPartition) -> None:
        """Drop rows that may be from another topic, and hold the partition; an empty chain starts over."""
        if assigned.tail is None:
            self.restart(assigned)
            return
        self.hold(other_topic(assigned.partition), assigned.converter, assigned.resume_point)

    def incompatible(self, assigned: AssignedPartition, outcome: Incompatible) -> None:
        """Hold a partition whose table can never accept the rows of a flush."""
        resume_point = ResumePoint(assigned.tail, outcome.start, assigned.lineage)
        self.hold(outcome.fault(assigned.partition), assigned.converter, resume_point, outcome)

    def hold_stopped(self) -> None:
        """Hold the partitions that have reached a record that may not be staged, once all before it is staged."""
        for assigned in list(self.by_partition.values()):
            if assigned.stop is None or assigned.in_flight is not None or not assigned.buffer.is_empty:
                continue
            if assigned.tail is None:  # a given-up range continues a chain, or its origin
                try:
                    chain_origin = ChainOrigin(assigned.buffer.end, topic_id=assigned.lineage.topic_id)
                    self._stage.chains.begin(assigned.partition, chain_origin)
                except StoreError as error:
                    self.outage.failed(assigned.partition, error)
                    continue
            self.outage.ended(assigned.partition)
            self.hold(assigned.stop, assigned.converter, assigned.resume_point)

    def unexpected(self, assigned: AssignedPartition, error: Exception) -> None:
        """Hold a partition for an unexpected exception (rule 4); re-raises an expected one."""
        if isinstance(error, ConversionInterruptedError):
            self._log.warning("conversion interrupted", partition=str(assigned.partition))
            self.drop([assigned.partition], "stopped")
            return
        if isinstance(error, KafkaDeltaExpressError):
            raise error
        self._log.error("unexpected exception", partition=str(assigned.partition), exc_info=error)
        self.hold(unexpected(assigned.partition, error), assigned.converter, assigned.resume_point)

    def hold(
        self,
        fault: PartitionFault,
        converter: Converter,
        resume_point: ResumePoint | None,
        incompatible: Incompatible | None = None,
    ) -> None:
        """Leave a partition where it is (rule 3); ``resume_point`` is the unreadable one, None if unknown."""
        partition = fault.partition
        self._log.error("partition held", partition=str(partition), problem=fault.problem, remedy=fault.remedy)
        if partition in self.by_partition:
            self.drop([partition], "held")
            self._source.pause([partition])
        check_at_s = self._clock.monotonic_s() + CHECK_HELD_EVERY_S
        self.held[partition] = HeldPartition(
            fault.problem, converter, resume_point, check_at_s, fault.remedy, fault.reason, incompatible
        )

    def _check_held(self) -> None:
        """Resume held partitions whose chain is readable and ends elsewhere, or that Kafka has reached."""
        now_s = self._clock.monotonic_s()
        for partition in [partition for partition, held in self.held.items() if now_s >= held.check_at_s]:
            held = self.held[partition]
            held.check_at_s = now_s + CHECK_HELD_EVERY_S
            try:
                resume_point = self._startup.resume_points.of(partition, held.converter.stream)
                reached = held.reason == OUT_OF_RANGE and self._startup.resume_points.is_reached(
                    partition, resume_point
                )
                fixed = held.takes_rows_now(self._stage) or (
                    held.reason == NOT_ALLOWED and not self._source.metadata.refused([partition.topic])
                )
            except (MarkerError, StoreError, BrokerError):
                continue
            if (
                held.resume_point is None
                or resume_point.differs(held.resume_point)
                or reached
                or fixed
                or held.reason == UNEXPECTED
            ):
                self._log.info("partition resumed", partition=str(partition), position=resume_point.position)
                del self.held[partition]
                self._startup.add(partition, held.converter)

    def report(self, event: str, partitions: Collection[TopicPartition]) -> None:
        """Log a change of the group's assignment, and set its gauge."""
        self._metrics.set(all_metrics.WRITER_PARTITIONS, len(self.by_partition))
        if partitions:
            self._log.info(event, partitions=[str(each) for each in sorted(partitions)], owned=len(self.by_partition))
