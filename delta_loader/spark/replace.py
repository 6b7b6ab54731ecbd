"""Replaces rows of a range through Spark: Delta's own ``replaceWhere``, one commit for each call.

Rules:

1. Deleting the old rows and writing the new ones is one Delta commit. Rows of other ranges in the same files are copied
   unchanged, or kept with a deletion vector, depending on the table's properties.
2. The commit has a txn action (``txnAppId``, ``txnVersion``): Delta skips a write that was done, and of two at the same
   time it refuses one.
3. The staged rows are read with the schema that they were written with, never with one that Spark infers.
4. Where nothing would be deleted, rows are only added, and where none would be added either, the commit is the txn
   action alone: an append-only table refuses any other.
5. Columns that are GENERATED ALWAYS AS IDENTITY are left to Delta, for rows that stay in a rewritten range too.
6. Values that cannot be folder names go to folders with random names (delta_loader/spark/long_values.py, rule 2).
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial, reduce

from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.types import StructType, VariantType

from common.schema import schema_from_json
from common.stage.data_files import ESCAPED, LONGEST_BYTES
from common.stage.replacements import ReplacementTable
from common.tables.table_features import IDENTITY, IDENTITY_TAKES_VALUES
from delta_loader.load.replace_steps import Request, RequestStep, txn_id
from delta_loader.spark.bridge import CONFLICTS, Bridge, spark_url, table_errors
from delta_loader.spark.long_values import needs_other_folders
from delta_loader.spark.spark_writes import with_variants

_OFFSET = "_kafka_offset"

_errors = partial(table_errors, remedy="the request stays; this program tries again at its next run")


class SparkReplacer:
    """A `delta_loader.load.replace_ranges.Replacer` in one Spark session."""

    def __init__(self, spark: SparkSession, stage_url: str) -> None:
        """The requests' files are below ``stage_url``."""
        self._spark = spark
        self._bridge = Bridge(spark)
        self._stage = spark_url(stage_url)

    def lost(self, request: Request, urls: tuple[str, ...]) -> int:
        with _errors("read", urls[0]):
            known = [self._filtered(request), *(self._staged(table) for table in request.content.tables)]
            have = _offsets([self._old(request, url) for url in urls]).distinct()
            read = [frame for frame in known if frame is not None]
            return int((have.join(_offsets(read), _OFFSET, "left_anti") if read else have).count())

    def unnamed(self, request: Request, urls: tuple[str, ...]) -> int:
        with _errors("read", urls[0]):
            tables = [self._spark.read.format("delta").load(spark_url(url)) for url in urls]
            staged = [frame for frame in map(self._staged, request.content.tables) if frame is not None]
            if not staged or all(frame.where(f"{_OFFSET} IS NULL").isEmpty() for frame in tables):
                return 0
            have = _offsets([self._old(request, url) for url in urls])
            return int(_offsets(staged).distinct().join(have, _OFFSET, "left_anti").count())

    def replace(self, request: Request, url: str, step: RequestStep, *, keep_stale: bool, metadata: str) -> bool:
        """One commit; False when another commit conflicted with it.

        With ``keep_stale``, rows of records that the request does not have for the table stay as well.
        """
        with _errors("replace rows in", url):
            deletes = self.deletes(request, url, step)
            try:
                if not deletes and (step is RequestStep.DROP or self._staged(request.content.of(url)) is None):
                    self._mark(request, url, step, metadata)
                else:
                    self._save(request, url, step, {"userMetadata": metadata}, keep_stale=keep_stale, deletes=deletes)
            except CONFLICTS:
                return False
        return True

    def deletes(self, request: Request, url: str, step: RequestStep) -> bool:
        """Whether a step deletes rows; of a table that has the request's rows, only others are."""
        with _errors("read", url):
            old = self._stale(request, url) if step is RequestStep.DROP else self._old(request, url)
            return not old.isEmpty()

    def _mark(self, request: Request, url: str, step: RequestStep, metadata: str) -> None:
        """Commit the txn action alone (rule 4)."""
        name, transaction = txn_id(request.name.request), self._bridge.begin(url, defers_checkpoint=False)
        if transaction.state([name]).transactions.get(name, 0) < step:
            action = {"txn": {"appId": name, "version": int(step), "lastUpdated": request.content.created_ms}}
            nothing = {"files": [], "replaced": [], "merges": False, "escaped": ESCAPED, "longest_bytes": LONGEST_BYTES}
            load = {"transactions": [action], "app_id": request.content.app_id, "metadata": metadata}
            transaction.commit(nothing | load)

    def _save(
        self,
        request: Request,
        url: str,
        step: RequestStep,
        options: Mapping[str, str],
        *,
        keep_stale: bool,
        deletes: bool,
    ) -> None:
        known = self._spark.read.format("delta").load(spark_url(url)).drop(*self._made_by_delta(url))
        rows = self._staged(request.content.of(url))
        variants = [field.name for field in known.schema if isinstance(field.dataType, VariantType)]
        rows = self._spark.createDataFrame([], known.schema) if rows is None else with_variants(rows, variants)
        if keep_stale and deletes:
            stale = self._stale(request, url).drop(*self._made_by_delta(url))
            rows = rows.unionByName(stale, allowMissingColumns=True)
        where = {"replaceWhere": request.condition} if deletes else {}
        done = {"txnAppId": txn_id(request.name.request), "txnVersion": str(int(step))}
        self._write(url, rows, self._old(request, url), {**where, **done, **options})

    def _made_by_delta(self, url: str) -> list[str]:
        """The columns of rule 5."""
        state = self._bridge.state(url)
        columns = () if state is None else schema_from_json(state.schema)
        metadata = {field.name: json.loads(field.metadata_json) for field in columns}
        return [name for name, of in metadata.items() if IDENTITY in of and not of.get(IDENTITY_TAKES_VALUES)]

    def _write(self, url: str, rows: DataFrame, old: DataFrame, options: Mapping[str, str]) -> None:
        """Equivalent to saving ``rows`` (rule 6); ``old`` are the rows that are deleted."""
        state = self._bridge.state(url)
        by, properties = (state.partition_by, state.properties) if state is not None else ((), {})
        random_folders = any(needs_other_folders(frame, by, properties) for frame in (rows, old))
        self._bridge.save(url, rows, options, random_folders=random_folders)

    def _filtered(self, request: Request) -> DataFrame | None:
        """The records that a condition left out."""
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
    return reduce(lambda first, other: first.unionByName(other), [frame.select(_OFFSET) for frame in frames])
