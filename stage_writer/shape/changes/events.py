"""The rows that a stream with `merge` stages: the table's columns and those for merging, with tombstones as deletes.

Rules:

1. An event whose key has a null is a reject, and so is an upsert without a sequence. A delete without one always
   applies, because a tombstone has only its key. Exploded elements were checked before (`Elements`).
2. A tombstone is a row that deletes, with the key columns of its message key, and null in the others. So each message
   of such a stream is a row, a dead letter or a filtered one, in the order of offsets.
3. The column for soft deletes has the value that the table is to show for each row.
4. Where a message may have several rows, they are numbered: of two with one key, the later one wins.
5. Where the table keeps every version of a row, each event has its time: the sequence, or else that of the change in
   the source, or else that of the message. With a sequence, a delete without one is a reject too.
6. With ``truncates: apply`` a message that the decoder refuses because it truncates the table is a row without a key.
"""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.errors import SchemaError
from common.schema import StructType, to_arrow_schema
from common.settings import Stream
from common.settings.envelopes import is_lenient
from common.settings.merging import record_names, require_key_type, require_sequence_type
from common.tables.changes import (
    DELETE_COLUMN,
    IS_CURRENT,
    TIME_COLUMN,
    VALID_FROM,
    MergeBy,
    made_fields,
    staged_columns,
    table_columns,
)
from stage_writer.decode.batch import Messages, in_order
from stage_writer.decode.decode_options import DecodeOptions
from stage_writer.decode.envelopes.framing import FramedDecoder
from stage_writer.decode.rejects import ErrorClass, moved
from stage_writer.shape.changes.lacking import with_keys
from stage_writer.shape.changes.message_keys import MessageKeys
from stage_writer.shape.outcome import kafka_columns_of
from stage_writer.shape.route import Router, Routing
from stage_writer.shape.rows import Rows


class Events:
    """Makes the staged rows: the last `Step` of such a stream.

    Raises SchemaError for columns that cannot be used to merge.
    """

    needs_headers = False

    def __init__(
        self,
        columns: StructType,
        stream: Stream,
        by: MergeBy,
        opener: FramedDecoder | None = None,
        routing: Routing | None = None,
    ) -> None:
        """``opener`` makes JSON of message keys that are binary records; ``routing`` gives the tables of tombstones."""
        table = table_columns(columns)
        _check_types(table, by)
        self.columns = staged_columns(table.with_fields(made_fields(table, by)), by)
        self._schema = to_arrow_schema(self.columns)
        self._by = by
        self._opener = opener
        self._routing = routing
        self._names = record_names(stream)
        self._keys = _message_keys(table, stream, by) if deletes_by_tombstones(stream) else None

    def apply(self, rows: Rows, messages: Messages) -> Rows:
        """The staged rows, in the order of their messages."""
        rows = with_keys(rows, self._by, {key: key for key in self._by.record}, self._by.sequence)
        made = self._arranged({name: rows.table[name] for name in rows.table.column_names}, rows.index, messages)
        rows = self._with_deletes_of_all(rows.with_table(made), messages)
        decoded = self._keys_of_tombstones(messages)
        if decoded is None:
            return rows
        gone = replace(decoded, tables=rows.tables)
        if self._routing is not None:
            gone = self._routing.apply(gone.with_table(self._as_in_record(gone.table)), messages)
            gone = gone.with_table(gone.table.rename_columns(decoded.table.column_names))
        given = {name: gone.table[name] for name in gone.table.column_names}
        deletes = self._deletes(given, gone.index, messages)
        return replace(_merged(rows, deletes, gone.index), rejects=(*rows.rejects, *gone.rejects), tables=gone.tables)

    def routes_of_tombstones(self, messages: Messages) -> list[str]:
        """The routes that tombstones take and that are none of the stream's, each once."""
        decoded = self._keys_of_tombstones(messages)
        if decoded is None or not isinstance(self._routing, Router):
            return []
        return self._routing.routes_of(decoded.with_table(self._as_in_record(decoded.table)), messages)

    def _keys_of_tombstones(self, messages: Messages) -> Rows | None:
        """The key columns of the rows that tombstones delete; None where there is no tombstone."""
        tombstones = np.flatnonzero(messages.values.is_null().to_numpy(zero_copy_only=False))
        if self._keys is None or not len(tombstones):
            return None
        sent = keys = messages.keys.take(pa.array(tombstones))
        if self._opener is not None:
            headers = None if messages.headers is None else messages.headers.take(pa.array(tombstones))
            keys = self._opener.keys_of(sent, headers)
        decoded = self._keys.read(keys, sent)
        return Rows(decoded.rows, tombstones[decoded.index], moved(decoded.rejects, tombstones))

    def _with_deletes_of_all(self, rows: Rows, messages: Messages) -> Rows:
        """The rows with those of rule 6."""
        if self._by.truncate is None:
            return rows
        index = np.array(
            sorted(reject.index for reject in rows.rejects if reject.error_class is ErrorClass.TRUNCATED), np.int64
        )
        if not len(index):
            return rows
        given = {self._by.truncate: pa.repeat(pa.scalar(value=True), len(index))}
        rejects = tuple(reject for reject in rows.rejects if reject.error_class is not ErrorClass.TRUNCATED)
        return _merged(replace(rows, rejects=rejects), self._deletes(given, index, messages), index)

    def _deletes(self, given: dict[str, pa.ChunkedArray], index: np.ndarray, messages: Messages) -> pa.Table:
        return self._arranged({**given, DELETE_COLUMN: pa.repeat(pa.scalar(value=True), len(index))}, index, messages)

    def _as_in_record(self, keys: pa.Table) -> pa.Table:
        """The key columns under the names that expressions know them by."""
        return keys.rename_columns([self._names.get(name, name) for name in keys.column_names])

    def _arranged(self, given: dict[str, pa.ChunkedArray], index: np.ndarray, messages: Messages) -> pa.Table:
        """The columns in order; missing ones are computed, or null."""
        topic, partition, offset = self._by.place
        makers = {
            topic: lambda: messages.topics(index),
            partition: lambda: messages.partitions(index),
            offset: lambda: pa.array(messages.offsets[index]),
        }
        if self._by.row is not None:
            makers[self._by.row] = lambda: pa.array(np.arange(len(index)) - np.searchsorted(index, index), pa.int32())
        if self._by.truncate is not None:
            makers[self._by.truncate] = lambda: pa.repeat(pa.scalar(value=False), len(index))
        if self._by.soft_delete is not None:
            makers[self._by.soft_delete] = lambda: given[DELETE_COLUMN]
        if self._by.history:
            makers[VALID_FROM] = lambda: self._time_of(given, index, messages)
            # With soft deletes, the version that a delete makes is current too.
            is_flagged = self._by.soft_delete is not None
            makers[IS_CURRENT] = lambda: (
                pa.repeat(pa.scalar(value=True), len(index)) if is_flagged else pc.invert(given[DELETE_COLUMN])
            )
        columns = []
        for field in self._schema:
            if field.name in given:
                columns.append(given[field.name])
            else:
                columns.append(makers[field.name]() if field.name in makers else pa.nulls(len(index), field.type))
        return pa.table(columns, names=self._schema.names).cast(self._schema)

    def _time_of(self, given: dict[str, pa.ChunkedArray], index: np.ndarray, messages: Messages) -> pa.ChunkedArray:
        """When each row's event happened (rule 5)."""
        if self._by.sequence is not None:
            return given[self._by.sequence]
        sent = kafka_columns_of(messages, index)[3]
        return pc.coalesce(given[TIME_COLUMN], sent) if TIME_COLUMN in given else sent


def _merged(rows: Rows, more: pa.Table, index: np.ndarray) -> Rows:
    """The rows with more of them, in the order of their messages."""
    index, table = in_order([(rows.index, rows.table), (index, more)])
    return replace(rows, table=table, index=index)


def deletes_by_tombstones(stream: Stream) -> bool:
    """Whether messages without a value delete, instead of being counted as tombstones."""
    return stream.merge is not None and stream.merge.tombstones == "delete"


def _message_keys(table: StructType, stream: Stream, by: MergeBy) -> MessageKeys:
    names = record_names(stream)
    fields = {field.name: replace(field, name=names.get(field.name, field.name)) for field in table}
    reading = DecodeOptions(stream.record.forms, lenient=is_lenient(stream))
    return MessageKeys({key: fields[key] for key in by.record}, reading, framed=stream.record.framing == "confluent")


def _check_types(table: StructType, by: MergeBy) -> None:
    sequence = () if by.sequence is None else (((by.sequence,), require_sequence_type),)
    for steps, check in (*((steps, require_key_type) for steps in by.paths), *sequence):
        field = table.at(steps)
        if field is not None:
            try:
                check(".".join(steps), field.type)
            except ValueError as error:
                problem, _, remedy = str(error).partition("; ")
                raise SchemaError(problem, remedy) from None
