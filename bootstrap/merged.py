"""Chains of several topics (common/stage/merged.py), and the repairs that the tool supports for them.

Rules:

1. A chain can only continue from where each of its topics' positions is known. So it can be rewound to the end of one
   of its markers, or to its origin, and restarted; positions given by hand cannot be used.
2. Only the writers know which topics a topology joins. To name a chain, name its topics.
"""

from collections.abc import Sequence

from bootstrap.apply.kafka import KafkaView
from bootstrap.plans.state import Ends
from common.errors import UsageError
from common.settings import Stream
from common.spans import Topic, TopicPartition
from common.stage.merged import InputEnd, inputs_of, is_merged, merged_position


def with_chain(partitions: Sequence[TopicPartition], topic: str) -> list[TopicPartition]:
    """The partitions of a topic, or of the chain of several topics, that exist in Kafka for all of them."""
    there = set(partitions)
    chains = {TopicPartition(Topic(topic), partition.partition) for partition in partitions}
    return sorted(
        there & chains if not is_merged(topic) else (chain for chain in chains if there.issuperset(inputs_of(chain)))
    )


def ends_of(kafka: KafkaView, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Ends]:
    """Kafka's ends of partitions, and of chains of several topics."""
    ends = kafka.ends([partition for topic_partition in partitions for partition in inputs_of(topic_partition)])
    return {
        topic_partition: _together(topic_partition, [ends[partition] for partition in inputs_of(topic_partition)])
        for topic_partition in partitions
    }


def _together(topic_partition: TopicPartition, ends: Sequence[Ends]) -> Ends:
    if not is_merged(topic_partition.topic):
        return ends[0]
    inputs = inputs_of(topic_partition)
    low = merged_position(InputEnd(partition, end.low) for partition, end in zip(inputs, ends, strict=True))
    return Ends(
        low, merged_position(InputEnd(partition, end.high) for partition, end in zip(inputs, ends, strict=True))
    )


def require_plain(stream: Stream, command: str) -> None:
    """Raises UsageError for a stream whose topology may join its topics."""
    if stream.may_merge:
        msg = f"{command} works topic by topic, but the topology of {stream.app_id!r} may read several together"
        raise UsageError(msg, "set streams[].start before its first writer starts")
