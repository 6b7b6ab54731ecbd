"""A task's input and output."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from common.spans import Partition, Topic, TopicPartition
from stage_writer.decode.batch import Headers as KafkaHeaders
from stage_writer.decode.batch import Index, Mask
from stage_writer.decode.rejects import Reject
from stage_writer.topologies.records import TopicRecord


@dataclass(frozen=True, slots=True)
class Input:
    """Decoded messages of one partition of a source topic, in order, without refused ones."""

    topic: str
    partition: int
    index: Index
    """The messages' numbers within this conversion, which outputs refer to.

    Rising; those of several inputs of a task interleave, in the order in which their records are processed.
    """
    offsets: Index
    timestamps_ms: Index
    """The messages' timestamps; `NO_TIMESTAMP` for a message that has none in Kafka."""
    keys: pa.Array
    """The messages' keys, as bytes or null."""
    rows: pa.Table
    """The source's columns, a row for each message; for a source of plain JSON one column, the messages' bytes."""
    is_null: Mask
    """Whether a message is a tombstone, so that its row has no meaning."""
    headers: Sequence[KafkaHeaders | None] | None = None
    """The messages' headers; None when no node uses headers (`BuiltTopology.needs_headers`)."""

    def __len__(self) -> int:
        return len(self.index)

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(Topic(self.topic), Partition(self.partition))


@dataclass(slots=True)
class Output:
    """The result for the inputs of a task. A message that appears nowhere in it was filtered."""

    tables: dict[str, tuple[Index, pa.Table]] = field(default_factory=dict)
    """For each sink's table that gets rows, by its name: the messages' numbers, rising, and the rows."""
    topics: list[TopicRecord] = field(default_factory=list)
    """The records for Kafka topics, in the order in which they were made."""
    rejects: list[Reject] = field(default_factory=list)
    """One reject for each refused message, by the message's number, rising. A refused message has no other output."""
    dropped: Counter[str] = field(default_factory=Counter)
    """The number of records that processors dropped, by reason."""
    wants_commit: bool = False
    """A processor requested a flush."""
