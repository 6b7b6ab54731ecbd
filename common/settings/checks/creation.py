"""Checks a stream's settings for new tables, which the loader creates."""

from collections.abc import Collection

from common.hints import did_you_mean
from common.schema import StructType
from common.settings.refusing import refuse
from common.settings.stream import Stream
from common.tables.clustering import clustering_problem
from common.tables.urls import comparable

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
        if name.split(".")[0] not in known:
            hint = did_you_mean(name, known, "declare it in columns, or derive it")
            refuse(f"cluster_by names {name!r}, which is not a column of the table; {hint}")
    problem = clustering_problem(columns, clustered)
    if problem is not None:
        refuse(problem)
    if len(set(map(str.casefold, clustered))) < len(clustered):
        refuse("cluster_by has a column twice; name each once")
    if len(clustered) > _CLUSTERED:
        refuse(f"cluster_by names {len(clustered)} columns, and Delta clusters by up to {_CLUSTERED}")
