"""Converts JSON text to VARIANT, with Spark's own parser.

Rules:

1. No row is refused and nothing is lost: text that Spark does not accept (a duplicate key in an object, nesting deeper
   than its parser supports, larger than a VARIANT may be) is kept as a VARIANT that is this text.
2. Numbers become what Spark makes of them: exact up to 38 digits, the nearest DOUBLE beyond.
"""

from collections.abc import Collection

from pyspark.sql import DataFrame, functions
from pyspark.sql.types import StringType

from common.schema.ddl import quote_name


def with_variants(rows: DataFrame, names: Collection[str]) -> DataFrame:
    """The rows with those of these columns that were staged, as text, converted to VARIANT."""
    staged = [field.name for field in rows.schema if field.name in names and isinstance(field.dataType, StringType)]
    return rows.withColumns({name: functions.expr(_variant(quote_name(name))) for name in staged}) if staged else rows


def _variant(text: str) -> str:
    return f"coalesce(try_parse_json({text}), CAST({text} AS VARIANT))"
