"""Finds keys that several rows of a table have: a `delta_loader.load.merged_keys.KeyReader` in one Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions

from common.schema import quote_name
from delta_loader.spark.bridge import table_errors
from delta_loader.spark.session_conf import spark_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

_MOST_KEYS = 2000


class RepeatedKeys:
    """The keys of tables, each at one version."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def keys_twice(self, url: str, version: int, keys: Sequence[str], where: str | None) -> list[str]:
        """Keys that several rows of a table have, as JSON; the first ones only. ``where`` is a condition on rows."""
        with table_errors("read the keys of", url, "see the log; this program tries again at its next run"):
            rows = self._spark.read.format("delta").option("versionAsOf", version).load(spark_url(url))
            rows = rows if where is None else rows.where(where)
            columns = [functions.col(quote_name(key)) for key in keys]
            twice = rows.groupBy(*columns).count().where("count > 1").orderBy(*columns).limit(_MOST_KEYS)
            found = twice.select(functions.to_json(functions.struct(*columns))).collect()
        return [str(row[0]) for row in found]
