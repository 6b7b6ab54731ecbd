"""`route_tables` of a stream: settings of a topology's tables that differ from the stream's.

Rules:

1. Such a table inherits nothing of the main table's columns and layout: missing settings have a stream's default.
   Everything else (places, dead letters, Kafka's columns, evolution) is the stream's.
2. Only topologies make rows of several shapes. A record that `route` sends to a table has the stream's columns.
3. A table has one shape, even if several routes lead to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, field_validator

from common.errors import SchemaError
from common.schema import parse_ddl
from common.settings.hints import did_you_mean
from common.settings.loading import LoadSetting
from common.settings.section import Section
from common.tables.urls import comparable

if TYPE_CHECKING:
    from common.settings.stream import Stream


def require_columns(value: str) -> str:
    """The columns unchanged; raises ValueError for invalid ones."""
    try:
        parse_ddl(value)
    except SchemaError as error:
        msg = f"cannot be read: {error.problem}; {error.remedy}"
        raise ValueError(msg) from None
    return value


class RouteTable(Section):
    """The table of a route."""

    columns: str = Field(min_length=1, description="Its columns and their types, as in Spark's `CREATE TABLE`.")
    partition_by: tuple[str, ...] = Field(default=(), description="Its partition columns, in order.")
    cluster_by: tuple[str, ...] = Field(default=(), description="As the stream's `cluster_by`.")
    table_properties: dict[str, str] = Field(default_factory=dict, description="As the stream's `table_properties`.")
    template: str | None = Field(default=None, min_length=1, description="As the stream's `template`.")
    load: LoadSetting = Field(default=LoadSetting.AUTO, description="As the stream's `load`; `merge` is refused.")
    z_order: tuple[str, ...] = Field(default=(), description="As the stream's `table_services.z_order`.")

    @field_validator("columns")
    @classmethod
    def _columns(cls, value: str) -> str:
        return require_columns(value)


def route_table_of(stream: Stream, url: str) -> RouteTable | None:
    """The separate settings of one of the stream's tables; None for one like the stream's."""
    if not stream.route_tables:
        return None
    wanted = comparable(url)
    return next(
        (found for route, found in stream.route_tables.items() if comparable(stream.routes[route]) == wanted), None
    )


def key_of(stream: Stream, url: str, name: str) -> str:
    """The value of a setting for one of the stream's tables for rows."""
    found = route_table_of(stream, url)
    route = next((route for route, one in stream.route_tables.items() if one is found), None)
    return f"streams[].{name}" if route is None else f"streams[].route_tables.{route}.{name}"


def at_table(stream: Stream, url: str) -> Stream:
    """The stream as if that one of its tables were the main one (rule 1)."""
    found = route_table_of(stream, url)
    if found is None:
        return stream.model_copy(update={"table": url})
    services = stream.table_services.model_copy(update={"z_order": found.z_order})
    own = {name: getattr(found, name) for name in RouteTable.model_fields if name != "z_order"}
    return stream.model_copy(update={"table": url, "table_services": services, **own})


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
