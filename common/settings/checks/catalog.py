"""Checks of a stream's `catalog_tables`: names that a catalog does not allow, or that have no effect."""

import re

from common.settings.catalog import require_location
from common.settings.stream import Stream
from common.tables.urls import comparable

_NAME = re.compile(r"[^\s./:\\`\"']+(\.[^\s./:\\`\"']+){1,2}")


def check_catalog_tables(stream: Stream) -> None:
    """Raise ValueError for names that a catalog does not allow, or that have no effect."""
    templates = _templates(stream)
    for key, table in (*((key.partition(".")[2], url) for key, url in stream.table_locations[2:]), *templates):
        try:
            require_location(table)
        except ValueError as error:
            raise ValueError(f"{key}: {table!r} {error}") from None
    used = {comparable(url) for url in (*stream.tables, *(template for _, template in templates))}
    named: dict[str, str] = {}
    for name, url in stream.catalog_tables.items():
        try:
            require_location(url)
        except ValueError as error:
            raise ValueError(f"catalog_tables.{name} is {url!r}, which {error}") from None
        if _NAME.fullmatch(name) is None:
            msg = f"catalog_tables names {name!r}, not a valid table name; write schema.table or catalog.schema.table"
        elif comparable(url) not in used:
            msg = f"catalog_tables.{name} is at {url}, which is not a table of the stream; remove it"
        elif comparable(url) in named:
            msg = f"catalog_tables.{name} has the same location as {named[comparable(url)]}; keep one of the two names"
        else:
            named[comparable(url)] = name
            continue
        raise ValueError(msg)


def _templates(stream: Stream) -> list[tuple[str, str]]:
    of_routes = ((f"{key}.template", route_table.template) for key, (_, route_table) in stream.routing.sections.items())
    return [
        (key, template) for key, template in (("template", stream.layout.template), *of_routes) if template is not None
    ]
