"""The table's columns from the record's: without those of `drop`, under the names of `rename` and `field_names`.

Rules:

1. The plan (`common.schema.naming`) is carried out on the arrays: a column is kept or left out, a struct is rebuilt
   from the parts that remain. No value is read or copied.
2. A value that is null stays null, even where only nulls were kept of it.
"""

from typing import assert_never

import pyarrow as pa

from common.schema import StructType, to_arrow_schema
from common.schema.naming import Inside, Parts, Plan
from stage_writer.decode.batch import Messages
from stage_writer.shape.rows import Rows


class Names:
    """Leaves fields out and renames others: a `Step`."""

    needs_headers = False

    def __init__(self, columns: StructType, plan: Parts) -> None:
        """``columns`` are the result of the plan."""
        self.columns = columns
        self._plan = plan
        self._schema = to_arrow_schema(columns)

    def apply(self, rows: Rows, messages: Messages) -> Rows:  # noqa: ARG002 - a step is given both
        columns = []
        for field, (index, inner) in zip(self._schema, self._plan.kept, strict=True):
            chunks = rows.table.column(index).chunks
            columns.append(pa.chunked_array([rearranged(chunk, field.type, inner) for chunk in chunks], field.type))
        return rows.with_table(pa.table(columns, schema=self._schema))


def rearranged(array: pa.Array, target: pa.DataType, plan: Plan | None) -> pa.Array:
    """An array as the plan makes it; ``target`` is its type after that."""
    match plan:
        case None:
            return array
        case Parts(kept):
            parts = [
                rearranged(array.field(index), field.type, inner)
                for field, (index, inner) in zip(target, kept, strict=True)
            ]
            mask = array.is_null() if array.null_count else None
            return pa.StructArray.from_arrays(parts, fields=list(target), mask=mask)
        case Inside(inner):
            if pa.types.is_map(array.type):
                items = rearranged(array.items, target.item_type, inner)
                fields = [target.key_field, target.item_field]
                inside = pa.StructArray.from_arrays([array.keys, items], fields=fields)
            else:
                inside = rearranged(array.values, target.value_type, inner)
            # The buffers belong to the whole array, of which this one may be a slice.
            buffers = array.buffers()[:2]
            return pa.Array.from_buffers(target, len(array), buffers, array.null_count, array.offset, [inside])
        case _:
            assert_never(plan)
