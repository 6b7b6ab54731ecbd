"""Records for a replay from an export of dead letters, where `stage_writer.replay` otherwise reads Kafka.

Rules:

1. The dead-letter table holds a record's bytes as they were sent, its key and its timestamp, so that Kafka need not
   have it any more. It holds no headers: a stream whose expressions ask for them is replayed from Kafka.
2. A request covers a run of offsets that are all in the export, and no other: nothing else of the table is touched.
3. Each run is a request, and each request some commits of the loader's. So many runs are refused, with what to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from common.errors import UsageError
from common.spans import Partition, Position, Span, Topic, TopicPartition
from stage_writer.core.batch import NO_TIMESTAMP, MessageBatch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_RUNS = 1_000
_PLACE = ("_kafka_topic", "_kafka_partition", "_kafka_offset")
_COLUMNS = (*_PLACE, "_kafka_timestamp", "key", "value")


@dataclass(frozen=True, slots=True)
class Letters:
    """An export, by place. It is a `stage_writer.replay.Records`."""

    table: pa.Table
    at_a_time: int

    @classmethod
    def read(cls, path: Path, at_a_time: int) -> Letters:
        """Raises UsageError for what is no export."""
        try:
            table = pq.read_table(path, columns=list(_COLUMNS))
        except (OSError, pa.ArrowException) as error:
            msg = f"{path} is no export of dead letters: {str(error).partition(chr(10))[0]}"
            raise UsageError(msg, "make one with `delta-loader dead-letters export --format parquet`") from None
        missing = [name for name in _COLUMNS if name not in table.column_names]
        if missing:
            msg = f"{path} is no export of dead letters: it has no column {missing[0]}"
            raise UsageError(msg, "make one with `delta-loader dead-letters export --format parquet`")
        return cls(table.sort_by([(name, "ascending") for name in _PLACE]), at_a_time)

    def topics(self) -> list[str]:
        """The topics that it has records of."""
        return sorted(pc.unique(self.table["_kafka_topic"]).to_pylist())

    def runs(self, topic: str) -> list[tuple[TopicPartition, Span]]:
        """The runs of a topic (rule 2). Raises UsageError (rule 3)."""
        mine = self.table.filter(pc.field("_kafka_topic") == topic)
        found: list[tuple[TopicPartition, Span]] = []
        pairs = zip(mine["_kafka_partition"].to_pylist(), mine["_kafka_offset"].to_pylist(), strict=True)
        for partition, places in groupby(pairs, key=lambda pair: pair[0]):
            source = TopicPartition(Topic(topic), Partition(partition))
            offsets = np.unique(np.fromiter((offset for _, offset in places), np.int64))
            found += (
                (source, Span(Position(int(run[0])), Position(int(run[-1]) + 1)))
                for run in np.split(offsets, np.flatnonzero(np.diff(offsets) != 1) + 1)
            )
        if len(found) > MOST_RUNS:
            msg = f"the dead letters of {topic!r} are {len(found):,} runs of offsets, and each costs commits"
            ranges = (
                "`stage-writer replay` with --from and --to, or --since and --until, which replaces a range at once"
            )
            raise UsageError(msg, f"choose some of them, or use {ranges}")
        return found

    def batches(self, source: TopicPartition, span: Span) -> Iterator[MessageBatch]:
        """The records of a run, in order."""
        offset = pc.field("_kafka_offset")
        mine = self.table.filter(
            (pc.field("_kafka_topic") == str(source.topic))
            & (pc.field("_kafka_partition") == int(source.partition))
            & (offset >= int(span.start))
            & (offset < int(span.end))
        )
        for first in range(0, len(mine), self.at_a_time):
            yield _batch(source, mine.slice(first, self.at_a_time)).after(span.start)


def _batch(source: TopicPartition, letters: pa.Table) -> MessageBatch:
    stamps = letters["_kafka_timestamp"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    return MessageBatch(
        source,
        letters["_kafka_offset"].to_numpy(),
        pc.fill_null(stamps, NO_TIMESTAMP).to_numpy(),
        _binaries(letters["value"]),
        _binaries(letters["key"]),
        None,
    )


def _binaries(column: pa.ChunkedArray) -> pa.BinaryArray:
    found = column.combine_chunks()
    return found if isinstance(found, pa.Array) else column.cast(pa.large_binary()).combine_chunks()
