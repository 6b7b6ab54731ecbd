"""Which columns of staged rows carry the identity of their Kafka records (common/stage/row_places.py). Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from common.errors import SchemaError
from common.schema import schema_from_json
from common.settings.stream import KAFKA_COLUMNS

if TYPE_CHECKING:
    from common.stage.markers import StagedTable
    from common.stage.row_places import Place

_TOPIC, _PARTITION, _OFFSET, _ = KAFKA_COLUMNS


def place_of(table: StagedTable) -> Place | None:
    """The columns of staged files that carry each row's record identity; None if there are none."""
    if table.merge is not None:
        return table.merge.place
    return table.place or _kafkas(table.schema)


@lru_cache(maxsize=256)
def _kafkas(schema: str) -> Place | None:
    try:
        known = schema_from_json(schema).names
    except SchemaError:
        return None
    return (_TOPIC, _PARTITION, _OFFSET) if {_TOPIC, _PARTITION, _OFFSET} <= set(known) else None
