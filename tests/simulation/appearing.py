"""Worlds whose tables appear with the values of `route`: their converter, and the invariants of the routes.

Every writer has the real `RouteRegistry`, which agrees with the other writers through the stage. In some of these
worlds records gain fields too; in some of those each table has the columns of its own records (`route_columns: own`).

Rules:

1. A version of the agreed routes is never overwritten. It has the routes of the version before, in their order, at most
   `route_limit` of them, and no two that differ in case only.
2. A marker names only tables of agreed routes, and the loader knows each table that a marker names.
3. At the end a record is in the table of its route if that route was agreed on, and a dead letter if not: for all
   writers alike, whenever they read the agreement.
4. With columns of its own, a table has no field that none of its records has. Each field of its records is in a column
   with the type of its values, regardless of its type in other tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from common.schema import Field, StructType, schema_from_json
from common.schema.evolution import NO_COLUMNS, joined_columns
from common.settings import Stream
from common.settings.columns import KAFKA_FIELDS
from common.settings.own_columns import columns_at
from common.settings.route_tables import table_of
from common.stage.appeared_routes import ROUTES, AppearedRoutes, with_routes
from common.stage.markers import marker_from_bytes
from common.stage.versions import versions_folder
from common.tables.urls import comparable
from delta_loader.load.report import StreamReport
from delta_loader.service import LoaderService
from stage_writer.decode.batch import MessageBatch
from stage_writer.decode.dependency import Dependency
from stage_writer.decode.json_document import parse_document
from stage_writer.decode.unknown.offers import type_of
from stage_writer.parquet.buffer import StagedRows, TableFormat
from stage_writer.ports import Converter
from stage_writer.stage.route_registry import RouteRegistry
from tests.simulation.converter import BAD, GOOD, Registry
from tests.simulation.evolving import GAINING, EvolvingConverter, sent_beside
from tests.simulation.invariants import Objects, StageInvariants
from tests.simulation.kinds import DEAD_LETTERS, STAGE, TABLE, Context, Evolving, Loads, Wanted, settings_of
from tests.simulation.store import SimulatedStore
from tests.simulation.world import SILENT, Crash, Process, World, WorldClock

OWN = {
    "columns": "n BIGINT",
    "unknown_fields": "evolve",
    "route": "CAST(n AS VARCHAR)",
    "route_table": "memory://by/{route}",
    "route_limit": 6,
    "route_columns": "own",
    "unrouted": "dead_letters",
}
SECTION = {"e": {"table": "memory://by/e", "columns": "n BIGINT"}}
"""A table of these whose columns are declared."""
TEMPLATE, LIMIT = "memory://by/{route}", 6
NAMES = (*"abcDefghi", "A", "d", "no/name")
"""More routes than the limit, some that differ in case only, and one invalid name."""


def route_of(value: bytes | None) -> str | None:
    number = None if value in (None, BAD) else json.loads(value or b"").get("n")
    return None if number in (None, 1) else NAMES[number - 2]


def _value(name: str, more: bytes = b"") -> bytes:
    return b'{"n": %d%b}' % (NAMES.index(name) + 2, more)


@dataclass(slots=True)
class Attempt:
    """A `stage_writer.stage.route_registry.RunningAttempt`: a background thread of the simulated writer."""

    world: World
    is_over: bool = False

    def is_alive(self) -> bool:
        return not self.is_over

    def join(self, timeout: float) -> None:
        until_ms = self.world.now_ms + timeout * 1000
        while not self.is_over and self.world.now_ms < until_ms:
            self.world.sleep_s(0.05)


class AppearingConverter(EvolvingConverter):
    def __init__(
        self, stream: Stream, registry: Registry, model: RouteRegistry, gained: StructType = NO_COLUMNS
    ) -> None:
        super().__init__(stream, registry, gained)
        self._model = model

    def at(self, gained: StructType) -> AppearingConverter:
        return AppearingConverter(self.stream, self._registry, self._model, gained)

    def waits(self, batch: MessageBatch) -> Dependency | None:
        return super().waits(batch) or self._model.waits(_routes(batch))

    def is_row(self, value: bytes | None) -> bool:
        """Whether it goes to the stream's main table."""
        return value not in (None, BAD) and route_of(value) is None

    def is_dead(self, value: bytes | None) -> bool:
        """Whether it cannot be read, or its route can have no table."""
        route = route_of(value)
        return value == BAD or (route is not None and route not in self._model.names)

    def others(self, values: Sequence[bytes | None]) -> Iterator[tuple[TableFormat, Callable[[bytes | None], bool]]]:
        for route in sorted({route for value in values if (route := route_of(value)) in self._model.names}):
            table = replace(self.formats[0], url=table_of(TEMPLATE, route))
            yield table, lambda value, route=route: route_of(value) == route  # type: ignore[misc]

    def row(self, batch: MessageBatch, index: int, value: bytes | None) -> dict[str, object]:
        """Also with the fields of a route's table."""
        routed = value is not None and route_of(value) in self._model.names
        return super().row(batch, index, value) | (self.fields(value) if routed and value is not None else {})

    def _convert(self, batch: MessageBatch) -> StagedRows:
        self._model.settle(_routes(batch))
        return super()._convert(batch)


class OwnColumnsSimulated(AppearingConverter):
    """The same where each table has the columns of its own records."""

    def __init__(
        self, stream: Stream, registry: Registry, model: RouteRegistry, gained: StructType = NO_COLUMNS
    ) -> None:
        self._model = model
        self._made: tuple[tuple[str, ...], Stream, dict[str, EvolvingConverter]] | None = None
        super().__init__(stream, registry, model)
        self._owned = gained

    def at(self, gained: StructType) -> OwnColumnsSimulated:
        """Also with the gained columns of some tables."""
        return OwnColumnsSimulated(self._given, self._registry, self._model, gained)

    @property
    def stream(self) -> Stream:
        return self._at_routes()[1]

    @stream.setter
    def stream(self, stream: Stream) -> None:
        self._given = stream

    @property
    def by_route(self) -> dict[str, EvolvingConverter]:
        return self._at_routes()[2]

    def _at_routes(self) -> tuple[tuple[str, ...], Stream, dict[str, EvolvingConverter]]:
        """With the routes that have appeared until now."""
        names = tuple(self._model.names)
        if self._made is None or self._made[0] != names:
            stream = with_routes(self._given, names)
            made = {
                route: EvolvingConverter(self._given, self._registry, columns_at(stream, url, self._owned))
                for route, url in stream.routing.routes.items()
            }
            self._made = names, stream, made
        return self._made

    def is_row(self, value: bytes | None) -> bool:
        """No record goes to the main table."""
        del value
        return False

    def is_dead(self, value: bytes | None) -> bool:
        """A record without a route is one, too."""
        return super().is_dead(value) or (value is not None and route_of(value) is None)

    def others(self, values: Sequence[bytes | None]) -> Iterator[tuple[TableFormat, Callable[[bytes | None], bool]]]:
        made = self.by_route
        for table, is_of in super().others(values):
            route = next(route for route in made if table_of(TEMPLATE, route) == table.url)
            yield replace(made[route].formats[0], url=table.url), is_of

    def row(self, batch: MessageBatch, index: int, value: bytes | None) -> dict[str, object]:
        """By the columns of the record's table."""
        made, row = self.by_route.get(route_of(value) or ""), super().row(batch, index, value)
        return row if made is None else row | made.fields(value or b"")

    def _convert(self, batch: MessageBatch) -> StagedRows:
        staged = super()._convert(batch)
        offered = NO_COLUMNS
        for table, rows in staged.routed:
            route = next(route for route in self._model.names if table_of(TEMPLATE, route) == table.url)
            texts = rows[self.stream.record.rescue_column].drop_null().to_pylist()
            part = self.by_route[route].offers.of(texts)
            if part.fields:
                offered = joined_columns(offered, StructType((Field(route, part),)))
        return replace(staged, offered=offered)


def _routes(batch: MessageBatch) -> list[str]:
    return sorted({route for value in batch.values.to_pylist() if (route := route_of(value)) is not None})


@dataclass(slots=True, kw_only=True)
class RouteInvariants(StageInvariants):
    """The invariants of every stage, and rules 1 and 2."""

    agreed: AppearedRoutes = field(default_factory=lambda: AppearedRoutes("orders", 0, ()))

    def put(self, objects: Objects, path: str, data: bytes) -> None:
        super(RouteInvariants, self).put(objects, path, data)
        if path.startswith(f"{self.stage}/{versions_folder(ROUTES, self.stream.app_id)}"):
            self._agree(objects, path, data)
        name = self._name(path)
        if name is None or marker_from_bytes(name, data).manifest is None:
            return
        known = {comparable(url) for url in with_routes(self.stream, self.agreed.routes).tables}
        for table in marker_from_bytes(name, data).tables:
            if comparable(table.url) not in known:
                self.problems.append(f"{name.path} names {table.url}, and its route is not agreed on (rule 2)")

    def _agree(self, objects: Objects, path: str, data: bytes) -> None:
        before, after = self.agreed, AppearedRoutes.from_bytes(path, int(path[-25:-5]), data)
        if objects.get(path, (data, 0))[0] != data:
            self.problems.append(f"{path} is written over with other routes (rule 1)")
        if after.version != before.version + 1 or after.routes[: len(before.routes)] != before.routes:
            if path not in objects:
                self.problems.append(f"{path} has {after.routes} after {before.routes} (rule 1)")
            return
        if len(after.routes) > LIMIT or len({route.casefold() for route in after.routes}) < len(after.routes):
            self.problems.append(f"{path} has the routes {after.routes} (rule 1)")
        self.agreed = after


class Appearing(Evolving):
    """Tables that appear with the values of `route`."""

    settings = settings_of(unknown_fields="evolve", route="CAST(n AS VARCHAR)", route_table=TEMPLATE, route_limit=LIMIT)
    values = (GOOD, BAD, None, *map(_value, NAMES), *map(_value, NAMES))
    _known: tuple[AppearedRoutes, Stream, Stream] | None = None

    def __init__(self, context: Context) -> None:
        self._routes = RouteInvariants(STAGE, self.settings.streams[0], lambda: self.log.tables)
        super().__init__(context)
        if context.world.rng.random() < 0.5:
            self.values += (*GAINING, _value("a", b', "x": 5'), _value("b", b', "x": 2.5'), _value("e", b', "y": "z"'))
            if context.world.rng.random() < 0.5:
                declared = context.world.rng.random() < 0.5
                self.settings = settings_of(**OWN, routes=SECTION if declared else {})
                self.values += (_value("a", b', "w": "a"'), _value("b", b', "w": 7'), _value("e", b', "x": true'))
        self._unknown: list[str] = []

    @property
    def stream(self) -> Stream:
        """With the routes that have appeared, as operators know it."""
        (stream,) = self.settings.streams
        agreed, known = self._routes.agreed, self._known
        if known is None or known[0] is not agreed or known[1] is not stream:
            known = self._known = agreed, stream, with_routes(stream, agreed.routes)
        return known[2]

    def invariants(self) -> StageInvariants:
        return self._routes

    def converter(self, process: Process) -> Converter:
        world, (stream,) = self.context.world, self.settings.streams
        store = SimulatedStore(world, self.context.bucket, STAGE)

        def start(run: Callable[[], None]) -> Attempt:
            attempt = Attempt(world)

            def until_it_ends() -> None:
                try:
                    run()
                except Crash:
                    return
                attempt.is_over = True

            world.spawn(process, until_it_ends)
            return attempt

        model = RouteRegistry(stream, lambda: store, WorldClock(world, process), SILENT, start=start)
        simulated = OwnColumnsSimulated if stream.record.has_own_columns else AppearingConverter
        return simulated(stream, self.registry, model)

    def loads(self, service: LoaderService, store: SimulatedStore) -> Loads:
        """Every table that a marker names is known to the loader (rule 2)."""
        loads = super().loads(service, store)

        def run(stop: Callable[[], bool]) -> Sequence[StreamReport]:
            reports = loads(stop)
            held = [held for report in reports for held in report.held.values() if held.reason == "unreadable_marker"]
            self._unknown += [f"a loader does not know what it reads: {why.problem}" for why in held]
            return reports

        return run

    def wanted(self, value: bytes | None) -> Wanted:
        """A row in the table of its route, or a dead letter (rule 3)."""
        if value is None:
            return ({},)
        route = route_of(value)
        place = TABLE if route is None else table_of(TEMPLATE, route)
        is_dead = value == BAD or (route is not None and route not in self._routes.agreed.routes)
        is_dead = is_dead or (route is None and self.stream.record.has_own_columns)
        return ({DEAD_LETTERS if is_dead else place: 1},)

    def problems(self) -> Iterable[str]:
        """Tables unknown to a loader, and values that differ from those sent."""
        return (*self._unknown, *super().problems(), *self._of_others())

    def _of_others(self) -> Iterator[str]:
        """Columns, or types, that only other tables' records have (rule 4)."""
        if not self.stream.record.has_own_columns:
            return
        types: dict[str, dict[str, set[object]]] = {}
        for _, log, _ in self.context.logs():
            for record in log:
                if (route := route_of(record.value)) is not None:
                    for name, value in sent_beside(record.value or b"").items():
                        data_type = type_of(parse_document(json.dumps(value)))
                        types.setdefault(route, {}).setdefault(name, set()).add(data_type)
        made = {"n", self.stream.record.rescue_column, *(field.name for field in KAFKA_FIELDS)}
        for route, url in self.stream.routing.routes.items():
            table = self.log.tables.get(url)
            for column in () if table is None else schema_from_json(table.schema):
                if column.name not in made and column.type not in types.get(route, {}).get(column.name, set()):
                    yield f"{url} has the column {column.name} {column.type}, which none of its records has"
