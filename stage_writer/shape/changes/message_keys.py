"""Key columns from message keys: the only information in a tombstone about the row that it deletes.

Rules:

1. A message key is a JSON object with the key's fields, by their names in the record; with one key column it may be the
   value alone. Connect's JSON with its schema, ``{"schema": …, "payload": …}``, is read as its payload, and the frame
   of a schema registry is taken off.
2. Values are read as the record's are: types, formats and lenience. A STRING key that is not JSON is the text itself.
3. A key that does not give every key column is a reject with the reason: a guess would delete another row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.schema import Field, Primitive, StructType, to_arrow_schema
from common.settings.formats import Forms
from stage_writer.decode.batch import Index, Mask, in_order, texts_of
from stage_writer.decode.decode import Decoder
from stage_writer.decode.decode_options import DecodeOptions
from stage_writer.decode.envelopes.framing import without_frames
from stage_writer.decode.rejects import ErrorClass, Reject

_CONNECT = r'^\s*\{\s*"schema"\s*:'
_OBJECT = r"^\s*\{"
_TEXT = r'^\s*"(?:[^"\\]|\\.)*"\s*$'
_VALUE = r'^\s*(?:-?[0-9][0-9.eE+-]*|true|false|"(?:[^"\\]|\\.)*")\s*$'
_PAYLOAD = "payload"
_SHOWN_CHARACTERS = 100


@dataclass(frozen=True, slots=True)
class Keys:
    """The result for some message keys: the table's key columns, or a refusal."""

    rows: pa.Table
    index: Index
    """For each row the index of its message key; rising."""
    rejects: tuple[Reject, ...]


class MessageKeys:
    """Reads message keys. Not thread-safe. Raises SchemaError for types that have no JSON form."""

    def __init__(self, fields: Mapping[str, Field], reading: DecodeOptions, *, framed: bool) -> None:
        """``fields`` are the record's, by the name of each key column; ``reading`` is the record's."""
        named = StructType(tuple(Field(field.name, field.type, nullable=False) for field in fields.values()))
        self._schema = to_arrow_schema(StructType(tuple(Field(name, field.type) for name, field in fields.items())))
        self._framed = framed
        self._only = next(iter(fields.values())) if len(fields) == 1 else None
        self._plain = Decoder(named, reading)
        payload = DecodeOptions(Forms(None, {_PAYLOAD: reading.forms}), lenient=reading.lenient)
        self._wrapped = Decoder(StructType((Field(_PAYLOAD, named, nullable=False),)), payload)
        self._bare = None
        if self._only is not None:
            bare = DecodeOptions(Forms(None, {_PAYLOAD: reading.forms.at(self._only.name)}), lenient=reading.lenient)
            self._bare = Decoder(StructType((Field(_PAYLOAD, self._only.type, nullable=False),)), bare)

    def read(self, keys: pa.BinaryArray | pa.LargeBinaryArray, sent: pa.BinaryArray | None = None) -> Keys:
        """The key columns that message keys give; ``sent`` are the same keys before a binary format was opened."""
        sent = keys if sent is None else sent
        texts = texts_of((without_frames(keys) if self._framed else keys).cast(pa.binary()))
        texts = pc.fill_null(texts, "")
        kinds = self._kinds(texts)
        parts: list[tuple[Index, pa.Table]] = [(np.zeros(0, np.int64), self._schema.empty_table())]
        for indexes, table in (
            self._decoded(self._plain, texts, kinds.objects),
            *self._of_connect(texts, kinds.connect),
            self._of_values(texts, kinds.values),
            (kinds.raw, pa.table([texts.take(pa.array(kinds.raw))], schema=self._schema) if len(kinds.raw) else None),
        ):
            if table is not None:
                parts.append((indexes, table.rename_columns(self._schema.names).cast(self._schema)))
        index, rows = in_order(parts)
        refused = np.setdiff1d(np.arange(len(keys)), index)
        return Keys(rows, index, tuple(_reject(index, sent[index].as_py()) for index in refused.tolist()))

    def _kinds(self, texts: pa.StringArray) -> _Kinds:
        connect = _matches(texts, _CONNECT) & (_PAYLOAD not in self._schema.names)
        objects = _matches(texts, _OBJECT) & ~connect
        rest = ~(connect | objects) & (pc.binary_length(texts).to_numpy(zero_copy_only=False) > 0)
        values, raw = np.zeros(len(texts), np.bool_), np.zeros(len(texts), np.bool_)
        if self._only is not None and self._only.type is Primitive.STRING:
            values = rest & _matches(texts, _TEXT)
            raw = rest & ~values
        elif self._only is not None:
            values = rest & _matches(texts, _VALUE)
        return _Kinds(*map(np.flatnonzero, (objects, connect, values, raw)))

    def _decoded(self, decoder: Decoder, texts: pa.StringArray, indexes: Index) -> tuple[Index, pa.Table | None]:
        if not len(indexes):
            return indexes, None
        decoded = decoder.decode(texts.take(pa.array(indexes)).cast(pa.large_binary()))
        return indexes[decoded.row_index], decoded.rows

    def _of_connect(self, texts: pa.StringArray, indexes: Index) -> Sequence[tuple[Index, pa.Table | None]]:
        rows_read, table = self._decoded(self._wrapped, texts, indexes)
        if table is not None:
            table = _inside(table)
        if self._bare is None:
            return [(rows_read, table)]
        return [(rows_read, table), self._decoded(self._bare, texts, np.setdiff1d(indexes, rows_read))]

    def _of_values(self, texts: pa.StringArray, indexes: Index) -> tuple[Index, pa.Table | None]:
        """Bare values: wrapped in objects, and read as their members."""
        if self._only is None or not len(indexes):
            return indexes, None
        name = json.dumps(self._only.name, ensure_ascii=False)
        chosen = texts.take(pa.array(indexes))
        objects = pc.binary_join_element_wise(f"{{{name}:", chosen, "}", "")
        objects_read, table = self._decoded(self._plain, objects, np.arange(len(indexes)))
        return indexes[objects_read], table


@dataclass(frozen=True, slots=True)
class _Kinds:
    objects: Index
    connect: Index
    values: Index
    raw: Index


def _inside(table: pa.Table) -> pa.Table:
    """The type inside the only column, a struct."""
    column = table.column(0)
    batches = [pa.RecordBatch.from_struct_array(chunk) for chunk in column.chunks]
    return pa.Table.from_batches(batches, pa.schema(list(column.type)))


def _matches(texts: pa.StringArray, pattern: str) -> Mask:
    mask: Mask = pc.match_substring_regex(texts, pattern).to_numpy(zero_copy_only=False)
    return mask


def _reject(index: int, key: bytes | None) -> Reject:
    if key is None:
        return Reject(index, ErrorClass.UNREADABLE_KEY, "the tombstone has no message key")
    shown = key[:_SHOWN_CHARACTERS].decode(errors="replace")
    return Reject(index, ErrorClass.UNREADABLE_KEY, f"the message key {shown!r} does not contain the key columns")
