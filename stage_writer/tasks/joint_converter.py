"""Converts messages of several tasks of a stream together: the cost per call of decoding and steps is paid once.

Rules:

1. Which task converts a batch is decided when the batch is added. A task that is closed by the time of the conversion
   converts nothing, and a newer task of its partition is not used for it.
2. A portion's rows go into their buffers before the next portion is converted (stage_writer/intake.py): state and rows
   change together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

from stage_writer.decode.batch import MessageBatch
from stage_writer.parquet.buffer import StagedRows
from stage_writer.ports import Converter
from stage_writer.tasks.converting import decoded_by_topic
from stage_writer.tasks.kept import KeptTask
from stage_writer.tasks.shared import StreamTasks
from stage_writer.topologies.task.task import process_together

Work = tuple[KeptTask, MessageBatch]

_MOST_MESSAGES = 10_000


def joint_converters(
    fresh: Mapping[Converter, list[MessageBatch]],
) -> Iterator[tuple[JointConverter, list[MessageBatch]]]:
    """Batches of tasks, grouped by stream. Raises TypeError for batches of other converters."""
    tasks: dict[StreamTasks, list[Work]] = {}
    for converter, batches in fresh.items():
        if not isinstance(converter, KeptTask):
            msg = f"messages of {batches[0].partition} were to be converted without their columns, or without a task"
            raise TypeError(msg)
        tasks.setdefault(converter.parent, []).extend((converter, batch) for batch in batches)
    for parent, work in tasks.items():
        yield JointConverter(parent, [task for task, _ in work]), [batch for _, batch in work]


class JointConverter:
    """A `stage_writer.ports.BatchConverter` of the tasks of a stream."""

    def __init__(self, parent: StreamTasks, tasks: Sequence[KeptTask]) -> None:
        """``tasks`` are those of the batches to convert, one for each (rule 1)."""
        self.stream = parent.stream
        self._parent = parent
        self._tasks = tasks

    def slices(self, batches: Sequence[MessageBatch]) -> Iterator[list[tuple[MessageBatch, StagedRows]]]:
        for chunk in _batches(list(zip(self._tasks, batches, strict=True)), _MOST_MESSAGES):
            alive = [(task, part) for task, part in chunk if not task.is_closed]
            if alive:
                yield self._converted(alive)

    def _converted(self, work: Sequence[Work]) -> list[tuple[MessageBatch, StagedRows]]:
        decoded = decoded_by_topic([part for _, part in work], self._parent.decoded)
        tasks = [(kept.task, each.inputs) for (kept, _), each in zip(work, decoded, strict=True)]
        with ExitStack() as held:
            for gate in {id(kept.gate): kept.gate for kept, _ in work}.values():
                held.enter_context(gate)
            outputs = process_together(tasks, self._parent.environment.wall_ms())
        return [
            (part, kept.staged(part, output, each))
            for (kept, part), output, each in zip(work, outputs, decoded, strict=True)
        ]


def _batches(work: Sequence[Work], size: int) -> Iterator[list[Work]]:
    """Parts of the batches, in order, with a bounded number of messages each."""
    chunk: list[Work] = []
    room = size
    for task, batch in work:
        start = 0
        while start < len(batch):
            part = batch.part(start, min(start + room, len(batch)))
            chunk.append((task, part))
            start, room = start + len(part), room - len(part)
            if not room:
                yield chunk
                chunk, room = [], size
    if chunk:
        yield chunk
