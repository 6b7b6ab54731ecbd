"""Vectorized steps of a topology: on whole batches of columns, in Arrow and DuckDB, like `where` and `derive`.

Rules:

1. A step is bound to its input columns when the topology is checked; mismatches are found then.
2. A step accounts for the rows that it removes, like every step of a stream (`stage_writer.shape.rows`).
3. Before a processor an expression sees ``kafka`` too. After one it does not: forwarded records have no position in
   Kafka of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from common.errors import SchemaError
from common.schema import Field, StructType, parse_ddl, to_arrow_field, to_arrow_schema
from stage_writer.decode.batch import Messages
from stage_writer.shape.evaluation import Condition, Deriver, Evaluator
from stage_writer.topologies.errors import TopologyError

if TYPE_CHECKING:
    from stage_writer.shape.rows import Rows, Step


class BatchStep(Protocol):
    def bind(self, columns: StructType) -> Step:
        """The step over these columns. Raises SchemaError or ExpressionError for incompatible ones."""


@dataclass(frozen=True, slots=True)
class Where:
    """Keeps the records for which a SQL condition is true."""

    condition: str

    def bind(self, columns: StructType) -> Step:
        return Condition(columns, self.condition)


@dataclass(frozen=True, slots=True)
class Derive:
    """Adds columns that are SQL expressions over the others."""

    expressions: Mapping[str, str] = field(hash=False)

    def bind(self, columns: StructType) -> Step:
        return Deriver(columns, self.expressions)


@dataclass(frozen=True, slots=True)
class Select:
    """Returns only these columns, each a SQL expression."""

    expressions: Mapping[str, str] = field(hash=False)

    def bind(self, columns: StructType) -> Step:
        return _Selection(columns, self.expressions)


@dataclass(frozen=True, slots=True)
class MapBatches:
    """A user's function from an Arrow table to one with ``columns``, row by row in the same order."""

    function: Callable[[pa.Table], pa.Table]
    columns: str
    """A column list, as in a stream's `columns`."""

    def bind(self, columns: StructType) -> Step:
        del columns
        return _Mapped(self.function, parse_ddl(self.columns))


class _Selection:
    def __init__(self, columns: StructType, expressions: Mapping[str, str]) -> None:
        if not expressions:
            raise SchemaError("a Select has no columns", "give it at least one: name = expression")
        self._evaluator = Evaluator(columns, {f"select.{name}": text for name, text in expressions.items()})
        self.needs_headers = self._evaluator.needs_headers
        self.needs_kafka = self._evaluator.needs_kafka
        fields = [Field(name, data_type) for name, data_type in zip(expressions, self._evaluator.types, strict=True)]
        self.columns = StructType(tuple(fields))
        self._schema = pa.schema([to_arrow_field(field) for field in fields])

    def apply(self, rows: Rows, messages: Messages) -> Rows:
        """The rows with these columns; a row for which an expression fails is refused."""
        evaluated = self._evaluator.evaluate(rows, messages)
        return evaluated.rows.with_table(pa.table(evaluated.values, schema=self._schema))


class _Mapped:
    needs_headers = False

    def __init__(self, function: Callable[[pa.Table], pa.Table], columns: StructType) -> None:
        self.columns = columns
        self._function = function
        self._schema = to_arrow_schema(columns)

    def apply(self, rows: Rows, messages: Messages) -> Rows:
        """The function's rows. Raises TopologyError when it fails: no single record is to blame."""
        del messages
        name = getattr(self._function, "__name__", repr(self._function))
        remedy = "fix the function; it must return a row for each that it receives, with the columns that it declares"
        try:
            given = self._function(rows.table)
            table = given.select(self._schema.names).cast(self._schema)
        except Exception as error:
            msg = f"the function {name} of a batch step failed: {type(error).__name__}: {error}"
            raise TopologyError(msg, remedy) from error
        if len(table) != len(rows):
            msg_0 = f"the function {name} of a batch step returned {len(table)} rows for {len(rows)}"
            raise TopologyError(msg_0, remedy)
        return rows.with_table(table)
