"""Records for a replay from an export of dead letters, where `stage_writer.replay.records` otherwise reads Kafka.

Rules:

1. The dead-letter table holds a record's bytes as they were sent, its key and its timestamp, so Kafka need not have it
   any more. It holds no headers: a stream whose expressions use them is replayed from Kafka.
2. A request covers only offsets that are in the export: nothing else of the table is touched.
3. Each request costs the loader a few commits regardless of its size, so neighboring runs of offsets share one. A
   commit for part of a range lists its offsets in its condition, which Delta keeps in its log: at most some thousands
   of them. A longer run has its own request.
4. Requests whose commits would take hours are refused, with a remedy.
5. An export says of which stream each letter is; one of an older release does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from common.errors import UsageError
from common.remedies import CONFIG
from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.merged import kafka_topic
from stage_writer.decode.batch import NO_TIMESTAMP, MessageBatch
from stage_writer.replay.records import Range, Replayed

MOST_OFFSETS = 5_000
MOST_REQUESTS = 1_000
_PLACE = ("_kafka_topic", "_kafka_partition", "_kafka_offset")
_EXPORT = f"create it with `delta-loader dead-letters export {CONFIG} letters.parquet --format parquet`"
_COLUMNS = (*_PLACE, "_kafka_timestamp", "key", "value")
_APP_ID = "app_id"


@dataclass(frozen=True, slots=True)
class DeadLetterExport:
    """An export, by position. It is a `stage_writer.replay.records.Records`."""

    table: pa.Table
    per_request: int

    @classmethod
    def read(cls, path: Path, at_a_time: int) -> DeadLetterExport:
        """Raises UsageError for a file that is not an export."""
        try:
            named = _APP_ID in pq.read_schema(path).names
            table = pq.read_table(path, columns=[*_COLUMNS, *([_APP_ID] if named else [])])
        except (OSError, pa.ArrowException) as error:
            msg = f"{path} is not an export of dead letters: {str(error).partition(chr(10))[0]}"
            raise UsageError(msg, _EXPORT) from None
        if not named:
            table = table.append_column(_APP_ID, pa.nulls(len(table), pa.string()))
        table = table.sort_by([(name, "ascending") for name in (_APP_ID, *_PLACE)])
        return cls(table.filter(_first_of_each_offset(table)), at_a_time)

    def by_stream(self) -> dict[str | None, DeadLetterExport]:
        """The letters of each stream by its app_id; None for those that do not say it (rule 5)."""
        app_ids: list[str | None] = pc.unique(self.table[_APP_ID]).to_pylist()
        column = pc.field(_APP_ID)
        mine = {app_id: column.is_null() if app_id is None else column == app_id for app_id in app_ids}
        return {
            app_id: DeadLetterExport(self.table.filter(condition), self.per_request)
            for app_id, condition in mine.items()
        }

    def topics(self) -> list[str]:
        return sorted(pc.unique(self.table["_kafka_topic"]).to_pylist())

    def ranges(self, chain: str) -> list[Range]:
        """All letters of the Kafka topic of a chain, a range for each Kafka partition."""
        return [_range(partition, runs) for partition, runs in self._runs(chain)]

    def requests(self, chain: str) -> list[Range]:
        """The offsets of each request for a chain (rules 2 and 3). Raises UsageError (rule 4)."""
        ranges = [_range(partition, few) for partition, runs in self._runs(chain) for few in _shared(runs)]
        if len(ranges) > MOST_REQUESTS:
            msg = f"the dead letters of {chain!r} need {len(ranges):,} requests, and each costs commits"
            by_range = f"`stage-writer replay {CONFIG} --topic {chain}` with --from and --to, or --since and --until"
            raise UsageError(msg, f"select fewer, or use {by_range}, which replaces a range at once")
        return ranges

    def without_inconvertible(self, counted: Iterable[Replayed]) -> DeadLetterExport:
        """Only the letters that can be converted now, by a dry run."""
        keep = np.ones(len(self.table), np.bool_)
        topics, partitions, offsets = (self.table[name] for name in _PLACE)
        for replayed in counted:
            own_rows = pc.and_(
                pc.equal(topics, str(kafka_topic(replayed.range.partition.topic))),
                pc.equal(partitions, replayed.range.partition.partition),
            )
            keep &= ~(own_rows.to_numpy() & np.isin(offsets.to_numpy(), replayed.inconvertible))
        return DeadLetterExport(self.table.filter(pa.array(keep)), self.per_request)

    def _runs(self, chain: str) -> Iterator[tuple[TopicPartition, list[Span]]]:
        """The unbroken runs of offsets, by Kafka partition."""
        own_rows = self.table.filter(pc.field("_kafka_topic") == str(kafka_topic(chain)))
        partitions, offsets = own_rows["_kafka_partition"].to_numpy(), own_rows["_kafka_offset"].to_numpy()
        for partition in np.unique(partitions):
            yield TopicPartition(Topic(chain), Partition(int(partition))), runs_of(offsets[partitions == partition])

    def batches(self, partition: TopicPartition, span: Span) -> Iterator[MessageBatch]:
        """The records of a range, in order: everything the export has of it."""
        offset = pc.field("_kafka_offset")
        own_rows = self.table.filter(
            (pc.field("_kafka_topic") == str(kafka_topic(partition.topic)))
            & (pc.field("_kafka_partition") == int(partition.partition))
            & (offset >= int(span.start))
            & (offset < int(span.end))
        )
        for first in range(0, len(own_rows), self.per_request):
            yield _batch(partition, own_rows.slice(first, self.per_request))


def runs_of(offsets: NDArray[np.int64]) -> list[Span]:
    """The unbroken runs of sorted offsets, which may contain duplicates."""
    distinct = np.unique(offsets)
    parts = np.split(distinct, np.flatnonzero(np.diff(distinct) != 1) + 1) if len(distinct) else []
    return [Span(Position(int(run[0])), Position(int(run[-1]) + 1)) for run in parts]


def inconvertible_of(counted: Iterable[Replayed]) -> list[Replayed]:
    """The dead letters that a dry run could not convert."""
    return [
        Replayed(
            _range(replayed.range.partition, runs_of(offsets)),
            records=len(offsets),
            dead_letters=replayed.dead_letters,
            offsets_of_dead_letters=[offsets],
        )
        for replayed in counted
        if len(offsets := replayed.inconvertible)
    ]


def _shared(runs: Iterable[Span]) -> Iterator[list[Span]]:
    """Neighboring runs that share one request (rule 3)."""
    together: list[Span] = []
    offsets = 0
    for run in runs:
        if together and offsets + run.positions > MOST_OFFSETS:
            yield together
            together, offsets = [], 0
        together.append(run)
        offsets += run.positions
    if together:
        yield together


def _range(partition: TopicPartition, runs: list[Span]) -> Range:
    return Range(partition, Span(runs[0].start, runs[-1].end), tuple(runs) if len(runs) > 1 else ())


def _first_of_each_offset(table: pa.Table) -> pa.Array:
    """Which rows of a sorted table are not of the same record as the previous row: a letter counts once."""
    first = np.ones(len(table), np.bool_)
    if len(table):
        named = table.set_column(table.column_names.index(_APP_ID), _APP_ID, pc.fill_null(table[_APP_ID], ""))
        same = [pc.equal(named[name][1:], named[name][:-1]).to_numpy() for name in (_APP_ID, *_PLACE)]
        first[1:] = ~np.logical_and.reduce(same)
    return pa.array(first)


def _batch(partition: TopicPartition, dead_letters: pa.Table) -> MessageBatch:
    stamps = dead_letters["_kafka_timestamp"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    return MessageBatch(
        partition,
        dead_letters["_kafka_offset"].to_numpy(),
        pc.fill_null(stamps, NO_TIMESTAMP).to_numpy(),
        _binaries(dead_letters["value"]),
        _binaries(dead_letters["key"]),
        None,
    )


def _binaries(column: pa.ChunkedArray) -> pa.BinaryArray:
    values = column.combine_chunks()
    return values if isinstance(values, pa.Array) else column.cast(pa.large_binary()).combine_chunks()
