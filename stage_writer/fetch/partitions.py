"""Kafka partitions as librdkafka has them, and as the writer does."""

from confluent_kafka import OFFSET_INVALID
from confluent_kafka import TopicPartition as KafkaPartition

from common.spans import Partition, Topic, TopicPartition


def from_kafka(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(Topic(topic), Partition(partition))


def all_from_kafka(partitions: list[KafkaPartition]) -> list[TopicPartition]:
    return [from_kafka(partition.topic, partition.partition) for partition in partitions]


def to_kafka(partition: TopicPartition, position: int | None = None, leader_epoch: int | None = None) -> KafkaPartition:
    offset = OFFSET_INVALID if position is None else position
    if leader_epoch is None:
        return KafkaPartition(partition.topic, partition.partition, offset)
    return KafkaPartition(partition.topic, partition.partition, offset, leader_epoch=leader_epoch)
