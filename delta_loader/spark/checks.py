"""Delta's own checks of a table's rows, as expressions over rows that are not written yet.

Rules:

1. The checks are those that Delta's writer builds: NOT NULL at any depth, CHECK constraints, the lengths of CHAR and
   VARCHAR, staged values of generated columns; over the rows with their generated and default columns, as the writer
   makes them. Its expressions are evaluated unchanged, and a null does not pass, as in the writer.
2. A row for which a generated column cannot be computed is refused as well, without further checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, functions
from pyspark.sql.classic.column import Column

from common.schema import quote_name
from delta_loader.spark.generated import cannot_be_computed
from delta_loader.spark.variants import with_variants
from delta_loader.tables.load_modes.variants import variants_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from pyspark.sql import SparkSession

    from delta_loader.spark.gateway import Gateway, Java
    from delta_loader.tables.commits import Target

PROBLEM = "_kafka_delta_express_problem"
_LENGTHS = "__CHAR_VARCHAR_STRING_LENGTH_CHECK__"


class TableChecks:
    """The checks of one table."""

    def __init__(self, spark: SparkSession, gateway: Gateway, target: Target) -> None:
        self._spark = spark
        self._gateway = gateway
        self._target = target

    def failing(self, rows: DataFrame, kept: Sequence[str], only: Collection[str] | None = None) -> list[DataFrame]:
        """Frames of the rows that the table refuses: the kept columns, and why, in `PROBLEM`; empty without checks.

        ``kept`` are columns that the table may not have; unused columns are not computed. ``only``: limited to checks
        that use no other columns.
        """
        schema, frames, kept_as = self._target.shape.schema, [], [quote_name(name) for name in kept]
        rows = with_variants(rows, variants_of(schema))
        fails = cannot_be_computed(self._gateway, rows, schema)
        if fails is not None:
            if only is None:
                frames.append(rows.select(*kept_as, fails.alias(PROBLEM)))
            rows = rows.where(fails.isNull())
        made, problem = self._problem(rows, kept, only)
        if problem is not None:
            frames.append(made.select(*kept_as, problem.alias(PROBLEM)))
        return [frame.where(functions.col(PROBLEM).isNotNull()) for frame in frames]

    def _problem(
        self, rows: DataFrame, kept: Sequence[str], only: Collection[str] | None
    ) -> tuple[DataFrame, Column | None]:
        """The rows with all columns, and a column with the reason for refusal (null: none); None: no checks."""
        delta, session = self._gateway.delta, self._gateway.session
        log = self._gateway.log(self._target.url)
        transaction = log.startTransaction()
        metadata, java = transaction.metadata(), rows._jdf  # noqa: SLF001 - what Delta's classes take
        schema = metadata.schema()
        for name in kept:
            if name not in {str(known) for known in schema.fieldNames()}:
                schema = schema.add(java.schema().apply(name))  # otherwise Delta would leave it out
        made = delta.ColumnWithDefaultExprUtils.addDefaultExprsOrReturnConstraints(
            log,
            transaction.protocol(),
            java.queryExecution(),
            schema,
            java,
            False,  # noqa: FBT003 - Java knows no keywords
        )
        every = delta.constraints.Constraints.getAll(metadata, session).appendedAll(made._2())  # noqa: SLF001 - a Scala pair
        output = made._1().queryExecution().analyzed().output()  # noqa: SLF001 - the same
        checks = delta.constraints.DeltaInvariantCheckerExec.buildInvariantChecks(output, every, session)
        problem: Column | None = None
        for check in self._gateway.items(self._gateway.java(checks)):
            if only is not None and not set(self._about(check)) <= set(only):
                continue
            bad, text = self._bad(check)
            known = functions.when(bad, functions.lit(text))
            problem = known if problem is None else functions.coalesce(problem, known)
        return DataFrame(made._1(), self._spark), problem  # noqa: SLF001 - the same

    def _about(self, check: Java) -> Iterator[str]:
        """The columns that one of Delta's checks uses."""
        for attribute in self._gateway.items(self._gateway.java(check.child().references().toSeq())):
            yield str(attribute.name())

    def _bad(self, check: Java) -> tuple[Column, str]:
        """When a row does not pass one of Delta's checks, and the message for it."""
        sql = self._gateway.jvm.org.apache.spark.sql
        # A check that cannot be computed (a division by zero, a text that is not a number) does not pass either.
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
