"""The conversion of a stream whose tables appear with columns, and keys, of their own (`route_columns: own`).

    fields that expressions name ─► where ─► route ─► expect ─► for each table: its messages, as a stream of its own
         └─ rejects                                                 └─ new fields ─► offers, by route

Rules:

1. A table has the declared columns, and those that the fields of its own records have gained
   (common/settings/own_columns.py).
2. With `merge`, a table's keys are the names in the message key of its route's first event, or in a field of that event
   (`KEY_NAMES`), on which all writers agree with the route; or those of its next event where it appeared without keys
   (under `route_columns: shared`). An event with other names is a reject: merged by the table's keys, it could
   overwrite another row. Keys that the settings give are not compared.
3. Where a table lacks the column of a key, message keys with the names offer it, those of tombstones too. As long as it
   lacks one, each of its events is a reject; that is staged only once nothing more can be agreed on.
4. No row goes to the main table: `unrouted` is `dead_letters`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from common.errors import ExpressionError, SchemaError
from common.schema import Field, StructType
from common.schema.agreement import PublishedColumns
from common.schema.evolution import NO_COLUMNS, joined_columns
from common.settings.envelopes import KEY_NAMES
from common.settings.loading import LoadSetting
from common.settings.merging import columns_of_rows
from common.settings.own_columns import columns_at, has_keys_of_messages, route_of, routes_without_keys
from common.tables.changes import RESERVED
from stage_writer.choice import RecordChoice
from stage_writer.convert import RecordPipeline, dead_letters_format, require_can_partition, rows_format, to_route
from stage_writer.convert_by_table import alone
from stage_writer.decode.batch import Messages
from stage_writer.decode.envelopes.framing import without_frames
from stage_writer.decode.rejects import ErrorClass, Reject
from stage_writer.decode.unknown.evolving import usable
from stage_writer.decode.unknown.offers import Offers
from stage_writer.layers import NO_INPUTS, keys_decoder_of
from stage_writer.shape.changes.events import deletes_by_tombstones
from stage_writer.shape.changes.key_names import EventKeyNames, KeyNames, names_in, text_of
from stage_writer.shape.outcome import Part, staged_of, together
from stage_writer.shape.route import OWN
from stage_writer.shape.slicing import WithoutTasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from common.settings import Stream
    from stage_writer.decode.batch import MessageBatch
    from stage_writer.decode.dependency import Dependency
    from stage_writer.decode.unknown.evolving import Additions
    from stage_writer.layers import RecordInputs
    from stage_writer.parquet.buffer import StagedRows, TableFormat
    from stage_writer.shape.route import AppearingRoutes
    from stage_writer.shape.rows import Rows
    from stage_writer.shape.slicing import Staged

    Index = NDArray[np.int64]
    KeysOf = Callable[[Messages], pa.BinaryArray | pa.LargeBinaryArray]
    """Message keys as JSON."""

_KEYS_READ = 100
"""Of how many message keys the names, or the types of key columns, are taken."""


@dataclass(frozen=True, slots=True)
class Converted:
    part: Part
    rejects: Sequence[Reject]
    tombstones: Index
    """Those that delete no row."""
    filtered: Index
    offered: Sequence[StructType]
    """By batch."""


class OwnTable:
    """One table, with the columns that it has now. Raises SchemaError for a partition column of a type that cannot."""

    def __init__(
        self, stream: Stream, route: str, gained: StructType, inputs: RecordInputs, *, keys_of: KeysOf, named: bool
    ) -> None:
        """``stream`` has the table as its main one. ``named``: its keys are the names in message keys."""
        self.route, self.gained = route, gained
        self._keys_of = keys_of
        self._stream = stream
        self._keys = () if stream.merge is None else stream.merge.keys
        field = KEY_NAMES.get(stream.record.envelope)
        self._names = KeyNames(self._keys) if named and self._keys and field is None else None
        self._event_names = (
            EventKeyNames(field, inputs.native_decoder) if named and self._keys and field is not None else None
        )
        declared = stream.record.schema_of_columns
        taken = {*columns_of_rows(stream), *declared.names}
        added = usable(declared, gained, taken)
        known = {*taken, *(addition.path[0] for addition in added)}
        self.problem = ""
        """Why events cannot be merged into it."""
        self.has_no_keys = stream.merge is not None and not self._keys
        if self.has_no_keys:
            self.problem = f"no event of the route {route!r} has named the keys of its table"
        elif not known.issuperset(self._keys):
            self.problem = f"no event of the route {route!r} had the key columns {', '.join(self._keys)}"
        self.pipeline = self._pipeline(added, inputs)
        self.format: TableFormat | None = None
        if not self.problem:
            self.format = rows_format(stream, self.pipeline.columns)
            require_can_partition(self.format)
        room = PublishedColumns(declared, gained, stream.record.evolve_limit).room
        reserved = "" if stream.merge is None else RESERVED
        kept = (field for field in self.pipeline.record_columns if self.pipeline.columns.field(field.name))
        self._offers = Offers(StructType(tuple(kept)), taken, room, reserved=reserved)

    def _pipeline(self, added: Additions, inputs: RecordInputs) -> RecordPipeline:
        if not self.problem:
            try:
                return RecordPipeline(self._stream, inputs, gained=added)
            except (SchemaError, ExpressionError) as error:  # a key of a type that cannot be one
                self.problem = error.problem
        plain = self._stream.model_copy(update={"merge": None, "load": LoadSetting.AUTO})
        return RecordPipeline(plain, inputs, gained=added)

    def convert(self, messages: Messages) -> Converted:
        names = self._names
        lost = np.zeros(len(messages), np.bool_) if names is None else names.differ(self._keys_of(messages))
        rejects = self._without_keys(np.flatnonzero(lost), "message key")
        kept = np.flatnonzero(~lost)
        begun = self.pipeline.begin(messages.taken(kept))
        if self._event_names is not None:
            other = self._event_names.differ(self.pipeline.bodies_of(begun.messages), self._keys)[begun.rows.index]
            why = self._without_keys(begun.rows.index[other], self._event_names.field)
            begun = replace(begun, rows=begun.rows.without(other, why))
        rows = self.pipeline.finish(begun)
        rejects += [replace(reject, index=int(kept[reject.index])) for reject in rows.rejects]
        index, gone, filtered = kept[rows.index], kept[begun.tombstones], kept[rows.filtered]
        offered = self._offered(messages, rows.table, index)
        deletes = deletes_by_tombstones(self._stream)
        if self.problem:
            if self._event_names is None:
                offered = [*map(joined_columns, offered, self._offered_by_keys(messages, kept))]
            left = np.union1d(index, gone) if deletes else index
            rejects += [Reject(place, ErrorClass.NULL_KEY, self.problem) for place in left.tolist()]
            return Converted(
                Part(index[:0], rows.table.slice(0, 0)), rejects, gone[:0] if deletes else gone, filtered, offered
            )
        return Converted(Part(index, rows.table), rejects, gone[:0] if deletes else gone, filtered, offered)

    def _without_keys(self, index: Index, where: str) -> list[Reject]:
        why = f"its {where} does not have the names {', '.join(self._keys)}, by which its table is merged"
        return [Reject(place, ErrorClass.UNREADABLE_KEY, why) for place in index.tolist()]

    def _offered(self, messages: Messages, rows: pa.Table, index: Index) -> list[StructType]:
        texts = rows[self._stream.record.rescue_column]
        if texts.null_count == len(texts):
            return [NO_COLUMNS] * len(messages.batches)
        parts = pairwise(messages.bounds(index).tolist())
        return [self._offers.of(texts.slice(start, end - start).drop_null().to_pylist()) for start, end in parts]

    def _offered_by_keys(self, messages: Messages, index: Index) -> list[StructType]:
        """The key columns that the message keys of each batch offer (rule 3)."""
        offered = []
        for part in messages.parted(index):
            keys = self._keys_of(messages.taken(part[:_KEYS_READ])).to_pylist()
            columns = self._offers.of([text for key in keys if (text := text_of(key)) is not None])
            offered.append(StructType(tuple(field for field in columns if field.name in self._keys)))
        return offered


class OwnColumnsConverter(WithoutTasks):
    """A `stage_writer.ports.Converter`. Raises SchemaError and ExpressionError for an invalid stream."""

    def __init__(
        self,
        stream: Stream,
        appearing: AppearingRoutes,
        inputs: RecordInputs = NO_INPUTS,
        gained: StructType = NO_COLUMNS,
        known: Mapping[str, OwnTable] = MappingProxyType({}),
    ) -> None:
        """``gained`` are the stream's columns, ``known`` tables that may be as they were, by URL."""
        field = KEY_NAMES.get(stream.record.envelope)
        self._event_names = None if field is None else EventKeyNames(field, inputs.native_decoder)
        self._appearing = appearing
        self._inputs = inputs
        self._gained = gained
        self._choice = RecordChoice(stream, inputs, appearing=appearing)
        self._to_route = RecordChoice(to_route(stream), inputs)
        self._main = alone(stream.at(stream.table))
        self._main_pipeline = main = RecordPipeline(self._main, inputs)
        self._keys = keys_decoder_of(stream, inputs) if _reads_message_keys(stream) else None
        self.formats = (rows_format(self._main, main.columns), dead_letters_format(stream))
        """The stream's main table, and the one for dead letters. The others appear with their rows."""
        self._tables: dict[str, OwnTable] = {}
        for url, table in known.items():
            if columns_at(self.stream, url, gained) == table.gained:
                self._tables[url] = table

    @property
    def stream(self) -> Stream:
        """The stream's settings, with the routes that have appeared."""
        return self._choice.stream

    @property
    def all_formats(self) -> tuple[TableFormat, ...]:
        """The tables that have had rows, and the one for dead letters."""
        return (self.formats[0], *(table.format for table in self._tables.values() if table.format), self.formats[1])

    @property
    def needs_headers(self) -> bool:
        return self._choice.needs_headers or bool(self._main.include)

    def waits(self, batch: MessageBatch) -> Dependency | None:
        """What must be available before this batch can be converted: schemas, then tables of routes that appear."""
        dependency = self._main_pipeline.waits(batch)
        if dependency is not None:
            return dependency
        dependency = None if self._keys is None else self._keys.waits(batch.keys, batch.headers)
        if dependency is not None:
            return dependency
        messages = Messages.of([batch])
        firsts = self._to_route.new_routes(messages, _KEYS_READ)
        keys = {route: names for route, places in firsts.items() if (names := self._names_in(messages, places))}
        return self._appearing.waits(firsts, keys)

    def _names_in(self, messages: Messages, places: Sequence[int]) -> tuple[str, ...]:
        """The keys of a table that appears with these messages."""
        first = messages.taken(np.array(places, np.int64))
        if self._event_names is not None:
            return self._event_names.first(self._main_pipeline.bodies_of(first))
        return next((names for key in self._keys_of(first).to_pylist() if (names := names_in(key))), ())

    def _keys_of(self, messages: Messages) -> pa.BinaryArray | pa.LargeBinaryArray:
        """The message keys as JSON."""
        if self._keys is not None:
            return self._keys.keys_of(messages.keys, messages.headers)
        return without_frames(messages.keys) if self.stream.record.framing == "confluent" else messages.keys

    def at(self, gained: StructType) -> OwnColumnsConverter:
        """The conversion once the stream has gained columns; tables without new ones stay."""
        return OwnColumnsConverter(self.stream, self._appearing, self._inputs, gained, self._tables)

    def slices(self, batches: Sequence[MessageBatch]) -> Iterator[Staged]:
        """The batches with their rows, in one slice."""
        return self._choice.slices(batches, self._staged)

    def _staged(self, messages: Messages, chosen: Rows, tombstones: Index) -> list[StagedRows]:
        urls = self.stream.row_tables
        rejects, gone, filtered = list(chosen.rejects), [tombstones], [chosen.filtered]
        arrived: list[tuple[int, Part]] = []
        formats, offers = [self.formats[0]] * len(urls), [NO_COLUMNS] * len(messages.batches)
        for number, picked in _by_table(chosen):
            table = self._table(urls[number])
            made = table.convert(messages.taken(picked))
            formats[number] = table.format or formats[number]
            arrived.append((number, Part(picked[made.part.index], made.part.rows)))
            rejects += [
                replace(reject, index=int(picked[reject.index]), error=f"{reject.error} (in routes.{table.route})")
                for reject in made.rejects
            ]
            gone.append(picked[made.tombstones])
            filtered.append(picked[made.filtered])
            offers = [_with_part(all_of, table.route, part) for all_of, part in zip(offers, made.offered, strict=True)]
        outcome = together(
            arrived, rejects, np.unique(np.concatenate(gone)), len(messages), np.unique(np.concatenate(filtered))
        )
        staged = staged_of(messages, replace(outcome, violations=chosen.violations), formats, self.formats[1])
        return [replace(rows, offered=offer) for rows, offer in zip(staged, offers, strict=True)]

    def _table(self, url: str) -> OwnTable:
        table = self._tables.get(url)
        if table is None or (table.has_no_keys and table.route not in routes_without_keys(self.stream)):
            route = route_of(self.stream, url) or ""
            gained = columns_at(self.stream, url, self._gained)
            named = has_keys_of_messages(self.stream, route)
            main = alone(self.stream.at(url))
            table = OwnTable(main, route, gained, self._inputs, keys_of=self._keys_of, named=named)
            self._tables[url] = table
        return table


def _reads_message_keys(stream: Stream) -> bool:
    """Whether message keys may name a table's keys, or offer the columns of these."""
    merge = stream.merge
    if merge is None or stream.record.envelope in KEY_NAMES:
        return False
    return not merge.keys or merge.tombstones == "delete"


def _by_table(chosen: Rows) -> Iterator[tuple[int, Index]]:
    if chosen.tables is None:
        return
    for number in np.unique(chosen.tables.numbers).tolist():
        wanted = np.zeros(int(chosen.tables.numbers.max()) + 1, np.bool_)
        wanted[number] = number != OWN
        picked, _ = chosen.tables.among(wanted, chosen.index)
        if len(picked):
            yield number, picked


def _with_part(offered: StructType, route: str, columns: StructType) -> StructType:
    return joined_columns(offered, StructType((Field(route, columns),))) if columns.fields else offered
