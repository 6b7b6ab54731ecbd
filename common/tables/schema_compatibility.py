"""Which of a stream's rows a Delta table of another shape can never take. Pure.

Rules:

1. Only differences that neither an ALTER TABLE nor any `evolution` of the stream can fix are reported here: writers
   stage everything else, and the loader waits for the fix.
2. Delta cannot change a table's partitioning. A data file that is added as it is must have it; where Spark writes the
   rows, it splits them again.
3. Numbers may be widened or cast to numbers, and dates to timestamps without a time zone. Text, bytes, booleans and
   structures are never read as each other. A VARIANT is made from JSON text.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from common.schema.ddl import type_to_ddl
from common.schema.types import INTEGER_BITS, ArrayType, DataType, DecimalType, MapType, Primitive, StructType
from common.tables.changes import IS_CURRENT

_FLOATS = (Primitive.FLOAT, Primitive.DOUBLE)
_DAYS = frozenset({Primitive.DATE, Primitive.TIMESTAMP_NTZ})


def partitioning_problem(table: Sequence[str], staged: Sequence[str]) -> str | None:
    """Why files of one partitioning cannot be added to a table of another; None where they are the same."""
    if tuple(table) == tuple(staged):
        return None
    return f"it is partitioned by {columns_text(table)}, staged by {columns_text(staged)}"


def columns_text(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"


def partitioning_setting(table: Sequence[str], staged: StructType) -> str:
    """The setting that gives a stream's files the table's partitioning."""
    setting = f"partition_by: [{', '.join(table)}]"
    missing = [name for name in table if name not in staged.names]
    return f"{setting} with {' and '.join(missing)} among the stream's columns" if missing else setting


@dataclass(frozen=True, slots=True)
class TypeProblem:
    """A column whose staged values the table's type can never take."""

    message: str
    column: str
    table: DataType
    staged: DataType


def type_problems(table: StructType, staged: StructType) -> Iterator[TypeProblem]:
    """The differences of each such column. Columns that the table lacks are left out: they can be added."""
    for field in staged:
        there = table.field(field.name)
        if there is not None:
            for problem in _problems(field.name, there.type, field.type):
                yield TypeProblem(problem, field.name, there.type, field.type)


def columns_setting(problems: Sequence[TypeProblem], settings: Mapping[str, str]) -> str:
    """What a stream has to say for columns of a table that it gives other types.

    ``settings`` has the keys of the settings that make columns, by the columns' names in lower case. The others are
    fields of records, of which those of another type are dead letters without coerce.
    """
    declared: list[str] = []
    made: dict[str, str] = {}
    for problem in {problem.column: problem for problem in problems}.values():
        name, kind = problem.column, type_to_ddl(problem.table)
        key = settings.get(name.casefold())
        if key == "explode":
            if problem.table == ArrayType(problem.staged):
                made[name] = "explode: null"
            else:
                declared.append(f"{name} ARRAY<{kind}>")
        elif key is None and problem.staged == ArrayType(problem.table) and "explode" not in settings.values():
            made[name] = f"explode: {name}"
        elif key is None:
            declared.append(f"{name} {kind}")
        elif key == "merge.sequence":
            if name != IS_CURRENT:
                none = "none, or " if kind == type_to_ddl(Primitive.TIMESTAMP) else ""
                made[key] = f"the merge.sequence of the table's versions ({none}a column of type {kind})"
        elif key.startswith("derive."):
            made[name] = f"an expression of type {kind} in {key} (CAST(… AS {kind}))"
        else:
            made[name] = f"another column in {key}"
    texts = list(made.values())
    if declared:
        named = ", ".join(declared)
        texts.insert(0, f"{named} in columns (with coerce: lenient, where records have another type)")
    return " and ".join(texts)


def _problems(name: str, table: DataType, staged: DataType) -> Iterator[str]:
    match table, staged:
        case StructType(), StructType():
            for field in staged:
                there = table.field(field.name)
                if there is not None:
                    yield from _problems(f"{name}.{field.name}", there.type, field.type)
        case ArrayType(), ArrayType():
            yield from _problems(f"{name}.element", table.element, staged.element)
        case MapType(), MapType():
            yield from _problems(f"{name}.key", table.key, staged.key)
            yield from _problems(f"{name}.value", table.value, staged.value)
        case _ if not _may_become(table, staged):
            yield f"the column {name} is {type_to_ddl(table)}, staged as {type_to_ddl(staged)}"


def _may_become(table: DataType, staged: DataType) -> bool:
    if table == staged or (_is_number(table) and _is_number(staged)):
        return True
    return {table, staged} == _DAYS or (table is Primitive.VARIANT and staged is Primitive.STRING)


def _is_number(data_type: DataType) -> bool:
    return data_type in INTEGER_BITS or isinstance(data_type, DecimalType) or data_type in _FLOATS
