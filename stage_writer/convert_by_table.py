"""The conversion of a stream whose tables have different columns: declared ones, or those of their records.

    fields that expressions name ─► where ─► route ─► expect ─► for each group of tables: its messages ─► rows
         └─ rejects                  └──────────┴─────────┴──────────────────────┴─► the dead-letter table's rows

Rules:

1. First the tables of each message are chosen (stage_writer/record_choice.py). For that only the fields are decoded
   that `where`, `route` and `expect` name, as the stream's `columns` declare them. The rest of a record has to match
   the columns of its tables alone.
2. Then each table's messages are converted as those of a stream with this one table. Tables with the same columns and
   settings are one group, and are converted together (stage_writer/table_group.py).
3. A message that one of its tables refuses is in no table. Rows beyond the first one of a message, over all tables, are
   counted.
4. Where a message may have several rows, each table gets those that `where` has kept. They are known by their numbers
   in the message, which do not depend on columns. Where events are merged, an update may add a row that deletes the
   old key: then all tables have the same keys. With `route_columns: own` they may differ. There `where` sees only what
   all tables have, and each table applies it again.
5. With `route_columns: own` there may be hundreds of tables, and one is made when it has a first record. Other tables
   are made at once, so that errors in their settings are found.
6. Where tables explode, the rows of all of them are bounded together (stage_writer/shape/slicing.py). Their size is
   known before they are made. Where it is too large, fewer messages at a time are converted again. A message is
   refused, and makes its offers, before one of its rows is passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from common.schema import StructType
from common.schema.evolution import NO_COLUMNS, joined_columns
from common.settings import Stream
from common.settings.envelopes import KEY_NAMES
from common.settings.merging import table_with_other_rows
from common.settings.own_columns import (
    columns_at,
    columns_of_part,
    has_keys_of_messages,
    name_of_part,
    part_of,
    route_of,
)
from stage_writer.convert import StreamConverter, dead_letters_format, require_can_partition, rows_format, to_route
from stage_writer.decode.batch import Index, Mask, MessageBatch, Messages
from stage_writer.decode.dependency import Dependency
from stage_writer.decode.envelopes.framing import FramedDecoder, without_frames
from stage_writer.layers import NO_INPUTS, RecordInputs, keys_decoder_of
from stage_writer.parquet.buffer import TableFormat
from stage_writer.record_choice import ROW_NUMBER, RecordChoice
from stage_writer.shape.changes.key_names import EventKeyNames, names_in
from stage_writer.shape.explode import runs
from stage_writer.shape.outcome import Part, staged_of, together
from stage_writer.shape.route import MAIN, AppearingRoutes, parted
from stage_writer.shape.rows import Destinations, Rows
from stage_writer.shape.slicing import ExplodeLimits, Staged, StatelessConverter, explodes_too_far
from stage_writer.table_group import KEYS_READ, Begun, Converted, TableGroup


class TablesConverter(StatelessConverter):
    """A `stage_writer.ports.Converter`. Raises SchemaError and ExpressionError for an invalid stream."""

    def __init__(
        self,
        stream: Stream,
        inputs: RecordInputs = NO_INPUTS,
        *,
        limits: ExplodeLimits = ExplodeLimits(),  # noqa: B008 - frozen
        appearing: AppearingRoutes | None = None,
        gained: StructType = NO_COLUMNS,
        known: Mapping[str, TableGroup] = MappingProxyType({}),
    ) -> None:
        """``appearing`` are the routes of a template, ``gained`` the stream's columns, ``limits`` as in rule 6.

        ``known`` are groups of tables that may be as they were, by their settings.
        """
        self._inputs = inputs
        self._limits = limits
        self._appearing = appearing
        self._gained = gained
        self._known = known
        field = KEY_NAMES.get(stream.record.envelope)
        self._event_names = None if field is None else EventKeyNames(field, inputs.native_decoder)
        self._choice = RecordChoice(stream, inputs, appearing=appearing)
        self._keeps_where = table_with_other_rows(stream) is not None
        self._to_route = None if appearing is None else RecordChoice(to_route(stream), inputs)
        self._keys = keys_decoder_of(stream, inputs) if _reads_message_keys(stream) else None
        self._keys_of = partial(_keys_of, self._keys, is_framed=stream.record.framing == "confluent")
        self._groups: dict[str, TableGroup] = {}
        """By their settings."""
        self._tables: dict[str, tuple[TableGroup, TableFormat]] = {}
        """By URL: those that have had rows, or are made at once (rule 5)."""
        self._main, main_format = self._table(stream.table)
        for url in () if stream.record.has_own_columns else stream.row_tables:
            self._table(url)
        self.formats = (main_format, dead_letters_format(stream))
        """The stream's main table, and the one for dead letters. The others appear with their rows."""

    @property
    def stream(self) -> Stream:
        """The stream's settings, with the routes that have appeared."""
        return self._choice.stream

    @property
    def all_formats(self) -> tuple[TableFormat, ...]:
        """The tables that are made, and the one for dead letters."""
        return (*(table for group, table in self._tables.values() if not group.problem), self.formats[1])

    @property
    def needs_headers(self) -> bool:
        return self._choice.needs_headers or any(group.pipeline.needs_headers for group in self._groups.values())

    def waits(self, batch: MessageBatch) -> Dependency | None:
        """What must be available before this batch can be converted: schemas, then tables of routes that appear."""
        dependency = self._main.pipeline.waits(batch)
        if dependency is None and self._keys is not None:
            dependency = self._keys.waits(batch.keys, batch.headers)
        if dependency is not None or self._to_route is None or self._appearing is None:
            return dependency
        messages = Messages.from_batches([batch])
        firsts = self._to_route.new_routes(messages, KEYS_READ)
        named = {route: places for route, places in firsts.items() if has_keys_of_messages(self.stream, route)}
        keys = {route: names for route, places in named.items() if (names := self._names_in(messages, places))}
        return self._appearing.waits(firsts, keys)

    def _names_in(self, messages: Messages, places: Sequence[int]) -> tuple[str, ...]:
        """The keys of a table that appears with these messages."""
        first = messages.taken(np.array(places, np.int64))
        if self._event_names is not None:
            return self._event_names.first(self._main.pipeline.bodies_of(first))
        return next((names for key in self._keys_of(first).to_pylist() if (names := names_in(key))), ())

    def at(self, gained: StructType) -> TablesConverter:
        """The conversion once the stream has gained columns; tables without new ones stay."""
        groups = {**self._known, **self._groups}.items()
        known = {settings: group for settings, group in groups if columns_of_part(gained, group.part) == group.gained}
        return TablesConverter(
            self.stream, self._inputs, limits=self._limits, appearing=self._appearing, gained=gained, known=known
        )

    def slices(self, batches: Sequence[MessageBatch]) -> Iterator[Staged]:
        """The batches with their rows, in as many slices as their rows require (rule 6)."""
        return self._choice.slices(batches, self._slices)

    def _slices(self, messages: Messages, chosen: Rows, tombstones: Index) -> Iterator[Staged]:
        parts = _Parts(messages, chosen, tombstones, [self.formats[MAIN]] * len(self.stream.row_tables), [])
        exploding: list[Begun] = []
        for group, tables in self._groups_of(chosen, parts.formats):
            begun = group.begin(messages, tables, _kept(chosen, tables))
            if group.explodes:
                exploding.append(begun)
            else:
                parts.made.append(group.finish(begun, messages))
        if exploding:
            refused = parts.refused
            refused[[index for begun in exploding for index in begun.refused]] = True
            exploding = [begun.without(refused) for begun in exploding]
            sizes = sum((begun.sizes() for begun in exploding), np.zeros(len(messages), np.int64))
            if int(sizes.sum()) > self._limits.slice_bytes:
                yield from self._in_slices(parts, exploding, sizes)
                return
        parts.made.extend(begun.group.finish(begun, messages) for begun in exploding)
        yield self._staged(parts)

    def _in_slices(self, parts: _Parts, exploding: Sequence[Begun], sizes: Index) -> Iterator[Staged]:
        """Messages whose rows exceed a slice: fewer of them at a time, converted again, or one in pieces."""
        messages, limits = parts.messages, self._limits
        if len(messages) > 1:
            del parts, exploding
            for first, last in runs(sizes, limits.slice_bytes):
                yield from self.slices(messages.part(first, last).batches)
            return
        size = int(sizes[0])
        if size > limits.record_bytes:
            refused = replace(parts.chosen, rejects=(explodes_too_far(0, size, limits.record_bytes),))
            yield self._staged(replace(parts, chosen=refused, made=[]))
            return
        pieces = [piece for begun in exploding for piece in begun.pieces(limits.slice_bytes)]
        offered = [column for begun in exploding for column in begun.group.offered(begun, messages)]
        offered += [column for made in parts.made for column in made.offered]
        offers = [reduce(joined_columns, offered)]
        for piece in pieces[:-1]:
            made = [piece.group.finish(piece, messages)]
            only = replace(parts, chosen=replace(parts.chosen, violations={}), made=made)
            ((batch, staged),) = self._staged(only, offers)
            yield [(batch, staged.as_segment(batch))]
            offers = [NO_COLUMNS]
        parts.made.append(pieces[-1].group.finish(pieces[-1], messages))
        yield self._staged(parts, offers)

    def _staged(self, parts: _Parts, offers: Sequence[StructType] | None = None) -> Staged:
        """The rows of some tables, with ``offers`` by batch; None takes the rows' own offers."""
        messages, chosen = parts.messages, parts.chosen
        rejects, gone, filtered = list(chosen.rejects), [parts.tombstones], [chosen.filtered]
        arrived: list[tuple[int, Part]] = []
        offered = [NO_COLUMNS] * len(messages.batches)
        for made in parts.made:
            arrived += [(number, Part(index, part)) for number, part, index in parted(made.rows)]
            rejects += made.rows.rejects
            gone.append(made.tombstones)
            filtered.append(made.rows.filtered)
            offered = [*map(joined_columns, offered, made.offered)]
        outcome = together(
            arrived, rejects, np.unique(np.concatenate(gone)), len(messages), np.unique(np.concatenate(filtered))
        )
        outcome = replace(outcome, violations=chosen.violations)
        staged = staged_of(messages, outcome, parts.formats, self.formats[1])
        with_offers = zip(staged, offered if offers is None else offers, strict=True)
        return [
            (batch, replace(rows, offered=offer))
            for batch, (rows, offer) in zip(messages.batches, with_offers, strict=True)
        ]

    def _groups_of(self, chosen: Rows, formats: list[TableFormat]) -> Iterator[tuple[TableGroup, Destinations]]:
        """The groups that messages go to, with the messages' tables. Puts the tables' formats in place."""
        if chosen.tables is None:
            return
        by_group: dict[int, tuple[TableGroup, list[int]]] = {}
        urls = self.stream.row_tables
        for number in np.unique(chosen.tables.numbers).tolist():
            group, formats[number] = self._table(urls[number])
            by_group.setdefault(id(group), (group, []))[1].append(number)
        for group, numbers in by_group.values():
            wanted = np.zeros(len(formats), np.bool_)
            wanted[numbers] = True
            tables = chosen.tables.among(wanted, chosen.index)
            if len(tables.numbers):
                yield group, tables

    def _table(self, url: str) -> tuple[TableGroup, TableFormat]:
        made = self._tables.get(url)
        if made is not None and not made[0].has_no_keys:
            return made
        stream, part = self.stream, name_of_part(self._gained, part_of(self.stream, url))
        table = alone(stream.at(url), keeps_where=self._keeps_where)
        gained = columns_at(stream, url, self._gained)
        settings = repr((_making(table), gained, part))
        group = self._groups.get(settings) or self._known.get(settings)
        if group is None:
            route = route_of(stream, url)
            group = TableGroup(
                table,
                _name(stream, url, route),
                part,
                gained,
                self._inputs,
                keys_of=self._keys_of,
                named=route is not None and has_keys_of_messages(stream, route),
            )
        self._groups[settings] = group
        table_format = rows_format(group.unmerged(table) if group.problem else table, group.pipeline.columns)
        if not group.problem:
            require_can_partition(table_format)
        self._tables[url] = group, table_format
        return self._tables[url]


def _name(stream: Stream, url: str, route: str | None) -> str:
    """The key of a table's settings, for errors; empty for the stream's own."""
    key = stream.key_of(url, "columns").removeprefix("streams[].").removesuffix("columns").rstrip(".")
    return f"routes.{route}" if not key and stream.record.has_own_columns else key


def _reads_message_keys(stream: Stream) -> bool:
    """Whether message keys may name a table's keys, or offer the columns of these."""
    merge = stream.merge
    if merge is None or not stream.record.has_own_columns or stream.record.envelope in KEY_NAMES:
        return False
    return not merge.keys or merge.tombstones == "delete"


def _keys_of(
    decoder: FramedDecoder | None, messages: Messages, *, is_framed: bool
) -> pa.BinaryArray | pa.LargeBinaryArray:
    """Message keys as JSON."""
    if decoder is not None:
        return decoder.keys_of(messages.keys, messages.headers)
    return without_frames(messages.keys) if is_framed else messages.keys


@dataclass(frozen=True, slots=True)
class _Parts:
    messages: Messages
    chosen: Rows
    tombstones: Index
    formats: list[TableFormat]
    made: list[Converted]

    @property
    def refused(self) -> Mask:
        """The messages that a table refuses."""
        refused = np.zeros(len(self.messages), np.bool_)
        refused[[reject.index for made in self.made for reject in made.rows.rejects]] = True
        return refused


def _kept(chosen: Rows, tables: Destinations) -> Callable[[Rows], Rows] | None:
    """Leaves the rows of the tables' messages that are among the ``chosen`` ones; None where that is all of them."""
    if ROW_NUMBER not in chosen.table.column_names:
        return None
    picked = tables.messages
    is_picked = np.isin(chosen.index, picked)
    index = np.searchsorted(picked, chosen.index[is_picked])
    numbers = chosen.table[ROW_NUMBER].to_numpy()[is_picked]
    return lambda rows: rows.among(index, numbers)


def alone(stream: Stream, *, keeps_where: bool) -> Stream:
    """The stream without what `RecordChoice` has done, and with its main table only."""
    done: dict[str, object] = {
        "route": None,
        "expect": {},
        "route_settings": {},
        "route_tables": {},
        "other_tables": (),
    }
    if not keeps_where:
        done["where"] = None
    return stream.model_copy(update=done)


def _making(stream: Stream) -> object:
    """The settings that make a table's columns of a message: streams that differ in none of them convert alike."""
    return (
        stream.record.columns,
        stream.shaping.derive,
        stream.shaping.explode,
        stream.shaping.drop,
        stream.shaping.rename,
        stream.shaping.field_names,
        stream.record.formats,
        stream.record.jmespath,
        stream.staged_identity,
        stream.merge,
    )


RecordConverter = StreamConverter | TablesConverter


def converter_of(
    stream: Stream,
    inputs: RecordInputs = NO_INPUTS,
    limits: ExplodeLimits = ExplodeLimits(),  # noqa: B008 - frozen
    *,
    appearing: AppearingRoutes | None = None,
) -> RecordConverter:
    """The conversion of a stream; ``appearing`` are the routes of one with a `route_table`.

    Raises SchemaError and ExpressionError for an invalid stream.
    """
    if stream.has_several_columns or stream.record.has_own_columns:
        return TablesConverter(stream, inputs, limits=limits, appearing=appearing)
    return StreamConverter(stream, inputs, limits=limits, appearing=appearing)
