"""Finds the events of a merge that the table forbids, by the rules of `delta_loader.tables.merging.unmatched_deletes`.

It costs one scan of the staged events if the checks use staged columns only. Checks on other columns of the table
require a join with the table; so do soft deletes, where the table would not accept the row of a delete alone.

`RepeatedKeys` finds the keys of several rows, into which no event is merged.
"""

import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce

from pyspark.sql import DataFrame, SparkSession, functions

from common.schema import backticks, quote_name, schema_from_json
from common.tables.changes import DELETE_COLUMN, RESERVED, MergeBy
from common.tables.table_features import GENERATED
from delta_loader.spark.bridge import PROBLEM, Bridge, spark_url, sql_table, table_errors
from delta_loader.spark.merging.merge_writes import events_of
from delta_loader.spark.spark_writes import with_variants
from delta_loader.tables.commits import Target
from delta_loader.tables.file_split import SparkWrite
from delta_loader.tables.load_modes.casting import variants_of
from delta_loader.tables.merging.bounds import bounded_keys, key_bounds
from delta_loader.tables.merging.unmatched_deletes import (
    JUDGED_PLACE,
    UnmatchedDeletes,
    judged_order,
    kept_columns_needed,
)


class MergeValidator:
    def __init__(self, bridge: Bridge, target: Target, writes: Sequence[SparkWrite], stage_url: str) -> None:
        """All ``writes`` are merged with the same settings."""
        by = writes[0].shape.merge
        if by is None:
            raise ValueError("these rows are not to be merged")
        self._spark, self._bridge, self._target = bridge.spark, bridge, target
        self._by: MergeBy = by
        self._columns = schema_from_json(writes[0].shape.schema)
        files = [file for write in writes for file in write.files]
        self._bounds = key_bounds(files, self._columns, bounded_keys(by), backticks)
        self._variants = variants_of(target.shape.schema)
        events = events_of(bridge, writes, by, stage_url, lossless=True)
        if by.truncate is not None:
            events = events.where(~functions.col(by.truncate))
        columns = zip(JUDGED_PLACE, by.place, strict=True)
        self._events = events.withColumns({name: functions.col(quote_name(column)) for name, column in columns})

    def refused(self) -> DataFrame | None:
        """Record identities (`JUDGED_PLACE`) of forbidden events and their problems; None: the table has no checks."""
        deletes, soft_delete = functions.col(DELETE_COLUMN), self._by.soft_delete
        has_versions = self._by.history and soft_delete is not None
        makes_row = functions.lit(True) if has_versions else ~deletes  # noqa: FBT003 - Spark's
        upserts = self._events.where(makes_row).select(*self._quoted(self._columns.names), *JUDGED_PLACE)
        failing = (self._failing(rows, JUDGED_PLACE) for rows in self._as_written(upserts))
        refused = [frame for frame in failing if frame is not None]
        if soft_delete is not None and not has_versions and not self._by.replaces_records:
            refused += self._deletes(self._events.where(deletes), soft_delete, refused)
        return reduce(DataFrame.unionByName, refused) if refused else None

    def _as_written(self, upserts: DataFrame) -> list[DataFrame]:
        """The upserts with the values that the table's rows keep, as far as checks use them (rule 4).

        Where the table keeps every version, a new one takes no values of the one before it.
        """
        kept = kept_columns_needed(self._expressions(), self._target.shape.schema, self._columns.names)
        if not kept or self._by.history:
            return [upserts]
        keys = {f"{RESERVED}key_{number}": functions.col(key) for number, key in enumerate(self._by.sql_keys)}
        table = self._table().select(*(key.alias(name) for name, key in keys.items()), *self._quoted(kept))
        upserts = upserts.withColumns(keys)
        both = (upserts.join(table, [*keys], how) for how in ("left_anti", "inner"))
        return [rows.drop(*keys) for rows in both]

    def _deletes(self, deletes: DataFrame, soft_delete: str, upserts: Sequence[DataFrame]) -> list[DataFrame]:
        """Soft deletes that are refused (rules 2 and 3)."""
        given = {*self._by.keys, soft_delete, *([self._by.sequence] if self._by.sequence else [])}
        columns = [
            functions.col(quote_name(name)) if name in given else functions.lit(None).cast(field).alias(name)
            for name, field in ((name, self._events.schema[name].dataType) for name in self._columns.names)
        ]
        order = judged_order(self._by)
        alone = deletes.select(*columns, *order)
        together = self._failing(alone, (*self._by.keys, *order))
        if together is None or together.isEmpty():
            return []
        ordered, sequence = alone, self._by.sequence
        if sequence is not None:
            ordered = alone.where(functions.col(quote_name(sequence)).isNotNull())
        always = self._failing(ordered, JUDGED_PLACE, only=given)
        bad = reduce(DataFrame.unionByName, [frame.select(*JUDGED_PLACE) for frame in (together, *upserts)])
        fine = self._events.join(bad, list(JUDGED_PLACE), "left_anti")
        with self._views(together, fine) as (doubtful_view, fine_view):
            table = sql_table(self._target.url)
            unmatched = UnmatchedDeletes(doubtful_view, fine_view, table, self._by, self._bounds).text
            refused = self._spark.sql(unmatched).select(*JUDGED_PLACE, PROBLEM)
            return [refused] if always is None else [refused, always]

    def _failing(self, rows: DataFrame, kept: Sequence[str], only: Collection[str] | None = None) -> DataFrame | None:
        return self._bridge.violations(self._target.url, with_variants(rows, self._variants), kept, only)

    def _table(self) -> DataFrame:
        """The table's rows that the events may be about."""
        rows = self._spark.read.format("delta").load(spark_url(self._target.url)).alias("t")
        return reduce(lambda frame, bound: frame.where(bound), self._bounds, rows)

    def _expressions(self) -> Iterator[str]:
        yield from self._bridge.conditions(self._target.url)
        for field in schema_from_json(self._target.shape.schema):
            if GENERATED in field.metadata_json:
                yield field.metadata_json

    @contextmanager
    def _views(self, *frames: DataFrame) -> Iterator[list[str]]:
        names = [f"judged_events_{uuid.uuid4().hex}" for _ in frames]
        for name, frame in zip(names, frames, strict=True):
            frame.createOrReplaceTempView(name)
        try:
            yield names
        finally:
            for name in names:
                self._spark.catalog.dropTempView(name)

    def _quoted(self, names: Sequence[str]) -> list[str]:
        return [quote_name(name) for name in names]


_MOST_KEYS = 2000
_COUNT = f"{RESERVED}count"


class RepeatedKeys:
    """A `delta_loader.load.merged_keys.KeyReader` in one Spark session."""

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
