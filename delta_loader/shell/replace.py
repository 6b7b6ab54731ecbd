"""Replaces rows of a range through Spark: Delta's own ``replaceWhere``, one commit for each call.

Rules:

1. Deleting the old rows and writing the new ones is one commit of Delta's. Rows of other ranges in the same files are
   copied as they are, or marked in a deletion vector, as the table's properties say.
2. The commit carries a txn action (``txnAppId``, ``txnVersion``): Delta skips a write that was done, and of two at the
   same time it refuses one.
3. The staged rows are read by the schema that they were written with, never by what Spark would guess.
"""

from __future__ import annotations

import json
from functools import partial, reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions
from pyspark.sql.types import StructType, VariantType

from delta_loader.core.replace import txn_id
from delta_loader.shell.gateway import CONFLICTS, table_errors
from delta_loader.shell.spark import spark_url
from delta_loader.shell.variants import with_variants

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from common.stage.replacements import ReplacementTable
    from delta_loader.core.replace import Request, Step

_OFFSET = "_kafka_offset"

_errors = partial(table_errors, remedy="the request stays; this program tries again at its next run")


class SparkReplacer:
    """A `delta_loader.tables.replace.Replacer` in one Spark session."""

    def __init__(self, spark: SparkSession, stage_url: str) -> None:
        """The requests' files lie below ``stage_url``."""
        self._spark = spark
        self._stage = spark_url(stage_url)

    def lost(self, request: Request, urls: tuple[str, ...]) -> int:
        """How many records of the range some tables have and the request has not."""
        with _errors("read", urls[0]):
            known = [self._filtered(request), *(self._staged(table) for table in request.content.tables)]
            have = _offsets([self._old(request, url) for url in urls]).distinct()
            read = [frame for frame in known if frame is not None]
            return int((have.join(_offsets(read), _OFFSET, "left_anti") if read else have).count())

    def stale(self, request: Request, url: str) -> int:
        """How many records a table has in the range that the request has not for it."""
        with _errors("read", url):
            return int(self._stale(request, url).count())

    def replace(self, request: Request, url: str, step: Step, *, keep_stale: bool, metadata: str) -> bool:
        """One commit; False when another commit was in its way.

        With ``keep_stale`` rows of records that the request has not for the table stay as well.
        """
        with _errors("replace rows in", url):
            rows, known = self._staged(request.content.of(url)), self._spark.read.format("delta").load(spark_url(url))
            variants = [field.name for field in known.schema if isinstance(field.dataType, VariantType)]
            rows = self._spark.createDataFrame([], known.schema) if rows is None else with_variants(rows, variants)
            if keep_stale:
                rows = rows.unionByName(self._stale(request, url), allowMissingColumns=True)
            writer = rows.write.format("delta").mode("overwrite").option("replaceWhere", request.condition)
            writer = writer.option("txnAppId", txn_id(request.name.request)).option("txnVersion", int(step))
            try:
                writer.option("userMetadata", metadata).save(spark_url(url))
            except CONFLICTS:
                return False
        return True

    def _filtered(self, request: Request) -> DataFrame | None:
        """The records that a condition has left out."""
        if not request.content.filtered:
            return None
        runs = [(int(span.start), int(span.end) - 1) for span in request.content.filtered]
        frame = self._spark.createDataFrame(runs, "first LONG, last LONG")
        return frame.selectExpr(f"explode(sequence(first, last)) AS {_OFFSET}")

    def _staged(self, table: ReplacementTable | None) -> DataFrame | None:
        if table is None or not table.files:
            return None
        paths = [f"{self._stage.rstrip('/')}/{file.path}" for file in table.files]
        return self._spark.read.schema(StructType.fromJson(json.loads(table.schema))).parquet(*paths)

    def _old(self, request: Request, url: str) -> DataFrame:
        return self._spark.read.format("delta").load(spark_url(url)).where(request.condition)

    def _stale(self, request: Request, url: str) -> DataFrame:
        old, new = self._old(request, url), self._staged(request.content.of(url))
        return old if new is None else old.join(functions.broadcast(new.select(_OFFSET)), _OFFSET, "left_anti")


def _offsets(frames: Sequence[DataFrame]) -> DataFrame:
    """The offsets of all of them together."""
    return reduce(lambda one, other: one.unionByName(other), [frame.select(_OFFSET) for frame in frames])
