"""Checks of a stream's columns, of the settings that name one, and of those for new tables.

Rule: column names are case-insensitive, as in Spark and Delta.
"""

from collections.abc import Collection, Mapping, Sequence

from common.errors import SchemaError
from common.hints import did_you_mean
from common.schema import DataType, Field, Primitive, StructType, type_to_ddl
from common.settings.columns import CDC_COLUMN, kafka_fields_of, made_columns, naming_of, table_columns_of
from common.settings.section import refuse
from common.settings.stream import Stream
from common.tables.changes import HISTORY_COLUMNS, IS_CURRENT
from common.tables.clustering import INSTEAD, can_partition, clustering_problem
from common.tables.urls import comparable


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
        require_column("partition_by", name, name, known)
    _require_once("partition_by", stream.layout.partition_by)
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


_ADD = "declare it in columns, or derive it"


def require_column(setting: str, name: str, column: str, known: Collection[str], otherwise: str = _ADD) -> None:
    """Raise ValueError for a name whose first step, ``column``, the table does not have; ``otherwise`` is a remedy."""
    if column not in known:
        hint = did_you_mean(name, known, otherwise)
        refuse(f"{setting} names {name!r}, which is not a column of the table; {hint}")


def _require_once(setting: str, names: Sequence[str]) -> None:
    if len(set(map(str.casefold, names))) < len(names):
        refuse(f"{setting} has a column twice; name each once")


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
        require_column("table_services.z_order", name, name.split(".")[0], known, f"available: {', '.join(known)}")
    _require_once("table_services.z_order", columns)


# Table properties that Delta itself writes, and that are specific to one table.
OF_ONE_TABLE = (
    "delta.columnMapping.maxColumnId",
    "delta.coordinatedCommits.",
    "delta.inCommitTimestampEnablement",
    "delta.rowTracking.materialized",
    "delta.universalFormat.",
    "io.unitycatalog.",
)

_CLUSTERED = 4
"""The most columns that Delta clusters by."""


def check_creation(stream: Stream, known: Collection[str], columns: StructType) -> None:
    """Raises ValueError for settings of new tables that contradict each other, or that Delta refuses.

    ``known`` are the names of the table's columns, ``columns`` those whose types are known.
    """
    strange = [name for name in stream.layout.uniform if name != "iceberg"]
    if strange:
        refuse(f"uniform names {strange[0]!r}; available: iceberg")
    if stream.layout.uniform:
        refuse(
            "uniform needs Delta's jar delta-iceberg, which does not exist for this version of Delta; remove uniform"
        )
    _check_clustering(stream, known, columns)
    for key in stream.layout.table_properties:
        if key.startswith(OF_ONE_TABLE):
            refuse(f"table_properties sets {key}, which only Delta may write; remove it")
    if stream.layout.template is not None and comparable(stream.layout.template) in map(comparable, stream.row_tables):
        refuse("template is one of the stream's own tables; name another one")


def _check_clustering(stream: Stream, known: Collection[str], columns: StructType) -> None:
    clustered = stream.layout.cluster_by
    if clustered and stream.layout.partition_by:
        refuse("cluster_by and partition_by cannot be combined in Delta; remove one of them")
    for name in clustered:
        require_column("cluster_by", name, name.split(".")[0], known)
    problem = clustering_problem(columns, clustered)
    if problem is not None:
        refuse(problem)
    _require_once("cluster_by", clustered)
    if len(clustered) > _CLUSTERED:
        refuse(f"cluster_by names {len(clustered)} columns, and Delta clusters by up to {_CLUSTERED}")
