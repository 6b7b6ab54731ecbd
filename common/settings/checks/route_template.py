"""Checks of a stream's `route_table`.

Rule: no value of `route` makes a table that is another one's place, or around such a place: that of the stage, of a
table of another stream, or of the stream's dead letters.
"""

import re
from collections.abc import Sequence

from common.hints import did_you_mean
from common.settings.envelopes import WITHOUT_KEY_NAMES
from common.settings.locations import STAGE_FOLDERS
from common.settings.merge import MergeSettings
from common.settings.refusing import refuse
from common.settings.route_template import NAME, ROUTE_LIMIT, VALUE
from common.settings.stream import Stream
from common.tables.urls import comparable


def check_template(stream: Stream) -> None:
    if stream.routing.route_table is None:
        if stream.routing.route_limit != ROUTE_LIMIT:
            refuse("route_limit is set without route_table, so it has no effect; remove it")
        return
    excluded = {"topology": stream.topology is not None, "tables": bool(stream.routing.other_tables)}
    other = next((key for key, is_given in excluded.items() if is_given), None)
    if other is not None:
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
    other = next((key for key, is_given in excluded.items() if is_given), None)
    if other is not None:
        msg = f"route_columns is own, which does not go with {other}; write route_columns: shared, or change that"
        raise ValueError(msg)
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
