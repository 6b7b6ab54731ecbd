"""Which of a stream's tables each record goes to: the `route` of a stream.

Rules:

1. The expression sees the declared fields, the derived columns and ``kafka`` (see `evaluation`), and gives text. It is
   evaluated once for each record, before that is exploded: all its rows go to one table.
2. A record whose route is one of `routes` goes to that table. A record whose route is null, or not in `routes`, goes to
   the stream's main table; with ``unrouted: dead_letters`` it is a reject. A record whose route fails always is.
3. Rows are split with one sort over a batch, and a table without rows costs nothing: there may be hundreds.
4. Where events are merged, all events of a key go to one table, a tombstone too: otherwise a delete would not find the
   row, and an update would leave the old one in another table. The expression therefore sees only the key columns and
   ``kafka``, and `_cdc` where tombstones are ignored.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.errors import ExpressionError
from common.schema import Primitive, StructType, type_to_ddl
from common.settings.columns import CDC_COLUMN
from common.settings.merging import record_names
from common.tables.urls import comparable
from stage_writer.decode.rejects import ErrorClass, Reject
from stage_writer.shape.evaluation import Evaluator
from stage_writer.shape.expressions import refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from common.settings import Stream
    from stage_writer.decode.batch import Messages
    from stage_writer.shape.rows import Rows

    Index = NDArray[np.int64]

SETTING = "route"
OWN = 0
"""The number of the stream's main table; the others have the numbers of `Stream.row_tables`."""
_SHOWN_CHARACTERS = 100


class Router:
    """Records for each message the table that its rows go to: a `Step`.

    Raises ExpressionError for an expression that does not give text.
    """

    def __init__(self, columns: StructType, stream: Stream) -> None:
        route = stream.route or ""
        self.columns = columns
        self._evaluator = _evaluator(columns, stream, route)
        self.needs_headers = self._evaluator.needs_headers
        (found,) = self._evaluator.types
        if found is not Primitive.STRING:
            problem = f"its type is {type_to_ddl(found)}, and routes are text"
            raise refused(SETTING, route, problem, f"cast it: CAST({route.strip()} AS VARCHAR)")
        numbers = {comparable(url): number for number, url in enumerate(stream.row_tables)}
        self._values = pa.array(stream.routes, pa.string())
        self._numbers = np.array([numbers[comparable(url)] for url in stream.routes.values()], np.int64)
        self._refuses = stream.unrouted == "dead_letters"

    def apply(self, rows: Rows, messages: Messages) -> Rows:
        """The rows, with the tables of their messages recorded (rule 2)."""
        evaluated = self._evaluator.evaluate(rows, messages)
        rows, (routes,) = evaluated.rows, evaluated.values
        places = pc.fill_null(pc.index_in(routes, value_set=self._values), -1).to_numpy()
        tables = np.full(len(messages), OWN, np.int64) if rows.tables is None else rows.tables.copy()
        tables[rows.index] = np.where(places < 0, OWN, self._numbers[places])
        rows = replace(rows, tables=tables)
        lost = places < 0
        if not self._refuses or not lost.any():
            return rows
        return rows.without(lost, _rejects(routes, np.flatnonzero(lost), rows.index))


def _evaluator(columns: StructType, stream: Stream, route: str) -> Evaluator:
    if stream.merge is None:
        return Evaluator(columns, {SETTING: route})
    seen = columns_of_every_event(columns, stream)
    try:
        return Evaluator(seen, {SETTING: route})
    except ExpressionError:
        Evaluator(columns, {SETTING: route})  # invalid for any stream
        known = ", ".join(seen.names)
        problem = f"it uses more than the key ({known}) and kafka, so the events of one row might go to several tables"
        remedy = "route by kafka.topic or by a key column, or give each table a stream of its own with `where`"
        raise refused(SETTING, route, problem, remedy) from None


def columns_of_every_event(columns: StructType, stream: Stream) -> StructType:
    """The columns that are the same in all events of a key (rule 4), by their names in the record."""
    if stream.merge is None:
        return columns
    names = record_names(stream)
    known = {names.get(key, key) for key in stream.merge.keys}
    if stream.merge.tombstones == "ignore" and stream.has_events:
        known.add(CDC_COLUMN)
    return StructType(tuple(field for field in columns if field.name in known))


def _rejects(routes: pa.ChunkedArray, lost: Index, index: Index) -> Iterator[Reject]:
    for row, route in zip(lost.tolist(), routes.take(pa.array(lost)).to_pylist(), strict=True):
        shown = "null" if route is None else repr(route[:_SHOWN_CHARACTERS])
        yield Reject(int(index[row]), ErrorClass.UNROUTED, f"its route is {shown}, which is none of routes")


def parted(rows: Rows) -> Iterator[tuple[int, pa.Table, Index]]:
    """The rows of each table that has any, by its number, and the indices of their messages, rising as in `Rows`."""
    if rows.tables is None:
        yield OWN, rows.table, rows.index
        return
    numbers = rows.tables[rows.index]
    order = np.argsort(numbers, kind="stable")
    counts = np.bincount(numbers)
    if len(counts) and counts[numbers[0]] == len(numbers):
        yield int(numbers[0]), rows.table, rows.index
        return
    table, index = rows.table.take(pa.array(order)), rows.index[order]
    for number, (start, end) in enumerate(pairwise([0, *np.cumsum(counts).tolist()])):
        if start < end:
            yield number, table.slice(start, end - start), index[start:end]
