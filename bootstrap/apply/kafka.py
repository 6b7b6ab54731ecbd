"""The tool's reads from Kafka: the partitions of a stream, their ends, the offsets at a time, and a group's commits.

Rules: nothing is consumed, joined or committed; every request has a timeout, and its error names the servers.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from bootstrap.plans.state import Ends
from common.errors import UsageError
from common.kafka.reader import KafkaReader
from common.settings import Settings, Stream
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.merged import InputEnd, inputs_of, is_merged, kafka_topic, merged_position

TIMEOUT_S = 10.0
_GROUP = "kafka-delta-express-bootstrap"


class KafkaView:
    """A read-only view of a cluster. Each method raises BrokerError."""

    def __init__(
        self, settings: Settings, agree: Callable[[Collection[str]], object], group: str | None = None
    ) -> None:
        """``agree`` makes the owners of topics known, and ``group`` is the one whose commits are read.

        Raises ConfigError for properties that librdkafka rejects.
        """
        self._agree = agree
        self._servers = str(settings.kafka["bootstrap.servers"])
        self._group = group or _GROUP
        given = {key: value for key, value in settings.kafka.items() if value is not None}
        self._reader = KafkaReader({**given, "group.id": self._group}, timeout_s=TIMEOUT_S)

    def close(self) -> None:
        self._reader.close()

    def partitions(self, stream: Stream) -> tuple[TopicPartition, ...]:
        """The partitions of a stream's topics, in order, as its chains are named.

        Raises UsageError for an unknown topic, and what ``agree`` raises.
        """
        known = {name: topic for name, topic in self._reader.topics().items() if topic.error is None}
        missing = [topic for topic in stream.topics if stream.pattern is None and topic not in known]
        if missing:
            self._reader.partitions(missing[0])  # raises BrokerError for a hidden one
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
        ids = self._reader.topic_ids(set(names.values()))
        return {topic: ids.get(of_kafka) for topic, of_kafka in names.items()}

    def ends(self, chains: Sequence[TopicPartition]) -> dict[TopicPartition, Ends]:
        """The ends of chains; of one of several topics, with the position in each of them."""
        return {chain: self._ends(chain) for chain in chains}

    def _ends(self, chain: TopicPartition) -> Ends:
        if not is_merged(chain.topic):
            return Ends(*self._reader.ends(chain))
        ends = {partition: self._reader.ends(partition) for partition in inputs_of(chain)}
        low, high = (
            merged_position(InputEnd(partition, position[end]) for partition, position in ends.items())
            for end in range(2)
        )
        return Ends(low, high)

    def positions_at(self, ends: Mapping[TopicPartition, Ends], timestamp_ms: int) -> dict[TopicPartition, Position]:
        """The first record at or after a time; the partition's end where there is none."""
        return {
            partition: self._reader.position_at(partition, timestamp_ms, end.high) for partition, end in ends.items()
        }

    def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Position]:
        """The group's committed positions; partitions without a commit are left out."""
        return self._reader.committed(partitions, self._group)


def with_chain(partitions: Sequence[TopicPartition], topic: str) -> list[TopicPartition]:
    """The partitions of a topic, or of the chain of several topics, that exist in Kafka for all of them.

    Only the writers know which topics a topology joins. To name a chain, name its topics.
    """
    there = set(partitions)
    chains = {TopicPartition(Topic(topic), partition.partition) for partition in partitions}
    return sorted(chain for chain in chains if there.issuperset(inputs_of(chain) if is_merged(topic) else [chain]))
