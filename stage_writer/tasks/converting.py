"""From the messages of one Kafka partition to rows, by its task: a `stage_writer.ports.Converter`.

Rules:

1. Each message ends in exactly one of: rows (the further ones are counted), a dead letter, the count of tombstones, the
   count of filtered ones. A punctuation's output belongs to the message that made it due.
2. The task's state changes as messages are converted. So each portion is converted on demand, right before its rows go
   into the buffer, and a task whose partition was revoked converts nothing more.
3. A tombstone is a record without a value; it is counted as a tombstone if it has no output.
4. A batch of several topics is decoded topic by topic. A message's number is its index in the whole batch; in rows and
   dead letters it has its position in Kafka, not the chain's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import attrgetter
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from common.settings.columns import kafka_fields_of
from common.spans import Topic, TopicPartition
from common.stage.task_files import StateFiles
from stage_writer.decode.batch import Index, MessageBatch, Messages
from stage_writer.decode.merged_batch import MergedBatch
from stage_writer.decode.rejects import Reject
from stage_writer.outbox.records import outgoing_table
from stage_writer.parquet.buffer import StagedRows, TableFormat
from stage_writer.ports import RestoreTask, StateStore
from stage_writer.shape.kafka_columns import made_of
from stage_writer.shape.outcome import dead_letters_of, kafka_columns_of
from stage_writer.tasks.tables import TopologyConverterBase

if TYPE_CHECKING:
    from stage_writer.tasks.shared import StreamTasks
    from stage_writer.topologies.task.inputs import Input, Output
    from stage_writer.topologies.task.task import Task

    Decoded = tuple[Input, list[Reject], Index]
    """The messages of one topic for its task, those that are refused, and the tombstones."""


@dataclass(frozen=True, slots=True)
class MergedMessages(Messages):
    batch: MergedBatch

    def topics(self, index: Index) -> pa.StringArray:
        names = pa.array([str(partition.topic) for partition in self.batch.inputs])
        return names.take(pa.array(self.batch.input_of[index]))


def messages_of(batch: MessageBatch) -> Messages:
    whole = Messages.from_batches([batch])
    if not isinstance(batch, MergedBatch):
        return whole
    columns = (whole.timestamps_ms, whole.values, whole.keys, whole.headers)
    return MergedMessages(whole.batches, whole.starts, batch.input_offsets, *columns, batch)


@dataclass(slots=True)
class DecodedBatch:
    """The messages of a batch for its task, those that are refused, and the tombstones; all numbers are the batch's."""

    inputs: list[Input] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    tombstones: Index = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, decoded: Decoded, index: Index | None) -> None:
        """Add the messages of one topic; ``index`` has their numbers in the batch, None where these are the same."""
        given, rejects, tombstones = decoded
        if index is not None:
            given = replace(given, index=index[given.index])
            rejects = [replace(reject, index=int(index[reject.index])) for reject in rejects]
            tombstones = np.sort(np.concatenate([self.tombstones, index[tombstones]]))
        self.inputs.append(given)
        self.rejects += rejects
        self.tombstones = tombstones


def decoded_by_topic(
    batches: Sequence[MessageBatch], decode: Callable[[Sequence[MessageBatch]], Sequence[Decoded]]
) -> list[DecodedBatch]:
    """Decode the messages of each topic in one call (rule 4)."""
    by_topic: dict[Topic, list[tuple[int, MessageBatch, Index | None]]] = {}
    for number, batch in enumerate(batches):
        if not isinstance(batch, MergedBatch):
            by_topic.setdefault(batch.partition.topic, []).append((number, batch, None))
            continue
        for part in batch.by_input():
            by_topic.setdefault(part.batch.partition.topic, []).append((number, part.batch, part.index))
    decoded_batches = [DecodedBatch() for _ in batches]
    for of_topic in by_topic.values():
        decoded = decode([part for _, part, _ in of_topic])
        for (number, _, index), made in zip(of_topic, decoded, strict=True):
            decoded_batches[number].add(made, index)
    return decoded_batches


class TaskConverter(TopologyConverterBase):
    """The conversion of one Kafka partition's messages; the tasks of a stream convert together (joint_converter.py)."""

    def __init__(self, parent: StreamTasks, task: Task, gate: Lock) -> None:
        """``gate`` is held while the task uses its stores: lookups come from other threads."""
        self.parent = parent
        self.stream, self.formats = parent.stream, parent.formats
        self.task = task
        self.gate = gate
        self.is_closed = False
        self.wants_flush = False

    def restores(self, partition: TopicPartition, state: StateFiles, store: StateStore) -> RestoreTask:
        """A new task: this one's partition is read again."""
        return self.parent.restores(partition, state, store)

    def close(self) -> None:
        """The partition was revoked (rule 2)."""
        if not self.is_closed:
            self.is_closed = True
            with suppress(Exception):  # errors in the user's code are ignored: this task is no longer used
                self.task.close()

    def staged(self, batch: MessageBatch, output: Output, decoded: DecodedBatch) -> StagedRows:
        """The task's output for a batch."""
        self.wants_flush = self.wants_flush or output.wants_commit
        self.parent.count_dropped(output.dropped)
        rejects = sorted([*decoded.rejects, *output.rejects], key=attrgetter("index"))
        return _staged(self.parent, messages_of(batch), output, rejects, decoded.tombstones)


def _staged(
    parent: StreamTasks, messages: Messages, output: Output, rejects: Sequence[Reject], tombstones: Index
) -> StagedRows:
    (batch,) = messages.batches
    own, dead = parent.formats
    formats = parent.row_formats
    with_rows = np.unique(np.concatenate([np.zeros(0, np.int64), *(index for index, _ in output.tables.values())]))
    rows = sum(len(index) for index, _ in output.tables.values())
    left = np.ones(len(batch), np.bool_)
    left[with_rows] = False
    left[[reject.index for reject in rejects]] = False
    empty = tombstones[left[tombstones]]
    left[tombstones] = False
    filtered = np.flatnonzero(left)
    _require_all(len(batch), len(with_rows), len(rejects), len(empty), len(filtered))
    tables = {
        name: _own(_with_kafka(parent, formats[name], messages, index, table).cast(formats[name].arrow_schema))
        for name, (index, table) in output.tables.items()
    }
    return StagedRows(
        end=batch.end,
        records=len(batch),
        tombstones=len(empty),
        dead_letters=Counter(str(reject.error_class) for reject in rejects),
        timestamp_bounds_ms=batch.timestamp_bounds_ms(),
        rows=(tables.pop("", own.arrow_schema.empty_table()), dead_letters_of(messages, rejects, dead.arrow_schema)),
        filtered_offsets=batch.offsets[filtered],
        exploded=rows - len(with_rows),
        routed=tuple((formats[name], rows) for name, rows in tables.items()),
        outgoing=outgoing_table(output.topics, batch) if output.topics else None,
    )


def _own(rows: pa.Table) -> pa.Table:
    """The rows; copied where they would keep many others in memory while they wait."""
    if rows.num_rows == 0 or rows.get_total_buffer_size() <= 2 * rows.nbytes:
        return rows
    return pa.table([pa.concat_arrays(column.chunks) for column in rows.columns], schema=rows.schema)


def _with_kafka(parent: StreamTasks, table: TableFormat, messages: Messages, index: Index, rows: pa.Table) -> pa.Table:
    names = tuple(field.name for field in kafka_fields_of(parent.stream))
    columns = list(zip(names, made_of(names, messages, index), strict=True))
    columns += zip(table.place or (), kafka_columns_of(messages, index), strict=False)  # without the time
    for name, column in columns:
        rows = rows.append_column(name, column)
    return rows


def _require_all(records: int, *parts: int) -> None:
    """Rule 1."""
    if sum(parts) != records:
        raise RuntimeError(f"{records} messages became {parts} with rows, dead letters, tombstones and filtered ones")
