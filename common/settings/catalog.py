"""Tables that are given by their name in a catalog, in addition to their location.

Rules:

1. Writers have no catalog, and everything else here uses locations too: a name is only an alias for a table's URL,
   which `catalog_tables` gives. It is replaced before any other code reads the settings.
2. A location that has a name is registered under it by the loader (delta_loader/catalog/), even if the settings use the
   location.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.tables.urls import comparable, is_catalog_name, require_url

if TYPE_CHECKING:
    from collections.abc import Mapping


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


def name_of_table(catalog_tables: Mapping[str, str], url: str) -> str | None:
    """The name of a table in a catalog; None where it has none."""
    wanted = comparable(url) if catalog_tables else ""
    return next((name for name, found in catalog_tables.items() if comparable(found) == wanted), None)
