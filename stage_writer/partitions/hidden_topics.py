"""Streams with a topic that this user may not see: they have no partitions to hold, and the others continue."""

from collections.abc import Collection, Mapping

from common.errors import BrokerRefusedError
from common.settings import Stream
from common.spans import Position, TopicPartition
from stage_writer.ports import KafkaMetadata


def seen_end_positions(
    metadata: KafkaMetadata, streams: Collection[Stream]
) -> tuple[Mapping[TopicPartition, Position], Mapping[str, BrokerRefusedError]]:
    """The end positions, and by app_id the refusals of streams that are left out. Raises BrokerError, ConfigError."""
    try:
        return metadata.end_positions(streams), {}
    except BrokerRefusedError:
        ends: dict[TopicPartition, Position] = {}
        hidden: dict[str, BrokerRefusedError] = {}
        for stream in streams:
            try:
                ends.update(metadata.end_positions([stream]))
            except BrokerRefusedError as error:
                hidden[stream.app_id] = error
        return ends, hidden
