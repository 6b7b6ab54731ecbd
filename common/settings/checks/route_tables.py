"""Checks of a stream's `route_tables`.

Rules:

1. Only topologies make rows of several shapes. A record that `route` sends to a table has the stream's columns.
2. A table has one shape, even if several routes lead to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.settings.checks.columns import check_columns
from common.settings.hints import did_you_mean
from common.settings.loading import LoadSetting
from common.tables.urls import comparable

if TYPE_CHECKING:
    from common.settings.route_tables import RouteTable
    from common.settings.stream import Stream


def check_route_tables(stream: Stream) -> None:
    """Raise ValueError for invalid tables; errors of a table's columns are prefixed by its key."""
    if stream.route_tables and stream.topology is None:
        msg = (
            "route_tables are given, and there is no topology: a record that route sends to a table has the stream's "
            "columns; leave route_tables out, or give the records a stream of their own"
        )
        raise ValueError(msg)
    for route, found in stream.route_tables.items():
        if route not in stream.routes:
            hint = did_you_mean(route, stream.routes, f"write routes: {{{route}: table URL}}")
            msg = f"route_tables names {route!r}, which is none of routes; {hint}"
            raise ValueError(msg)
        _check(stream, route, found)
    for route in stream.route_tables:
        try:
            check_columns(stream.at(stream.routes[route]))
        except ValueError as error:
            msg = f"route_tables.{route}: {error}"
            raise ValueError(msg) from None


def _check(stream: Stream, route: str, found: RouteTable) -> None:
    url = stream.routes[route]
    if comparable(url) == comparable(stream.table):
        msg = f"route_tables.{route} is the stream's own table, whose columns are columns; leave it out"
        raise ValueError(msg)
    others = (other for other, place in stream.routes.items() if comparable(place) == comparable(url))
    for other in others:
        if stream.route_tables.get(other) != found:
            msg = f"routes.{route} and routes.{other} lead to one table, and route_tables has two of it; say the same"
            raise ValueError(msg)
    if found.load is LoadSetting.MERGE:
        msg = f"route_tables.{route}.load is merge, and a topology's rows are not merged; leave it out"
        raise ValueError(msg)
    if found.template is not None and comparable(found.template) in map(comparable, stream.row_tables):
        msg = f"route_tables.{route}.template is one of the stream's own tables; name another one"
        raise ValueError(msg)
