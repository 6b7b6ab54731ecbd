"""A merged batch for conversion: decoded topic by topic, and reported as one.

Rules:

1. A message's number is its index in the merged batch, over all topics.
2. In rows and dead letters a message has its position in Kafka, not the chain's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from stage_writer.decode.batch import Messages
from stage_writer.decode.merged_batch import MergedBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from stage_writer.decode.batch import MessageBatch
    from stage_writer.decode.rejects import Reject
    from stage_writer.topologies.task.inputs import Input

    Index = NDArray[np.int64]
    Decoded = tuple[Input, list[Reject], Index]
    """The messages of one topic for its task, those that are refused, and the tombstones."""


@dataclass(frozen=True, slots=True)
class MergedMessages(Messages):
    """The messages of one merged batch, with their positions in Kafka (rule 2)."""

    batch: MergedBatch

    def topics(self, index: Index) -> pa.StringArray:
        names = pa.array([str(partition.topic) for partition in self.batch.inputs])
        return names.take(pa.array(self.batch.input_of[index]))


def messages_of(batch: MessageBatch) -> Messages:
    """A batch's messages, with their positions in Kafka."""
    whole = Messages.of([batch])
    if not isinstance(batch, MergedBatch):
        return whole
    columns = (whole.timestamps_ms, whole.values, whole.keys, whole.headers)
    return MergedMessages(whole.batches, whole.starts, batch.input_offsets, *columns, batch)


def decoded_by_topic(
    batch: MessageBatch, decoded: Callable[[Messages], Decoded]
) -> tuple[list[Input], list[Reject], Index]:
    """Decode the messages of each topic; all numbers are the batch's (rule 1)."""
    if not isinstance(batch, MergedBatch):
        given, rejects, tombstones = decoded(Messages.of([batch]))
        return [given], rejects, tombstones
    inputs: list[Input] = []
    refused: list[Reject] = []
    gone = [np.zeros(0, np.int64)]
    for part in batch.by_input():
        given, rejects, tombstones = decoded(Messages.of([part.batch]))
        inputs.append(replace(given, index=part.index[given.index]))
        refused += [replace(reject, index=int(part.index[reject.index])) for reject in rejects]
        gone.append(part.index[tombstones])
    return inputs, refused, np.sort(np.concatenate(gone))
