"""Kafka through librdkafka: the group member that the writer reads from.

Rules:

1. Kafka's offsets are never the truth: nothing is stored or committed except, on request, positions for monitoring
   tools, and there is no automatic reset: a position that Kafka no longer has is a fault of that partition.
2. ``read_committed`` always; cooperative rebalancing and a prefetch within the memory bound, unless the settings
   differ. A partition that comes back to this member is read, even if it was paused when it was revoked.
3. Topics that are given as a regular expression are matched here, by the same rule that the loader uses, and refreshed
   periodically; librdkafka gets names only. The writer waits for a named topic that does not exist, and reports it.
4. librdkafka continues to read a topic that was deleted and recreated, from the old one's position, as if nothing had
   happened. So the service checks the topics' ids (stage_writer/partitions/claim_guards.py).
5. While librdkafka has full batches, a poll takes several of them, up to its share of the memory, because the
   processing of a poll has a fixed cost. What was taken of a partition before a rebalance moved it, in the same poll,
   is dropped: a batch, which its next owner reads from the chain's end, and an end or a fault of the position before.
6. Records that Kafka has lost after they were read are detected (stage_writer/fetch/truncation.py).
7. Where topics are read together (fetch/merged), partitions with the same number must go to one member, which
   the range assignor guarantees. It revokes everything from every member at each rebalance; static members keep what
   they have.
"""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupState,
    IsolationLevel,
    KafkaError,
    KafkaException,
)
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from common.errors import BrokerError, ConfigError, MarkerError, StoreError
from common.kafka.bounded import CLOSE_WITHIN_S, close_within, result_of
from common.kafka.client import QUIET, client_properties, refused_property
from common.kafka.errors import broker_error, member_error
from common.kafka.reader import require_allowed, topic_ids, topics_of
from common.remedies import repair
from common.settings import FromOffsets, FromTimestamp, Start, StartAt
from common.settings.overlap import UnsubscribedTopics, shared_topics
from common.spans import Partition, Position, Topic, TopicPartition
from stage_writer.decode.batch import MessageBatch
from stage_writer.fetch import truncation
from stage_writer.fetch.admission import Admission
from stage_writer.fetch.fetched import Fetched, fetched_of
from stage_writer.fetch.fetching import Fetcher
from stage_writer.fetch.native_fetching import NativeFetcher
from stage_writer.fetch.reading import ReadPositions
from stage_writer.fetch.truncation import Doubt, TruncationChecks, ends_before, truncated
from stage_writer.memory_shares import MemoryShares
from stage_writer.native.fetching import NativeFetch
from stage_writer.ports import OUT_OF_RANGE, GroupListener, PartitionFault, Polled

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from structlog.typing import FilteringBoundLogger

    from common.ports import Clock
    from common.settings import Settings, Stream
    from common.settings.section import Option
    from common.stage.markers import LastRecord
    from stage_writer.fetch.fetched import ClientEvent

TIMEOUT_S = 10.0
TOPICS_EVERY_S = 30.0
_LEAST_FETCH_BYTES = 2**20  # librdkafka rejects a value below its message.max.bytes
_SESSION_MS = 45_000
_ELECTING = {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE}  # transient errors
_ELECTION_PAUSE_S = 0.1
_RESET = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001 - librdkafka's own codes begin with an underscore
_END = KafkaError._PARTITION_EOF  # noqa: SLF001
_ALL_AWAY = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001
# librdkafka reports a truncation as a reset, with the reason in its text.
_TRUNCATED = KafkaError(KafkaError._LOG_TRUNCATION).str()  # noqa: SLF001
_DIFFERS_AT = re.compile(r"broker end offset is (\d+)")
_FATAL_GROUP = (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED)


class KafkaSource:
    """A `stage_writer.ports.RecordSource` on a real cluster."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        log: FilteringBoundLogger,
        *,
        with_headers: Sequence[Stream] = (),
        co_partitioned: bool = False,
        native: Path | None = None,
        unsubscribed: UnsubscribedTopics | None = None,
        sharing: Callable[[Collection[str]], Mapping[str, ConfigError]] | None = None,
    ) -> None:
        """Contacts nothing before a method is called. Raises ConfigError for properties that librdkafka rejects.

        ``co_partitioned``: one member gets the partitions with the same number, of all topics. ``native`` is the
        compiled library that reads messages without Python objects, if available. ``unsubscribed`` is kept up to date.
        ``with_headers`` are the streams whose messages' headers are read. ``sharing`` agrees on the owners of topics
        that several streams read, and returns those that they cannot share; it may raise StoreError and MarkerError.
        """
        self._unsubscribed = unsubscribed or UnsubscribedTopics()
        self._sharing = sharing or partial(shared_topics, settings.streams)
        self._properties = consumer_properties(settings, co_partitioned=co_partitioned)
        self._log = log
        self._servers = str(settings.kafka["bootstrap.servers"])
        self._most = settings.writer.consume_records
        self._revoke_timeout_s = settings.writer.revoke_timeout_s
        self._enough_bytes = MemoryShares.of(settings.writer.memory_bytes).poll
        self._with_headers = with_headers
        self._clock = clock
        self._streams: tuple[Stream, ...] = ()
        self._listener: GroupListener | None = None
        self._topics: tuple[str, ...] = ()
        self._topics_checked_at_s = 0.0
        self._admission = Admission(self._servers, clock, log)
        self._checks = TruncationChecks()
        self._were_away = False
        self._paused: set[TopicPartition] = set()
        self._checked_at_s = clock.monotonic_s()
        try:
            self._consumer = Consumer({**self._properties, "error_cb": self._hear}, logger=QUIET)
            self._reading = ReadPositions(self._consumer, is_cooperative=is_cooperative(self._properties))
            self._reader_of_queues = self._queue_reader_of(native)
            self._admin = AdminClient(client_properties(settings.kafka), logger=QUIET)
        except KafkaException as error:
            raise refused_property(_reason(error)) from error

    def subscribe(self, streams: Collection[Stream], listener: GroupListener) -> None:
        self._streams = tuple(streams)
        self._listener = listener
        self._refresh_topics()

    def poll(self, timeout_s: float) -> Polled:
        if any(stream.pattern for stream in self._streams) and self._due_for_topics():
            self._discover_topics()
        self._admission.require()
        if self._were_away:
            self._check_again()
        polled, polled_bytes = Polled(faults=self._overdue()), 0
        while True:
            with self._errors("consume"):
                fetched = self._taken(timeout_s, polled_bytes)
            moved = {
                _source(*partition) for partition in self._reader_of_queues.moved
            }  # what was read of these must be dropped
            before, fresh = polled.without(moved), self._sort(fetched)
            polled = Polled(before.batches + fresh.batches, {**before.ends, **fresh.ends}, before.faults + fresh.faults)
            polled_bytes = sum(batch.memory_bytes for batch in polled.batches)
            if fetched.count < self._most or polled_bytes >= self._enough_bytes:
                self._checks.read(polled.batches)
                self._reading.read(polled.batches)
                return polled
            timeout_s = 0.0

    def expect(self, last: Mapping[TopicPartition, LastRecord]) -> None:
        self._checks.expect(last)

    def seek(self, partition: TopicPartition, position: Position) -> None:
        self._seek(partition, _kafka(partition, *self._checks.begin(partition, position)))

    def _seek(self, partition: TopicPartition, kafka_partition: KafkaPartition) -> None:
        with self._errors(f"seek in {partition}"):
            self._reading.seek(kafka_partition, self._paused)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self._paused.update(partitions)
        with self._errors("pause"):
            self._consumer.pause([_kafka(partition) for partition in partitions])

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self._paused.difference_update(partitions)
        with self._errors("resume"):
            self._consumer.resume([_kafka(partition) for partition in partitions])

    def resolve(self, partition: TopicPartition, start: Start) -> Position:
        if isinstance(start, FromOffsets):
            given = start.position(partition.topic, partition.partition)
            if given is not None:
                return given
            start = StartAt.EARLIEST
        spec = OffsetSpec.earliest() if start is StartAt.EARLIEST else OffsetSpec.latest()
        if isinstance(start, FromTimestamp):
            spec = OffsetSpec.for_timestamp(start.timestamp_ms)
        position = self._offsets({partition: spec})[partition]
        # A time after the last record has no offset: start at the end.
        return position if position >= 0 else self._offsets({partition: OffsetSpec.latest()})[partition]

    def end_positions(self, streams: Collection[Stream]) -> Mapping[TopicPartition, Position]:
        topics = self._metadata()
        self._require_shareable({topic for topic in topics if any(stream.reads(topic) for stream in streams)})
        for topic in (name for stream in streams if stream.pattern is None for name in stream.topics):
            if topic not in topics:
                with self._errors(f"look up the topic {topic}", topic):
                    require_allowed(self._consumer, topic, TIMEOUT_S)
        specs = {
            TopicPartition(Topic(topic), Partition(partition)): OffsetSpec.latest()
            for topic, partitions in topics.items()
            if any(stream.reads(topic) for stream in streams)
            for partition in partitions
        }
        return self._offsets(specs) if specs else {}

    def high_watermarks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        latest = OffsetSpec.latest()
        return self._offsets(dict.fromkeys(partitions, latest), IsolationLevel.READ_UNCOMMITTED)

    def topic_ids(self, topics: Collection[Topic]) -> Mapping[Topic, str | None]:
        with self._errors("describe topics"):
            return topic_ids(self._admin, topics, TIMEOUT_S)

    def ownerless(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition] | None:
        group = str(self._properties["group.id"])
        with self._errors(f"describe the group {group}"):
            described_group = self._admin.describe_consumer_groups([group], request_timeout=TIMEOUT_S)[group]
            try:
                described = result_of(described_group, TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                    raise
                msg = f"kafka: this user may not describe the consumer group {group}, which --until-caught-up needs"
                raise ConfigError(msg, f"allow it to Describe the group {group}") from error
        assigned_partitions = {
            _source(assigned.topic, assigned.partition)
            for member in described.members
            for assigned in (member.assignment.topic_partitions if member.assignment else ())
        }
        return None if described.state != ConsumerGroupState.STABLE else set(partitions) - assigned_partitions

    def report(self, positions: Mapping[TopicPartition, Position]) -> None:
        if positions:
            with self._errors("report positions"):
                offsets = [_kafka(partition, position) for partition, position in positions.items()]
                self._consumer.commit(offsets=offsets, asynchronous=True)

    def close(self) -> None:
        """Leave the group; the listener is called with what is revoked, in a thread that this call joins."""
        with self._errors("leave the group"):
            self._reader_of_queues.close()
            if not close_within(self._consumer, self._revoke_timeout_s + CLOSE_WITHIN_S):
                self._log.warning("left without a word to the group: Kafka does not answer")

    def _queue_reader_of(self, native: Path | None) -> Fetcher | NativeFetcher:
        if native is not None:
            try:
                taking = NativeFetch(native, self._consumer, self._wants_headers)
                limits = (self._most, self._enough_bytes)
                return NativeFetcher(
                    taking, self._consumer, self._clock, *limits, with_headers=bool(self._with_headers)
                )
            except OSError as error:
                self._log.info("taking messages as Python's objects, at more cost", problem=str(error))
        return Fetcher(self._consumer, self._clock, self._most, self._enough_bytes)

    def _taken(self, timeout_s: float, taken_bytes: int) -> Fetched:
        taken = self._reader_of_queues.take(timeout_s, taken_bytes)
        return taken if isinstance(taken, Fetched) else fetched_of(taken, with_headers=bool(self._with_headers))

    def _wants_headers(self, topic: str) -> bool:
        return any(stream.reads(topic) for stream in self._with_headers)

    def _sort(self, fetched: Fetched) -> Polled:
        batches: list[MessageBatch] = []
        ends: dict[TopicPartition, Position] = {}
        faults: list[PartitionFault] = []
        stale: set[TopicPartition] = set()
        """Messages after these, in this portion, must be dropped."""
        for batch in fetched.batches:
            partition = batch.partition
            checked = None if partition in stale else self._checks.take(batch)
            match checked:
                case Doubt.ASK:
                    self._seek(partition, _kafka(partition, *self._checks.ask(partition)))
                case Doubt.OTHER:
                    faults.append(truncated(partition, self._checks.last(partition), None))
                case MessageBatch() if len(checked):
                    batches.append(checked)
            if isinstance(checked, Doubt):
                stale.add(partition)
        for problem in fetched.problems:
            if problem.topic is not None and problem.error.code() == _END:
                partition = _source(problem.topic, problem.partition)
                if partition not in stale and self._is_end(partition, Position(problem.offset), faults):
                    ends[partition] = Position(problem.offset)
            else:
                faults += self._fault(problem)
        self._checks.forget([fault.partition for fault in faults])
        return Polled(tuple(batches), ends, tuple(faults))

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
            end = self._offsets({partition: OffsetSpec.latest()}, IsolationLevel.READ_UNCOMMITTED)[partition]
        except BrokerError as error:
            self._log.info("where a partition ends was not looked up, trying again", problem=error.problem)
            end = check.position
        if end < check.position:
            faults.append(ends_before(partition, end, check.position))
        else:
            self._seek(partition, _kafka(partition, *self._checks.ask(partition)))
        return False

    def _fault(self, event: ClientEvent) -> list[PartitionFault]:
        topic, partition, error = event.topic, event.partition, event.error
        if error.code() == _RESET and topic is not None:
            topic_partition = _source(topic, partition)
            if _TRUNCATED in error.str():
                differs = _DIFFERS_AT.search(error.str())
                return [
                    truncated(
                        topic_partition,
                        self._checks.last(topic_partition),
                        None if differs is None else int(differs[1]),
                    )
                ]
            return self._out_of_range(topic_partition, Position(event.offset))
        if error.fatal() or error.code() in _FATAL_GROUP:
            raise member_error(self._servers, str(self._properties["group.id"]), topic, error)
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            # It does not exist yet, or no longer; librdkafka retries.
            self._log.warning("Kafka does not have the topic; waiting for it", topic=topic, problem=error.str())
            return []
        if topic is not None and partition >= 0:
            problem = f"{topic}/{partition}: {error.str()}"
            return [PartitionFault(_source(topic, partition), problem, "see the broker's log")]
        return []

    def _out_of_range(self, partition: TopicPartition, position: Position) -> list[PartitionFault]:
        """The fault of a position that Kafka does not have; None if only the record before it is missing."""
        check = self._checks.open(partition)
        position = position if check is None else check.position
        skip = f"{repair('skip', partition)} --to"
        try:
            low = self._offsets({partition: OffsetSpec.earliest()})[partition]
            high = self._offsets({partition: OffsetSpec.latest()})[partition]
        except BrokerError:
            problem = f"Kafka does not have position {position} of {partition}"
            remedy = f"if its records were deleted, give them up with `{skip} OFFSET --yes`"
            return [PartitionFault(partition, problem, remedy, OUT_OF_RANGE)]
        if position < low:
            problem = f"Kafka no longer has [{position}, {low}) of {partition}: its records begin at {low}"
            remedy = f"put them back, or give them up with `{skip} {low} --yes`"
            return [PartitionFault(partition, problem, remedy, OUT_OF_RANGE)]
        if position <= high and check is not None:
            self.seek(partition, position)  # retention removed the record that was to be compared
            return []
        return [ends_before(partition, high, position)]

    def _overdue(self) -> tuple[PartitionFault, ...]:
        """The faults of partitions whose expected first record does not arrive.

        Raises BrokerError where Kafka has it (stage_writer/fetch/truncation.py, rule 4).
        """
        now_s = self._clock.monotonic_s()
        if now_s - self._checked_at_s < truncation.OVERDUE_S:
            return ()
        self._checked_at_s = now_s
        overdue = self._checks.overdue(self._paused)
        try:
            ends = self._offsets(dict.fromkeys(overdue, OffsetSpec.latest())) if overdue else {}
        except BrokerError:
            return ()  # no broker is reachable
        short = {partition: end for partition, end in ends.items() if end < overdue[partition].position}
        stuck = min(overdue.keys() - short.keys(), default=None)
        if stuck is not None:
            msg = f"Kafka does not send the record at {overdue[stuck].last.offset} of {stuck}, which it has"
            why = "a cluster that was restored from a copy looks outdated to a client that knew it before"
            raise BrokerError(msg, f"start the writer again: {why}")
        self._checks.forget(short)
        return tuple(ends_before(partition, end, overdue[partition].position) for partition, end in short.items())

    def _hear(self, error: KafkaError) -> None:
        self._were_away = self._were_away or error.code() == _ALL_AWAY
        self._admission.record(error)

    def _check_again(self) -> None:
        """Check whether brokers that were all unreachable came back with the records that were read."""
        self._were_away = False
        for partition, position in self._checks.again().items():
            try:
                self.seek(partition, position)
            except BrokerError as error:
                self._log.warning("last record not compared", partition=str(partition), problem=error.problem)

    def _due_for_topics(self) -> bool:
        return self._clock.monotonic_s() - self._topics_checked_at_s >= TOPICS_EVERY_S

    def _discover_topics(self) -> None:
        try:
            self._refresh_topics()
        except (BrokerError, StoreError, MarkerError) as error:
            # Brokers that are unreachable for a while are no reason to drop buffers; topic names survive that as well.
            self._topics_checked_at_s = self._clock.monotonic_s()
            self._log.warning("topics not looked up, trying again", problem=error.problem)

    def _refresh_topics(self) -> None:
        names = {topic for stream in self._streams if stream.pattern is None for topic in stream.topics}
        if any(stream.pattern for stream in self._streams):
            metadata = self._metadata()
            names |= {topic for topic in metadata if any(stream.reads(topic) for stream in self._streams)}
            names -= self._shared(names)
        self._topics_checked_at_s = self._clock.monotonic_s()
        topics = tuple(sorted(names))
        if topics and topics != self._topics:
            self._topics = topics
            with self._errors("subscribe"):
                self._consumer.subscribe(
                    list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
                )

    def _shared(self, names: Collection[str]) -> set[str]:
        """Topics that appeared since startup and that several streams match: none reads them. Raises ConfigError."""
        if not self._topics:
            self._require_shareable(names)
        shared = self._sharing(names)
        for topic, error in shared.items():
            if topic not in self._unsubscribed.problems:
                self._log.error("topic not read", topic=topic, problem=error.problem, remedy=error.remedy)
        self._unsubscribed.problems = shared
        return set(shared)

    def _require_shareable(self, topics: Collection[str]) -> None:
        """Raises ConfigError for a topic that several streams read and cannot share."""
        for error in self._sharing(topics).values():
            raise error

    def _on_assign(self, _consumer: Consumer, partitions: Sequence[KafkaPartition]) -> None:
        self._admission.let_in()
        self._reader_of_queues.assigned(partitions)
        listener = cast("GroupListener", self._listener)
        topic_partitions = [_source(partition.topic, partition.partition) for partition in partitions]
        positions = listener.assigned(topic_partitions)
        # librdkafka remembers that a partition was paused when it was revoked.
        self.resume(topic_partitions)
        unpositioned = [topic_partition for topic_partition in topic_partitions if topic_partition not in positions]
        starts = {**self._until_sought(unpositioned), **positions}
        kafka_partitions = [
            _kafka(topic_partition, *self._checks.begin(topic_partition, starts[topic_partition]))
            for topic_partition in topic_partitions
        ]
        self._reading.assign(kafka_partitions)
        if unpositioned:
            self.pause(unpositioned)

    def _until_sought(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Position]:
        """The assignment of partitions that must not be read yet; a seek precedes their resume.

        Always a number. While librdkafka resolves a logical offset such as "end", it forgets a seek, and would then
        read from the end and skip everything before it. The end's number is always a valid position.
        """
        try:
            return self._offsets({partition: OffsetSpec.latest() for partition in partitions}) if partitions else {}
        except BrokerError as error:
            self._log.info("where partitions end was not looked up; they wait at 0", problem=error.problem)
            return dict.fromkeys(partitions, Position(0))

    def _on_revoke(self, _consumer: Consumer, partitions: Sequence[KafkaPartition]) -> None:
        listener = cast("GroupListener", self._listener)
        listener.revoked([_source(partition.topic, partition.partition) for partition in partitions])
        self._unassign(partitions)

    def _on_lost(self, _consumer: Consumer, partitions: Sequence[KafkaPartition]) -> None:
        listener = cast("GroupListener", self._listener)
        listener.lost([_source(partition.topic, partition.partition) for partition in partitions])
        self._unassign(partitions)

    def _unassign(self, partitions: Sequence[KafkaPartition]) -> None:
        self._reader_of_queues.unassigned(partitions)
        self._checks.forget([_source(partition.topic, partition.partition) for partition in partitions])
        self._reading.unassign(partitions)

    def _metadata(self) -> dict[str, list[int]]:
        with self._errors("list topics"):
            client_error = None if self._topics else self._admission.client_error
            topics = topics_of(self._consumer, TIMEOUT_S, client_error)
        return {name: sorted(metadata.partitions) for name, metadata in topics.items() if metadata.error is None}

    def _offsets(
        self, specs: Mapping[TopicPartition, OffsetSpec], level: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> dict[TopicPartition, Position]:
        """End offsets, as this consumer sees them or at the other isolation level."""
        until_s = time.monotonic() + TIMEOUT_S
        positions: dict[TopicPartition, Position] = {}
        while missing := {_kafka(partition): spec for partition, spec in specs.items() if partition not in positions}:
            with self._errors("look up offsets"):
                futures = self._admin.list_offsets(missing, isolation_level=level, request_timeout=TIMEOUT_S)
            for requested, future in futures.items():
                partition = _source(requested.topic, requested.partition)
                with self._errors(f"look up offsets of {partition}", partition.topic):
                    try:
                        positions[partition] = Position(result_of(future, TIMEOUT_S).offset)
                    except KafkaException as error:
                        if error.args[0].code() not in _ELECTING or time.monotonic() > until_s:
                            raise
            if len(positions) < len(specs):
                time.sleep(_ELECTION_PAUSE_S)
        return positions

    @contextmanager
    def _errors(self, what: str, user_of: str = "") -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            if not self._topics:  # loses nothing: librdkafka delivers its connection events
                self._consumer.poll(0)
            raise broker_error(
                what, self._servers, error.args[0], self._admission.client_error, user_of=user_of
            ) from error


def is_cooperative(properties: Mapping[str, Option]) -> bool:
    """Whether a rebalance revokes only what moves to another member; librdkafka has different calls for each kind."""
    strategy = str(properties.get("partition.assignment.strategy", ""))
    return properties.get("group.protocol") == "consumer" or "cooperative" in strategy


def consumer_properties(settings: Settings, *, co_partitioned: bool = False) -> dict[str, Option]:
    """The consumer's properties: our defaults, the user's own, and the fixed ones (rules 1, 2 and 7)."""
    shares = MemoryShares.of(settings.writer.memory_bytes)
    defaults: dict[str, Option] = {
        "client.id": "kafka-delta-express",
        "partition.assignment.strategy": "cooperative-sticky",
        # How soon an added topic or partition is seen; librdkafka's default is five minutes.
        "topic.metadata.refresh.interval.ms": int(TOPICS_EVERY_S * 1000),
        # For all partitions together, which share one queue. One response per broker may exceed it.
        "queued.max.messages.kbytes": shares.prefetch // 1024,
        "queued.min.messages": shares.queued_messages,
        "fetch.max.bytes": max(shares.fetch, _LEAST_FETCH_BYTES),
        # librdkafka's default stops fetching for a second when the queue is full: long enough to run dry.
        "fetch.queue.backoff.ms": 50,
    }
    if settings.kafka.get("group.protocol") == "consumer":
        del defaults["partition.assignment.strategy"]  # the broker assigns, and librdkafka rejects the property
    if co_partitioned:
        defaults |= _co_partitioned(settings.kafka)
    fixed: dict[str, Option] = {
        "group.id": settings.writer.group_id,
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
    }
    return {**defaults, **settings.kafka, **fixed}


def _co_partitioned(given: Mapping[str, Option]) -> dict[str, Option]:
    """Makes the group assign partitions with the same number together (rule 7).

    Raises ConfigError for a conflicting setting.
    """
    key = "group.remote.assignor" if given.get("group.protocol") == "consumer" else "partition.assignment.strategy"
    if given.get(key, "range") != "range":
        msg = f"kafka: {key} is {given[key]!r}, and a topology joins topics: partitions of one number belong together"
        raise ConfigError(msg, f"leave {key} out, or write range; with group.instance.id members keep what they have")
    return {key: "range"}


def session_s(kafka: Mapping[str, Option]) -> float:
    """The group's session timeout, in seconds."""
    return float(str(kafka.get("session.timeout.ms", _SESSION_MS))) / 1000


def _reason(error: Exception) -> str:
    return error.args[0].str() if error.args and isinstance(error.args[0], KafkaError) else str(error)


def _source(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(Topic(topic), Partition(partition))


def _kafka(partition: TopicPartition, position: int | None = None, leader_epoch: int | None = None) -> KafkaPartition:
    offset = OFFSET_INVALID if position is None else position
    if leader_epoch is None:
        return KafkaPartition(partition.topic, partition.partition, offset)
    return KafkaPartition(partition.topic, partition.partition, offset, leader_epoch=leader_epoch)
