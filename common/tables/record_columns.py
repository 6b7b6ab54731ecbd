"""The columns of a Delta table that a stream's records fill, for `columns: from_table` and the like.

Rule: everything else in the table is made by this program (Kafka's columns, the rescue column, the description of a
change, a soft delete), by the stream's expressions (`derive`), or by Delta (generated and identity columns). What the
program makes by other settings, which the stream may have had before, is not a record's either: so a stream that merges
without `history` does not take a table that keeps versions for one of its own, and overwrite them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from common.schema import StructType, schema_from_json
from common.settings.columns import CDC_COLUMN, made_columns
from common.settings.merging import columns_of_merge
from common.settings.stream import INCLUDED_COLUMNS, KAFKA_COLUMNS
from common.tables.changes import HISTORY_COLUMNS

if TYPE_CHECKING:
    from common.schema import Field
    from common.settings import Stream

_MADE_BY_DELTA = ("delta.generationExpression", "delta.identity.start")


def record_columns(stream: Stream, schema: str) -> StructType:
    """The columns of a table's schema for a record's fields, with its types. Raises SchemaError for an unknown type."""
    ours = (stream.rescue_column, CDC_COLUMN, *KAFKA_COLUMNS, *INCLUDED_COLUMNS.values())
    made = {name.casefold() for name in (*made_columns(stream), *ours, *columns_of_merge(stream))}
    columns = schema_from_json(schema)
    names = {field.name.casefold() for field in columns}
    if stream.merge is not None and names.issuperset(HISTORY_COLUMNS):
        made |= {*HISTORY_COLUMNS}
    return StructType(tuple(field for field in columns if field.name.casefold() not in made and not _by_delta(field)))


def _by_delta(field: Field) -> bool:
    return not json.loads(field.metadata_json).keys().isdisjoint(_MADE_BY_DELTA)
