"""The outcome of a conversion, by batch: rows of each table, dead letters, and counts of the others.

Rules:

1. Each message ends in exactly one of: rows (further rows are counted), a dead letter, the count of tombstones, the
   count of filtered ones.
2. A batch's rows keep no other batch's rows in memory while they wait: a small part of many is copied.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from stage_writer.decode.batch import NO_TIMESTAMP, Index, Mask, Messages, in_order
from stage_writer.decode.rejects import Reject
from stage_writer.parquet.buffer import StagedRows, TableFormat
from stage_writer.shape.route import MAIN

_NOTHING = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one table, and the indices of their messages, rising as in `Rows`."""

    index: Index
    rows: pa.Table

    def split(self, messages: Messages) -> list[pa.Table]:
        bounds = messages.bounds(self.index).tolist()
        return [_slice(self.rows, start, end) for start, end in pairwise(bounds)]

    def filled(self, messages: Messages) -> Iterator[tuple[int, pa.Table]]:
        """The rows of each batch that has any, by its index; copied, because they are from rows in another order."""
        bounds = messages.bounds(self.index)
        for message in np.flatnonzero(np.diff(bounds)).tolist():
            yield message, copied(self.rows.slice(int(bounds[message]), int(bounds[message + 1] - bounds[message])))


def joined(parts: Sequence[Part]) -> Part:
    """Joins parts with the same columns, in the order of their messages; for one message in the order of the parts."""
    return Part(*in_order([(part.index, part.rows) for part in parts]))


def index_of(tables: Mapping[int, Part]) -> Index:
    """The message of each row of all tables. Rising."""
    if len(tables) == 1:
        (only,) = tables.values()
        return only.index
    return np.sort(np.concatenate([_NOTHING, *(part.index for part in tables.values())]))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of messages (rule 1)."""

    index: Index
    """The message of each row, of every table. Rising."""
    tables: Mapping[int, Part]
    """By the number of the table, for those that have rows."""
    rejects: Sequence[Reject]
    """By rising index."""
    tombstones: Index
    filtered: Index
    violations: Mapping[str, Index] = field(default_factory=dict)
    """As in `Rows`."""

    @property
    def again(self) -> Mask:
        """Which rows are of the same message as the previous row."""
        again = np.zeros(len(self.index), np.bool_)
        again[1:] = self.index[1:] == self.index[:-1]
        return again


def together(
    arrived: Sequence[tuple[int, Part]],
    rejects: Iterable[Reject],
    tombstones: Index,
    messages: int,
    filtered: Index | None = None,
) -> Outcome:
    """The outcome of messages whose rows for several tables, by their numbers, were made apart.

    A message that is refused for any table is refused as a whole, with the first reason. ``filtered`` are messages
    that change no row of some table, by default those that end in nothing else; one with rows elsewhere is not.
    """
    by_message: dict[int, Reject] = {}
    for reject in rejects:
        by_message.setdefault(reject.index, reject)
    refused = np.zeros(messages, np.bool_)
    refused[list(by_message)] = True
    by_table: dict[int, list[Part]] = {}
    for number, part in arrived:
        kept = ~refused[part.index]
        accepted = part if kept.all() else Part(part.index[kept], part.rows.filter(pa.array(kept)))
        if len(accepted.index):
            by_table.setdefault(number, []).append(accepted)
    tables = {number: joined(parts) for number, parts in by_table.items()}
    index = index_of(tables)
    left = ~refused
    left[index] = False
    left[tombstones] = False
    filtered = np.flatnonzero(left) if filtered is None else filtered[left[filtered]]
    return Outcome(index, tables, sorted(by_message.values()), tombstones, filtered)


def staged_of(
    messages: Messages, outcome: Outcome, formats: Sequence[TableFormat], dead: TableFormat
) -> list[StagedRows]:
    """The outcome of each batch's messages; ``formats`` are the row tables' formats, by number."""
    again, rejects = outcome.again, outcome.rejects
    records = len(outcome.index) - int(again.sum())
    _require_all(messages, records, len(rejects), len(outcome.tombstones), len(outcome.filtered))
    tables = dict(outcome.tables)
    main = tables.pop(MAIN, None) or Part(_NOTHING, formats[MAIN].arrow_schema.empty_table())
    dead_rows = Part(_places(rejects), dead_letters_of(messages, rejects, dead.arrow_schema))
    staged = [
        StagedRows(
            end=batch.end,
            records=len(batch),
            tombstones=len(gone),
            dead_letters=Counter(str(reject.error_class) for reject in rejects[first:last]),
            timestamp_bounds_ms=batch.timestamp_bounds_ms(),
            rows=rows,
            filtered_offsets=messages.offsets[left_out],
            exploded=exploded,
            violations=violations,
        )
        for batch, gone, left_out, exploded, violations, (first, last), rows in zip(
            messages.batches,
            messages.parted(outcome.tombstones),
            messages.parted(outcome.filtered),
            map(len, messages.parted(outcome.index[again])),
            _counts(messages, outcome.violations),
            pairwise(messages.bounds(dead_rows.index).tolist()),
            zip(main.split(messages), dead_rows.split(messages), strict=True),
            strict=True,
        )
    ]
    return _with_routed(staged, messages, tables, formats) if tables else staged


def kafka_columns_of(messages: Messages, index: Index) -> tuple[pa.Array, ...]:
    """Kafka's columns (`KAFKA_FIELDS`) of some messages, given by their rising indices."""
    stamps = messages.timestamps_ms[index]
    micros = pa.array(stamps * 1000, mask=stamps == NO_TIMESTAMP, type=pa.int64())
    return (
        messages.topics(index),
        messages.partitions(index),
        pa.array(messages.offsets[index]),
        micros.cast(pa.timestamp("us", "UTC")),
    )


def dead_letters_of(messages: Messages, rejects: Sequence[Reject], schema: pa.Schema) -> pa.Table:
    """The rows of the table for dead letters; ``rejects`` by rising index."""
    if not rejects:
        return schema.empty_table()
    index = _places(rejects)
    columns = [
        *kafka_columns_of(messages, index),
        messages.keys.take(pa.array(index)),
        messages.values.take(pa.array(index)).cast(pa.binary()),
        pa.array([str(reject.error_class) for reject in rejects]),
        pa.array([reject.error for reject in rejects]),
    ]
    return pa.table(columns, names=schema.names).cast(schema)


def _with_routed(
    staged: Sequence[StagedRows], messages: Messages, parts: Mapping[int, Part], formats: Sequence[TableFormat]
) -> list[StagedRows]:
    routed: list[list[tuple[TableFormat, pa.Table]]] = [[] for _ in staged]
    for number, part in parts.items():
        for message, rows in part.filled(messages):
            routed[message].append((formats[number], rows))
    return [replace(rows, routed=tuple(row_tables)) for rows, row_tables in zip(staged, routed, strict=True)]


def _counts(messages: Messages, violations: Mapping[str, Index]) -> Iterator[dict[str, int]]:
    """For each batch, its messages by rule, without rules that none of them breaks."""
    by_rule = {rule: messages.parted(index) for rule, index in violations.items()}
    for number in range(len(messages.batches)):
        yield {rule: len(parts[number]) for rule, parts in by_rule.items() if len(parts[number])}


def _require_all(messages: Messages, *parts: int) -> None:
    """Rule 1, for all messages together."""
    if sum(parts) != len(messages):
        msg = f"{len(messages)} messages became {parts} with rows, dead letters, tombstones and filtered ones"
        raise RuntimeError(msg)


def _slice(rows: pa.Table, start: int, end: int) -> pa.Table:
    """Some of the rows (rule 2)."""
    part = rows.slice(start, end - start)
    if part.num_rows * 2 >= rows.num_rows or part.num_rows == 0:
        return part
    return copied(part)


def copied(part: pa.Table) -> pa.Table:
    """The same rows without the others that they are a slice of."""
    return pa.table([pa.concat_arrays(column.chunks) for column in part.columns], schema=part.schema)


def _places(rejects: Sequence[Reject]) -> Index:
    return np.fromiter((reject.index for reject in rejects), np.int64, len(rejects))
