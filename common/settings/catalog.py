"""Tables that are given by their name in a catalog, in addition to their location.

Rules:

1. Writers have no catalog, and everything else here uses locations too: a name is only an alias for a table's URL,
   which `catalog_tables` gives. It is replaced before any other code reads the settings.
2. A location that has a name is registered under it by the loader (delta_loader/catalog/), even if the settings use the
   location.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from common.tables.urls import comparable, is_catalog_name, require_url

if TYPE_CHECKING:
    from common.settings.stream import Stream

_NAME = re.compile(r"[^\s./:\\`\"']+(\.[^\s./:\\`\"']+){1,2}")


def with_locations(values: object) -> object:
    """A stream's settings with names replaced by locations (rule 1)."""
    if not isinstance(values, dict) or not isinstance(values.get("catalog_tables"), dict):
        return values
    known: dict[object, object] = values["catalog_tables"]

    def located(value: object) -> object:
        return known.get(value, value) if isinstance(value, str) else value

    filled = {key: located(values[key]) for key in ("table", "dead_letters", "template") if key in values}
    routes = values.get("routes")
    if isinstance(routes, dict):
        filled["routes"] = {value: located(table) for value, table in routes.items()}
    own = values.get("route_tables")
    if isinstance(own, dict):
        filled["route_tables"] = {
            route: {**table, "template": located(table["template"])} if "template" in table else table
            for route, table in own.items()
            if isinstance(table, dict)
        } | {route: table for route, table in own.items() if not isinstance(table, dict)}
    return {**values, **filled}


def require_location(table: str) -> str:
    """A table's URL; raises ValueError for a name without a location, and for an invalid URL."""
    if is_catalog_name(table):
        msg = (
            "is the name of a catalog's table, and writers, which have no catalog, put files below its location; give "
            f"that: catalog_tables: {{{table}: URL}}. DESCRIBE DETAIL {table} shows it (./{table} is a folder)"
        )
        raise ValueError(msg)
    return require_url(table)


def check_catalog_tables(stream: Stream) -> None:
    """Raise ValueError for names that a catalog does not allow, or that have no effect."""
    templates = _templates(stream)
    for key, table in (*((f"routes.{value}", url) for value, url in stream.routes.items()), *templates):
        try:
            require_location(table)
        except ValueError as error:
            msg = f"{key}: {table!r} {error}"
            raise ValueError(msg) from None
    used = {comparable(url) for url in (*stream.tables, *(template for _, template in templates))}
    named: dict[str, str] = {}
    for name, url in stream.catalog_tables.items():
        try:
            require_location(url)
        except ValueError as error:
            msg = f"catalog_tables.{name} is {url!r}, which {error}"
            raise ValueError(msg) from None
        if _NAME.fullmatch(name) is None:
            msg = f"catalog_tables names {name!r}, which is no table's name; write schema.table or catalog.schema.table"
        elif comparable(url) not in used:
            msg = f"catalog_tables.{name} lies at {url}, where none of the stream's tables does; leave it out"
        elif comparable(url) in named:
            msg = f"catalog_tables.{name} lies where {named[comparable(url)]} does; a table has one name"
        else:
            named[comparable(url)] = name
            continue
        raise ValueError(msg)


def name_of_table(stream: Stream, url: str) -> str | None:
    """The name of one of a stream's tables in a catalog; None where it has none."""
    if not stream.catalog_tables:
        return None
    wanted = comparable(url)
    return next((name for name, found in stream.catalog_tables.items() if comparable(found) == wanted), None)


def _templates(stream: Stream) -> list[tuple[str, str]]:
    of_routes = ((f"route_tables.{route}.template", found.template) for route, found in stream.route_tables.items())
    return [(key, template) for key, template in (("template", stream.template), *of_routes) if template is not None]
