"""Tables that are given by their name in a catalog, in addition to their location.

Rules:

1. Writers have no catalog, and everything else here uses locations too: a name is only an alias for a table's URL,
   which `catalog_tables` gives. It is replaced before any other code reads the settings.
2. A location that has a name is registered under it by the loader (delta_loader/catalog/), even if the settings use the
   location.
"""

from collections.abc import Mapping

from common.settings.section import refuse
from common.tables.urls import comparable, is_catalog_name, require_url


def with_main_table(values: object) -> object:
    """A stream's settings with the first of `tables` as its main table, where `table` is not given."""
    if not isinstance(values, dict) or "table" in values:
        return values
    tables = values.get("tables")
    if not isinstance(tables, list | tuple) or not tables:
        return values
    first, *others = tables
    if isinstance(first, dict) and set(first) == {"table"}:
        first = first["table"]
    if isinstance(first, dict):
        msg = (
            "tables[0] is the main table, whose columns and layout are the stream's own; write only its URL, and "
            f"{', '.join(key for key in first if key != 'table')} in the stream"
        )
        raise ValueError(msg)  # noqa: TRY004 - pydantic takes a ValueError for a refusal
    return {**values, "table": first, "tables": others}


def with_locations(values: object) -> object:
    """A stream's settings with names replaced by locations (rule 1)."""
    if not isinstance(values, dict) or not isinstance(values.get("catalog_tables"), dict):
        return values
    known: dict[object, object] = values["catalog_tables"]

    def located(value: object) -> object:
        if isinstance(value, dict):
            return value | {key: located(value[key]) for key in ("table", "template") if key in value}
        return known.get(value, value) if isinstance(value, str) else value

    filled = {key: located(values[key]) for key in ("table", "dead_letters", "template") if key in values}
    for key in ("routes", "route_tables"):
        sections = values.get(key)
        if isinstance(sections, dict):
            filled[key] = {route: located(section) for route, section in sections.items()}
    if isinstance(values.get("tables"), list | tuple):
        filled["tables"] = [located(table) for table in values["tables"]]
    return {**values, **filled}


def require_location(table: str) -> str:
    """A table's URL; raises ValueError for a name without a location, and for an invalid URL."""
    if is_catalog_name(table):
        refuse(
            f"is a name in a catalog, which writers cannot read; add its location: catalog_tables: {{{table}: URL}}. "
            f"DESCRIBE DETAIL {table} shows it. If you mean a folder, write ./{table}"
        )
    return require_url(table)


def name_of_table(catalog_tables: Mapping[str, str], url: str) -> str | None:
    wanted = comparable(url) if catalog_tables else ""
    return next((name for name, table in catalog_tables.items() if comparable(table) == wanted), None)
