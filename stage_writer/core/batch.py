"""A batch of messages of one Kafka partition, as columns.

Rules: the columns have one entry for each message, in Kafka's order; offsets rise strictly (`after` sees to it, because
librdkafka can deliver one twice).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from common.spans import Offset, Position, position_after

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from common.spans import TopicPartition

Headers = list[tuple[str, bytes | None]]
NO_TIMESTAMP = -1


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Messages of one Kafka partition in Kafka's order."""

    source: TopicPartition
    offsets: NDArray[np.int64]
    timestamps_ms: NDArray[np.int64]
    """`NO_TIMESTAMP` where Kafka has none."""
    values: pa.BinaryArray
    """Null for a tombstone. ``large_binary`` where a batch passes 2 GiB."""
    keys: pa.BinaryArray
    headers: tuple[Headers | None, ...] | None
    """None when no expression asks for headers."""

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def end(self) -> Position:
        """The position after the last message; the batch must not be empty."""
        return position_after(Offset(int(self.offsets[-1])))

    def after(self, position: Position) -> MessageBatch:
        """The messages whose offsets rise strictly from ``position`` on; the same object when all do."""
        offsets = self.offsets
        if len(offsets) == 0 or (offsets[0] >= position and bool(np.all(offsets[1:] > offsets[:-1]))):
            return self
        highest = np.maximum.accumulate(np.concatenate(([position - 1], offsets)))[:-1]
        keep = np.flatnonzero(offsets > highest)
        return MessageBatch(
            self.source,
            offsets[keep],
            self.timestamps_ms[keep],
            self.values.take(pa.array(keep)),
            self.keys.take(pa.array(keep)),
            None if self.headers is None else tuple(self.headers[index] for index in keep),
        )

    def timestamp_bounds_ms(self) -> tuple[int, int] | None:
        """The lowest and the highest record time, or None when no message has one."""
        known = self.timestamps_ms[self.timestamps_ms != NO_TIMESTAMP]
        return (int(known.min()), int(known.max())) if len(known) else None
