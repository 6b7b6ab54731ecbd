"""Columns for fields that no column reads: a writer agrees on them in the stage before it stages a value in one.

Rules:

1. The next version is made by exclusive create (common/stage/versions.py). Of two writers that infer different types,
   or a writer and a loader, the second one reads what the first one made, and uses its types.
2. The types of the tables come first, those of the main one before others that gain the same columns, then the
   published ones, then those that the records show (common/schema/agreement.py). A table that does not exist yet, or
   that this process cannot read, is no obstacle: the loader, which reads it at each load, publishes its types.
3. An edit of the settings may begin other columns for a table: of its own, or shared ones (`part_of`). Where rows are
   merged, what the table gained before is among them from the start (`continued_columns`): an event that lacks such a
   field makes it null, and without the column it would leave the row's former value.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce

from common.errors import StoreError, StoreRefusedError
from common.ports import Clock, ObjectStore
from common.schema import StructType, schema_from_json
from common.schema.agreement import PublishedColumns, joined_offers
from common.schema.evolution import NO_COLUMNS, additions, extended, joined_columns
from common.settings import Stream
from common.settings.columns import agree_in_table, as_in_records, as_in_table
from common.settings.own_columns import columns_at, name_of_part, tables_by_part, with_columns_at
from common.stage.appeared_routes import with_appeared_of
from common.stage.versions import Evolved, latest
from common.tables.delta_log import read_table_state

_ATTEMPTS = 20


def continued_columns(
    stage: ObjectStore, open_table: Callable[[str], ObjectStore], clock: Clock, stream: Stream
) -> Evolved | None:
    """The stream's gained columns at the start of a writer (rule 3). Raises StoreError and MarkerError."""
    by_route = stream.gains_by_table
    known = latest(stage, stream.app_id, by_route=by_route)
    if stream.merge is None:
        return known
    stream = with_appeared_of(stream, stage)
    for _ in range(_ATTEMPTS):
        last = known or Evolved.nothing(stream.app_id, by_route=by_route)
        other = latest(stage, stream.app_id, by_route=not by_route) or Evolved.nothing(stream.app_id, by_route=by_route)
        columns = _continued(stream, open_table, last, other)
        if (columns, other.version) == (last.columns, last.continues):
            return known
        new = replace(last.with_columns(columns, NO_COLUMNS, {}, clock.wall_ms()), continues=other.version)
        try:
            if new.create(stage):
                return new
        except StoreRefusedError:  # it may not agree on columns
            return known
        known = latest(stage, stream.app_id, by_route=by_route)
    raise _no_agreement(stream)


def _continued(stream: Stream, open_table: Callable[[str], ObjectStore], last: Evolved, other: Evolved) -> StructType:
    """The stream's gained columns, with those of all agreed columns that its tables have."""
    shared, own = (other, last) if stream.gains_by_table else (last, other)
    parts = (field.type for field in own.columns if isinstance(field.type, StructType))
    earlier = reduce(joined_columns, parts, shared.columns)
    known = last.columns
    for part, urls in tables_by_part(stream).items() if earlier.fields else ():
        if other.version == last.continues and (not part or name_of_part(known, part) in known.names):
            continue
        declared = stream.at(urls[0]).record.schema_of_columns
        has = as_in_records(stream.at(urls[0]), _columns_of(urls, open_table, strictly=True), earlier)
        gained = StructType(tuple(field for field in has if additions(declared, StructType((field,)))))
        before = columns_at(stream, urls[0], known)
        known = with_columns_at(stream, urls[0], known, extended(before, gained))
    return known


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
        if new.create(stage):
            return new
    raise _no_agreement(stream)


def _no_agreement(stream: Stream) -> StoreError:
    msg = f"other writers agreed on columns of {stream.app_id} before each of {_ATTEMPTS} attempts"
    return StoreError(msg, "wait; this writer tries again")


def _tables(stream: Stream, offered: StructType, open_table: Callable[[str], ObjectStore]) -> dict[str, StructType]:
    """The columns of the tables that gain these fields, by the URL of the first of them."""
    parts = tables_by_part(stream)
    wanted = {*map(str.casefold, offered.names if stream.gains_by_table else parts)}
    return {urls[0]: _columns_of(urls, open_table) for part, urls in parts.items() if part.casefold() in wanted}


def _agreed(stream: Stream, tables: Mapping[str, StructType], known: StructType, offered: StructType) -> StructType:
    for url, table in tables.items():
        own = stream.at(url)
        declared = own.record.schema_of_columns
        before = PublishedColumns(declared, columns_at(stream, url, known), stream.record.evolve_limit)
        wanted, staged = columns_at(stream, url, offered), as_in_table(own, declared)
        gained = agree_in_table(own, table, before, wanted, staged).columns
        known = with_columns_at(stream, url, known, gained)
    return known


def _columns_of(urls: Sequence[str], open_table: Callable[[str], ObjectStore], *, strictly: bool = False) -> StructType:
    """The columns that tables have together now; none of those that are unknown (rule 2).

    ``strictly``: raises StoreError where that may pass.
    """
    columns = NO_COLUMNS
    for url in urls:
        try:
            state = read_table_state(open_table(url))
            table = NO_COLUMNS if state is None else schema_from_json(state.schema)
        except Exception as error:  # a broken log costs staging nothing, and the loader reports it
            if strictly and isinstance(error, StoreError) and not isinstance(error, StoreRefusedError):
                raise
        else:
            columns = extended(columns, table)
    return columns
