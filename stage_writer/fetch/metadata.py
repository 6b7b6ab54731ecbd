"""The brokers' answers about topics, offsets and the group's members.

A partition that is electing its leader is asked again for a while; any other failure is a BrokerError.
"""

import time
from collections.abc import Callable, Collection, Mapping

from confluent_kafka import ConsumerGroupState, IsolationLevel, KafkaError, KafkaException
from confluent_kafka.admin import OffsetSpec

from common.errors import ConfigError
from common.kafka.client import result_of
from common.kafka.reader import require_allowed, topic_ids, topics_of
from common.settings import FromOffsets, FromTimestamp, Start, StartAt, Stream
from common.settings.overlap import TopicReaders
from common.spans import Position, Topic, TopicPartition
from stage_writer.fetch.connection import KafkaConnection
from stage_writer.fetch.partitions import from_kafka, to_kafka
from stage_writer.fetch.rights import refused_topics

TopicSharing = Callable[[Collection[str]], Mapping[str, ConfigError]]
"""Agrees on the owners of topics that several streams read; returns those that they cannot share.

May raise StoreError and MarkerError.
"""

TIMEOUT_S = 10.0
_ELECTING = {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE}  # transient errors
_ELECTION_PAUSE_S = 0.1


class BrokerMetadata:
    """A `stage_writer.ports.KafkaMetadata` of a real cluster."""

    def __init__(self, connection: KafkaConnection, sharing: TopicSharing) -> None:
        self._connection = connection
        self._sharing = sharing

    def resolve(self, partition: TopicPartition, start: Start) -> Position:
        if isinstance(start, FromOffsets):
            given = start.position(partition.topic, partition.partition)
            if given is not None:
                return given
            start = StartAt.EARLIEST
        spec = OffsetSpec.earliest() if start is StartAt.EARLIEST else OffsetSpec.latest()
        if isinstance(start, FromTimestamp):
            spec = OffsetSpec.for_timestamp(start.timestamp_ms)
        position = self.offsets({partition: spec})[partition]
        # A time after the last record has no offset: start at the end.
        return position if position >= 0 else self.ends([partition])[partition]

    def end_positions(self, streams: Collection[Stream]) -> Mapping[TopicPartition, Position]:
        topics, read_by = self.topics(), TopicReaders(streams)
        wanted = {topic for topic in topics if read_by.of(topic)}
        require_shareable(self._sharing, wanted)
        for topic in (name for stream in streams if stream.pattern is None for name in stream.topics):
            if topic not in topics:
                with self._connection.errors(f"look up the topic {topic}", topic):
                    require_allowed(self._connection.consumer, topic, TIMEOUT_S)
        partitions = [
            from_kafka(topic, partition)
            for topic, partitions in topics.items()
            if topic in wanted
            for partition in partitions
        ]
        return self.ends(partitions)

    def high_watermarks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        return self.ends(partitions, IsolationLevel.READ_UNCOMMITTED)

    def topic_ids(self, topics: Collection[Topic]) -> Mapping[Topic, str | None]:
        with self._connection.errors("describe topics"):
            return topic_ids(self._connection.admin, topics, TIMEOUT_S)

    def refused(self, topics: Collection[str]) -> Collection[str]:
        with self._connection.errors("describe topics"):
            return refused_topics(self._connection.admin, topics)

    def ownerless(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition] | None:
        group, admin = self._connection.group_id, self._connection.admin
        with self._connection.errors(f"describe the group {group}"):
            described_group = admin.describe_consumer_groups([group], request_timeout=TIMEOUT_S)[group]
            try:
                described = result_of(described_group, TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                    raise
                msg = f"kafka: this user may not describe the consumer group {group}, which --until-caught-up needs"
                raise ConfigError(msg, f"allow the operation Describe on the group {group}") from error
        assigned_partitions = {
            from_kafka(assigned.topic, assigned.partition)
            for member in described.members
            for assigned in (member.assignment.topic_partitions if member.assignment else ())
        }
        return None if described.state != ConsumerGroupState.STABLE else set(partitions) - assigned_partitions

    def topics(self) -> dict[str, list[int]]:
        """The numbers of each topic's partitions."""
        with self._connection.errors("list topics"):
            client_error = None if self._connection.is_subscribed else self._connection.admission.client_error
            topics = topics_of(self._connection.consumer, TIMEOUT_S, client_error)
        return {name: sorted(metadata.partitions) for name, metadata in topics.items() if metadata.error is None}

    def ends(
        self, partitions: Collection[TopicPartition], level: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> dict[TopicPartition, Position]:
        """The end of each, as this consumer sees it or at the other isolation level."""
        return self.offsets(dict.fromkeys(partitions, OffsetSpec.latest()), level)

    def offsets(
        self, specs: Mapping[TopicPartition, OffsetSpec], level: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> dict[TopicPartition, Position]:
        until_s = time.monotonic() + TIMEOUT_S
        positions: dict[TopicPartition, Position] = {}
        while missing := {to_kafka(partition): spec for partition, spec in specs.items() if partition not in positions}:
            with self._connection.errors("look up offsets"):
                futures = self._connection.admin.list_offsets(missing, isolation_level=level, request_timeout=TIMEOUT_S)
            for requested, future in futures.items():
                partition = from_kafka(requested.topic, requested.partition)
                with self._connection.errors(f"look up offsets of {partition}", partition.topic):
                    try:
                        positions[partition] = Position(result_of(future, TIMEOUT_S).offset)
                    except KafkaException as error:
                        if error.args[0].code() not in _ELECTING or time.monotonic() > until_s:
                            raise
            if len(positions) < len(specs):
                time.sleep(_ELECTION_PAUSE_S)
        return positions


def require_shareable(sharing: TopicSharing, topics: Collection[str]) -> None:
    """Raises ConfigError for a topic that several streams read and cannot share."""
    for error in sharing(topics).values():
        raise error
