"""The routes that have appeared by a stream's `route_table`, as its writers agree on them in the stage.

Rules:

1. ``routes/<app_id>/<version, 20 digits>.json`` has all routes up to that version, made by exclusive create; the
   highest version counts. A version has every route of the one before it: none is taken back, also where
   `route_limit` becomes lower.
2. A writer adds a route before it stages a row for it, and a loader reads the routes after it has listed the markers.
   So it knows the table of every marker that it reads.
3. The keys of a table that has keys of its own are agreed on with its route, and never change.
4. A value that is not in `routes` becomes a route, with the table that `route_table` makes of it, unless it cannot name
   a folder (`is_name`), or `route_limit` is reached. Its table is like the main one. Each program continues with
   `with_routes`: for all that follows, the routes are as if the config had named them.
5. Of names that differ in case only, the first gets the table: catalogs and some stores treat them as the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar

from common.ports import ObjectStore
from common.settings import Settings, Stream
from common.settings.route_tables import AppearedTable, table_of
from common.stage.versions import Versioned, versions_folder
from common.stored_types import omit_defaults

ROUTES = "routes"


@dataclass(frozen=True, slots=True)
class AppearedRoutes(Versioned):
    """All routes of a stream that have appeared, in that order."""

    KIND: ClassVar[str] = ROUTES
    REMEDY: ClassVar[str] = "put back the version before it, or delete it if there is one: writers add to that"

    routes: tuple[str, ...]
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By route: the key columns of a table that has keys of its own, as its first event named them."""

    _without_empty = omit_defaults("keys")

    def with_more(
        self, wanted: Iterable[str], limit: int, keys: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    ) -> AppearedRoutes:
        """The next version, which has these names too, up to so many; the same one where there is nothing to add.

        ``keys`` are those of tables with keys of their own; known ones stay.
        """
        routes, folded = list(self.routes), {route.casefold() for route in self.routes}
        for route in wanted:
            if len(routes) < limit and route.casefold() not in folded:
                routes.append(route)
                folded.add(route.casefold())
        all_keys = {**{route: names for route, names in keys.items() if route in routes}, **self.keys}
        if len(routes) == len(self.routes) and all_keys == self.keys:
            return self
        return replace(self, version=self.version + 1, routes=tuple(routes), keys=all_keys)


def appeared(store: ObjectStore, app_id: str) -> AppearedRoutes:
    """The newest version; without routes while there is none. Raises StoreError and MarkerError."""
    return AppearedRoutes.newest(store, versions_folder(ROUTES, app_id)) or AppearedRoutes(app_id, 0, ())


def agree_on(
    store: ObjectStore,
    app_id: str,
    wanted: Iterable[str],
    limit: int,
    keys: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> AppearedRoutes:
    """The newest version once it has these names, as far as it can have them. Raises StoreError and MarkerError."""
    names = tuple(wanted)
    while True:
        known = appeared(store, app_id)
        more = known.with_more(names, limit, keys)
        if more is known or more.create(store):
            return more


def with_appeared(settings: Settings, store: ObjectStore) -> Settings:
    """The settings with the routes that have appeared. Raises StoreError and MarkerError."""
    if all(stream.routing.route_table is None for stream in settings.streams):
        return settings
    streams = tuple(with_appeared_of(stream, store) for stream in settings.streams)
    return settings.model_copy(update={"streams": streams})


def with_appeared_of(stream: Stream, store: ObjectStore) -> Stream:
    """The stream with the routes that have appeared. Raises StoreError and MarkerError."""
    if stream.routing.route_table is None:
        return stream
    known = appeared(store, stream.app_id)
    return with_routes(stream, known.routes, known.keys)


def with_routes(
    stream: Stream, routes: Iterable[str], keys: Mapping[str, tuple[str, ...]] = MappingProxyType({})
) -> Stream:
    """The stream with the tables of the routes that have appeared (rule 4); unchanged without a template.

    ``keys`` are those of tables with keys of their own; keys in the settings win over them.
    """
    template = stream.routing.route_table
    if template is None:
        return stream
    known = stream.routing.route_settings
    own = keys if stream.record.has_own_columns else {}
    made = {
        route: AppearedTable(table=table_of(template, route), keys=own.get(route, ()))
        for route in routes
        if route not in known or isinstance(known[route], AppearedTable)
    }
    settings = {**known, **made}
    return stream.model_copy(update={"route_settings": settings}) if settings != known else stream
