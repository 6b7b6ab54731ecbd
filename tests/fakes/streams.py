"""Streams and batches of messages for tests of what is between them and the tables."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from common.settings import Settings, Stream
from common.spans import Partition, Topic, TopicPartition
from stage_writer.decode.batch import MessageBatch
from stage_writer.parquet.buffer import StagedRows
from stage_writer.ports import BatchConverter


def stream_of(**settings: object) -> Stream:
    stream = {"app_id": "orders", "topics": ["orders"], "table": "/tables/orders", **settings}
    content = {"kafka": {"bootstrap.servers": "localhost:9092"}, "stage": {"url": "/stage"}, "streams": [stream]}
    if settings.get("framing", "none") != "none":
        content["schema_registry"] = {"url": "http://localhost:1"}
    return Settings.model_validate(content).streams[0]


def batch_of(
    values: Sequence[bytes | None], *, partition: int = 3, first: int = 100, keys: Sequence[bytes | None] | None = None
) -> MessageBatch:
    """Messages of one partition with offsets from ``first`` on, each a second after the one before."""
    count = len(values)
    return MessageBatch(
        TopicPartition(Topic("orders"), Partition(partition)),
        np.arange(first, first + count),
        1_600_000_000_000 + 1000 * np.arange(count),
        pa.array(values, pa.binary()),
        pa.array([None] * count if keys is None else keys, pa.binary()),
        None,
    )


def staged_batches(converter: BatchConverter, batches: Sequence[MessageBatch]) -> list[StagedRows]:
    """What becomes of each of a few batches: few enough to be one slice."""
    slices = list(converter.slices(batches))
    assert len(slices) <= 1
    return [staged for one_slice in slices for _, staged in one_slice]
