"""Checks of a stream's columns, and of the settings that name one.

Rule: column names are case-insensitive, as in Spark and Delta.
"""

from collections.abc import Mapping, Sequence

from common.errors import SchemaError
from common.hints import did_you_mean
from common.schema import DataType, Field, Primitive, StructType, type_to_ddl
from common.settings.checks.creation import check_creation
from common.settings.columns import CDC_COLUMN, made_columns, naming_of, table_columns_of
from common.settings.kafka_columns import kafka_fields_of
from common.settings.refusing import refuse
from common.settings.stream import Stream
from common.tables.changes import HISTORY_COLUMNS, IS_CURRENT
from common.tables.clustering import INSTEAD, can_partition


def check_columns(stream: Stream) -> None:
    rescue = (stream.record.rescue_column,) if stream.record.rescues else ()
    events = (CDC_COLUMN,) if stream.record.has_events else ()
    _require_new(
        stream.record.schema_of_columns.names,
        {"rescue_column": rescue, "envelope": events, "derive": tuple(stream.shaping.derive)},
    )
    try:
        columns = table_columns_of(stream)
    except SchemaError as error:
        raise ValueError(f"{error.problem}; {error.remedy}") from None
    # the place of a staged row is no column of the table, and none of its columns may have such a name
    added = {"kafka_columns": stream.kafka_column_names, "include": stream.included_column_names}
    identity = stream.staged_identity or ()
    history = HISTORY_COLUMNS if stream.merge is not None and stream.merge.history else ()
    fields = {*stream.record.schema_of_columns.names, *made_columns(stream)}
    naming = naming_of(stream)
    rename = tuple(name for path, name in naming.rename.items() if len(path) == 1 and path[0] not in fields)
    _require_new(columns.names, {**added, "rename": rename, "load": identity, "merge.history": history})
    known = [*columns.names, *stream.kafka_column_names, *stream.included_column_names, *history]
    for name in stream.layout.partition_by:
        if name not in known:
            hint = did_you_mean(name, known, "declare it in columns, or derive it")
            refuse(f"partition_by names {name!r}, which is not a column of the table; {hint}")
    if len(set(stream.layout.partition_by)) < len(stream.layout.partition_by):
        refuse("partition_by has a column twice; name each once")
    _check_z_order(stream, known)
    made = made_columns(stream)
    typed = [field for field in columns if field.name not in made] + list(kafka_fields_of(stream))
    typed += [Field(name, Primitive.BOOLEAN) for name in history if name == IS_CURRENT]
    _check_partitioning(stream, {field.name: field.type for field in typed})
    check_creation(stream, known, StructType(tuple(typed)))


def _require_new(known: tuple[str, ...], added: Mapping[str, tuple[str, ...]]) -> None:
    """``added`` are names by the setting that adds the column."""
    taken = dict.fromkeys(map(str.casefold, known), "columns")
    for origin, names in added.items():
        for name in names:
            other = taken.get(name.casefold())
            if other is not None:
                refuse(f"{origin} makes the column {name!r}, which {other} has too; rename one of them")
            taken[name.casefold()] = origin


def _check_partitioning(stream: Stream, types: Mapping[str, DataType]) -> None:
    """Raise ValueError for partition columns whose values have no exact text; ``types`` are the known ones."""
    for name in stream.layout.partition_by:
        data_type = types.get(name, Primitive.STRING)
        if not can_partition(data_type):
            refuse(f"partition_by names {name!r}, which has the type {type_to_ddl(data_type)}; {INSTEAD}")


def _check_z_order(stream: Stream, known: Sequence[str]) -> None:
    """Raise ValueError for invalid Z-order columns; ``known`` are the table's."""
    columns = stream.table_services.z_order
    for name in columns:
        if name in stream.layout.partition_by:
            refuse(f"table_services.z_order names {name!r}, by which the table is partitioned; remove it")
        if name.split(".")[0] not in known:
            hint = did_you_mean(name, known, f"available: {', '.join(known)}")
            refuse(f"table_services.z_order names {name!r}, which is not a column of the table; {hint}")
    if len(set(columns)) < len(columns):
        refuse("table_services.z_order has a column twice; name each once")
