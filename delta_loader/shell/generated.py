"""Rows of which a generated column cannot be computed, found before Delta's writer meets them.

Rules:

1. An expression is asked whether it is null, and what says neither yes nor no has failed: a null that it gives is a
   value like any other.
2. What cannot be asked here (an expression over columns that nobody stages) is for the write, which says why it fails.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions
from pyspark.sql.classic.column import Column

from common.schema import schema_from_json
from common.tables.table_features import GENERATED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from delta_loader.shell.gateway import Gateway


def cannot_be_computed(gateway: Gateway, rows: DataFrame, schema: str) -> Column | None:
    """What says of a row why one of the table's generated columns fails on it (null: none does); None: nothing may.

    ``schema`` is the table's. Columns that are staged are not computed.
    """
    problem: Column | None = None
    for name, expression in _generated(schema):
        if name in rows.columns:
            continue
        failed = _asked(gateway, expression).isNull()
        text = f"the generated column {name} cannot be computed: {expression}"
        try:
            rows.select(failed)
        except PySparkException:
            continue  # rule 2
        known = functions.when(failed, functions.lit(text))
        problem = known if problem is None else functions.coalesce(problem, known)
    return problem


def _generated(schema: str) -> Iterator[tuple[str, str]]:
    for field in schema_from_json(schema):
        expression = json.loads(field.metadata_json).get(GENERATED)
        if isinstance(expression, str):
            yield field.name, expression


def _asked(gateway: Gateway, expression: str) -> Column:
    """Whether it is null; null where that cannot be computed (rule 1)."""
    parsed = gateway.session.sessionState().sqlParser().parseExpression(f"({expression}) IS NULL")
    sql = gateway.jvm.org.apache.spark.sql
    return Column(sql.classic.ExpressionUtils.column(sql.catalyst.expressions.TryEval(parsed)))
