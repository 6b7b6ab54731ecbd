"""Checks of the sections that tables of a stream have in `routes`, `route_tables` and `tables`.

Rules:

1. A table has one shape, even if several routes lead to it.
2. A record goes through the settings of its table only, so settings of the whole stream that depend on its columns are
   refused where tables have different ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.hints import did_you_mean
from common.settings.checks.columns import check_columns
from common.settings.formats import forms_of
from common.settings.loading import LoadSetting
from common.settings.refusing import refuse
from common.settings.route_tables import MAKING
from common.tables.urls import comparable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from common.settings.route_tables import RouteTable
    from common.settings.stream import Stream


def check_route_tables(stream: Stream) -> None:
    """Raise ValueError for invalid tables; errors of a table's columns are prefixed by its key."""
    for route in stream.routing.route_tables:
        if route not in stream.routing.routes:
            hint = did_you_mean(route, stream.routing.routes, f"write routes: {{{route}: table URL}}")
            refuse(f"route_tables names {route!r}, which is not in routes; {hint}")
        if stream.routing.route_settings[route].given:
            refuse(f"routes.{route} is a section, and route_tables has it too; write everything in routes.{route}")
    for key, (url, route_table) in stream.routing.sections.items():
        _check(stream, key, url, route_table)
    if stream.has_several_columns:
        for setting, instead in _excluded(stream):
            refuse(f"some tables have columns of their own, so {setting} cannot be set; {instead}")
    for key, (url, _) in stream.routing.sections.items():
        if stream.at(url).record.columns_from is not None:
            continue
        try:
            check_columns(stream.at(url))
        except ValueError as error:
            msg = f"{key}: {error}"
            raise ValueError(msg) from None


def _excluded(stream: Stream) -> Iterator[tuple[str, str]]:
    """A setting that is excluded by rule 2, with what to write instead."""
    if stream.shaping.explode is not None:
        yield "explode", "give the exploded rows a stream of their own"
    if stream.record.evolves:
        yield "unknown_fields: evolve", "write unknown_fields: rescue"
    if stream.merge is not None:
        yield "merge", "write the tables of routes as URLs alone, or give each table a stream of its own with `where`"


def _check(stream: Stream, key: str, url: str, table: RouteTable) -> None:
    if comparable(url) == comparable(stream.table):
        refuse(f"{key} is the stream's own table, whose columns are those of the stream; remove it")
    for other, other_url, same in _tables(stream):
        if comparable(other_url) == comparable(url) and (same is None or same.overrides != table.overrides):
            refuse(f"{key} and {other} lead to one table with different settings; give both the same settings")
    making = [name for name in MAKING if name in table.model_fields_set]
    if making and table.columns is None:
        refuse(f"{key}.{making[0]} is set without columns; add columns, or remove it to use the stream's")
    if making and stream.topology is not None:
        refuse(f"topology makes the rows, so {key}.{making[0]} cannot be set; add a step to the topology")
    if "load" in table.model_fields_set and (table.load is LoadSetting.MERGE or stream.merge is not None):
        refuse(f"{key}.load is set, but only the stream's load can be merge, for all its tables; remove {key}.load")
    if table.template is not None and comparable(table.template) in map(comparable, stream.row_tables):
        refuse(f"{key}.template is one of the stream's own tables; name another one")
    if stream.at(url).record.columns_from is not None:
        return
    try:
        forms_of(
            stream.at(url).record.schema_of_columns,
            table.formats if table.columns is not None else stream.record.formats,
        )
    except ValueError as error:
        msg = f"{key}.formats: {error}"
        raise ValueError(msg) from None


def _tables(stream: Stream) -> Iterator[tuple[str, str, RouteTable | None]]:
    for route, other_table in stream.routing.route_settings.items():
        yield (
            f"routes.{route}",
            other_table.table,
            stream.routing.route_tables.get(route, other_table if other_table.given else None),
        )
