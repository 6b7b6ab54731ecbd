"""A batch whose rows explode, processed in slices, bounded by the bytes of their rows.

Rules:

1. A slice is a run of messages, in their order, whose rows have a bounded size. A single message may exceed it: its
   rows are then made in several pieces, and only the last one accounts for the message (its record and end); so they
   belong to one flush.
2. A message whose rows would come to more than a writer can hold is refused: ``explodes_too_far``.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from common.spans import Position, TopicPartition
from stage_writer.decode.batch import Index, MessageBatch, Messages
from stage_writer.decode.rejects import ErrorClass, Reject
from stage_writer.parquet.buffer import StagedRows
from stage_writer.shape.explode import Exploder, runs
from stage_writer.shape.rows import Rows, Stop

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class ExplodeLimits:
    """How much may be made at a time, in bytes."""

    slice_bytes: int = 16 * _MIB
    record_bytes: int = 4096 * _MIB
    """For all rows of one message."""


@dataclass(frozen=True, slots=True)
class Slice:
    messages: Messages
    rows: Rows
    tombstones: Index
    is_last: bool = True
    """Whether no more rows of its last message follow."""


def sliced(whole: Slice, exploder: Exploder, limits: ExplodeLimits) -> Iterator[Slice]:
    """The rows in slices, to be exploded one by one (rule 1); ``exploder`` is the step that will do it."""
    rows = _without_bombs(whole.rows, exploder, limits.record_bytes)
    sizes = exploder.sizes(rows)
    if int(sizes.sum()) <= limits.slice_bytes:
        yield replace(whole, rows=rows)
        return
    slices = list(runs(sizes, limits.slice_bytes))
    # A slice starts with the first message that has a row in it; messages without rows belong to the previous slice.
    firsts = [0, *(int(rows.index[first]) for first, _ in slices[1:]), len(whole.messages)]
    for number, (first, last) in enumerate(slices):
        part = _part(replace(whole, rows=rows), firsts[number], firsts[number + 1], (first, last))
        size = int(sizes[first:last].sum())
        if last - first > 1 or size <= limits.slice_bytes:
            yield part
        else:
            yield from _pieces(part, exploder, size, limits.slice_bytes)


def _pieces(part: Slice, exploder: Exploder, size: int, most_bytes: int) -> Iterator[Slice]:
    """A slice with one row, in several. Adjacent messages without rows belong to the last piece."""
    (own,) = part.rows.index.tolist()
    alone = _part(part, own, own + 1, (0, 1))
    parts = list(exploder.pieces(alone.rows, size, most_bytes))
    for part_of_rows in parts[:-1]:
        yield replace(alone, rows=part_of_rows, is_last=False)
    yield replace(part, rows=replace(part.rows, table=parts[-1].table))


def _without_bombs(rows: Rows, exploder: Exploder, most_bytes: int) -> Rows:
    sizes = exploder.sizes(rows)
    bombs = sizes > most_bytes
    if not bombs.any():
        return rows
    indexes = np.flatnonzero(bombs).tolist()
    return rows.without(bombs, (explodes_too_far(int(rows.index[row]), int(sizes[row]), most_bytes) for row in indexes))


def explodes_too_far(message: int, size: int, most_bytes: int) -> Reject:
    why = f"its rows would take {size} bytes; the limit for one record is {most_bytes}, four times writer.memory"
    return Reject(message, ErrorClass.EXPLODES_TOO_FAR, why)


def _part(whole: Slice, start: int, end: int, of_rows: tuple[int, int]) -> Slice:
    """The messages ``[start, end)``, and the given rows of theirs."""
    rows, first, last = whole.rows, *of_rows

    def within(index: Index) -> Index:
        return index[(index >= start) & (index < end)] - start

    return Slice(
        whole.messages.part(start, end),
        replace(
            rows,
            table=rows.table.slice(first, last - first),
            index=rows.index[first:last] - start,
            rejects=tuple(
                replace(reject, index=reject.index - start) for reject in rows.rejects if start <= reject.index < end
            ),
            filtered=within(np.sort(rows.filtered)),
            violations={rule: within(index) for rule, index in rows.violations.items()},
            tables=None if rows.tables is None else rows.tables.part(start, end),
        ),
        within(whole.tombstones),
    )


class StatelessConverter:
    """The part of a `stage_writer.ports.Converter` of a stream without a topology's tasks."""

    def restores(self, partition: TopicPartition, state: object, store: object) -> None:
        """Stateless: nothing to restore."""


Staged = list[tuple[MessageBatch, StagedRows]]


def until_stops(
    messages: Messages, stops: Collection[Stop], convert: Callable[[Sequence[MessageBatch]], Iterator[Staged]]
) -> Iterator[Staged]:
    """What ``convert`` makes of the messages in front of each partition's first stop; then these stops."""
    in_order = sorted(stops, key=lambda stop: stop.index)
    kept: list[MessageBatch] = []
    ends: dict[TopicPartition, tuple[MessageBatch, StagedRows]] = {}
    for batch, (start, end) in zip(messages.batches, pairwise(messages.starts.tolist()), strict=True):
        if batch.partition in ends:
            continue  # a partition may have several batches
        stop = next((stop for stop in in_order if start <= stop.index < end), None)
        kept.append(batch if stop is None else batch.part(0, stop.index - start))
        if stop is not None:
            position = Position(int(messages.offsets[stop.index]))
            ends[batch.partition] = (batch, StagedRows.stopped(position, stop.problem))
    yield from convert([batch for batch in kept if len(batch)])
    for first_stop in ends.values():
        yield [first_stop]
