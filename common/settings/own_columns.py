"""Tables with columns that they alone have gained: those of `route_columns: own`, and of sections with `columns`.

Rule: of the columns that such a stream (`Stream.gains_by_table`) has gained, each is a STRUCT with the name of a route,
and its fields are the columns of that route's table; a table of no route has its URL there. Tables that have the
stream's columns gain them together, under the main table's URL. So writers and loaders agree on them as on those of any
stream.
"""

from common.schema.evolution import NO_COLUMNS
from common.schema.types import Field, StructType
from common.settings.route_tables import AppearedTable
from common.settings.stream import Stream
from common.tables.urls import comparable


def columns_at(stream: Stream, url: str, gained: StructType) -> StructType:
    """A table's columns among those that its stream has gained: all of them, unless tables gain their own."""
    return columns_of_part(gained, part_of(stream, url))


def columns_of_part(gained: StructType, part: str) -> StructType:
    """The columns under a table's `part_of`."""
    if not part:
        return gained
    field = gained.field(name_of_part(gained, part))
    return field.type if field is not None and isinstance(field.type, StructType) else NO_COLUMNS


def name_of_part(gained: StructType, part: str) -> str:
    """The name that a table's `part_of` has there: a route may have been written in another case."""
    return next((name for name in gained.names if name.casefold() == part.casefold()), part)


def with_columns_at(stream: Stream, url: str, gained: StructType, columns: StructType) -> StructType:
    """The gained columns of a stream, with ``columns`` as one table's part."""
    if not stream.gains_by_table:
        return columns
    if not columns.fields:
        return gained
    own = Field(name_of_part(gained, part_of(stream, url)), columns)
    if gained.field(own.name) is None:
        return gained.with_fields((own,))
    return StructType(tuple(own if field.name == own.name else field for field in gained))


def part_of(stream: Stream, url: str) -> str:
    """The name that a table's columns have among those that its stream has gained; empty where these are for all."""
    if not stream.gains_by_table:
        return ""
    if not stream.record.has_own_columns:
        _, section = stream.section_of(url)
        if section is None or section.columns is None:
            return comparable(stream.table)
    return route_of(stream, url) or comparable(url)


def tables_by_part(stream: Stream) -> dict[str, list[str]]:
    """The tables for rows that gain columns together, by `part_of`; the main table first."""
    tables: dict[str, list[str]] = {}
    for url in stream.row_tables:
        tables.setdefault(part_of(stream, url), []).append(url)
    return tables


def has_keys_of_messages(stream: Stream, route: str) -> bool:
    """Whether message keys name the key columns of a route's table."""
    merge = stream.merge
    return stream.record.has_own_columns and merge is not None and not (merge.keys or route in merge.route_keys)


def routes_without_keys(stream: Stream) -> tuple[str, ...]:
    """The routes that have appeared, and whose tables still have no key columns."""
    tables = stream.routing.route_settings.items()
    appeared = [route for route, table in tables if isinstance(table, AppearedTable) and not table.keys]
    return tuple(route for route in appeared if has_keys_of_messages(stream, route))


def route_of(stream: Stream, url: str) -> str | None:
    """The route of a table, the first one of several; None for another table."""
    wanted = comparable(url)
    return next((route for route, table in stream.routing.routes.items() if comparable(table) == wanted), None)
