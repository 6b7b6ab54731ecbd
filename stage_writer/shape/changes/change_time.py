"""When the change of an envelope's event happened, for tables that keep every version of a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from common.schema import Field, Primitive
from common.settings.columns import CDC_COLUMN
from common.tables.changes import TIME_COLUMN

if TYPE_CHECKING:
    from common.schema import StructType
    from stage_writer.decode.batch import Messages
    from stage_writer.shape.rows import Rows


class ChangeTime:
    """Adds the time in the source, or else that of the connector, null where the event has neither: a `Step`."""

    needs_headers = False

    def __init__(self, columns: StructType) -> None:
        """``columns`` have the description of the change."""
        self.columns = columns.with_fields((Field(TIME_COLUMN, Primitive.TIMESTAMP),))

    def apply(self, rows: Rows, messages: Messages) -> Rows:  # noqa: ARG002 - the port's
        change = rows.table[CDC_COLUMN]
        found = pc.coalesce(pc.struct_field(change, "source_ts"), pc.struct_field(change, "ts"))
        return rows.with_table(rows.table.append_column(TIME_COLUMN, found))
