"""Change events whose array `explode` turns into rows: required fields, checked before the rows are made.

Rules:

1. All of a message's elements are checked together, and so are its own key and sequence: its rows may be made in
   several pieces (`stage_writer.shape.slicing`), and a message is a dead letter as a whole.
2. An element needs a key, and no two elements of an event may have the same one: one of them would be lost.
3. Where rows of a record are replaced together, an event that deletes has no elements, and one without elements
   deletes: its one row says that the record has none any more.
4. Where keys are of the element alone, an event without elements changes no row, and counts as filtered.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.errors import SchemaError
from common.schema import StructType
from common.settings import Stream
from common.settings.columns import exploded, made_columns, naming_of
from common.tables.changes import DELETE_COLUMN, MergeBy
from stage_writer.decode.batch import Index, Messages
from stage_writer.decode.rejects import ErrorClass
from stage_writer.shape.changes.lacking import with_keys, without_lacking
from stage_writer.shape.rows import Rows

_RECORD = "record"


class Elements:
    """Checks and prepares such events: the `Step` before `Exploder`. Raises SchemaError for an unknown key."""

    needs_headers = False

    def __init__(self, columns: StructType, stream: Stream, by: MergeBy) -> None:
        self.columns = columns
        self._by = by
        self._array = stream.shaping.explode or ""
        naming, made = naming_of(stream), made_columns(stream)
        rows = exploded(columns, self._array)
        self._inner: dict[str, tuple[str, ...]] = {}
        for steps in by.element:
            origin = naming.origin(rows, steps, made)
            if origin is None:
                msg = f"merge.keys names {'.'.join(steps)!r}, which is not a field of the element"
                raise SchemaError(msg, f"name a field of the elements of {self._array}")
            self._inner[".".join(steps)] = origin[1:]
        self._own = {key: origin[0] for key in by.record if (origin := naming.origin(rows, (key,), made)) is not None}
        origin = None if by.sequence is None else naming.origin(rows, (by.sequence,), made)
        self._sequence = None if origin is None else origin[0]

    def apply(self, rows: Rows, messages: Messages) -> Rows:  # noqa: ARG002 - the port's
        """The events that may be exploded."""
        rows = with_keys(rows, self._by, self._own, self._sequence)
        if self._by.replaces_records:
            rows = rows.with_table(self._without_deleted_elements(rows.table))
        rows = self._with_distinct_elements(rows)
        has_elements = self._lengths(rows.table) > 0
        if self._by.replaces_records:
            return rows.with_table(_with(rows.table, DELETE_COLUMN, pa.array(~has_elements)))
        if has_elements.all():
            return rows
        filtered = np.sort(np.concatenate([rows.filtered, rows.index[~has_elements]]))
        kept = rows.table.filter(pa.array(has_elements))
        return replace(rows, table=kept, index=rows.index[has_elements], filtered=filtered)

    def _without_deleted_elements(self, table: pa.Table) -> pa.Table:
        """The events, where those that delete have no elements (rule 3)."""
        if not pc.any(table[DELETE_COLUMN]).as_py():
            return table
        column = table[self._array]
        return _with(table, self._array, pc.if_else(table[DELETE_COLUMN], pa.scalar(None, column.type), column))

    def _with_distinct_elements(self, rows: Rows) -> Rows:
        """The events that follow rule 2."""
        lengths = self._lengths(rows.table)
        owners = np.repeat(np.arange(len(rows)), lengths)
        elements = rows.table[self._array].combine_chunks().flatten()
        keys = {name: _field(elements, steps) for name, steps in self._inner.items()}
        lacking = []
        for name, values in keys.items():
            lost = np.zeros(len(rows), np.bool_)
            lost[owners[values.is_null().to_numpy(zero_copy_only=False)]] = True
            lacking.append((lost, ErrorClass.NULL_KEY, f"the key column {name} of one of its elements is null"))
        if (lengths > 1).any():
            twice = np.zeros(len(rows), np.bool_)
            counts = (
                pa.table({_RECORD: pa.array(owners), **keys}).group_by([_RECORD, *keys]).aggregate([([], "count_all")])
            )
            twice[counts.filter(pc.greater(counts["count_all"], 1))[_RECORD].to_numpy()] = True
            lacking.append(
                (twice, ErrorClass.REPEATED_KEY, f"two of its elements have the same key ({', '.join(keys)})")
            )
        return without_lacking(rows, lacking)

    def _lengths(self, table: pa.Table) -> Index:
        lengths: Index = pc.fill_null(pc.list_value_length(table[self._array]), 0).to_numpy().astype(np.int64)
        return lengths


def _field(elements: pa.Array, steps: Sequence[str]) -> pa.Array:
    """A field of each element, null where a struct around it is."""
    for step in steps:
        elements = pc.struct_field(elements, step)
    return elements


def _with(table: pa.Table, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Table:
    place = table.column_names.index(name)
    return table.set_column(place, table.schema.field(place), column)
