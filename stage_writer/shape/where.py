"""Which records become rows: the `where` condition of a stream.

Rules:

1. The condition sees the declared fields and ``kafka`` (`stage_writer.shape.evaluation`), and is of type BOOLEAN.
2. A record for which it is not true (false, or null as in SQL) is filtered: it has no row, and it is counted.
3. A record whose condition fails is not filtered but a reject: the result is unknown.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.schema import Primitive, type_to_ddl
from stage_writer.shape.evaluation import Evaluator
from stage_writer.shape.expressions import refused

if TYPE_CHECKING:
    from common.schema import StructType
    from stage_writer.decode.batch import Messages
    from stage_writer.shape.rows import Rows

SETTING = "where"


class Condition:
    """Filters records: a `Step`. Raises ExpressionError if it is not a condition over the columns."""

    def __init__(self, columns: StructType, where: str) -> None:
        self.columns = columns
        self._evaluator = Evaluator(columns, {SETTING: where})
        self.needs_headers = self._evaluator.needs_headers
        self.needs_kafka = self._evaluator.needs_kafka
        (data_type,) = self._evaluator.types
        if data_type is not Primitive.BOOLEAN:
            problem = f"its type is {type_to_ddl(data_type)}, and a condition is true or false"
            raise refused(SETTING, where, problem, "compare it with something, as in: status >= 400")

    def apply(self, rows: Rows, messages: Messages) -> Rows:
        """The rows for which the condition is true; a row whose condition fails becomes a reject."""
        evaluated = self._evaluator.evaluate(rows, messages)
        rows, (answers,) = evaluated.rows, evaluated.values
        true = pc.fill_null(answers, fill_value=False).to_numpy()
        if true.all():
            return rows
        left_out = np.setdiff1d(rows.index[~true], rows.index[true])  # of several rows of a message some may be kept
        filtered = np.sort(np.concatenate([rows.filtered, left_out]))
        return replace(rows, table=rows.table.filter(pa.array(true)), index=rows.index[true], filtered=filtered)
