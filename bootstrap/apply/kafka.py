"""The tool's reads from Kafka: the partitions of a stream, their ends, the offsets at a time, and a group's commits.

Rules: nothing is consumed, joined or committed; every request has a timeout, and its error names the servers.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from bootstrap.plans.state import Ends
from common.errors import UsageError
from common.kafka.client import QUIET, client_properties, close_within, taking_properties
from common.kafka.errors import LastClientError, broker_error
from common.kafka.reader import require_allowed, topic_ids, topics_of
from common.settings import Settings, Stream
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.merged import kafka_partition, kafka_topic

TIMEOUT_S = 10.0
_GROUP = "kafka-delta-express-bootstrap"


class KafkaView:
    """A read-only view of a cluster."""

    def __init__(
        self, settings: Settings, agree: Callable[[Collection[str]], object], group: str | None = None
    ) -> None:
        """``agree`` makes the owners of topics known, and ``group`` is the one whose commits are read.

        Raises ConfigError for properties that librdkafka rejects.
        """
        self._agree = agree
        self._servers = str(settings.kafka["bootstrap.servers"])
        self._client_error = LastClientError()
        self._group = group or _GROUP
        given = {key: value for key, value in settings.kafka.items() if value is not None}
        fixed = {
            "group.id": self._group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "error_cb": self._client_error.record,
        }
        with taking_properties():
            self._consumer = Consumer({**given, **fixed}, logger=QUIET)
            self._admin = AdminClient(client_properties(given), logger=QUIET)

    def close(self) -> None:
        close_within(self._consumer)

    def partitions(self, stream: Stream) -> tuple[TopicPartition, ...]:
        """The partitions of a stream's topics, in order, as its chains are named.

        Raises BrokerError, UsageError for an unknown topic, and what ``agree`` raises.
        """
        with self._errors("list topics"):
            topics = topics_of(self._consumer, TIMEOUT_S, self._client_error)
        known = {name: topic for name, topic in topics.items() if topic.error is None}
        missing = [topic for topic in stream.topics if stream.pattern is None and topic not in known]
        if missing:
            with self._errors(f"look up the topic {missing[0]}", missing[0]):
                require_allowed(self._consumer, missing[0], TIMEOUT_S)
            msg = f"Kafka at {self._servers} has no topic {missing[0]!r}, which stream {stream.app_id!r} names"
            raise UsageError(msg, "create the topic, or fix the name in streams[].topics")
        self._agree([name for name in known if stream.reads(name)])
        partitions = tuple(
            TopicPartition(stream.chain_of(name), Partition(partition))
            for name, topic in sorted(known.items())
            if stream.reads(name)
            for partition in sorted(topic.partitions)
        )
        if not partitions:
            msg = (
                f"no topic in Kafka at {self._servers} matches {stream.topics[0]}, which stream {stream.app_id!r} reads"
            )
            raise UsageError(msg, "create a topic, or fix the expression in streams[].topics")
        return partitions

    def topic_ids(self, topics: Iterable[Topic]) -> dict[Topic, str | None]:
        """The id of each topic; None from a broker without topic ids, and for a topic that was deleted meanwhile."""
        names = {topic: kafka_topic(topic) for topic in topics}
        with self._errors("describe topics"):
            ids = topic_ids(self._admin, set(names.values()), TIMEOUT_S)
        return {topic: ids.get(of_kafka) for topic, of_kafka in names.items()}

    def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Ends]:
        ends: dict[TopicPartition, Ends] = {}
        for partition in partitions:
            with self._errors(f"look up the ends of {partition}", kafka_topic(partition.topic)):
                low, high = self._consumer.get_watermark_offsets(_kafka(partition), timeout=TIMEOUT_S)
            ends[partition] = Ends(Position(low), Position(high))
        return ends

    def positions_at(self, ends: Mapping[TopicPartition, Ends], timestamp_ms: int) -> dict[TopicPartition, Position]:
        """The first record at or after a time; the partition's end where there is none."""
        requests = [_kafka(partition, timestamp_ms) for partition in ends]
        with self._errors("look up offsets by time"):
            responses = self._consumer.offsets_for_times(requests, timeout=TIMEOUT_S)
        offsets = self._offsets(ends, responses, "look up offsets by time")
        return {
            partition: Position(offset) if offset >= 0 else ends[partition].high
            for partition, offset in offsets.items()
        }

    def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Position]:
        """The group's committed positions; partitions without a commit are left out."""
        with self._errors(f"look up the offsets of the group {self._group}", self._group):
            responses = self._consumer.committed([_kafka(partition) for partition in partitions], timeout=TIMEOUT_S)
        offsets = self._offsets(partitions, responses, "look up the group's offsets")
        return {partition: Position(offset) for partition, offset in offsets.items() if offset >= 0}

    def _offsets(
        self, partitions: Iterable[TopicPartition], responses: Sequence[KafkaPartition], what: str
    ) -> dict[TopicPartition, int]:
        for response in responses:
            if response.error is not None:
                whose = f"{what} of {response.topic}/{response.partition}"
                raise broker_error(whose, self._servers, response.error, user_of=response.topic)
        offsets = {
            TopicPartition(Topic(response.topic), Partition(response.partition)): int(response.offset)
            for response in responses
        }
        return {
            partition: offsets[kafka_key]
            for partition in partitions
            if (kafka_key := kafka_partition(partition)) in offsets
        }

    @contextmanager
    def _errors(self, what: str, user_of: str = "") -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            self._consumer.poll(0)  # delivers librdkafka's connection events
            raise broker_error(what, self._servers, error.args[0], self._client_error, user_of=user_of) from error


def _kafka(partition: TopicPartition, offset: int = OFFSET_INVALID) -> KafkaPartition:
    return KafkaPartition(kafka_topic(partition.topic), partition.partition, offset)
