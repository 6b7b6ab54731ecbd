"""The brokers' answers about the chains of shared topics: their answers about the topic."""

from collections.abc import Callable, Collection, Mapping, Sequence

from common.settings import Start, Stream
from common.settings.overlap import TopicReaders
from common.spans import Position, Topic, TopicPartition
from common.stage.merged import kafka_partition, kafka_topic
from stage_writer.ports import KafkaMetadata

ChainsOf = Callable[[Topic], Sequence[Topic]]
"""The topics of the chains that read a Kafka topic, always the same."""


class SharedMetadata:
    """A `stage_writer.ports.KafkaMetadata` in front of another."""

    def __init__(self, inner: KafkaMetadata, chains_of: ChainsOf) -> None:
        self._inner = inner
        self._chains_of = chains_of

    def resolve(self, partition: TopicPartition, start: Start) -> Position:
        return self._inner.resolve(kafka_partition(partition), start)

    def end_positions(self, streams: Collection[Stream]) -> Mapping[TopicPartition, Position]:
        read_by = TopicReaders(streams)
        return {
            chain: position
            for partition, position in self._inner.end_positions(streams).items()
            for chain in chains_in(partition, self._chains_of)
            if read_by.taking(chain.topic)
        }

    def high_watermarks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        watermarks = self._inner.high_watermarks({kafka_partition(partition) for partition in partitions})
        return {
            partition: watermarks[kafka_partition(partition)]
            for partition in partitions
            if kafka_partition(partition) in watermarks
        }

    def topic_ids(self, topics: Collection[Topic]) -> Mapping[Topic, str | None]:
        topic_ids = self._inner.topic_ids({kafka_topic(topic) for topic in topics})
        return {topic: topic_ids[kafka_topic(topic)] for topic in topics if kafka_topic(topic) in topic_ids}

    def refused(self, topics: Collection[str]) -> Collection[str]:
        refused = self._inner.refused({kafka_topic(Topic(topic)) for topic in topics})
        return {topic for topic in topics if kafka_topic(Topic(topic)) in refused}

    def ownerless(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition] | None:
        ownerless = self._inner.ownerless({kafka_partition(partition) for partition in partitions})
        if ownerless is None:
            return None
        return {partition for partition in partitions if kafka_partition(partition) in ownerless}


def chains_in(partition: TopicPartition, chains_of: ChainsOf) -> list[TopicPartition]:
    return [TopicPartition(topic, partition.partition) for topic in chains_of(partition.topic)]
