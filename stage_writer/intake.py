"""Converted rows on their way into the buffers, a slice at a time.

Rules:

1. A poll's batches are converted by their converter in slices (`BatchConverter.slices`), usually one. The remaining
   slices wait here while flushes start and finish, and nothing more is read (stage_writer/backpressure.py).
2. Rows go to the partition as it was when they were read. If it was revoked meanwhile, or restarted at its chain's end,
   it gets none of them: they are read again.
3. All pieces of one record go into the same buffer, without a flush between them.
4. Nothing more is converted once the writer stops (stage_writer/stopping.py); what still waits is read again by the
   next owner.
5. Nothing from a record on that may not be staged (`StagedRows.stop`) goes into a buffer: what was polled or queued
   after it is dropped, and the partition is held once the records in front of it are staged.
6. Rows with fields that are about to be columns are not buffered, and neither is what was polled or queued after them:
   the partition waits, and reads them again into a buffer with these columns (stage_writer/schemas.py).
7. An unexpected exception affects only the partitions whose batches raised it.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard

from common.spans import Position, TopicPartition
from stage_writer.assignment import AssignedPartitions
from stage_writer.decode.batch import MessageBatch
from stage_writer.decode.dependency import Dependency
from stage_writer.outbox.records import with_dead_letters_sent
from stage_writer.parquet.buffer import StagedRows
from stage_writer.partitions.buffers import Buffers
from stage_writer.partitions.dependency_wait import DependencyWaits
from stage_writer.partitions.partition import AssignedPartition
from stage_writer.partitions.pauses import Pauses
from stage_writer.partitions.resume_points import breaks_rule
from stage_writer.ports import BatchConverter, Converter
from stage_writer.runtime import Runtime

Slice = Sequence[tuple[MessageBatch, StagedRows]]

SLICES_A_STEP = 4
"""Per poll and stream, so that they hold an eighth of `memory` at most (stage_writer/memory_shares.py)."""


class Intake:
    def __init__(
        self, assignment: AssignedPartitions, buffers: Buffers, waits: DependencyWaits, pauses: Pauses, runtime: Runtime
    ) -> None:
        self._assignment = assignment
        self._buffers = buffers
        self._waits = waits
        self._pauses = pauses
        self._clock, self._stopping, self._telemetry = runtime.clock, runtime.stopping, runtime.telemetry
        self._waiting: deque[tuple[BatchConverter, dict[TopicPartition, AssignedPartition], Iterator[Slice]]] = deque()
        self._ends: dict[TopicPartition, tuple[AssignedPartition, Position]] = {}
        """Kafka's reported ends that reading has not reached yet, for the partition as it was then."""

    @property
    def is_busy(self) -> bool:
        return bool(self._waiting)

    def take(self, batches: Iterable[MessageBatch]) -> None:
        """Queue what is new and ours for conversion, all of a stream together."""
        fresh: dict[Converter, list[MessageBatch]] = {}
        for batch in batches:
            assigned = self._assignment.by_partition.get(batch.partition)
            if (
                assigned is None
                or assigned.wait is not None
                or assigned.stop is not None
                or self._pauses.drops(assigned)
            ):
                continue  # revoked or held since it was fetched, about to be held, or due to be read again
            self._buffers.refresh(assigned)
            new = batch.after(max(assigned.taken, assigned.buffer.end))
            if (wait := assigned.converter.waits(new)) is not None:
                self._waits.begin(assigned, wait)
                continue
            self._telemetry.polled(batch, new)
            if len(new):
                assigned.taken = new.end
                fresh.setdefault(assigned.converter, []).append(new)
        for converter, together in _by_converter(fresh):
            owners = {batch.partition: self._assignment.by_partition[batch.partition] for batch in together}
            self._waiting.append((converter, owners, converter.slices(together)))

    def convert(self) -> None:
        """Convert some slices, and buffer the rows of partitions that have not changed since (rule 2)."""
        while self._waiting:
            converter, owners, slices = self._waiting[0]
            left = SLICES_A_STEP
            try:
                while left and (rows := self._next(slices)) is not None:
                    self._buffer(converter, rows, owners)
                    if not rows[-1][1].is_segment:
                        left = 0 if self._stopping.is_on else left - 1
            except Exception as error:  # noqa: BLE001 - rule 7
                left = 1
                for assigned in owners.values():
                    if self._assignment.by_partition.get(assigned.partition) is assigned:
                        self._assignment.unexpected(assigned, error)
            if not left:
                return  # the rest waits, and so does what came after it: a partition's rows stay in order
            self._waiting.popleft()

    def reached(self, ends: Mapping[TopicPartition, Position]) -> None:
        """Kafka's reported ends count only once everything before them is buffered."""
        assigned = self._assignment.by_partition
        self._ends |= {
            partition: (assigned[partition], end) for partition, end in ends.items() if partition in assigned
        }
        for partition, (reader, end) in list(self._ends.items()):
            if assigned.get(partition) is not reader:
                del self._ends[partition]
            elif reader.taken <= reader.buffer.end:
                del self._ends[partition]
                reader.reach_end(end)

    def _next(self, slices: Iterator[Slice]) -> Slice | None:
        began_s = self._clock.monotonic_s()
        converted = next(slices, None)
        if converted is not None:
            self._telemetry.converted_in(sum(len(batch) for batch, _ in converted), self._clock.monotonic_s() - began_s)
        return converted

    def _buffer(
        self, converter: BatchConverter, rows: Slice, owners: Mapping[TopicPartition, AssignedPartition]
    ) -> None:
        for batch, staged in rows:
            assigned = owners.get(batch.partition)
            if (
                assigned is None
                or self._assignment.by_partition.get(batch.partition) is not assigned
                or assigned.stop is not None
            ):
                continue
            if staged.offered.fields and (wait := self._buffers.dependency_of(assigned, staged.offered)) is not None:
                self._read_again(assigned, wait)
            elif staged.stop is not None:
                assigned.stop = breaks_rule(batch.partition, staged.end, staged.stop)
                assigned.buffer.end = (
                    max(assigned.buffer.end, staged.end) if assigned.buffer.records else assigned.buffer.end
                )
            else:
                begins_flush = assigned.buffer.is_empty
                stream, formats = converter.stream, assigned.converter.formats
                rows_sent = with_dead_letters_sent(staged, formats, stream, batch.partition)
                assigned.buffer.add(rows_sent, self._clock.monotonic_s())
                assigned.buffer.last_record = batch.record_at(-1)
                self._telemetry.converted(batch, converter.stream, staged)
                assigned.buffer.add_sample(self._telemetry.sampled(batch, converter, staged, begins_flush=begins_flush))

    def _read_again(self, assigned: AssignedPartition, wait: Dependency) -> None:
        """The partition waits, and reads what is not buffered again (rule 6)."""
        for _, owners, _ in self._waiting:
            owners.pop(assigned.partition, None)
        assigned.taken = assigned.buffer.end
        self._waits.begin(assigned, wait)


def _converts(converter: Converter) -> TypeGuard[BatchConverter]:
    return hasattr(converter, "slices")  # isinstance with a Protocol would take as long as a small batch


def _by_converter(fresh: Mapping[Converter, list[MessageBatch]]) -> Iterator[tuple[BatchConverter, list[MessageBatch]]]:
    """Batches by what converts them; what tasks need is imported with the first of them."""
    of_tasks: dict[Converter, list[MessageBatch]] = {}
    for converter, batches in fresh.items():
        if _converts(converter):
            yield converter, batches
        else:
            of_tasks[converter] = batches
    if of_tasks:
        from stage_writer.tasks.joint_converter import joint_converters  # noqa: PLC0415

        yield from joint_converters(of_tasks)
