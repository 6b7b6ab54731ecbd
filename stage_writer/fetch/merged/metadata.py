"""The brokers' answers about merged chains: their inputs' answers, combined."""

from collections.abc import Collection, Iterable, Mapping

from common.settings import Start, Stream
from common.spans import Position, Topic, TopicPartition
from common.stage.merged import InputEnd, ids_together, inputs_of, is_merged, merged_position, topics_of
from stage_writer.fetch.merged.groups import TopicGroups
from stage_writer.ports import KafkaMetadata


class MergedMetadata:
    """A `stage_writer.ports.KafkaMetadata` in front of another."""

    def __init__(self, inner: KafkaMetadata, groups: TopicGroups) -> None:
        self._inner = inner
        self._groups = groups

    def resolve(self, topic_partition: TopicPartition, start: Start) -> Position:
        if not is_merged(topic_partition.topic):
            return self._inner.resolve(topic_partition, start)
        return merged_position(
            InputEnd(partition, self._inner.resolve(partition, start)) for partition in inputs_of(topic_partition)
        )

    def end_positions(self, streams: Collection[Stream]) -> Mapping[TopicPartition, Position]:
        """The end of every chain of the streams. Raises ConfigError where topics cannot be merged."""
        positions = self._inner.end_positions(streams)
        self._groups.require_equal_counts(positions)
        return self._groups.chains(positions)

    def high_watermarks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        return self._groups.chains(self._inner.high_watermarks(spread(partitions)))

    def topic_ids(self, topics: Collection[Topic]) -> Mapping[Topic, str | None]:
        """The ids of topics; for a chain's topic, those of all its topics."""
        topic_ids = self._inner.topic_ids({input_topic for topic in topics for input_topic in topics_of(topic)})
        there = [topic for topic in topics if all(input_topic in topic_ids for input_topic in topics_of(topic))]
        return {topic: ids_together(topic, topic_ids) for topic in there}

    def refused(self, topics: Collection[str]) -> Collection[str]:
        refused = set(self._inner.refused({input_topic for topic in topics for input_topic in topics_of(Topic(topic))}))
        return {topic for topic in topics if not refused.isdisjoint(topics_of(Topic(topic)))}

    def ownerless(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition] | None:
        """The chains with an input without an owner in the group."""
        ownerless = self._inner.ownerless(spread(partitions))
        if ownerless is None:
            return None
        return {partition for partition in partitions if not set(ownerless).isdisjoint(spread([partition]))}


def spread(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """The Kafka partitions behind: a chain's inputs, or the partition itself where it is not merged."""
    behind = (inputs_of(partition) if is_merged(partition.topic) else (partition,) for partition in partitions)
    return [kafka_partition for part in behind for kafka_partition in part]
