"""Finds rows for which a generated column cannot be computed, before Delta's writer reads them.

Rules:

1. Each expression is tested with IS NULL; a null result of the test means that the expression failed. A null result of
   the expression itself is a value like any other.
2. An expression that cannot be tested here (over columns that are not staged) is left to the write, which reports why
   it fails.
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

    from delta_loader.spark.gateway import Gateway


def cannot_be_computed(gateway: Gateway, rows: DataFrame, schema: str) -> Column | None:
    """Why one of the table's generated columns fails on a row (null: none does); None: none can fail.

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
    """Whether the expression is null; null where that cannot be computed (rule 1)."""
    parsed = gateway.session.sessionState().sqlParser().parseExpression(f"({expression}) IS NULL")
    sql = gateway.jvm.org.apache.spark.sql
    return Column(sql.classic.ExpressionUtils.column(sql.catalyst.expressions.TryEval(parsed)))
