"""SQL expressions over the rows of a stream, in DuckDB, on whole batches; and the steps of `where` and `derive`.

Rules:

1. An expression sees the columns that it is bound to and ``kafka``: topic, partition, offset, timestamp (with zone,
   UTC; null where Kafka has none), key (bytes), key_text (null where the key is not UTF-8), headers (a map from name to
   bytes; of several headers with one name the last one counts).
2. Expressions are checked at construction (see `expressions`) and bound to the columns' types, which determines their
   own types. For another type, cast in the expression.
3. A record whose expression fails is refused with the class ``expression_failed``; its neighbors are unaffected. Null
   is a value, not a failure. A time outside the years 1 to 9999 is a failure.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.errors import ExpressionError, SchemaError
from common.schema import (
    DataType,
    Field,
    Primitive,
    StructType,
    from_arrow_type,
    to_arrow_field,
    to_arrow_schema,
    to_arrow_type,
    type_to_ddl,
)
from stage_writer.decode.batch import NO_TIMESTAMP, Index, Mask, Messages, texts_of
from stage_writer.decode.rejects import ErrorClass, Reject
from stage_writer.shape.expressions import FAULTS, KAFKA, CheckedExpression, ExpressionChecker, connect, refused
from stage_writer.shape.headers import HEADER_MAP, header_maps, with_readable_headers
from stage_writer.shape.rows import Rows
from stage_writer.shape.spark_functions import DUCKDB_FOR

_KAFKA_PARTS: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "key": pa.binary(),
    "key_text": pa.string(),
    "headers": HEADER_MAP,
}
_CASTS = {"HUGEINT": "BIGINT or DECIMAL(38,0)", "VARIANT": "VARCHAR"}
_MISSING_FUNCTION = re.compile(r"Function with name (\w+) does not exist")
_DUCKDB_FUNCTIONS = "https://duckdb.org/docs/stable/sql/functions/overview"
_FIRST_YEAR, _LAST_YEAR = 1, 9999
_EXPLAINED_ONE_BY_ONE = 8


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The rows for which all expressions have a value, and these values, in the order of the expressions."""

    rows: Rows
    values: list[pa.ChunkedArray]


class Evaluator:
    """Evaluates expressions over rows. Not thread-safe.

    Raises ExpressionError for an expression that is incompatible with the columns.
    """

    def __init__(self, columns: StructType, expressions: Mapping[str, str]) -> None:
        """``expressions`` by the setting that each is from, such as ``derive.date``, so that errors can name it."""
        self._settings = ", ".join(expressions)
        self._connection = connect()
        checker = ExpressionChecker(columns.names)
        self._expressions = tuple(checker.check(setting, text) for setting, text in expressions.items())
        wanted = frozenset[str]().union(*(expression.kafka_parts for expression in self._expressions))
        own = KAFKA in {name.casefold() for name in columns.names}
        if wanted and own:
            problem = "a declared column is named kafka, so kafka.* is ambiguous"
            msg = f"{self._settings}: {problem}"
            raise ExpressionError(msg, "do not use kafka.* in expressions, or rename the field")
        self._kafka_parts = tuple(_KAFKA_PARTS) if "*" in wanted else tuple(sorted(wanted & set(_KAFKA_PARTS)))
        kafka = [] if own else [pa.field(KAFKA, _kafka_type(tuple(_KAFKA_PARTS)))]
        example = pa.schema([*to_arrow_schema(columns), *kafka]).empty_table()
        self.types = tuple(self._bind(expression, example) for expression in self._expressions)
        self._arrow_types = [to_arrow_type(data_type) for data_type in self.types]
        selected = enumerate(self._expressions)
        self._projection = ", ".join(f'(\n{expression.text}\n) AS "value {number}"' for number, expression in selected)

    @property
    def kafka_parts(self) -> frozenset[str]:
        return frozenset(self._kafka_parts)

    @property
    def needs_headers(self) -> bool:
        """Whether an expression uses ``kafka.headers``."""
        return "headers" in self._kafka_parts

    @property
    def needs_kafka(self) -> bool:
        """Whether an expression uses any part of ``kafka``."""
        return bool(self._kafka_parts)

    def evaluate(self, rows: Rows, messages: Messages) -> Evaluated:
        """The values for all rows except those that fail, which become rejects."""
        if self.needs_headers:
            rows = with_readable_headers(rows, messages)
        values, failures = self.evaluate_rows(rows, messages)
        if not failures:
            return Evaluated(rows, values)
        failing = np.zeros(len(rows), np.bool_)
        failing[list(failures)] = True
        whole = rows.whole(failing)
        if whole.sum() > len(failures):
            others = pa.array(~whole[~failing])
            values = [column.filter(others) for column in values]
        rejects = (Reject(int(rows.index[row]), ErrorClass.EXPRESSION_FAILED, why) for row, why in failures.items())
        return Evaluated(rows.without(failing, rejects), values)

    def evaluate_rows(self, rows: Rows, messages: Messages) -> tuple[list[pa.ChunkedArray], dict[int, str]]:
        """The values for the rows that do not fail, and why the others do, by their index; headers are readable."""
        source = rows.table
        if self._kafka_parts:
            source = source.append_column(KAFKA, _kafka_column(self._kafka_parts, rows.index, messages))
        return self._evaluate(source)

    def _bind(self, expression: CheckedExpression, example: pa.Table) -> DataType:
        try:
            relation = self._connection.from_arrow(example).project(f"(\n{expression.text}\n) AS bound")
            duck_type = str(relation.types[0])
            arrow_type = relation.to_arrow_table().schema.field(0).type
        except duckdb.Error as error:
            raise refused(expression.setting, expression.text, _first_line(error), _remedy(error)) from error
        for name, instead in _CASTS.items():
            if name in duck_type:
                problem = f"its type is {duck_type}, which Delta does not support"
                raise refused(expression.setting, expression.text, problem, f"cast it to {instead}")
        try:
            return from_arrow_type(arrow_type)
        except SchemaError as error:
            problem = f"its type is {duck_type}, which Delta does not support"
            raise refused(expression.setting, expression.text, problem, "cast it, for example to VARCHAR") from error

    def _evaluate(self, source: pa.Table) -> tuple[list[pa.ChunkedArray], dict[int, str]]:
        """The columns of the rows that do not fail, and why the others do, by their index in ``source``."""
        columns = self._values(source)
        if isinstance(columns, list):
            return columns, {}
        failing = self._failing(source)
        columns = self._values(source.filter(pa.array(~failing)))
        if isinstance(columns, str):  # a failure that TRY does not catch
            failing = self._failing_by_halves(source)
            columns = self._values(source.filter(pa.array(~failing)))
        if isinstance(columns, str):
            raise ExpressionError(f"{self._settings}: {columns}", "rewrite the expressions: they fail for all records")
        return columns, self._reasons(source, np.flatnonzero(failing).tolist())

    def _values(self, source: pa.Table) -> list[pa.ChunkedArray] | str:
        """The values; or the failure, when any row failed."""
        try:
            table = self._project(source, self._projection)
        except duckdb.Error as error:
            return _first_line(error)
        if table.num_rows != source.num_rows:
            raise RuntimeError("an expression changed the number of rows")
        columns = [column.cast(arrow_type) for column, arrow_type in zip(table.columns, self._arrow_types, strict=True)]
        if any(_beyond_calendar(column).any() for column in columns):
            return "the result is outside the years 1 to 9999"
        return columns

    def _failing(self, source: pa.Table) -> Mask:
        """The rows that fail, found all at once by DuckDB's TRY.

        One TRY per query: with two, DuckDB extracts their common part from both, and fails.
        """
        failing = np.zeros(len(source), np.bool_)
        for expression, arrow_type in zip(self._expressions, self._arrow_types, strict=True):
            try:
                tried = self._one_column(source, f"TRY(CASE WHEN (\n{expression.text}\n) IS NULL THEN 1 ELSE 0 END)")
                failing |= tried.combine_chunks().is_null().to_numpy(zero_copy_only=False)
                if pa.types.is_temporal(arrow_type):
                    failing |= _beyond_calendar(self._one_column(source, f"TRY(\n{expression.text}\n)"))
            except duckdb.Error:
                continue  # found by halving
        return failing

    def _failing_by_halves(self, source: pa.Table) -> Mask:
        failing = np.zeros(len(source), np.bool_)
        groups = [(0, len(source))]
        while groups:
            start, end = groups.pop()
            if isinstance(self._values(source.slice(start, end - start)), list):
                continue
            if end - start == 1:
                failing[start] = True
            else:
                middle = (start + end) // 2
                groups += [(start, middle), (middle, end)]
        return failing

    def _reasons(self, source: pa.Table, failing: Sequence[int]) -> dict[int, str]:
        """Why each row fails: exactly for the first ones, since a query for one row costs as much as for thousands."""
        names = ", ".join(f"{expression.setting}: {expression.text.strip()}" for expression in self._expressions)
        general = f"an expression failed for this record ({names})"
        exact = {row: self._why(source.slice(row, 1)) for row in failing[:_EXPLAINED_ONE_BY_ONE]}
        return {row: exact.get(row) or general for row in failing}

    def _one_column(self, source: pa.Table, text: str) -> pa.ChunkedArray:
        return self._project(source, f"{text} AS found").column(0)

    def _project(self, source: pa.Table, projection: str) -> pa.Table:
        try:
            return self._connection.from_arrow(source).project(projection).to_arrow_table()
        except FAULTS:  # here or in another evaluator, whose instance this was as well
            self._connection = connect()
            return self._connection.from_arrow(source).project(projection).to_arrow_table()

    def _why(self, row: pa.Table) -> str | None:
        """Why one row fails, naming the expression; None when it does not."""
        for expression, arrow_type in zip(self._expressions, self._arrow_types, strict=True):
            try:
                value = self._one_column(row, f"(\n{expression.text}\n)")
            except duckdb.Error as error:
                return f"{expression.setting}: {_first_line(error)}"
            if _beyond_calendar(value.cast(arrow_type)).any():
                return f"{expression.setting}: the result is outside the years {_FIRST_YEAR} to {_LAST_YEAR}"
        return None


def _remedy(error: duckdb.Error) -> str:
    missing = _MISSING_FUNCTION.search(str(error))
    if missing is None:
        return "make it match the declared fields and their types"
    instead = DUCKDB_FOR.get(missing[1])
    if instead is None:
        return f"expressions are DuckDB's SQL: use one of its functions ({_DUCKDB_FUNCTIONS})"
    return f"expressions are DuckDB's SQL, in which Spark's {missing[1]} is written {instead}"


def _first_line(error: duckdb.Error) -> str:
    return str(error).split("\n\n", 1)[0].splitlines()[0].strip() if str(error) else type(error).__name__


def _beyond_calendar(column: pa.ChunkedArray) -> Mask:
    """Which dates and timestamps are infinite, or in years that Delta's readers do not support."""
    if not (pa.types.is_date(column.type) or pa.types.is_timestamp(column.type)):
        return np.zeros(len(column), np.bool_)
    days = column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
    unit = 1 if pa.types.is_date32(column.type) else 86_400 * _UNITS[column.type.unit]
    first, end = -719_162 * unit, 2_932_897 * unit
    outside = pc.fill_null(pc.or_(pc.less(days, first), pc.greater_equal(days, end)), fill_value=False)
    mask: Mask = outside.to_numpy()
    return mask


_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000}


def _kafka_type(parts: Sequence[str]) -> pa.DataType:
    return pa.struct([(part, _KAFKA_PARTS[part]) for part in parts])


def _kafka_column(parts: Sequence[str], row_index: Index, messages: Messages) -> pa.StructArray:
    arrays = [_kafka_part(part, row_index, messages) for part in parts]
    return pa.StructArray.from_arrays(arrays, fields=[pa.field(part, _KAFKA_PARTS[part]) for part in parts])


def _kafka_part(part: str, row_index: Index, messages: Messages) -> pa.Array:  # noqa: PLR0911 - one for each part
    match part:
        case "topic":
            return messages.topics(row_index)
        case "partition":
            return messages.partitions(row_index)
        case "offset":
            return pa.array(messages.offsets[row_index], pa.int64())
        case "timestamp":
            stamps = messages.timestamps_ms[row_index]
            return pa.array(stamps * 1000, pa.int64(), mask=stamps == NO_TIMESTAMP).view(pa.timestamp("us", tz="UTC"))
        case "key":
            return messages.keys.take(pa.array(row_index)).cast(pa.binary())
        case "key_text":
            return texts_of(messages.keys.take(pa.array(row_index)).cast(pa.binary()))
        case _:
            return header_maps(messages, row_index)


SETTING = "where"


class Condition:
    """Filters records: a `Step`. Raises ExpressionError if it is not a condition over the columns."""

    def __init__(self, columns: StructType, where: str) -> None:
        self.columns = columns
        self._evaluator = Evaluator(columns, {SETTING: where})
        self.needs_headers = self._evaluator.needs_headers
        self.needs_kafka = self._evaluator.needs_kafka
        (data_type,) = self._evaluator.types
        if data_type is not Primitive.BOOLEAN:
            problem = f"its type is {type_to_ddl(data_type)}, but a condition must be true or false"
            raise refused(SETTING, where, problem, "compare it with something, as in status >= 400")

    def apply(self, rows: Rows, messages: Messages) -> Rows:
        """The rows for which the condition is true; a row whose condition fails becomes a reject."""
        evaluated = self._evaluator.evaluate(rows, messages)
        rows, (matches,) = evaluated.rows, evaluated.values
        true = pc.fill_null(matches, fill_value=False).to_numpy()
        if true.all():
            return rows
        left_out = np.setdiff1d(rows.index[~true], rows.index[true])  # of several rows of a message some may be kept
        filtered = np.sort(np.concatenate([rows.filtered, left_out]))
        return replace(rows, table=rows.table.filter(pa.array(true)), index=rows.index[true], filtered=filtered)


class Deriver:
    """Adds derived columns: a `Step`.

    Raises ExpressionError for an expression that is incompatible with the columns, or a name that is already taken.
    """

    def __init__(self, columns: StructType, derive: Mapping[str, str]) -> None:
        declared = {name.casefold() for name in columns.names}
        for name, text in derive.items():
            if name.casefold() in declared:
                problem = f"the column `{name}` is already declared in `columns`"
                raise refused(_setting(name), text, problem, "rename the derived column, or remove the declared one")
        self._evaluator = Evaluator(columns, {_setting(name): text for name, text in derive.items()})
        self.needs_headers = self._evaluator.needs_headers
        self.needs_kafka = self._evaluator.needs_kafka
        fields = [Field(name, data_type) for name, data_type in zip(derive, self._evaluator.types, strict=True)]
        self.columns = columns.with_fields(fields)
        self._added = [to_arrow_field(field) for field in fields]

    def apply(self, rows: Rows, messages: Messages) -> Rows:
        """The rows with their derived columns; one whose expression fails becomes a reject."""
        evaluated = self._evaluator.evaluate(rows, messages)
        table = evaluated.rows.table
        for field, values in zip(self._added, evaluated.values, strict=True):
            table = table.append_column(field, values)
        return evaluated.rows.with_table(table)


def _setting(name: str) -> str:
    return f"derive.{name}"
