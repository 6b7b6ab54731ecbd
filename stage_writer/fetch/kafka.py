"""Kafka through librdkafka: the group member that the writer reads from.

Rules:

1. Kafka's offsets are never the truth: nothing is stored or committed except, on request, positions for monitoring
   tools, and there is no automatic reset: a position that Kafka no longer has is a fault of that partition.
2. A partition that comes back to this member is read, even if it was paused when it was revoked.
3. librdkafka continues to read a topic that was deleted and recreated, from the old one's position, as if nothing had
   happened. So the service checks the topics' ids (stage_writer/partitions/claim_guards.py).
4. While librdkafka has full batches, a poll takes several of them, up to its share of the memory, because the
   processing of a poll has a fixed cost. What was taken of a partition before a rebalance moved it, in the same poll,
   is dropped: a batch, which its next owner reads from the chain's end, and an end or a fault of the position before.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import cast

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition
from structlog.typing import FilteringBoundLogger

from common.errors import BrokerError
from common.ports import Clock
from common.settings import Settings, Stream
from common.settings.overlap import UnsubscribedTopics, shared_topics
from common.spans import Position, TopicPartition
from common.stage.markers import LastRecord
from stage_writer.fetch.checked_reading import CheckedReading, RefusedTopics
from stage_writer.fetch.connection import KafkaConnection
from stage_writer.fetch.consumer_properties import consumer_properties, is_cooperative
from stage_writer.fetch.fetching import fetcher_of
from stage_writer.fetch.metadata import BrokerMetadata, TopicSharing
from stage_writer.fetch.partitions import all_from_kafka, from_kafka, to_kafka
from stage_writer.fetch.reading import ReadPositions
from stage_writer.fetch.subscription import TopicSubscription
from stage_writer.memory_shares import MemoryShares
from stage_writer.ports import GroupListener, Polled


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
        sharing: TopicSharing | None = None,
    ) -> None:
        """Contacts nothing before a method is called. Raises ConfigError for properties that librdkafka rejects.

        ``co_partitioned``: one member gets the partitions with the same number, of all topics. ``native`` is the
        compiled library that reads messages without Python objects, if available. ``unsubscribed`` is kept up to date.
        ``with_headers`` are the streams whose messages' headers are read.
        """
        sharing = sharing or partial(shared_topics, settings.streams)
        properties = consumer_properties(settings, co_partitioned=co_partitioned)
        self._log = log
        self._most = settings.writer.consume_records
        self._revoke_timeout_s = settings.writer.revoke_timeout_s
        self._enough_bytes = MemoryShares.divided(settings.writer.memory_bytes).poll
        self._listener: GroupListener | None = None
        self._connection = KafkaConnection(settings, properties, clock, log)
        self.metadata = BrokerMetadata(self._connection, sharing)
        self._subscription = TopicSubscription(self.metadata, sharing, unsubscribed or UnsubscribedTopics(), clock, log)
        refused = RefusedTopics(self.metadata.refused, lambda: self._subscription.topics, clock)
        consumer = self._connection.consumer
        self._positions = ReadPositions(consumer, is_cooperative=is_cooperative(properties))
        self._reading = CheckedReading(
            self._connection, self.metadata, self._positions, refused=refused, clock=clock, log=log
        )
        self._fetcher = fetcher_of(
            consumer, clock, self._most, self._enough_bytes, with_headers=with_headers, native=native, log=log
        )

    def subscribe(self, streams: Collection[Stream], listener: GroupListener) -> None:
        self._listener = listener
        self._subscription.begin(streams, self._subscribe)

    def poll(self, timeout_s: float) -> Polled:
        self._subscription.refresh_if_due()
        self._connection.admission.require()
        if self._connection.brokers_were_unreachable():
            self._reading.check_again()
        polled, polled_bytes = Polled(faults=self._reading.overdue()), 0
        while True:
            with self._connection.errors("consume"):
                fetched = self._fetcher.take(timeout_s, polled_bytes)
            moved = {from_kafka(*partition) for partition in self._fetcher.moved}  # their records are dropped
            before, fresh = polled.without(moved), self._reading.accept(fetched)
            polled = Polled(before.batches + fresh.batches, {**before.ends, **fresh.ends}, before.faults + fresh.faults)
            polled_bytes = sum(batch.memory_bytes for batch in polled.batches)
            if fetched.count < self._most or polled_bytes >= self._enough_bytes:
                self._reading.passed_on(polled)
                return polled
            timeout_s = 0.0

    def expect(self, last: Mapping[TopicPartition, LastRecord]) -> None:
        self._reading.expect(last)

    def seek(self, partition: TopicPartition, position: Position) -> None:
        self._reading.seek(partition, position)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        with self._connection.errors("pause"):
            self._positions.pause(partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        with self._connection.errors("resume"):
            self._positions.resume(partitions)

    def report(self, positions: Mapping[TopicPartition, Position]) -> None:
        if positions:
            with self._connection.errors("report positions"):
                offsets = [to_kafka(partition, position) for partition, position in positions.items()]
                self._connection.consumer.commit(offsets=offsets, asynchronous=True)

    def close(self) -> None:
        """Leave the group; the listener is called with what is revoked, in a thread that this call joins."""
        with self._connection.errors("leave the group"):
            self._fetcher.close()
            if not self._connection.close(self._revoke_timeout_s):
                self._log.warning("left the group without notifying it: Kafka does not respond")

    # The consumer group's callbacks. librdkafka calls these from poll and close.

    def _subscribe(self, topics: list[str]) -> None:
        self._connection.is_subscribed = True
        with self._connection.errors("subscribe"):
            self._connection.consumer.subscribe(
                topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )

    def _on_assign(self, _consumer: Consumer, kafka_partitions: list[KafkaPartition]) -> None:
        self._connection.admission.accepted()
        self._fetcher.assigned(kafka_partitions)
        partitions = all_from_kafka(kafka_partitions)
        positions = cast("GroupListener", self._listener).assigned(partitions)
        # librdkafka remembers that a partition was paused when it was revoked.
        self.resume(partitions)
        unpositioned = [partition for partition in partitions if partition not in positions]
        starts = {**self._until_sought(unpositioned), **positions}
        self._positions.assign([self._reading.start(partition, starts[partition]) for partition in partitions])
        if unpositioned:
            self.pause(unpositioned)

    def _until_sought(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Position]:
        """The assignment of partitions that must not be read yet; a seek precedes their resume.

        Always a number. While librdkafka resolves a logical offset such as "end", it forgets a seek, and would then
        read from the end and skip everything before it. The end's number is always a valid position.
        """
        try:
            return self.metadata.ends(partitions)
        except BrokerError as error:
            self._log.info("ends of partitions not read; paused at position 0 until a seek", problem=error.problem)
            return dict.fromkeys(partitions, Position(0))

    def _on_revoke(self, _consumer: Consumer, kafka_partitions: list[KafkaPartition]) -> None:
        cast("GroupListener", self._listener).revoked(all_from_kafka(kafka_partitions))
        self._unassign(kafka_partitions)

    def _on_lost(self, _consumer: Consumer, kafka_partitions: list[KafkaPartition]) -> None:
        cast("GroupListener", self._listener).lost(all_from_kafka(kafka_partitions))
        self._unassign(kafka_partitions)

    def _unassign(self, kafka_partitions: list[KafkaPartition]) -> None:
        self._fetcher.unassigned(kafka_partitions)
        self._reading.forget(all_from_kafka(kafka_partitions))
        self._positions.unassign(kafka_partitions)
