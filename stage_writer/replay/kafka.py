"""Kafka for a replay: the records of a range, as the batches of the service.

Rule: batches are those of the service (`stage_writer.fetch.fetched`), so a replay converts what a writer would have
converted. See common/kafka/reader.py for how a range is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.kafka.reader import KafkaReader
from stage_writer.fetch.fetched import batch_of
from stage_writer.fetch.kafka import consumer_properties

if TYPE_CHECKING:
    from collections.abc import Iterator

    from common.settings import Settings
    from common.spans import Span, TopicPartition
    from stage_writer.decode.batch import MessageBatch


class ReplayKafka(KafkaReader):
    """A `stage_writer.replay.records.Kafka`."""

    def __init__(self, settings: Settings, *, with_headers: bool) -> None:
        """Raises ConfigError for properties that librdkafka rejects."""
        super().__init__(consumer_properties(settings), settings.writer.consume_records)
        self._with_headers = with_headers

    def batches(self, partition: TopicPartition, span: Span) -> Iterator[MessageBatch]:
        for messages in self.messages(partition, span):
            yield batch_of(partition, messages, with_headers=self._with_headers).after(span.start)
