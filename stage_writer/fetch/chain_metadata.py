"""The brokers' answers about chains, from those about their Kafka partitions (common/stage/merged.py)."""

from collections.abc import Callable, Collection, Iterable, Mapping

from common.settings import Start, Stream
from common.spans import Position, Topic, TopicPartition
from common.stage.merged import InputEnd, ids_together, inputs_of, is_merged, merged_position, topics_of, with_chains
from stage_writer.ports import KafkaMetadata


class ChainMetadata:
    """A `stage_writer.ports.KafkaMetadata` in front of another."""

    def __init__(
        self, inner: KafkaMetadata, ends_of: Callable[[Collection[Stream]], Mapping[TopicPartition, Position]]
    ) -> None:
        """``ends_of`` are the `end_positions` of all chains of the streams."""
        self._inner = inner
        self.end_positions = ends_of

    def resolve(self, partition: TopicPartition, start: Start) -> Position:
        ends = [InputEnd(behind, self._inner.resolve(behind, start)) for behind in inputs_of(partition)]
        return merged_position(ends) if is_merged(partition.topic) else ends[0].position

    def high_watermarks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        return with_chains(self._inner.high_watermarks(_behind(partitions)), partitions)

    def topic_ids(self, topics: Collection[Topic]) -> Mapping[Topic, str | None]:
        """The ids of topics; for a chain of several, those of all its topics."""
        ids = self._inner.topic_ids({behind for topic in topics for behind in topics_of(topic)})
        return {topic: ids_together(topic, ids) for topic in topics if ids.keys() >= set(topics_of(topic))}

    def refused(self, topics: Collection[str]) -> Collection[str]:
        refused = set(self._inner.refused({behind for topic in topics for behind in topics_of(topic)}))
        return {topic for topic in topics if not refused.isdisjoint(topics_of(topic))}

    def ownerless(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition] | None:
        """The chains with an input without an owner in the group."""
        ownerless = self._inner.ownerless(_behind(partitions))
        if ownerless is None:
            return None
        return {partition for partition in partitions if not set(ownerless).isdisjoint(inputs_of(partition))}


def _behind(partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
    return {behind for partition in partitions for behind in inputs_of(partition)}
