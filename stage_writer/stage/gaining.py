"""Columns for fields that no column reads: a writer agrees on them in the stage before it stages a value in one.

Rules:

1. The next version is made by exclusive create (common/stage/evolved.py). Of two writers that infer different types, or
   a writer and a loader, the second one reads what the first one made, and uses its types.
2. The types of the tables come first, those of the main one before others that gain the same columns, then the
   published ones, then those that the records show (common/schema/agreement.py). A table that does not exist yet, or
   that this process cannot read, is no obstacle: the loader, which reads it at each load, publishes its types.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from common.errors import StoreError
from common.schema import schema_from_json
from common.schema.agreement import PublishedColumns, agree, joined_offers
from common.schema.evolution import NO_COLUMNS, extended
from common.settings.own_columns import columns_at, tables_by_part, with_columns_at
from common.stage.evolved import Evolved, latest, publish
from common.tables.delta_log import read_table_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from common.ports import Clock, ObjectStore
    from common.schema import StructType
    from common.settings import Stream

_ATTEMPTS = 20


def gain_columns(
    stage: ObjectStore,
    open_table: Callable[[str], ObjectStore],
    clock: Clock,
    stream: Stream,
    offers: Mapping[str, StructType],
) -> Evolved:
    """The stream's gained columns, with those of ``offers`` that it can gain; these are by marker.

    Raises StoreError and MarkerError.
    """
    offered, declared = joined_offers(offers.values()), stream.record.schema_of_columns
    tables = _tables(stream, offered, open_table)
    by_route = stream.gains_by_table
    if by_route:
        declared = NO_COLUMNS
    for _ in range(_ATTEMPTS):
        last = latest(stage, stream.app_id, by_route=by_route) or Evolved.nothing(stream.app_id, by_route=by_route)
        columns = _agreed(stream, tables, last.columns, offered)
        if columns == last.columns:
            return last
        new = last.with_columns(columns, declared, offers, clock.wall_ms())
        if publish(stage, new):
            return new
    msg = f"other writers agreed on columns of {stream.app_id} before each of {_ATTEMPTS} attempts"
    raise StoreError(msg, "wait; this writer tries again")


def _tables(stream: Stream, offered: StructType, open_table: Callable[[str], ObjectStore]) -> dict[str, StructType]:
    """The columns of the tables that these fields are for, by the URL of the first one that gains them."""
    parts = tables_by_part(stream)
    wanted = offered.names if stream.gains_by_table else tuple(parts)
    return {
        urls[0]: reduce(extended, (_columns_of(url, open_table) for url in urls), NO_COLUMNS)
        for part, urls in parts.items()
        if part in wanted
    }


def _agreed(stream: Stream, tables: Mapping[str, StructType], known: StructType, offered: StructType) -> StructType:
    for url, table in tables.items():
        declared = stream.at(url).record.schema_of_columns
        before = PublishedColumns(declared, columns_at(stream, url, known), stream.record.evolve_limit)
        gained = agree(table, before, columns_at(stream, url, offered), declared).columns
        known = with_columns_at(stream, url, known, gained)
    return known


def _columns_of(url: str, open_table: Callable[[str], ObjectStore]) -> StructType:
    """The columns of a table as it is now; none where they are unknown (rule 2)."""
    try:
        state = read_table_state(open_table(url))
        return NO_COLUMNS if state is None else schema_from_json(state.schema)
    except Exception:  # noqa: BLE001 - a broken log costs staging nothing, and the loader reports it
        return NO_COLUMNS
