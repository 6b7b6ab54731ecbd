"""Batches with a message that may not be staged (`expect` with `on_fail: hold`)."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from common.spans import Position
from stage_writer.parquet.buffer import StagedRows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from common.spans import TopicPartition
    from stage_writer.decode.batch import MessageBatch, Messages
    from stage_writer.shape.rows import Stop

Staged: TypeAlias = list[tuple["MessageBatch", "StagedRows"]]


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
            at = Position(int(messages.offsets[stop.index]))
            ends[batch.partition] = (batch, StagedRows.stopped(at, stop.problem))
    yield from convert([batch for batch in kept if len(batch)])
    for found in ends.values():
        yield [found]
