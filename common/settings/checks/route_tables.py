"""Checks of the sections that tables of a stream have in `routes`, `route_tables` and `tables`.

Rules:

1. A table has one shape, even if several routes lead to it.
2. A record goes through the settings of its table only, so settings of the whole stream that depend on its columns are
   refused where tables have different ones.
"""

from collections.abc import Iterator

from common.hints import did_you_mean
from common.settings.checks.columns import check_columns
from common.settings.checks.columns_from import check_evolving
from common.settings.checks.envelope import check_envelope
from common.settings.checks.merge import check_merge
from common.settings.formats import forms_of
from common.settings.loading import LoadSetting
from common.settings.merging import table_with_other_rows
from common.settings.own_columns import tables_by_part
from common.settings.refusing import refuse
from common.settings.route_tables import MAKING, RouteTable
from common.settings.stream import Stream
from common.tables.urls import comparable


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
    for key, url in _tables_with_own_settings(stream).items():
        own = stream.at(url)
        try:
            check_evolving(own)
            check_envelope(own)
            if own.record.columns_from is None:
                check_columns(own)
            check_merge(own)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None
    _check_parts(stream)
    _check_where(stream)


def _check_where(stream: Stream) -> None:
    """Raise ValueError where `where` would see an update that deletes a row by the keys of some tables only."""
    if stream.shaping.where is None or stream.record.columns_from is not None or stream.record.has_own_columns:
        return
    other = table_with_other_rows(stream)
    if other is not None:
        refuse(
            f"where decides about each row of a message, and an update of envelope: {stream.record.envelope} may also "
            f"delete a row, by the keys of its table; those of {other} are other fields than those of {stream.table}: "
            "give both the same keys, remove where, or give each table a stream of its own"
        )


def _tables_with_own_settings(stream: Stream) -> dict[str, str]:
    """The tables with settings that differ from the stream's, by the key of these."""
    urls = {key: url for key, (url, _) in stream.routing.sections.items()}
    keys = {} if stream.merge is None else stream.merge.route_keys
    return urls | {f"routes.{route}": url for route, url in stream.routing.routes.items() if route in keys}


def _check_parts(stream: Stream) -> None:
    """Raise ValueError for tables that could not be told apart by the names of the columns that they gain."""
    seen: dict[str, str] = {}
    for part in tables_by_part(stream):
        if part.casefold() in seen:
            refuse(
                f"{seen[part.casefold()]!r} and {part!r} differ only in case, so their tables cannot gain columns of "
                "their own; rename one, or write unknown_fields: rescue"
            )
        seen[part.casefold()] = part


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
        raise ValueError(f"{key}.formats: {error}") from None


def _tables(stream: Stream) -> Iterator[tuple[str, str, RouteTable | None]]:
    for route, other_table in stream.routing.route_settings.items():
        yield (
            f"routes.{route}",
            other_table.table,
            stream.routing.route_tables.get(route, other_table if other_table.given else None),
        )
