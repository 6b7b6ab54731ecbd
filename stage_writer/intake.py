"""Converted rows on their way into the buffers, a slice at a time.

Rules:

1. A poll's batches are converted by their converter in slices (`Converter.slices`), usually one. The remaining slices
   wait here while flushes start and finish, and nothing more is read (stage_writer/service.py, `_relieve`).
2. Rows go to the partition as it was when they were read. If it was revoked meanwhile, or restarted at its chain's end,
   it gets none of them: they are read again.
3. All pieces of one record go into the same buffer, without a flush between them.
4. Nothing more is converted once the writer stops (stage_writer/stopping.py); what still waits is read again by the
   next owner.
5. An unexpected exception affects only the partitions whose batches raised it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from common.ports import Clock
    from common.spans import TopicPartition
    from stage_writer.core.batch import MessageBatch
    from stage_writer.core.parquet.buffer import StagedRows
    from stage_writer.partitions.partition import Owned
    from stage_writer.ports import Converter, Converts
    from stage_writer.stopping import Stopping
    from stage_writer.telemetry import WriterTelemetry

    Slice = Sequence[tuple[MessageBatch, StagedRows]]

SLICES_A_STEP = 4
"""Per poll and stream, so that they hold an eighth of `memory` at most (stage_writer/core/memory.py)."""


class Intake:
    """What was polled and is not in the buffers yet."""

    def __init__(
        self, teller: WriterTelemetry, clock: Clock, stopping: Stopping, failed: Callable[[Owned, Exception], None]
    ) -> None:
        """``failed`` is called with the partitions of an unexpected exception (rule 5)."""
        self._stopping = stopping
        self._teller = teller
        self._clock = clock
        self._failed = failed
        self._waiting: deque[tuple[Converts, Mapping[TopicPartition, Owned], Iterator[Slice]]] = deque()

    @property
    def is_busy(self) -> bool:
        """Whether anything waits."""
        return bool(self._waiting)

    def add(self, converter: Converts, batches: Sequence[MessageBatch], owners: Mapping[TopicPartition, Owned]) -> None:
        """Queue these for conversion; ``owners`` are the partitions that they were read for."""
        self._waiting.append((converter, owners, converter.slices(batches)))

    def work(self, owned: Mapping[TopicPartition, Owned]) -> None:
        """Convert some slices, and buffer the rows of partitions that have not changed since (rule 2)."""
        while self._waiting:
            converter, owners, slices = self._waiting[0]
            left = SLICES_A_STEP
            try:
                while left and (found := self._next(slices)) is not None:
                    self._buffer(converter, found, owners, owned)
                    if not found[-1][1].is_piece:
                        left = 0 if self._stopping.is_on else left - 1
            except Exception as error:  # noqa: BLE001 - rule 5
                left = 1
                for ours in owners.values():
                    if owned.get(ours.source) is ours:
                        self._failed(ours, error)
            if not left:
                return  # the rest waits, and so does what came after it: a partition's rows stay in order
            self._waiting.popleft()

    def _next(self, slices: Iterator[Slice]) -> Slice | None:
        began_s = self._clock.monotonic_s()
        found = next(slices, None)
        if found is not None:
            self._teller.took(sum(len(batch) for batch, _ in found), self._clock.monotonic_s() - began_s)
        return found

    def _buffer(
        self,
        converter: Converts,
        found: Slice,
        owners: Mapping[TopicPartition, Owned],
        owned: Mapping[TopicPartition, Owned],
    ) -> None:
        for batch, staged in found:
            ours = owners[batch.source]
            if owned.get(batch.source) is ours:
                begins_flush = ours.buffer.is_empty
                ours.buffer.add(staged, self._clock.monotonic_s())
                ours.buffer.last_record = batch.record_at(-1)
                self._teller.converted(batch, converter.stream, staged)
                stream = converter.stream
                ours.buffer.add_sample(self._teller.sampled(batch, stream, staged, begins_flush=begins_flush))


def together_by_converter(
    fresh: Mapping[Converter, list[MessageBatch]], *, tasks: bool
) -> Iterable[tuple[Converts, list[MessageBatch]]]:
    """Batches grouped by their converter; what ``tasks`` need is imported with the first of them."""
    if not tasks:
        return fresh.items()
    from stage_writer.tasks.together import together  # noqa: PLC0415

    return together(fresh)
