"""Which events delete: the `operation` of a stream with `merge`.

Rules:

1. The expression sees the record's fields, the derived columns and ``kafka``, and is compared as text, so a BOOLEAN or
   a number works. Any other value than those of ``deletes``, null included, is an upsert.
2. A record whose expression fails is a reject: its effect is unknown.
"""

import pyarrow as pa
import pyarrow.compute as pc

from common.schema import Field, Primitive, StructType
from common.settings.columns import CDC_COLUMN
from common.tables.changes import DELETE_COLUMN, TIME_COLUMN
from stage_writer.decode.batch import Messages
from stage_writer.shape.evaluation import Evaluator
from stage_writer.shape.rows import Rows

SETTING = "merge.operation"


class Operation:
    """Adds the column that marks deletes: a `Step`.

    Raises ExpressionError for an expression that is invalid for the columns.
    """

    def __init__(self, columns: StructType, operation: tuple[str, tuple[str, ...]] | None) -> None:
        """Without an operation no record deletes."""
        self.columns = columns.with_fields((Field(DELETE_COLUMN, Primitive.BOOLEAN),))
        self._evaluator = None
        if operation is not None:
            expression, deletes = operation
            Evaluator(columns, {SETTING: expression})  # an error must name what the user wrote
            self._evaluator = Evaluator(columns, {SETTING: f"CAST((\n{expression}\n) AS VARCHAR)"})
            self._deletes = pa.array(deletes, pa.string())

    @property
    def needs_headers(self) -> bool:
        return self._evaluator is not None and self._evaluator.needs_headers

    def apply(self, rows: Rows, messages: Messages) -> Rows:
        """The rows with the column; one whose expression fails becomes a reject."""
        if self._evaluator is None:
            deletes = pa.repeat(pa.scalar(value=False), len(rows))
            return rows.with_table(rows.table.append_column(DELETE_COLUMN, deletes))
        evaluated = self._evaluator.evaluate(rows, messages)
        rows, (operations,) = evaluated.rows, evaluated.values
        return rows.with_table(rows.table.append_column(DELETE_COLUMN, pc.is_in(operations, value_set=self._deletes)))


class ChangeTime:
    """Adds the time in the source, or else that of the connector, null where the event has neither: a `Step`."""

    needs_headers = False

    def __init__(self, columns: StructType) -> None:
        self.columns = columns.with_fields((Field(TIME_COLUMN, Primitive.TIMESTAMP),))

    def apply(self, rows: Rows, messages: Messages) -> Rows:  # noqa: ARG002 - the port's
        change = rows.table[CDC_COLUMN]
        change_times = pc.coalesce(pc.struct_field(change, "source_ts"), pc.struct_field(change, "ts"))
        return rows.with_table(rows.table.append_column(TIME_COLUMN, change_times))
