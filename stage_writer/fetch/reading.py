"""Where each assigned partition is read, whether it is paused, and how reading is moved.

Rules:

1. librdkafka seeks in a partition that it reads. It stops one for a position that Kafka does not have, and then only a
   new assignment of it helps.
2. A cooperative group assigns that partition alone. Any other group assigns all of them at once: the others again from
   where they were read to, and paused as they were. What was fetched and not read of these is fetched again.
"""

from collections.abc import Collection, Iterable

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from common.spans import TopicPartition
from stage_writer.decode.batch import MessageBatch
from stage_writer.fetch.partitions import from_kafka, to_kafka

_STATE = KafkaError._STATE  # noqa: SLF001 - librdkafka's own codes begin with an underscore


class ReadPositions:
    def __init__(self, consumer: Consumer, *, is_cooperative: bool) -> None:
        self._consumer = consumer
        self._is_cooperative = is_cooperative
        self.paused: set[TopicPartition] = set()
        self._next: dict[TopicPartition, KafkaPartition] = {}
        """Where each partition is read next, in a group that is not cooperative."""

    def assign(self, partitions: Collection[KafkaPartition]) -> None:
        """Read these too, from these positions."""
        if self._is_cooperative:
            self._consumer.incremental_assign(list(partitions))
            return
        self._next = {from_kafka(partition.topic, partition.partition): partition for partition in partitions}
        self._consumer.assign(list(partitions))

    def unassign(self, partitions: Collection[KafkaPartition]) -> None:
        if self._is_cooperative:
            self._consumer.incremental_unassign(list(partitions))
            return
        self._next = {}
        self._consumer.unassign()

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Stop reading these. Raises KafkaException."""
        self.paused.update(partitions)
        self._consumer.pause([to_kafka(partition) for partition in partitions])

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Read these again. Raises KafkaException."""
        self.paused.difference_update(partitions)
        self._consumer.resume([to_kafka(partition) for partition in partitions])

    def seek(self, partition: KafkaPartition) -> None:
        """Read one of them from another position. Raises KafkaException."""
        if not self._is_cooperative:
            self._next[from_kafka(partition.topic, partition.partition)] = partition
        try:
            self._consumer.seek(partition)
        except KafkaException as error:
            if error.args[0].code() != _STATE:
                raise
            if self._is_cooperative:
                self._consumer.incremental_unassign([KafkaPartition(partition.topic, partition.partition)])
                self._consumer.incremental_assign([partition])
                return
            self._consumer.assign(list(self._next.values()))
            self._consumer.pause([to_kafka(paused) for paused in self.paused if paused in self._next])

    def read(self, batches: Iterable[MessageBatch]) -> None:
        if self._is_cooperative:
            return
        for batch in batches:
            if len(batch) and batch.partition in self._next:
                self._next[batch.partition] = to_kafka(batch.partition, batch.end)
