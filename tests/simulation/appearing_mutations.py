"""Rules of tables that appear, each broken on purpose."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import reduce

from common.ports import ObjectStore
from common.schema import StructType
from common.schema.evolution import NO_COLUMNS, joined_columns
from common.settings import Stream
from common.stage import appeared_routes
from common.stage.appeared_routes import AppearedRoutes
from delta_loader.stage.listed import Listing
from delta_loader.stage.reading import Stage
from stage_writer.stage import gaining, route_registry
from stage_writer.stage.route_registry import RouteRegistry
from tests.simulation.mutation import Mutation, changed, wrapped
from tests.simulation.world import STALLS
from tests.simulation.worlds import Worlds


def _overwrite(store: ObjectStore, app_id: str, *wanted: object) -> AppearedRoutes:
    """The later writer overwrites the agreement of the other one."""
    more = appeared_routes.appeared(store, app_id).with_more(*wanted)  # type: ignore[arg-type]
    store.write(more.path, more.to_bytes())
    return more


def _agree_later(real: Callable[..., None], self: RouteRegistry, wanted: Collection[str]) -> None:
    """A table is used at once, and agreed on with the next one."""
    before = self._known
    if before.routes:
        real(self, before.routes)
    self._known = self._known.with_more(wanted, self._stream.routing.route_limit)


def _refuse_early(real: Callable[..., str], self: RouteRegistry, known: AppearedRoutes, route: str) -> str:
    """A writer that knows some routes takes a new route for one without a table."""
    return real(self, known, route) or ("" if len(known.routes) < 2 or route in known.routes else "too late")


def _with_all_names(self: AppearedRoutes, wanted: Iterable[str], limit: int, _keys: object) -> AppearedRoutes:
    """As if every store and catalog distinguished names by case."""
    routes = [*self.routes, *(route for route in sorted(wanted) if route not in self.routes)][:limit]
    if len(routes) == len(self.routes):
        return self
    return replace(self, version=self.version + 1, routes=tuple(routes))


def _listed(real: Callable[..., Listing], self: Stage, stream: Stream) -> Listing:
    self.__dict__.setdefault("listed", set()).add(stream.app_id)
    return real(self, stream)


def _appeared_before(real: Callable[..., Stream], self: Stage, stream: Stream) -> Stream:
    """The tables are not read again after the markers were listed."""
    apps: set[str] = self.__dict__.setdefault("listed", set())
    if stream.app_id not in apps:
        return real(self, stream)
    apps.remove(stream.app_id)
    return stream


def _appeared_once(real: Callable[..., Stream], self: Stage, stream: Stream) -> Stream:
    """When the loader starts."""
    known: dict[str, Stream] = self.__dict__.setdefault("known", {})
    return known.setdefault(stream.app_id, real(self, stream))


def _columns_of_any(real: Callable[..., StructType], stream: Stream, url: str, gained: StructType) -> StructType:
    """Every table gets the columns that any table gained."""
    if not stream.record.has_own_columns:
        return real(stream, url, gained)
    parts = (field.type for field in gained)
    return reduce(joined_columns, (part for part in parts if isinstance(part, StructType)), NO_COLUMNS)


_overwritten = changed(route_registry, "agree_on", _overwrite)
# A writer counts the tables that it added itself, and not those of others.
_own_limit = wrapped(
    AppearedRoutes,
    "with_more",
    lambda real, self, wanted, limit, keys: real(self, wanted, limit + len(self.routes), keys),
)
_too_late = wrapped(RouteRegistry, "_agree", _agree_later)
_too_early = wrapped(RouteRegistry, "_refusal", _refuse_early)
_every_case = changed(AppearedRoutes, "with_more", _with_all_names)
_tables_first = wrapped(Stage, "listing", _listed), wrapped(Stage, "appeared", _appeared_before)
_tables_once = wrapped(Stage, "appeared", _appeared_once)
_columns_of_others = wrapped(gaining, "columns_at", _columns_of_any)
RULES = (
    Mutation("routes are agreed on exclusively", _overwritten, STALLS, Worlds.APPEARING),
    Mutation("all writers share one limit of tables", _own_limit, worlds=Worlds.APPEARING),
    Mutation("a table is agreed on before its rows are staged", _too_late, worlds=Worlds.APPEARING),
    Mutation("all writers decide alike about a route", _too_early, worlds=Worlds.APPEARING),
    Mutation("of names that differ in case only one gets a table", _every_case, worlds=Worlds.APPEARING),
    Mutation("a loader reads the tables after the markers", _tables_first, worlds=Worlds.APPEARING),
    Mutation("a loader sees tables that appear", _tables_once, worlds=Worlds.APPEARING),
    Mutation("a table gains columns of its own records", _columns_of_others, worlds=Worlds.APPEARING),
)
