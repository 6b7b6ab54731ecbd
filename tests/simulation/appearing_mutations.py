"""Rules of tables that appear, each broken on purpose (see mutations.py)."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import reduce
from unittest.mock import patch

from common.ports import ObjectStore
from common.schema import StructType
from common.schema.evolution import NO_COLUMNS, joined_columns
from common.settings import Stream
from common.settings.own_columns import columns_at
from common.stage import appeared_routes
from common.stage.appeared_routes import AppearedRoutes
from delta_loader.stage.listed import Listing
from delta_loader.stage.reading import Stage
from stage_writer.stage import gaining, route_registry
from stage_writer.stage.route_registry import RouteRegistry
from tests.simulation.world import STALLS, Chances

Keys = Mapping[str, tuple[str, ...]]


def the_agreement_is_not_exclusive() -> AbstractContextManager[object]:
    """The later writer overwrites the agreement of the other one."""

    def agree_on(store: ObjectStore, app_id: str, wanted: Iterable[str], limit: int, keys: Keys) -> AppearedRoutes:
        more = appeared_routes.appeared(store, app_id).with_more(wanted, limit, keys)
        store.write(more.path, more.to_bytes())
        return more

    return patch.object(route_registry, "agree_on", agree_on)


def each_writer_has_a_limit_of_its_own() -> AbstractContextManager[object]:
    """A writer counts the tables that it added itself, and not those of others."""
    with_more = AppearedRoutes.with_more

    def more(self: AppearedRoutes, wanted: Iterable[str], limit: int, keys: Keys) -> AppearedRoutes:
        return with_more(self, wanted, limit + len(self.routes), keys)

    return patch.object(AppearedRoutes, "with_more", more)


def rows_come_before_the_agreement() -> AbstractContextManager[object]:
    """A table is used at once, and agreed on with the next one."""
    agree = RouteRegistry._agree

    def later(self: RouteRegistry, wanted: Collection[str]) -> None:
        before = self._known
        if before.routes:
            agree(self, before.routes)
        self._known = self._known.with_more(wanted, self._stream.routing.route_limit)

    return patch.object(RouteRegistry, "_agree", later)


def a_writer_decides_by_what_it_knows() -> AbstractContextManager[object]:
    """A writer that knows some routes takes a new route for one without a table."""
    refusal = RouteRegistry._refusal

    def early(self: RouteRegistry, known: AppearedRoutes, route: str) -> str:
        return refusal(self, known, route) or ("" if len(known.routes) < 2 or route in known.routes else "too late")

    return patch.object(RouteRegistry, "_refusal", early)


def names_that_differ_in_case_have_tables() -> AbstractContextManager[object]:
    """As if every store and catalog distinguished them."""

    def more(self: AppearedRoutes, wanted: Iterable[str], limit: int, _: Keys) -> AppearedRoutes:
        routes = [*self.routes, *(route for route in sorted(wanted) if route not in self.routes)][:limit]
        if len(routes) == len(self.routes):
            return self
        return replace(self, version=self.version + 1, routes=tuple(routes))

    return patch.object(AppearedRoutes, "with_more", more)


def a_loader_reads_the_tables_first() -> AbstractContextManager[object]:
    """The tables are not read again after the markers were listed."""
    listing, appeared = Stage.listing, Stage.appeared

    def listed(self: Stage, stream: Stream) -> Listing:
        self.__dict__.setdefault("listed", set()).add(stream.app_id)
        return listing(self, stream)

    def before(self: Stage, stream: Stream) -> Stream:
        apps: set[str] = self.__dict__.setdefault("listed", set())
        if stream.app_id not in apps:
            return appeared(self, stream)
        apps.remove(stream.app_id)
        return stream

    @contextmanager
    def broken() -> Iterator[None]:
        # Both stay patched for the whole history: a process that dies leaves its patch, and others restore it.
        with patch.object(Stage, "listing", listed), patch.object(Stage, "appeared", before):
            yield

    return broken()


def a_loader_reads_the_tables_once() -> AbstractContextManager[object]:
    """When the loader starts."""
    appeared = Stage.appeared

    def first(self: Stage, stream: Stream) -> Stream:
        known: dict[str, Stream] = self.__dict__.setdefault("known", {})
        return known.setdefault(stream.app_id, appeared(self, stream))

    return patch.object(Stage, "appeared", first)


def a_table_gains_what_others_have() -> AbstractContextManager[object]:
    """Every table gets the columns that any table gained."""

    def everything(stream: Stream, url: str, gained: StructType) -> StructType:
        if not stream.record.has_own_columns:
            return columns_at(stream, url, gained)
        parts = (field.type for field in gained)
        return reduce(joined_columns, (part for part in parts if isinstance(part, StructType)), NO_COLUMNS)

    return patch.object(gaining, "columns_at", everything)


RULES: tuple[tuple[str, Callable[[], AbstractContextManager[object]], Chances | None], ...] = (
    ("routes are agreed on exclusively", the_agreement_is_not_exclusive, STALLS),
    ("all writers share one limit of tables", each_writer_has_a_limit_of_its_own, None),
    ("a table is agreed on before its rows are staged", rows_come_before_the_agreement, None),
    ("all writers decide alike about a route", a_writer_decides_by_what_it_knows, None),
    ("of names that differ in case only one gets a table", names_that_differ_in_case_have_tables, None),
    ("a loader reads the tables after the markers", a_loader_reads_the_tables_first, None),
    ("a loader sees tables that appear", a_loader_reads_the_tables_once, None),
    ("a table gains columns of its own records", a_table_gains_what_others_have, None),
)
