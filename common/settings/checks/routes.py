"""Checks of a stream's routes, and of tables shared by two streams.

Rules:

1. The loader has to know every table of a stream by its URL: routes name them one by one, or the stage does for those
   that appear by `route_table` (common/settings/added_routes.py).
2. A stream's dead letters have other columns than its rows, so no table takes both, of one stream or of two.
3. Several routes may lead to one table, the stream's main table included, and several streams may load into one: their
   txn actions distinguish them, as long as no app_id is a prefix of another.
"""

from collections.abc import Sequence

from common.settings.refusing import refuse
from common.settings.stream import Stream
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
    other = next((key for key, is_given in others.items() if is_given), None)
    if other is not None:
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
