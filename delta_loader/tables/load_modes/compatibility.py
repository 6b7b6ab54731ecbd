"""Whether staged files are compatible with a table: columns, types and partitioning, by load mode.

Rules:

1. A table's columns that a file lacks are null in its rows; that is Delta's own rule. A column that the table lacks, or
   a column with another type, is never loaded: rows would be lost or unreadable.
2. Names are compared as Parquet readers do, case-sensitively: Spark would forgive a difference, delta-rs would read
   nulls.
3. A file that is added has the table's partitioning. Where Spark writes, it splits the rows again, and a staged file's
   partitioning does not matter; but each partition column has to come from somewhere.
4. With ``casting`` (the stream's `evolution` is not strict) a type that Spark may cast to the table's is not a
   difference (casting.py); whether its values can be cast is checked record by record.
5. Where Spark writes, a column that Delta computes itself (generated, identity, default) need not be staged, and an
   identity column that is GENERATED ALWAYS must not be. A NOT NULL column has to come from somewhere.
6. A table that keeps every version of a row is not merged into as one that has a row for each key: each of the
   versions would be overwritten.
7. Missing columns are reported with the statement that adds them: a table that another tool created lacks Kafka's
   columns, and its owner would have to look their types up.
8. Dead letters in a table of rows, and rows in a table of dead letters, mean that the config names the wrong table: no
   statement that would mix them is offered.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace

from common.errors import NotCompatibleError, SchemaError
from common.remedies import delta_table
from common.schema.ddl import to_ddl, type_to_ddl
from common.schema.spark_json import schema_from_json
from common.schema.types import ArrayType, DataType, MapType, StructType
from common.settings.stream import INCLUDED_COLUMNS, KAFKA_COLUMNS
from common.tables.changes import HISTORY_COLUMNS, IS_CURRENT
from common.tables.dead_letters import are_dead_letters, is_for_another
from common.tables.schema_compatibility import (
    columns_setting,
    partitioning_problem,
    partitioning_setting,
    type_problems,
)
from common.tables.table_features import DEFAULT, GENERATED, IDENTITY, IDENTITY_TAKES_VALUES
from delta_loader.plan.plan import TableShape
from delta_loader.tables.load_modes.casting import cast_type, staged_form
from delta_loader.tables.load_modes.load_mode import PLAIN, LoadMode

_MADE_BY_DELTA = frozenset({GENERATED, IDENTITY, DEFAULT})


def require_compatible(
    table: TableShape,
    staged: TableShape,
    url: str,
    load_mode: LoadMode = PLAIN,
    *,
    casting: bool = False,
    restage: str = "",
    settings: Mapping[str, str] | None = None,
) -> None:
    """Raises NotCompatibleError, with the differences, when staged files are incompatible with the table.

    ``restage`` has the commands that stage the records again, once the stream's columns have changed. ``settings`` has
    the keys of the settings that make columns (`columns_setting`).
    """
    problems = differences(table, staged, load_mode, casting=casting)
    if problems:
        msg = f"what is staged is not compatible with the Delta table {url}: {'; '.join(problems)}"
        raise NotCompatibleError(
            msg, remedy_for(table, staged, url, "the stream's columns", load_mode, restage=restage, settings=settings)
        )


def remedy_for(
    table: TableShape,
    staged: TableShape,
    url: str,
    setting: str,
    load_mode: LoadMode = PLAIN,
    *,
    restage: str = "",
    settings: Mapping[str, str] | None = None,
) -> str:
    """The remedy for a difference: the statement itself where columns are missing, or another value of ``setting``.

    For a difference that no statement can remove, the setting that matches the table. ``restage`` and
    ``settings`` are as in `require_compatible`.
    """
    and_again = f" and {restage}" if restage else ""
    otherwise = f"{setting}{and_again}"
    try:
        there, columns = schema_from_json(table.schema), schema_from_json(staged.schema)
    except SchemaError:
        return f"load into a table whose columns are known here, or change {otherwise}"
    if is_for_another(there, columns):
        held, key = ("rows", "dead_letters") if are_dead_letters(columns) else ("dead letters", "table")
        return f"it has {held}: set {key} to another table (or were table and dead_letters swapped?){and_again}"
    known = {name.casefold() for name in there.names}
    missing = StructType(tuple(field for field in columns if field.name.casefold() not in known))
    if _overwrites_versions(there, staged):
        return f"set merge.history: true{and_again}; or load into a new table (another table, app_id and stage)"
    remedies = []
    if missing.fields:
        statement = f"ALTER TABLE {delta_table(url)} ADD COLUMNS ({to_ddl(missing)})"
        if staged.merge is not None and staged.merge.history and missing.field(IS_CURRENT):
            rows = f"SET {IS_CURRENT} = true WHERE {IS_CURRENT} IS NULL"
            statement += f", and if it has rows, UPDATE {delta_table(url)} {rows}"
        without = "; or set kafka_columns: false, so that rows have no offsets" if _has_kafkas(missing) else ""
        included = [part for part, name in INCLUDED_COLUMNS.items() if missing.field(name)]
        without += f"; or remove {' and '.join(included)} from include" if included else ""
        remedies.append(
            f"{statement}; or set evolution: add, so that the loader adds them{without}; or change {otherwise}"
        )
    wanted = list(type_problems(there, columns))
    written = [columns_setting(wanted, settings or {})] if wanted else []
    renamed = ", ".join(_renamed("", there, columns))
    if renamed:
        written.append(f"rename: {{{renamed}}}")
    if not load_mode.through_spark and table.partition_by != staged.partition_by:
        written.append(partitioning_setting(table.partition_by, columns))
    if written:
        remedies.append(
            "ALTER TABLE cannot change this, so the stream has to match the table: set "
            f"{' and '.join(written)}{and_again}; or load into a new table (another table, app_id and stage)"
        )
    return "; and ".join(remedies) or (
        f"change the table with ALTER TABLE {delta_table(url)} (a new column, a wider type, DROP NOT NULL, a name), or "
        f"set evolution: widen for wider numbers; or change {otherwise}"
    )


def _has_kafkas(columns: StructType) -> bool:
    return any(name in KAFKA_COLUMNS for name in columns.names)


def differences(
    table: TableShape, staged: TableShape, load_mode: LoadMode = PLAIN, *, casting: bool = False
) -> tuple[str, ...]:
    """The differences that keep files of one shape out of a table of another; empty when they are compatible."""
    try:
        columns, staged_columns = schema_from_json(table.schema), schema_from_json(staged.schema)
    except SchemaError as error:
        return (error.problem,)
    form = staged_form(columns) if load_mode.through_spark else columns
    if casting:
        staged_columns = _cast(form, staged_columns)
    problems = list(_struct_differences("", form, staged_columns))
    if _overwrites_versions(columns, staged):
        problems.append(
            f"it keeps every version of a row ({', '.join(HISTORY_COLUMNS)}), and its rows would be overwritten"
        )
    if load_mode.through_spark:
        problems += _not_made(columns, staged_columns, table.partition_by)
    elif problem := partitioning_problem(table.partition_by, staged.partition_by):
        problems.append(problem)
    return tuple(problems)


def _overwrites_versions(table: StructType, staged: TableShape) -> bool:
    """Whether rows would be merged by key alone into a table that has several for a key (rule 6)."""
    made = set(HISTORY_COLUMNS).difference(schema_from_json(staged.schema).names)
    return (
        staged.merge is not None and not staged.merge.history and made == {*HISTORY_COLUMNS} and made <= {*table.names}
    )


def _cast(table: StructType, staged: StructType) -> StructType:
    fields = []
    for field in staged:
        there = table.field(field.name)
        wanted = None if there is None else cast_type(there.type, field.type)
        fields.append(field if wanted is None else replace(field, type=wanted))
    return StructType(tuple(fields))


def _not_made(table: StructType, staged: StructType, partition_by: tuple[str, ...]) -> Iterator[str]:
    """Columns that Delta's writer would refuse altogether (rule 5)."""
    for field in table:
        metadata = json.loads(field.metadata_json)
        if staged.field(field.name) is not None:
            if IDENTITY in metadata and not metadata.get(IDENTITY_TAKES_VALUES):
                yield f"the column {field.name} is GENERATED ALWAYS AS IDENTITY, but values are staged for it"
        elif not metadata.keys() & _MADE_BY_DELTA:
            if field.name in partition_by:
                yield f"it is partitioned by {field.name}, which is not staged"
            elif not field.nullable:
                yield f"the column {field.name} is NOT NULL, but is not staged"
    yield from _nested_not_made("", table, staged)


def _nested_not_made(path: str, table: StructType, staged: StructType) -> Iterator[str]:
    for field in table:
        known = staged.field(field.name)
        if known is None:
            if path and not field.nullable:
                yield f"the column {path}{field.name} is NOT NULL, but is not staged"
        elif isinstance(field.type, StructType) and isinstance(known.type, StructType):
            yield from _nested_not_made(f"{path}{field.name}.", field.type, known.type)


def _struct_differences(path: str, table: StructType, staged: StructType) -> Iterator[str]:
    for field in staged:
        name, known = f"{path}{field.name}", table.field(field.name)
        if known is None:
            alike = _differing_in_case(field.name, table)
            yield f"the column {name} is not in it" + (f" (it has {alike})" if alike else "")
        else:
            yield from _type_differences(name, known.type, field.type)


def _differing_in_case(name: str, table: StructType) -> str | None:
    return next((other for other in table.names if other.casefold() == name.casefold()), None)


def _renamed(path: str, table: StructType, staged: StructType) -> Iterator[str]:
    """Fields that the table has in another case, and its names, as the setting `rename` wants them."""
    for field in staged:
        known = table.field(field.name)
        if known is None and field.name not in KAFKA_COLUMNS and (alike := _differing_in_case(field.name, table)):
            yield f"{path}{field.name}: {alike}"
        elif known is not None and isinstance(known.type, StructType) and isinstance(field.type, StructType):
            yield from _renamed(f"{path}{field.name}.", known.type, field.type)


def _type_differences(name: str, table: DataType, staged: DataType) -> Iterator[str]:
    if isinstance(table, StructType) and isinstance(staged, StructType):
        yield from _struct_differences(f"{name}.", table, staged)
    elif isinstance(table, ArrayType) and isinstance(staged, ArrayType):
        yield from _type_differences(f"{name}.element", table.element, staged.element)
    elif isinstance(table, MapType) and isinstance(staged, MapType):
        yield from _type_differences(f"{name}.key", table.key, staged.key)
        yield from _type_differences(f"{name}.value", table.value, staged.value)
    elif table != staged:
        yield f"the column {name} is {type_to_ddl(table)}, staged as {type_to_ddl(staged)}"
