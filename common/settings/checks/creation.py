"""Checks a stream's settings for new tables, which the loader creates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.hints import did_you_mean
from common.settings.refusing import refuse
from common.tables.urls import comparable

if TYPE_CHECKING:
    from collections.abc import Collection

    from common.settings.stream import Stream

# Table properties that Delta itself writes, and that are specific to one table.
OF_ONE_TABLE = (
    "delta.columnMapping.maxColumnId",
    "delta.coordinatedCommits.",
    "delta.inCommitTimestampEnablement",
    "delta.rowTracking.materialized",
    "delta.universalFormat.",
    "io.unitycatalog.",
)


def check_creation(stream: Stream, columns: Collection[str]) -> None:
    """Raises ValueError for settings of new tables that contradict each other; ``columns`` are the table's."""
    strange = [name for name in stream.layout.uniform if name != "iceberg"]
    if strange:
        refuse(f"uniform names {strange[0]!r}; available: iceberg")
    if stream.layout.uniform:
        refuse(
            "uniform needs Delta's jar delta-iceberg, which does not exist for this version of Delta; remove uniform"
        )
    if stream.layout.cluster_by and stream.layout.partition_by:
        refuse("cluster_by and partition_by cannot be combined in Delta; remove one of them")
    for name in stream.layout.cluster_by:
        if name.split(".")[0] not in columns:
            hint = did_you_mean(name, columns, "declare it in columns, or derive it")
            refuse(f"cluster_by names {name!r}, which is not a column of the table; {hint}")
    for key in stream.layout.table_properties:
        if key.startswith(OF_ONE_TABLE):
            refuse(f"table_properties sets {key}, which only Delta may write; remove it")
    if stream.layout.template is not None and comparable(stream.layout.template) in map(comparable, stream.row_tables):
        refuse("template is one of the stream's own tables; name another one")
