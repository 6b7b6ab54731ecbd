"""Which of a stream's tables each record goes to: the `route` of a stream, or all its `tables`.

Rules:

1. The expression sees the declared fields, the derived columns and ``kafka`` (see `evaluation`), and gives text, or an
   array of texts. It is evaluated once for each record, before that is exploded: all its rows go to the same tables.
2. A record goes to the table of each of its routes, once. For a route that is null or not in `routes`, and for an array
   that is null or empty, it goes to the stream's main table; with ``unrouted: dead_letters`` it is a reject, and in no
   table. A record whose route fails always is.
3. Rows are split with one sort over a batch, and a table without rows costs nothing: there may be hundreds.
4. Where events are merged, all events of a key go to the same tables, a tombstone too: otherwise a delete would not
   find the row, and an update would leave the old one in another table. The expression therefore sees only the key
   columns and what ``kafka`` says alike of all of a key's messages (their topic, partition and key), and `_cdc` where
   tombstones are ignored. Each of the tables merges its own copy.
5. With a `route_table`, a new value becomes a route before its record has a table, and all writers agree
   on that in the stage. A value that cannot become one makes the record a reject, regardless of ``unrouted``. A route
   whose table should have keys of its own, and has none yet, counts as new until there are.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.errors import ExpressionError
from common.schema import ArrayType, Field, Primitive, StructType, type_to_ddl
from common.settings import Stream
from common.settings.columns import CDC_COLUMN
from common.settings.merging import element_keys_of, record_names
from common.settings.own_columns import routes_without_keys
from common.stage.appeared_routes import with_routes
from common.tables.urls import comparable
from stage_writer.decode.batch import Index, Mask, Messages
from stage_writer.decode.dependency import Dependency
from stage_writer.decode.rejects import ErrorClass, Reject
from stage_writer.shape.evaluation import Evaluator
from stage_writer.shape.expressions import refused
from stage_writer.shape.rows import Destinations, Rows

SETTING = "route"
MAIN = 0
"""The number of the stream's main table; the others have the numbers of `Stream.row_tables`."""
_SHOWN_CHARACTERS = 100
_KAFKA_OF_A_KEY = frozenset({"topic", "partition", "key", "key_text"})
"""The parts of `kafka` with one value for all messages about a row."""


class AppearingRoutes(Protocol):
    """The routes of a stream with a `route_table` that have appeared, and more of them."""

    @property
    def names(self) -> Sequence[str]:
        """The routes in addition to the stream's `routes`, in an order that stays; more may follow."""

    @property
    def keys(self) -> Mapping[str, tuple[str, ...]]:
        """The keys of tables that have keys of their own, by route."""

    def settle(self, wanted: Collection[str]) -> None:
        """Have these among `names`, as far as they can be. Raises StoreError and MarkerError.

        It returns at once for those that `waits` has seen.
        """

    def waits(
        self, wanted: Collection[str], keys: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    ) -> Dependency | None:
        """The wait before `settle` returns at once; None if it does now.

        ``keys`` are what the tables of some would have, where tables have keys of their own.
        """

    def refusal(self, route: str) -> str:
        """Why a route is not among `names`."""


class Router:
    """Records for each message the tables that its rows go to: a `Step`.

    Raises ExpressionError for an expression that does not give text or texts.
    """

    def __init__(self, columns: StructType, stream: Stream, appearing: AppearingRoutes | None = None) -> None:
        route = stream.routing.route or ""
        self.columns = columns
        self._evaluator = _evaluator(columns, stream, route)
        self.needs_headers = self._evaluator.needs_headers
        (data_type,) = self._evaluator.types
        self._is_several = isinstance(data_type, ArrayType)
        if (data_type.element if isinstance(data_type, ArrayType) else data_type) is not Primitive.STRING:
            problem = f"its type is {type_to_ddl(data_type)}, but a route must be text"
            raise refused(SETTING, route, problem, f"cast it: CAST({route.strip()} AS VARCHAR)")
        self.stream = stream
        """With the routes that have appeared."""
        self._known: tuple[Sequence[str], Mapping[str, tuple[str, ...]]] = ((), {})
        self._appearing = appearing
        self._refuses = stream.routing.unrouted == "dead_letters"
        self._number()

    def _number(self) -> None:
        """Give the tables of all routes numbers; those that they have stay."""
        urls, routes = self.stream.row_tables, self.stream.routing.routes
        numbers = {comparable(url): number for number, url in enumerate(urls)}
        self._tables = len(numbers)
        self._values = pa.array(routes, pa.string())
        self._numbers = np.array([*(numbers[comparable(url)] for url in routes.values()), MAIN], np.int64)
        without_keys = routes_without_keys(self.stream)
        self._settled = pa.array([route for route in routes if route not in without_keys], pa.string())

    def _settle(self, appearing: AppearingRoutes, routes: pa.ChunkedArray) -> None:
        """Have the tables of routes that appear (rule 5)."""
        appearing.settle(self._new(routes))
        known = appearing.names, appearing.keys
        if known != self._known:
            self._known, self.stream = known, with_routes(self.stream, *known)
            self._number()

    def _new(self, routes: pa.ChunkedArray) -> list[str]:
        """The routes without a table, or whose table has no keys yet (rule 5)."""
        unseen = pc.unique(routes.drop_null())
        return unseen.filter(pc.invert(pc.is_in(unseen, value_set=self._settled))).to_pylist()  # type: ignore[no-any-return]

    def routes_of(self, rows: Rows, messages: Messages) -> list[str]:
        """The routes that rows take and that are none of the stream's, each once."""
        return list(self.new_routes(rows, messages, 0))

    def new_routes(self, rows: Rows, messages: Messages, most: int) -> dict[str, list[int]]:
        """Like `routes_of`, each route with the first messages of rows that take it, at ``most`` so many."""
        evaluated = self._evaluator.evaluate(rows, messages)
        index, (routes,) = evaluated.rows.index, evaluated.values
        if self._is_several:
            owners, routes = _one_by_one(routes)
            index = index[owners]
        firsts = {}
        for route in self._new(routes):
            takes = np.flatnonzero(pc.fill_null(pc.equal(routes, route), fill_value=False).to_numpy())
            firsts[route] = index[takes[:most]].tolist()
        return firsts

    def apply(self, rows: Rows, messages: Messages) -> Rows:
        """The rows, with the tables of their messages recorded (rule 2)."""
        evaluated = self._evaluator.evaluate(rows, messages)
        rows, (routes,) = evaluated.rows, evaluated.values
        owners = np.arange(len(rows))
        if self._is_several:
            owners, routes = _one_by_one(routes)
        if self._appearing is not None:
            self._settle(self._appearing, routes)
        route_indexes = pc.fill_null(pc.index_in(routes, value_set=self._values), -1).to_numpy()
        unknown = route_indexes < 0
        numbers = self._numbers[route_indexes]  # the last one is for all other rows
        lost = np.zeros(len(rows), np.bool_)
        refused = unknown if self._refuses else np.zeros(len(unknown), np.bool_)
        if self._appearing is not None and unknown.any():
            refused = refused | (unknown & routes.is_valid().to_numpy())
        lost[owners[refused]] = True
        if self._is_several:  # each table once
            pairs = np.unique(owners * self._tables + numbers)
            owners, numbers = pairs // self._tables, pairs % self._tables
        if rows.has_several:
            return self._of_one_route(rows, (owners, numbers), lost, evaluated.values[0], len(messages))
        kept = ~lost[owners]
        counts = np.bincount(rows.index[owners[kept]], minlength=len(messages))
        rows = rows.with_destinations(Destinations.from_counts(numbers[kept], counts))
        if not lost.any():
            return rows
        return rows.without(lost, self._rejects(evaluated.values[0], np.flatnonzero(lost), rows.index))

    def _of_one_route(
        self, rows: Rows, pairs: tuple[Index, Index], lost: Mask, routes: pa.ChunkedArray, count: int
    ) -> Rows:
        """The rows of messages that have several, which all go to the same tables.

        ``pairs`` are rows and tables.
        """
        owners, numbers = pairs
        messages = rows.index[owners]
        together = np.unique(messages * self._tables + numbers)
        tables = np.bincount(together // self._tables, minlength=count)
        each = np.bincount(messages, minlength=count)
        several = (each != tables * np.bincount(rows.index, minlength=count))[rows.index]
        why = "its rows have several routes, but all rows of a message go to the same tables"
        rejects = [*self._rejects(routes, np.flatnonzero(lost), rows.index)]
        rejects += [Reject(index, ErrorClass.UNROUTED, why) for index in rows.index[several].tolist()]
        gone = np.zeros(count, np.bool_)
        gone[rows.index[several | lost]] = True
        kept = ~gone[together // self._tables]
        destinations = Destinations.from_counts((together % self._tables)[kept], np.where(gone, 0, tables))
        return rows.with_destinations(destinations).without(several | lost, rejects)

    def _rejects(self, routes: pa.ChunkedArray, lost: Index, index: Index) -> Iterator[Reject]:
        for row, named in zip(lost.tolist(), routes.take(pa.array(lost)).to_pylist(), strict=True):
            route = next((name for name in named or [None] if self._is_lost(name)), None) if self._is_several else named
            shown = "null" if route is None else repr(route[:_SHOWN_CHARACTERS])
            why = "which is not in routes"
            if self._appearing is not None and route is not None:
                why = self._appearing.refusal(route)
            yield Reject(int(index[row]), ErrorClass.UNROUTED, f"its route is {shown}, {why}")

    def _is_lost(self, route: str | None) -> bool:
        if route is None:
            return self._refuses
        return route not in self.stream.routing.routes


def _evaluator(columns: StructType, stream: Stream, route: str) -> Evaluator:
    if stream.merge is None:
        return Evaluator(columns, {SETTING: route})
    seen = columns_of_every_event(columns, stream)
    try:
        Evaluator(StructType(tuple(map(_common_to_events, seen))), {SETTING: route})
        evaluator = Evaluator(seen, {SETTING: route})
    except ExpressionError:
        Evaluator(columns, {SETTING: route})  # invalid for any stream
        known = ", ".join(f"{name}.source" if name == CDC_COLUMN else name for name in seen.names)
        problem = f"it uses more than the key ({known}) and kafka, so the events of one row might go to several tables"
        remedy = "route by kafka.topic or by a key column, or use a separate stream with `where` for each table"
        raise refused(SETTING, route, problem, remedy) from None
    differing = sorted(evaluator.kafka_parts - _KAFKA_OF_A_KEY)
    if differing:
        problem = f"kafka.{differing[0]} may differ among the events of one row, which might go to several tables"
        raise refused(SETTING, route, problem, "use kafka.topic, kafka.partition, kafka.key or a key column")
    return evaluator


def columns_of_every_event(columns: StructType, stream: Stream) -> StructType:
    """The columns that are the same in all events of a key (rule 4), by their names in the record."""
    if stream.merge is None:
        return columns
    names = record_names(stream)
    element = element_keys_of(stream)
    keys = set(stream.merge.keys).intersection(*stream.merge.route_keys.values())
    known = {names.get(key, key) for key in keys if key not in element}
    for url, section in stream.routing.sections.values():
        if section.columns is not None:  # whose columns may be other fields
            of_table = record_names(stream.at(url))
            known &= {of_table[key] for key in keys if key in of_table}
    has_tables_apart = stream.record.has_own_columns or stream.has_several_columns
    if has_tables_apart and stream.merge.tombstones == "delete":
        known.clear()  # a tombstone's key columns are known once it has a table
    if stream.merge.tombstones == "ignore" and stream.record.has_events:
        known.add(CDC_COLUMN)
    return StructType(tuple(field for field in columns if field.name in known))


def _common_to_events(field: Field) -> Field:
    """The field with only what all events of a key have alike: of a change, the table that it is from."""
    if field.name != CDC_COLUMN or not isinstance(field.type, StructType):
        return field
    return replace(field, type=StructType(tuple(part for part in field.type if part.name == "source")))


class ToAllTables:
    """Records that the rows of each message go to every table: a `Step`."""

    needs_headers = False

    def __init__(self, columns: StructType, stream: Stream) -> None:
        self.columns = columns
        self._tables = len(stream.row_tables)

    def apply(self, rows: Rows, messages: Messages) -> Rows:
        counts = np.zeros(len(messages), np.int64)
        counts[rows.index] = self._tables
        numbers = np.tile(np.arange(self._tables), int((counts > 0).sum()))
        return rows.with_destinations(Destinations.from_counts(numbers, counts))


Routing: TypeAlias = Router | ToAllTables


def routing_of(columns: StructType, stream: Stream, appearing: AppearingRoutes | None = None) -> Iterator[Routing]:
    """The step of a stream with several tables. Raises ExpressionError."""
    if stream.routing.route is not None:
        yield Router(columns, stream, appearing)
    elif stream.routing.other_tables:
        yield ToAllTables(columns, stream)


def _one_by_one(routes: pa.ChunkedArray) -> tuple[Index, pa.ChunkedArray]:
    """The texts of arrays, each with the number of its array; null for an array that is null or empty."""
    lengths = pc.fill_null(pc.list_value_length(routes), 0).to_numpy()
    owners = np.repeat(np.arange(len(lengths)), lengths)
    empty = np.flatnonzero(lengths == 0)
    texts = pa.chunked_array([*pc.list_flatten(routes).chunks, pa.nulls(len(empty), pa.string())], pa.string())
    return np.concatenate([owners, empty]), texts


def parted(rows: Rows) -> Iterator[tuple[int, pa.Table, Index]]:
    """The rows of each table that has any, by its number, and the indices of their messages, rising as in `Rows`."""
    if rows.tables is None:
        yield MAIN, rows.table, rows.index
        return
    rows_of_tables, numbers = rows.tables.of_rows(rows.index)
    counts = np.bincount(numbers)
    if len(rows_of_tables) == len(rows) and len(counts) and counts[numbers[0]] == len(numbers):
        yield int(numbers[0]), rows.table, rows.index
        return
    order = rows_of_tables[np.argsort(numbers, kind="stable")]
    table, index = rows.table.take(pa.array(order)), rows.index[order]
    for number, (start, end) in enumerate(pairwise([0, *np.cumsum(counts).tolist()])):
        if start < end:
            yield number, table.slice(start, end - start), index[start:end]
