"""`route_columns: own`: each table of a stream has columns that it alone has gained.

Rule: of the columns that such a stream has gained, each is a STRUCT with the name of a route, and its fields are the
columns of that route's table. So writers and loaders agree on them as on those of any stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.schema.evolution import NO_COLUMNS
from common.schema.types import Field, StructType
from common.settings.route_tables import AppearedTable
from common.tables.urls import comparable

if TYPE_CHECKING:
    from common.settings.stream import Stream


def columns_at(stream: Stream, url: str, gained: StructType) -> StructType:
    """A table's columns among those that its stream has gained: all of them, unless tables have their own."""
    if not stream.record.has_own_columns:
        return gained
    route = route_of(stream, url)
    field = None if route is None else gained.field(route)
    return field.type if field is not None and isinstance(field.type, StructType) else NO_COLUMNS


def with_columns_at(stream: Stream, url: str, gained: StructType, columns: StructType) -> StructType:
    """What the stream has gained where a table's part of it is ``columns``."""
    if not stream.record.has_own_columns:
        return columns
    route = route_of(stream, url)
    if route is None or not columns.fields:
        return gained
    own = Field(route, columns)
    if gained.field(route) is None:
        return gained.with_fields((own,))
    return StructType(tuple(own if field.name == route else field for field in gained))


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
