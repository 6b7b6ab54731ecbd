"""The routes of a stream's `route_table`: what its writers agree on in the stage (common/stage/appeared_routes.py).

Rules:

1. A route is decided once it has a table, or never can have one: for all writers alike, because none is taken back and
   the number of them is limited. Decided values no longer need the stage.
2. The stage is used in a background thread, and again with growing pauses while it does not answer. The messages wait
   meanwhile; a healthy stage answers within the short time that the first attempt may block.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Protocol

from structlog import get_logger
from structlog.typing import FilteringBoundLogger

from common.backoff import Backoff
from common.clock import SystemClock
from common.errors import KafkaDeltaExpressError, MarkerError, StoreError
from common.ports import Clock, ObjectStore
from common.settings import Settings, Stream
from common.settings.own_columns import has_keys_of_messages
from common.settings.route_tables import NAMES, is_name, table_of
from common.settings.stores import stage_store
from common.stage.appeared_routes import AppearedRoutes, agree_on, appeared
from common.tables.urls import comparable
from stage_writer.decode.dependency import Dependency

_PATIENCE_S = 1.0


class RunningAttempt(Protocol):
    """An attempt to use the stage in the background, such as a thread."""

    def is_alive(self) -> bool: ...

    def join(self, timeout: float) -> None:
        """Wait until it has ended, up to so many seconds."""


def _in_thread(run: Callable[[], None]) -> RunningAttempt:
    thread = threading.Thread(target=run, name="route-book", daemon=True)
    thread.start()
    return thread


class RouteRegistry:
    """A `stage_writer.shape.route.AppearingRoutes`."""

    def __init__(
        self,
        stream: Stream,
        open_stage: Callable[[], ObjectStore],
        clock: Clock,
        log: FilteringBoundLogger,
        *,
        preview: bool = False,
        start: Callable[[Callable[[], None]], RunningAttempt] = _in_thread,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        """``start`` runs an attempt, the first of which may block. In a ``preview`` routes appear only here."""
        self._patience_s = patience_s
        self._preview = preview
        self._start = start
        self._stream = stream
        self._open_stage = open_stage
        self._clock = clock
        self._log = log.bind(app_id=stream.app_id)
        self._known = AppearedRoutes(stream.app_id, 0, ())
        self._asking: RunningAttempt | None = None
        self._request_at_s = 0.0
        self._backoff = Backoff()
        self._offered_keys: dict[str, tuple[str, ...]] = {}
        """By route: what its first events named, until a table has appeared."""
        self.away: KafkaDeltaExpressError | None = None
        """Why the stage has not answered last."""

    @property
    def names(self) -> tuple[str, ...]:
        return self._known.routes

    @property
    def keys(self) -> Mapping[str, tuple[str, ...]]:
        return self._known.keys

    def waits(
        self, wanted: Collection[str], keys: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    ) -> RouteWait | None:
        self._offered_keys |= {route: names for route, names in keys.items() if self._lacks_keys(self._known, route)}
        return None if self.decides(wanted) else RouteWait(self, tuple(wanted))

    def settle(self, wanted: Collection[str]) -> None:
        undecided = self._undecided(wanted)
        if undecided:
            self._agree(undecided)

    def refusal(self, route: str) -> str:
        without_keys = "and none of its events names the keys of a table"
        missing = without_keys if self._lacks_keys(self._known, route) else "whose table has not appeared"
        return self._refusal(self._known, route) or missing

    def decides(self, wanted: Collection[str]) -> bool:
        """Whether all these are decided now; starts an attempt when due (rule 2). Called by one thread."""
        undecided = self._undecided(wanted)
        if undecided and (began := self._begin(undecided)) is not None and self.away is None:
            began.join(self._patience_s)
            undecided = self._undecided(undecided)
        return not undecided

    def _undecided(self, wanted: Collection[str]) -> list[str]:
        known = self._known
        return [route for route in wanted if self._may_gain(known, route)]

    def _may_gain(self, known: AppearedRoutes, route: str) -> bool:
        """Whether a route may get a table, or its table its keys."""
        if self._lacks_keys(known, route) and route not in self._offered_keys:
            return False  # no message key has named them yet
        is_whole = route in known.routes and not self._lacks_keys(known, route)
        return not is_whole and (route in known.routes or not self._refusal(known, route))

    def _lacks_keys(self, known: AppearedRoutes, route: str) -> bool:
        return route not in known.keys and has_keys_of_messages(self._stream, route)

    def _refusal(self, known: AppearedRoutes, route: str) -> str:
        """Why a route can never have a table; empty if it may have one."""
        if not is_name(route):
            return f"which cannot name a table: {NAMES} are allowed"
        template, limit = self._stream.routing.route_table or "", self._stream.routing.route_limit
        if comparable(table_of(template, route)) == comparable(self._stream.dead_letters):
            return "which would lead to the stream's dead_letters"
        other = next(
            (
                known_route
                for known_route in known.routes
                if known_route != route and known_route.casefold() == route.casefold()
            ),
            None,
        )
        if other is not None:
            return f"which differs from the route {other!r} only in case"
        return f"and there are already {len(known.routes)} tables (route_limit)" if len(known.routes) >= limit else ""

    def _agree(self, wanted: Collection[str]) -> None:
        """Raises StoreError and MarkerError."""
        before, limit, app_id = self._known, self._stream.routing.route_limit, self._stream.app_id
        keys = {route: self._offered_keys[route] for route in wanted if route in self._offered_keys}
        if self._preview:
            more = (*before.routes, *wanted)
            self._known = appeared(self._open_stage(), app_id).with_more(more, limit, {**before.keys, **keys})
            return
        self._known = agree_on(self._open_stage(), app_id, wanted, limit, keys)
        routes = [route for route in self._known.routes if route not in before.routes]
        self._log.info("tables appear", routes=routes)
        agreed = {route: names for route, names in self._known.keys.items() if route not in before.keys}
        if agreed:
            self._log.info("keys agreed on", keys=agreed)

    def _begin(self, wanted: Collection[str]) -> RunningAttempt | None:
        if (self._asking is not None and self._asking.is_alive()) or self._clock.monotonic_s() < self._request_at_s:
            return None
        self._asking = self._start(partial(self._ask, tuple(wanted)))
        return self._asking

    def _ask(self, wanted: Collection[str]) -> None:
        """One attempt; runs in a thread of its own."""
        try:
            self._agree(wanted)
        except (StoreError, MarkerError) as error:
            pause_s = self._backoff.next_s()
            self._log.warning("tables cannot appear, trying again", problem=error.problem, retry_in_s=pause_s)
            self._request_at_s = self._clock.monotonic_s() + pause_s
            self.away = error
        else:
            self.away = None
            self._backoff.reset()


@dataclass(frozen=True, slots=True)
class RouteWait(Dependency):
    """Waits for the tables of some routes, which have the columns of the others."""

    registry: RouteRegistry = field(repr=False)
    routes: tuple[str, ...]

    @property
    def error(self) -> KafkaDeltaExpressError:
        msg = f"the stage has not accepted the new routes {', '.join(map(repr, self.routes[:5]))} yet"
        return self.registry.away or StoreError(msg, "check that the stage's store responds")

    def is_over(self) -> bool:
        return self.registry.decides(self.routes)


def route_registry_of(settings: Settings, stream: Stream, *, preview: bool) -> RouteRegistry | None:
    """The registry of a stream's routes; None without a `route_table`."""
    if stream.routing.route_table is None:
        return None
    return RouteRegistry(stream, partial(stage_store, settings), SystemClock(), get_logger(), preview=preview)
