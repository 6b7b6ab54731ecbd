"""Checks of a stream's tables: its routes, their sections and templates, names in a catalog, and locations.

Rules:

1. The loader has to know every table of a stream by its URL: routes name them one by one, or the stage does for those
   that appear by `route_table` (common/stage/appeared_routes.py).
2. A stream's dead letters have other columns than its rows, so no table takes both, of one stream or of two.
3. Several routes may lead to one table, the stream's main table included, and several streams may load into one: their
   txn actions distinguish them, as long as no app_id is a prefix of another.
4. A table has one shape, even if several routes lead to it.
5. A record goes through the settings of its table only, so settings of the whole stream that depend on its columns are
   refused where tables have different ones.
6. Nothing else is below a table. VACUUM deletes everything there that the table's log does not name: done markers, data
   files that wait in the stage, another table's files and log. A table may be in the stage's folder, but not in one
   that the stage reserves for itself.
7. No value of `route` makes a table that is another one's place, or around such a place: that of the stage, of a table
   of another stream, or of the stream's dead letters.
"""

import re
from collections.abc import Iterator, Sequence

from common.hints import did_you_mean
from common.settings.catalog import require_location
from common.settings.checks.columns import check_columns
from common.settings.checks.columns_from import check_evolving
from common.settings.checks.merge import check_envelope, check_merge
from common.settings.envelopes import WITHOUT_KEY_NAMES
from common.settings.formats import forms_of
from common.settings.merge import MergeSettings
from common.settings.merging import table_with_other_rows
from common.settings.own_columns import tables_by_part
from common.settings.route_tables import MAKING, NAME, ROUTE_LIMIT, VALUE, RouteTable
from common.settings.section import refuse
from common.settings.stream import Stream
from common.settings.values import LoadSetting
from common.tables.urls import comparable


def check_routes(stream: Stream) -> None:
    if stream.routing.route is None and stream.topology is None and stream.routing.routes:
        refuse("routes are set, but route is missing; add route, the expression or field that chooses one of them")
    if stream.routing.route is None and stream.routing.unrouted != "table":
        refuse("unrouted is set without route; add route and routes, or remove it")
    if stream.routing.route is not None and not stream.routing.route.strip():
        refuse("route is empty; give an expression or a field's name, or remove it")
    if stream.routing.route is not None and not stream.routing.routes and stream.routing.route_table is None:
        refuse("route is set, but routes name no table; write routes: {value: table URL}")
    _check_tables(stream)
    for key, url in stream.table_locations[2:]:
        if comparable(url) == comparable(stream.dead_letters):
            refuse(
                f"{key.partition('.')[2]} is the stream's dead_letters, which has other columns; give the rows a "
                "table of their own, or remove this route and set unrouted: dead_letters"
            )


def _check_tables(stream: Stream) -> None:
    """Raise ValueError for `tables` that cannot each get every record."""
    if not stream.routing.other_tables:
        return
    others = {
        "route": stream.routing.route is not None,
        "routes": bool(stream.routing.route_settings),
        "topology": stream.topology is not None,
    }
    for other in (key for key, is_given in others.items() if is_given):
        instead = "write the tables under routes, or leave route and routes out"
        if other == "topology":
            instead = "write routes, which its sinks name"
        refuse(f"tables are given, each of which gets every record, and so is {other}; {instead}")
    seen: set[str] = set()
    for url in (stream.table, *(other_table.table for other_table in stream.routing.other_tables)):
        if comparable(url) in seen:
            refuse(f"tables names {url} twice, and each table gets a record once; name each table once")
        seen.add(comparable(url))


def check_shared(streams: Sequence[Stream]) -> None:
    """Raise ValueError for tables that two streams cannot share."""
    rows: dict[str, list[Stream]] = {}
    for stream in streams:
        for url in stream.row_tables:
            rows.setdefault(comparable(url), []).append(stream)
    for two in streams:
        place = comparable(two.dead_letters)
        first = next((stream for stream in rows.get(place, ()) if stream.app_id != two.app_id), None)
        if first is not None:
            what = "the table" if comparable(first.table) == place else "a route"
            refuse(f"{what} of stream {first.app_id!r} takes the dead letters of {two.app_id!r}; give each its own URL")
    by_id = {stream.app_id: stream for stream in streams}
    for first in streams:
        prefixes = (first.app_id[:at] for at, character in enumerate(first.app_id) if character == "-")
        for other in (by_id[prefix] for prefix in prefixes if prefix in by_id):
            if {comparable(url) for url in first.tables} & {comparable(url) for url in other.tables}:
                refuse(
                    f"the app_ids {other.app_id!r} and {first.app_id!r} share a table, and one begins with the other, "
                    "so their txn actions cannot be told apart; rename one"
                )


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


def check_template(stream: Stream) -> None:
    if stream.routing.route_table is None:
        if stream.routing.route_limit != ROUTE_LIMIT:
            refuse("route_limit is set without route_table, so it has no effect; remove it")
        return
    excluded = {"topology": stream.topology is not None, "tables": bool(stream.routing.other_tables)}
    for other in (key for key, is_given in excluded.items() if is_given):
        refuse(f"route_table cannot be combined with {other}; name each table under routes")
    if stream.routing.route is None:
        refuse("route_table is set, but route is missing; add route, the expression or field that chooses the table")
    for key, url in stream.table_locations:
        if _makes(stream.routing.route_table, url) not in (None, ""):
            refuse(f"route_table may make a table around {key.removeprefix('streams[].')}, {url}; use another folder")


def check_own_columns(stream: Stream) -> None:
    """Raise ValueError where tables cannot have columns of their own."""
    merge = stream.merge
    if merge is not None:
        _check_route_keys(stream, merge)
    if not stream.record.has_own_columns:
        return
    excluded = {
        "no route_table": stream.routing.route_table is None,
        f"columns: {stream.record.columns}": stream.record.columns_from is not None,
        f"unknown_fields: {stream.record.unknown_fields}": not stream.record.evolves,
        f"unrouted: {stream.routing.unrouted}": stream.routing.unrouted != "dead_letters",
    }
    for other in (key for key, is_given in excluded.items() if is_given):
        refuse(f"route_columns is own, which does not go with {other}; write route_columns: shared, or change that")
    if merge is not None:
        _check_own_keys(stream, merge)


def _check_route_keys(stream: Stream, merge: MergeSettings) -> None:
    if merge.route_keys and not (stream.record.has_own_columns or stream.has_several_columns):
        refuse(
            "merge.route_keys is set, but all tables have the same columns, so they have merge.keys; remove it, or "
            "write columns in a section of routes"
        )
    for route, keys in merge.route_keys.items():
        url = stream.routing.routes.get(route)
        if url is None and stream.routing.route_table is None:
            hint = did_you_mean(route, stream.routing.routes, f"write routes: {{{route}: table URL}}")
            refuse(f"merge.route_keys names {route!r}, which is not in routes; {hint}")
        of_table = None if url is None else stream.at(url).merge
        if of_table is not None and of_table.keys != keys:
            refuse(f"merge.route_keys.{route}: another route leads to this table, with other keys; write the same ones")


def _check_own_keys(stream: Stream, merge: MergeSettings) -> None:
    if not (merge.keys or merge.route_keys) and stream.record.envelope in WITHOUT_KEY_NAMES:
        msg = f"events of {stream.record.envelope} do not name the key columns; add merge.keys or merge.route_keys"
        raise ValueError(msg)
    without = [] if merge.keys else [route for route in stream.routing.routes if route not in merge.route_keys]
    if without:
        raise ValueError(
            f"routes names {without[0]}, for which merge has no keys; add merge.route_keys.{without[0]}, or merge.keys"
        )


def check_templates(stage: str, streams: Sequence[Stream]) -> None:
    """Raise ValueError for a template that may make a place of others, or a table around one."""
    of_stage = [("stage.url", stage), *(("a folder of stage.url", f"{stage}/{folder}") for folder in STAGE_FOLDERS)]
    for stream in streams:
        template = stream.routing.route_table
        if template is None:
            continue
        others = [other for other in streams if other is not stream]
        locations = [*of_stage, *(location for other in others for location in other.table_locations)]
        locations += [
            ("streams[].route_table", other.routing.route_table)
            for other in others
            if other.routing.route_table is not None
        ]
        for key, url in locations:
            if _makes(template, url.replace(VALUE, "x")) is not None:
                refuse(
                    f"route_table of the stream {stream.app_id!r} may make {key}, {url}, or a table around it, for "
                    "some value of route; use another folder for one of them"
                )


def _makes(template: str, url: str) -> str | None:
    """The part of a URL below the table that some value makes; None where no value makes the URL or its start."""
    before, after = comparable(template).split(VALUE)
    match = re.match(f"{re.escape(before)}{NAME}{re.escape(after)}(/.*)?$", comparable(url), re.DOTALL)
    return None if match is None else match[1] or ""


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


STAGE_FOLDERS = frozenset(
    {
        "accept",
        "begin",
        "columns",
        "data",
        "done",
        "failures",
        "idle",
        "lease",
        "loading",
        "news",
        "outbox",
        "paused",
        "probe",
        "repair",
        "replace",
        "routes",
        "schema",
        "sent",
        "shared",
        "state",
        "stray",
    }
)
"""The folders of the stage's own objects, each starting with one of these names."""


def nested(stage: str, tables: Sequence[tuple[str, str]]) -> str | None:
    """A forbidden location, as a sentence, or None. ``tables`` are keys and URLs."""
    top, outer = comparable(stage), {comparable(url): (key, url) for key, url in reversed(list(tables))}
    for key, url in (("stage.url", stage), *tables):
        place = comparable(url)
        if key != "stage.url" and place == top:
            return f"stage.url is {key}, {url}; give the stage a place of its own"
        below = place.removeprefix(f"{top}/").partition("/")[0]
        if key != "stage.url" and below in STAGE_FOLDERS:
            return f"{key}, {url}, lies in the folder {below} of the stage; give it a folder outside the stage"
        above = (place[:at] for at, character in enumerate(place) if character == "/")
        outer_key, outer_url = next((outer[parent] for parent in above if parent in outer), ("", ""))
        if outer_key:
            return (
                f"{key}, {url}, lies below {outer_key}, {outer_url}, where a VACUUM of that table deletes what it "
                "holds; give it a folder outside the table"
            )
    return None
