"""Finds records of which a table refuses a row, by Delta's own checks, before they are written.

Rules:

1. The checks are described in `RowChecks.java`; for events to be merged,
   `delta_loader.spark.merging.validation` describes what they apply to.
2. Rows that cannot be read at all (a damaged file) are left to the write: it fails with the reason, and holds the Kafka
   partition.
3. A value that is cast is refused where casting it back gives another one.
4. An event whose nulls leave what the table has is not checked: its row depends on the events before it. One that the
   table forbids fails the write, and holds the Kafka partition.
5. If nothing is refused, the cost is one scan of the columns that the checks use, and another where some are generated.
   A row's record identity is read only for rows that are refused.
"""

from collections.abc import Mapping, Sequence
from functools import partial, reduce

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, functions

from common.schema import quote_name, quote_text
from common.settings.stream import KAFKA_COLUMNS
from common.spans import Offset, Partition, Position, Span, Topic, TopicPartition
from common.stage.merged import ends_at, inputs_of
from common.tables.changes import IdentityColumns
from delta_loader.spark.bridge import PROBLEM, Bridge, spark_url, table_errors
from delta_loader.spark.merging.merge_writes import event_writes
from delta_loader.spark.merging.validation import MergeValidator
from delta_loader.spark.spark_writes import rows_of, staged_rows, with_variants
from delta_loader.tables.commits import DeadLetterRow, Target
from delta_loader.tables.file_split import SparkWrite
from delta_loader.tables.load_modes.casting import variants_of
from delta_loader.tables.load_modes.refused import REFUSED_BY_TABLE, RefusedRecord
from delta_loader.tables.merging.unmatched_deletes import JUDGED_PLACE


class ConstraintChecker:
    """A `delta_loader.load.ports.RefusalReader` in one Spark session."""

    def __init__(self, spark: SparkSession, stage_url: str) -> None:
        """Mixed files are below ``stage_url``."""
        self._spark = spark
        self._stage_url = stage_url
        self._bridge = Bridge(spark)

    def refused(self, target: Target, writes: Sequence[SparkWrite], most: int) -> list[RefusedRecord]:
        try:
            return self._refused(target, writes, most)
        except (Py4JError, PySparkException):
            return []  # rule 2

    def dead(self, url: str, topic_partition: TopicPartition, start: Position) -> list[RefusedRecord]:
        starts = {input_end.partition: int(input_end.position) for input_end in ends_at(topic_partition, start)}
        with _reading(url):
            rows = self._refused_before(url, topic_partition, starts)
            records = rows.select(*KAFKA_COLUMNS[:3], "error").distinct().collect()
            return [_record(name, number, offset, problem, None) for name, number, offset, problem in records]

    def dead_letters(self, url: str, partition: TopicPartition, span: Span, most: int) -> list[DeadLetterRow]:
        with _reading(url):
            offset, timestamp = map(functions.col, KAFKA_COLUMNS[2:])
            rows = self._refused_before(url, partition, {partition: int(span.start)}).where(offset < int(span.end))
            rows = rows.dropDuplicates(KAFKA_COLUMNS).orderBy(offset, timestamp).limit(most)
            return [
                DeadLetterRow(
                    partition, Offset(row[0]), row[1], _bytes(row[2]), _bytes(row[3]), REFUSED_BY_TABLE, row[4]
                )
                for row in rows.select(offset, functions.unix_millis(timestamp), "key", "value", "error").collect()
            ]

    def _refused_before(self, url: str, chain: TopicPartition, starts: Mapping[TopicPartition, int]) -> DataFrame:
        """The dead letters of a chain's refused records, from where its Kafka partitions start."""
        topic, partition, offset = map(functions.col, KAFKA_COLUMNS[:3])
        rows = self._spark.read.format("delta").load(spark_url(url))
        of = (
            (topic == input_partition.topic) & (offset >= starts.get(input_partition, 0))
            for input_partition in inputs_of(chain)
        )
        rows = rows.where(reduce(Column.__or__, of) & (partition == int(chain.partition)))
        return rows.where(functions.col("error_class") == REFUSED_BY_TABLE)

    def _refused(self, target: Target, writes: Sequence[SparkWrite], most: int) -> list[RefusedRecord]:
        if writes[0].shape.merge is not None:
            return self._events(target, writes, most)
        identity = writes[0].identity
        if identity is None or any(write.identity != identity for write in writes):
            return []  # the rows do not identify their records
        frames = [self._lossy(write, identity) for write in writes if write.casts]
        if target.load_mode.checks_rows:
            rows = rows_of(self._bridge, writes, self._stage_url, lossless=True, placed=True)
            rows = with_variants(rows, variants_of(target.shape.schema))
            refused = self._bridge.violations(target.url, rows, identity)
            frames += [] if refused is None else [refused]
        if not frames:
            return []
        failing = _refused_records(reduce(DataFrame.unionByName, frames), identity, most)
        return self._counted(failing, writes, identity) if failing else []

    def _counted(
        self, refused: Sequence[tuple[str, int, int, str]], writes: Sequence[SparkWrite], identity: IdentityColumns
    ) -> list[RefusedRecord]:
        """The records, with how many rows each would have had."""
        offsets = sorted({int(offset) for _, _, offset, _ in refused})
        identities = reduce(DataFrame.unionByName, [self._staged(write).select(*identity) for write in writes])
        several = identities.where(functions.col(identity[2]).isin(offsets)).groupBy(*identity).count().collect()
        counts = {(topic, partition, offset): count for topic, partition, offset, count in several}
        return [_record(*record, counts[record[:3]]) for record in refused]

    def _events(self, target: Target, writes: Sequence[SparkWrite], most: int) -> list[RefusedRecord]:
        """The refused events, each with how many rows it would have merged: one, unless its message has several."""
        by = writes[0].shape.merge
        frames = []
        if by is not None and any(write.casts for write in writes):
            lossy = (self._lossy(write, by.place) for write in event_writes(writes, by))
            frames += [frame.toDF(*JUDGED_PLACE, PROBLEM) for frame in lossy]
        if target.load_mode.checks_rows and by is not None and by.event_columns is None:
            refused = MergeValidator(self._bridge, target, writes, self._stage_url).refused()
            frames += [] if refused is None else [refused.select(*JUDGED_PLACE, PROBLEM)]
        if not frames:
            return []
        failing = _refused_records(reduce(DataFrame.unionByName, frames), JUDGED_PLACE, most)
        if by is None or not (by.row or by.element) or not failing:
            return [_record(*record, 1) for record in failing]
        return self._counted(failing, event_writes(writes, by), by.place)

    def _staged(self, write: SparkWrite) -> DataFrame:
        return staged_rows(self._bridge, write, self._stage_url, placed=True)

    def _lossy(self, write: SparkWrite, identity: IdentityColumns) -> DataFrame:
        """The record identities of rows where a cast would lose something, and the reason."""
        texts = [f"CASE WHEN {cast.loses} THEN {quote_text(cast.problem)} END" for cast in write.casts]
        problem = f"coalesce({', '.join(texts)}) AS {PROBLEM}"
        rows = self._staged(write).selectExpr(*map(quote_name, identity), problem)
        return rows.where(functions.col(PROBLEM).isNotNull())


_reading = partial(table_errors, "read", remedy="check the table, the store and Spark's rights to it; the log has more")


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def _refused_records(refused: DataFrame, identity: IdentityColumns, most: int) -> list[tuple[str, int, int, str]]:
    """Each record once, with the first of its problems."""
    rows = refused.groupBy(*identity).agg(functions.min(PROBLEM)).limit(most).collect()
    return [(topic, partition, offset, problem) for topic, partition, offset, problem in rows]


def _record(topic: str, partition: int, offset: int, problem: str, rows: int | None) -> RefusedRecord:
    return RefusedRecord(TopicPartition(Topic(topic), Partition(partition)), Offset(offset), problem, rows)
