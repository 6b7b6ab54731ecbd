"""Finds keys that several rows of a table have: a `delta_loader.load.merged_keys.KeyReader` in one Spark session."""

from collections.abc import Sequence

from pyspark.sql import SparkSession, functions

from common.schema import backticks
from common.tables.changes import RESERVED
from delta_loader.spark.bridge import table_errors
from delta_loader.spark.session_conf import spark_url

_MOST_KEYS = 2000
_COUNT = f"{RESERVED}count"


class RepeatedKeys:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def repeated_keys(self, url: str, version: int, keys: Sequence[str], where: str | None) -> list[str]:
        """As in `KeyReader`."""
        with table_errors("read the keys of", url, "see the log; the next run tries again"):
            rows = self._spark.read.format("delta").option("versionAsOf", version).load(spark_url(url))
            rows = rows if where is None else rows.where(where)
            named = rows.select(*(functions.col(key).alias(key.replace("`", "")) for key in keys))
            columns = [functions.col(backticks(name)) for name in named.columns]
            twice = named.groupBy(*columns).agg(functions.count(functions.lit(1)).alias(_COUNT))
            twice = twice.where(f"{_COUNT} > 1").orderBy(*columns).limit(_MOST_KEYS)
            repeated = twice.select(functions.to_json(functions.struct(*columns))).collect()
        return [str(row[0]) for row in repeated]
