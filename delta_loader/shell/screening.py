"""Finds rows that a table refuses, by Delta's own checks, before they are written.

Rules:

1. The checks are those that Delta's writer builds: NOT NULL at any depth, CHECK constraints, the lengths of CHAR and
   VARCHAR, staged values of generated columns; over the rows with their generated and default columns, as it makes
   them.
   Its expressions are evaluated as they are, and a null is no pass, as there.
2. A row of which a generated column cannot be computed is refused as well, and looked at no further.
   Rows that cannot be looked at at all (a damaged file) are for the write to fail at: it says why, and holds the Kafka
   partition.
3. A value that is cast is refused where casting it back gives another one.
4. On the good path it is one scan of the columns that the checks are about, and another where some are generated.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, functions
from pyspark.sql.classic.column import Column

from common.schema import quote_text
from common.spans import Offset, Partition, Topic, TopicPartition
from delta_loader.core.ways.refused import REFUSED_BY_TABLE, RefusedRecord
from delta_loader.core.ways.variants import variants_of
from delta_loader.core.ways.way import checks_rows
from delta_loader.shell.gateway import Gateway, Java, table_errors
from delta_loader.shell.generated import cannot_be_computed
from delta_loader.shell.spark import spark_url
from delta_loader.shell.spark_writes import rows_of, staged_rows
from delta_loader.shell.variants import with_variants

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from common.spans import Position
    from delta_loader.core.commits import Target
    from delta_loader.core.shares import SparkWrite

_PLACE = ("_kafka_topic", "_kafka_partition", "_kafka_offset")
_PROBLEM = "_kafka_delta_express_problem"
_LENGTHS = "__CHAR_VARCHAR_STRING_LENGTH_CHECK__"


class SparkScreener:
    """A `delta_loader.streams.refusals.Screener` in one Spark session."""

    def __init__(self, spark: SparkSession, stage_url: str) -> None:
        """What waits for Spark lies below ``stage_url``."""
        self._spark = spark
        self._stage_url = stage_url
        self._gateway = Gateway(spark)

    def refused(self, target: Target, writes: Sequence[SparkWrite], most: int) -> list[RefusedRecord]:
        """The records of which the table refuses a row, at most so many; none where the rows cannot be looked at."""
        try:
            return self._refused(target, writes, most)
        except (Py4JError, PySparkException):
            return []  # rule 2

    def dead(self, url: str, source: TopicPartition, start: Position) -> list[RefusedRecord]:
        """The records from ``start`` on that a dead-letter table has because they were refused."""
        with table_errors("read", url, "check the table, the store and Spark's rights to it; the log has more"):
            topic, partition, offset = map(functions.col, _PLACE)
            rows = self._spark.read.format("delta").load(spark_url(url))
            rows = rows.where((topic == source.topic) & (partition == int(source.partition)) & (offset >= int(start)))
            rows = rows.where(functions.col("error_class") == REFUSED_BY_TABLE).select(offset, "error").distinct()
            return [RefusedRecord(source, Offset(found), problem, None) for found, problem in rows.collect()]

    def _refused(self, target: Target, writes: Sequence[SparkWrite], most: int) -> list[RefusedRecord]:
        frames = [self._lossy(write) for write in writes if write.casts]
        if checks_rows(target.way):
            rows = DataFrame(rows_of(self._gateway, writes, self._stage_url, lossless=True), self._spark)
            rows = with_variants(rows, variants_of(target.shape.schema))
            fails = cannot_be_computed(self._gateway, rows, target.shape.schema)
            if fails is not None:
                frames.append(rows.select(*_PLACE, fails.alias(_PROBLEM)))
                rows = rows.where(fails.isNull())
            checked, problem = self._problem(target, rows)
            if problem is not None:
                frames.append(checked.select(*_PLACE, problem.alias(_PROBLEM)))
        if not frames:
            return []
        bad = reduce(DataFrame.unionByName, frames).where(functions.col(_PROBLEM).isNotNull())
        found = bad.groupBy(*_PLACE).agg(functions.min(_PROBLEM)).limit(most).collect()
        if not found:
            return []
        offsets = sorted({int(row[2]) for row in found})
        staged = [DataFrame(staged_rows(self._gateway, write, self._stage_url), self._spark) for write in writes]
        places = reduce(DataFrame.unionByName, [rows.select(*_PLACE) for rows in staged])
        several = places.where(functions.col(_PLACE[2]).isin(offsets)).groupBy(*_PLACE).count().collect()
        counts = {(topic, partition, offset): count for topic, partition, offset, count in several}
        return [
            RefusedRecord(
                TopicPartition(Topic(topic), Partition(partition)),
                Offset(offset),
                problem,
                counts[topic, partition, offset],
            )
            for topic, partition, offset, problem in found
        ]

    def _lossy(self, write: SparkWrite) -> DataFrame:
        """Where the rows of a write are from, and what a cast would lose of them."""
        rows = DataFrame(staged_rows(self._gateway, write, self._stage_url), self._spark)
        texts = [f"CASE WHEN {cast.loses} THEN {quote_text(cast.problem)} END" for cast in write.casts]
        return rows.selectExpr(*_PLACE, f"coalesce({', '.join(texts)}) AS {_PROBLEM}")

    def _problem(self, target: Target, rows: DataFrame) -> tuple[DataFrame, Column | None]:
        """The rows with all columns, and what says why the table refuses one (null: it does not); None: no checks."""
        delta, session = self._gateway.delta, self._gateway.session
        log = self._gateway.log(target.url)
        transaction = log.startTransaction()
        metadata, java = transaction.metadata(), rows._jdf  # noqa: SLF001 - what Delta's classes take
        made = delta.ColumnWithDefaultExprUtils.addDefaultExprsOrReturnConstraints(
            log,
            transaction.protocol(),
            java.queryExecution(),
            metadata.schema(),
            java,
            False,  # noqa: FBT003 - Java knows no keywords
        )
        every = delta.constraints.Constraints.getAll(metadata, session).appendedAll(made._2())  # noqa: SLF001 - a Scala pair
        output = made._1().queryExecution().analyzed().output()  # noqa: SLF001 - the same
        checks = self._gateway.java(
            delta.constraints.DeltaInvariantCheckerExec.buildInvariantChecks(output, every, session)
        )
        problem: Column | None = None
        for check in checks:
            bad, text = self._bad(check)
            known = functions.when(bad, functions.lit(text))
            problem = known if problem is None else functions.coalesce(problem, known)
        return DataFrame(made._1(), self._spark), problem  # noqa: SLF001 - the same

    def _bad(self, check: Java) -> tuple[Column, str]:
        """When a row does not pass one of Delta's checks, and what to say then."""
        sql = self._gateway.jvm.org.apache.spark.sql
        # A check that cannot be computed (a division by zero, a text that is no number) is not passed either.
        tried = sql.catalyst.expressions.TryEval(check.child())
        column, constraint = Column(sql.classic.ExpressionUtils.column(tried)), check.constraint()
        if constraint.getClass().getSimpleName() == "NotNull":
            return column.isNull(), f"{constraint.column().mkString('.')} is null, and the column is NOT NULL"
        name, condition = str(constraint.name()), str(constraint.expression().sql())
        text = (
            f"a text is too long: {condition}"
            if name == _LENGTHS
            else f"the constraint {name} fails or cannot be computed: {condition}"
        )
        return ~functions.coalesce(column, functions.lit(False)), text  # noqa: FBT003 - a literal
