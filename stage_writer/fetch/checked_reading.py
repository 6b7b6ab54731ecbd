"""Results of librdkafka as records, ends and faults that the service can rely on.

Rules:

1. Records that Kafka has lost after they were read are detected (stage_writer/fetch/truncation.py): a new position
   is read from the record before it, which must be the one that is known.
2. A position that Kafka does not have is a fault of that partition alone. Where retention has removed only the record
   that was to be compared, reading begins at the position itself.
3. An error of the group, or of the whole client, is raised. So is the refusal of a topic where all are refused: a
   process that may read none of its topics can do nothing. Otherwise a refused topic's partitions are held.
"""

import re
from collections.abc import Callable, Collection, Mapping

from confluent_kafka import IsolationLevel, KafkaError
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import OffsetSpec
from structlog.typing import FilteringBoundLogger

from common.errors import BrokerError
from common.kafka.errors import member_error
from common.ports import Clock
from common.remedies import repair
from common.spans import Position, TopicPartition
from common.stage.markers import LastRecord
from stage_writer.decode.batch import MessageBatch
from stage_writer.fetch import truncation
from stage_writer.fetch.connection import KafkaConnection
from stage_writer.fetch.fetched import ClientEvent, Fetched
from stage_writer.fetch.metadata import BrokerMetadata
from stage_writer.fetch.partitions import from_kafka, to_kafka
from stage_writer.fetch.reading import ReadPositions
from stage_writer.fetch.truncation import Mismatch, TruncationChecks, ends_before, truncated
from stage_writer.ports import NOT_ALLOWED, OUT_OF_RANGE, PartitionFault, Polled

# librdkafka's own codes begin with an underscore.
_RESET = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001
_END = KafkaError._PARTITION_EOF  # noqa: SLF001
# librdkafka reports a truncation as a reset, with the reason in its text.
_TRUNCATED = KafkaError(KafkaError._LOG_TRUNCATION).str()  # noqa: SLF001
_DIFFERS_AT = re.compile(r"broker end offset is (\d+)")
_FATAL_GROUP = (
    KafkaError._FATAL,  # noqa: SLF001  # an event of the client, which `KafkaError.fatal` does not know
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
)


CHECK_EVERY_S = 30.0


class RefusedTopics:
    def __init__(
        self,
        refused: Callable[[Collection[str]], Collection[str]],
        subscribed: Callable[[], Collection[str]],
        clock: Clock,
    ) -> None:
        """``refused`` is `stage_writer.ports.KafkaMetadata.refused`."""
        self._refused = refused
        self._subscribed = subscribed
        self._clock = clock
        self._checked_at_s: float | None = None

    def require_others(self, error: BrokerError) -> None:
        """Raise ``error``, the refusal of one topic, where all are refused."""
        now_s = self._clock.monotonic_s()
        if self._checked_at_s is not None and now_s - self._checked_at_s < CHECK_EVERY_S:
            return  # each of a topic's partitions is refused
        self._checked_at_s = now_s
        topics = set(self._subscribed())
        try:
            is_refused = topics <= set(self._refused(topics))
        except BrokerError:
            return
        if is_refused:
            raise error


class CheckedReading:
    """Reads the assigned partitions of one consumer from given positions, and checks what is read."""

    def __init__(
        self,
        connection: KafkaConnection,
        metadata: BrokerMetadata,
        positions: ReadPositions,
        *,
        refused: RefusedTopics,
        clock: Clock,
        log: FilteringBoundLogger,
    ) -> None:
        self._connection = connection
        self._metadata = metadata
        self._positions = positions
        self._refused = refused
        self._clock = clock
        self._log = log
        self._checks = TruncationChecks()
        self._looked_for_overdue_at_s = clock.monotonic_s()

    def expect(self, last: Mapping[TopicPartition, LastRecord]) -> None:
        """The record before the position that each partition is read from next."""
        self._checks.expect(last)

    def start(self, partition: TopicPartition, position: Position) -> KafkaPartition:
        """The assignment that reads a partition from there."""
        return to_kafka(partition, *self._checks.begin(partition, position))

    def seek(self, partition: TopicPartition, position: Position) -> None:
        self._seek(partition, self.start(partition, position))

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Forget partitions that go to another member."""
        self._checks.forget(partitions)

    def passed_on(self, polled: Polled) -> None:
        """Record that the service has these records now."""
        self._checks.read(polled.batches)
        self._positions.read(polled.batches)

    def accept(self, fetched: Fetched) -> Polled:
        """Check what was fetched; seeks where something must be read again."""
        batches: list[MessageBatch] = []
        ends: dict[TopicPartition, Position] = {}
        faults: list[PartitionFault] = []
        stale: set[TopicPartition] = set()
        """Messages after these, in this portion, must be dropped."""
        for batch in fetched.batches:
            partition = batch.partition
            checked = None if partition in stale else self._checks.take(batch)
            match checked:
                case Mismatch.ASK:
                    self._read_again(partition)
                case Mismatch.OTHER:
                    faults.append(truncated(partition, self._checks.last(partition), None))
                case MessageBatch() if len(checked):
                    batches.append(checked)
            if isinstance(checked, Mismatch):
                stale.add(partition)
        for problem in fetched.problems:
            if problem.topic is not None and problem.error.code() == _END:
                partition = from_kafka(problem.topic, problem.partition)
                if partition not in stale and self._is_end(partition, Position(problem.offset), faults):
                    ends[partition] = Position(problem.offset)
            else:
                faults += self._faults(problem)
        self._checks.forget([fault.partition for fault in faults])
        return Polled(tuple(batches), ends, tuple(faults))

    def overdue(self) -> tuple[PartitionFault, ...]:
        """The faults of partitions whose expected first record does not arrive.

        Raises BrokerError where Kafka has it (stage_writer/fetch/truncation.py, rule 4).
        """
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_for_overdue_at_s < truncation.OVERDUE_S:
            return ()
        self._looked_for_overdue_at_s = now_s
        overdue = self._checks.overdue(self._positions.paused)
        try:
            ends = self._metadata.ends(overdue)
        except BrokerError:
            return ()  # no broker is reachable
        short = {partition: end for partition, end in ends.items() if end < overdue[partition].position}
        stuck = min(overdue.keys() - short.keys(), default=None)
        if stuck is not None:
            msg = f"Kafka does not deliver the record at {overdue[stuck].last.offset} of {stuck}, although it has it"
            why = "a cluster that was restored from a copy looks outdated to a client that knew the original"
            raise BrokerError(msg, f"restart the writer: {why}")
        self._checks.forget(short)
        return tuple(ends_before(partition, end, overdue[partition].position) for partition, end in short.items())

    def check_again(self) -> None:
        """Check whether brokers that were all unreachable came back with the records that were read."""
        for partition, position in self._checks.again().items():
            try:
                self.seek(partition, position)
            except BrokerError as error:
                self._log.warning("last record not compared", partition=str(partition), problem=error.problem)

    def _read_again(self, partition: TopicPartition) -> None:
        """Read from the last record again, by a seek, which makes librdkafka compare leader epochs."""
        self._seek(partition, to_kafka(partition, *self._checks.ask(partition)))

    def _seek(self, partition: TopicPartition, kafka_partition: KafkaPartition) -> None:
        with self._connection.errors(f"seek in {partition}"):
            self._positions.seek(kafka_partition)

    def _is_end(self, partition: TopicPartition, position: Position, faults: list[PartitionFault]) -> bool:
        """Whether a partition was read to its end; one that ends before its start position is a fault."""
        check = self._checks.open(partition)
        if check is None:
            return True
        if position >= check.position:
            self._checks.completed(partition)
            return True
        # A new leader may not know its end yet; the end that it returns on request is reliable.
        try:
            end = self._metadata.ends([partition], IsolationLevel.READ_UNCOMMITTED)[partition]
        except BrokerError as error:
            self._log.info("end of a partition not read, trying again", problem=error.problem)
            end = check.position
        if end < check.position:
            faults.append(ends_before(partition, end, check.position))
        else:
            self._read_again(partition)
        return False

    def _faults(self, event: ClientEvent) -> list[PartitionFault]:
        topic, partition, error = event.topic, event.partition, event.error
        if error.code() == _RESET and topic is not None:
            topic_partition = from_kafka(topic, partition)
            if _TRUNCATED in error.str():
                differs = _DIFFERS_AT.search(error.str())
                differs_at = None if differs is None else int(differs[1])
                return [truncated(topic_partition, self._checks.last(topic_partition), differs_at)]
            return self._out_of_range(topic_partition, Position(event.offset))
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED and topic is not None and partition >= 0:
            refusal = member_error(self._connection.servers, self._connection.group_id, topic, error)
            self._refused.require_others(refusal)
            return [PartitionFault(from_kafka(topic, partition), refusal.problem, refusal.remedy, NOT_ALLOWED)]
        if error.fatal() or error.code() in _FATAL_GROUP:
            raise member_error(self._connection.servers, self._connection.group_id, topic, error)
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            # It does not exist yet, or no longer; librdkafka retries.
            self._log.warning("topic does not exist in Kafka; waiting for it", topic=topic, problem=error.str())
            return []
        if topic is not None and partition >= 0:
            problem = f"{topic}/{partition}: {error.str()}"
            return [PartitionFault(from_kafka(topic, partition), problem, "see the broker's log")]
        return []

    def _out_of_range(self, partition: TopicPartition, position: Position) -> list[PartitionFault]:
        """The fault of a position that Kafka does not have; none if only the record before it is missing (rule 2)."""
        check = self._checks.open(partition)
        position = position if check is None else check.position
        skip = f"{repair('skip', partition)} --to"
        try:
            low = self._metadata.offsets({partition: OffsetSpec.earliest()})[partition]
            high = self._metadata.ends([partition])[partition]
        except BrokerError:
            problem = f"Kafka does not have position {position} of {partition}"
            remedy = f"if its records were deleted, skip them with `{skip} OFFSET --yes`"
            return [PartitionFault(partition, problem, remedy, OUT_OF_RANGE)]
        if position < low:
            problem = f"Kafka no longer has [{position}, {low}) of {partition}: its records begin at {low}"
            remedy = f"restore them, or skip them with `{skip} {low} --yes`"
            return [PartitionFault(partition, problem, remedy, OUT_OF_RANGE)]
        if position <= high and check is not None:
            self.seek(partition, position)
            return []
        return [ends_before(partition, high, position)]
