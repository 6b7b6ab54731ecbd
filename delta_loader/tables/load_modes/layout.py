"""The properties of a new table other than its columns and partitioning, and the parts copied from a template. Pure.

Rules:

1. From a template come the columns with all their constraints on rows (NOT NULL, generated, identity, default), the
   partitioning, the clustering and the properties (constraints among them), as with CREATE TABLE … LIKE. What Delta
   wrote for that very table (ids of column mapping, high-water marks, earlier types) is not copied.
2. The stream's settings override the template.
3. A table that would not accept the staged rows is not created: it would exist and be in the way of a better one.
4. Delta clusters only by columns with statistics, by default the first 32: a new table has them of more where its
   clustering needs it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from common.schema.spark_json import schema_from_json, schema_to_json
from common.schema.types import ArrayType, DataType, DecimalType, MapType, Primitive, StructType
from common.settings import Stream
from common.settings.checks.columns import OF_ONE_TABLE
from common.tables.clustering import INDEXED_COLUMNS, columns_with_statistics
from common.tables.state import TableState
from delta_loader.plan.plan import TableShape

_INDEXED, _WITH_STATISTICS = "delta.dataSkippingNumIndexedCols", "delta.dataSkippingStatsColumns"
_OF_ONE_COLUMN = ("delta.columnMapping.", "delta.identity.highWaterMark", "delta.typeChanges")
_SUPPORTED = "delta.feature.{}"
_NAMED = ("allowColumnDefaults",)
"""Features that Delta does not infer from columns and properties."""


@dataclass(frozen=True, slots=True)
class Layout:
    properties: Mapping[str, str] = field(default_factory=dict)
    cluster_by: tuple[str, ...] = ()

    def partitioned_by(self, columns: tuple[str, ...]) -> Layout:
        """This layout for a partitioned table, which cannot be clustered."""
        return replace(self, cluster_by=()) if columns else self


@dataclass(frozen=True, slots=True)
class Template:
    state: TableState
    cluster_by: tuple[str, ...]


def layout_of(stream: Stream) -> Layout:
    return Layout(dict(stream.layout.table_properties), stream.layout.cluster_by)


def like(template: Template, stream: Stream) -> tuple[TableShape, Layout]:
    """A new table's shape and layout, copied from another one (rules 1 and 2)."""
    state = template.state
    columns = _for_new_table(schema_from_json(state.schema))
    partition_by = () if stream.layout.cluster_by else state.partition_by
    kept = {key: value for key, value in state.properties.items() if not key.startswith(OF_ONE_TABLE)}
    named = {_SUPPORTED.format(name): "supported" for name in _NAMED if name in state.features}
    layout = Layout(
        {**kept, **named, **stream.layout.table_properties}, stream.layout.cluster_by or template.cluster_by
    )
    return TableShape(schema_to_json(columns), partition_by), layout.partitioned_by(partition_by)


def with_statistics(layout: Layout, columns: StructType) -> Layout:
    """The layout of a table with these columns (rule 4)."""
    wanted = columns_with_statistics(columns, layout.cluster_by)
    if wanted <= INDEXED_COLUMNS or not layout.properties.keys().isdisjoint((_INDEXED, _WITH_STATISTICS)):
        return layout
    return replace(layout, properties={**layout.properties, _INDEXED: str(wanted)})


def _for_new_table(columns: StructType) -> StructType:
    return StructType(
        tuple(
            replace(
                column,
                type=_type_for_new_table(column.type),
                metadata_json=_metadata_for_new_table(column.metadata_json),
            )
            for column in columns
        )
    )


def _type_for_new_table(data_type: DataType) -> DataType:
    match data_type:
        case StructType():
            return _for_new_table(data_type)
        case ArrayType(element):
            return replace(data_type, element=_type_for_new_table(element))
        case MapType(key, value):
            return replace(data_type, key=_type_for_new_table(key), value=_type_for_new_table(value))
        case Primitive() | DecimalType():
            return data_type


def _metadata_for_new_table(text: str) -> str:
    kept = {key: value for key, value in json.loads(text).items() if not key.startswith(_OF_ONE_COLUMN)}
    return json.dumps(kept, separators=(",", ":"), ensure_ascii=False)
