"""Columns computed from others: the `derive` expressions of a stream.

Rules:

1. An expression sees the declared fields and ``kafka`` (see `evaluation`), and no other derived column.
2. The derived columns come after the others, in the order of the settings, with the types of their expressions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.schema import Field, to_arrow_field
from stage_writer.shape.evaluation import Evaluator
from stage_writer.shape.expressions import refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from common.schema import StructType
    from stage_writer.decode.batch import Messages
    from stage_writer.shape.rows import Rows


class Deriver:
    """Adds derived columns: a `Step`.

    Raises ExpressionError for an expression that is incompatible with the columns, or a name that is already taken.
    """

    def __init__(self, columns: StructType, derive: Mapping[str, str]) -> None:
        declared = {name.casefold() for name in columns.names}
        for name, text in derive.items():
            if name.casefold() in declared:
                problem = f"the column `{name}` is declared in `columns`"
                remedy = "give the derived column another name, or do not declare it"
                raise refused(_setting(name), text, problem, remedy)
        self._evaluator = Evaluator(columns, {_setting(name): text for name, text in derive.items()})
        self.needs_headers = self._evaluator.needs_headers
        self.needs_kafka = self._evaluator.needs_kafka
        fields = [Field(name, data_type) for name, data_type in zip(derive, self._evaluator.types, strict=True)]
        self.columns = columns.with_fields(fields)
        self._added = [to_arrow_field(field) for field in fields]

    def apply(self, rows: Rows, messages: Messages) -> Rows:
        """The rows with their derived columns; one whose expression fails becomes a reject."""
        evaluated = self._evaluator.evaluate(rows, messages)
        table = evaluated.rows.table
        for field, values in zip(self._added, evaluated.values, strict=True):
            table = table.append_column(field, values)
        return evaluated.rows.with_table(table)


def _setting(name: str) -> str:
    return f"derive.{name}"
