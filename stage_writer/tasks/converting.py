"""From the messages of one Kafka partition to rows, by its task (stage_writer/tasks/kept.py).

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

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from common.settings.columns import kafka_fields_of
from common.spans import Topic
from stage_writer.decode.batch import Index, MessageBatch, Messages
from stage_writer.decode.merged_batch import MergedBatch
from stage_writer.decode.rejects import Reject
from stage_writer.outbox.records import outgoing_table
from stage_writer.parquet.buffer import StagedRows, TableFormat
from stage_writer.shape.kafka_columns import made_of
from stage_writer.shape.outcome import Outcome, Part, copied, index_of, kafka_columns_of, staged_of

if TYPE_CHECKING:
    from stage_writer.tasks.shared import StreamTasks
    from stage_writer.topologies.task.inputs import Input, Output

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


def staged_output(
    parent: StreamTasks, batch: MessageBatch, output: Output, rejects: Iterable[Reject], tombstones: Index
) -> StagedRows:
    """A task's output for a batch; ``rejects`` are those of decoding. Raises RuntimeError where rule 1 is broken."""
    messages, numbers = messages_of(batch), {name: number for number, name in enumerate(parent.row_formats)}
    formats = list(parent.row_formats.values())
    tables: dict[int, Part] = {}
    for name, (index, table) in output.tables.items():
        rows_format = parent.row_formats[name]
        rows = _with_kafka(parent, rows_format, messages, index, table).cast(rows_format.arrow_schema)
        tables[numbers[name]] = Part(index, _own(rows))
    refused = sorted([*rejects, *output.rejects], key=attrgetter("index"))
    left = np.ones(len(batch), np.bool_)
    left[index_of(tables)] = False
    left[[reject.index for reject in refused]] = False
    empty = tombstones[left[tombstones]]
    left[empty] = False
    outcome = Outcome(index_of(tables), tables, refused, empty, np.flatnonzero(left))
    (staged,) = staged_of(messages, outcome, formats, parent.formats[1])
    return replace(staged, outgoing=outgoing_table(output.topics, batch) if output.topics else None)


def _own(rows: pa.Table) -> pa.Table:
    """The rows; copied where they would keep many others in memory while they wait."""
    return rows if rows.num_rows == 0 or rows.get_total_buffer_size() <= 2 * rows.nbytes else copied(rows)


def _with_kafka(parent: StreamTasks, table: TableFormat, messages: Messages, index: Index, rows: pa.Table) -> pa.Table:
    names = tuple(field.name for field in kafka_fields_of(parent.stream))
    columns = list(zip(names, made_of(names, messages, index), strict=True))
    columns += zip(table.place or (), kafka_columns_of(messages, index), strict=False)  # without the time
    for name, column in columns:
        rows = rows.append_column(name, column)
    return rows
