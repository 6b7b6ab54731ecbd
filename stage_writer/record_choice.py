"""Which tables each message goes to, decided with only the fields that a stream's expressions name."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from common.schema import Field, Primitive, StructType, to_arrow_type, to_ddl
from common.settings import Stream
from common.settings.columns import CDC_COLUMN, made_columns
from common.settings.envelopes import may_have_several_rows
from common.settings.formats import ValueFormat, path_steps
from common.settings.merging import table_with_other_rows
from common.settings.parts import UnknownFields
from stage_writer.decode.batch import Index, MessageBatch, Messages
from stage_writer.decode.decode import Decoded, MessageDecoder
from stage_writer.layers import RecordInputs, decoder_of
from stage_writer.shape.changes.events import deletes_by_tombstones
from stage_writer.shape.evaluation import Condition, Deriver
from stage_writer.shape.expectations import Expectations
from stage_writer.shape.expressions import ExpressionChecker
from stage_writer.shape.route import AppearingRoutes, Router, routing_of
from stage_writer.shape.rows import Rows, Step, row_numbers
from stage_writer.shape.slicing import Staged, until_stops

ROW_NUMBER = " row"
"""The column with the `row_numbers` of what `where` has kept, where it may leave out some rows of a message."""

Stage = Callable[[Messages, Rows, Index], Iterator[Staged]]


class RecordChoice:
    """Chooses by a stream's `where`, `derive`, `route` or `tables`, and `expect`."""

    def __init__(self, stream: Stream, inputs: RecordInputs, *, appearing: AppearingRoutes | None = None) -> None:
        """``appearing`` are the routes of a stream whose tables appear."""
        seen = _seen_by_expressions(stream)
        decoder: MessageDecoder = _NoFields()
        if seen is not None:
            decoder = decoder_of(seen, inputs, part_of=stream)
        self._decoder = decoder
        several = seen is not None and stream.shaping.where is not None and may_have_several_rows(stream)
        self._numbers_rows = several and table_with_other_rows(stream) is None
        self._steps: list[Step] = []
        columns = decoder.columns
        if stream.shaping.where is not None:
            self._steps.append(Condition(columns, stream.shaping.where))
        if seen is not None and seen.shaping.derive:
            self._steps.append(Deriver(columns, seen.shaping.derive))
            columns = self._steps[-1].columns
        routing = tuple(routing_of(columns, stream, appearing))
        self._steps += routing
        self._stream = stream
        self._routing = next(iter(routing), None)
        self._router = self._routing if isinstance(self._routing, Router) else None
        if stream.shaping.expect:
            self._steps.append(Expectations(columns, stream))

    @property
    def needs_headers(self) -> bool:
        framed = self._stream.record.framing == "confluent_header"
        return framed or any(step.needs_headers for step in self._steps)

    def routes(self, messages: Messages) -> list[str]:
        """The routes that these messages take, each once; the stream has a ``route`` and no ``expect``."""
        *before, last = self._steps
        rows = Rows.from_decoded(self._decoder.decode(messages)).through(before, messages)
        return last.routes_of(rows, messages) if isinstance(last, Router) else []

    def new_routes(self, messages: Messages, most: int) -> dict[str, list[int]]:
        """Like `routes`, with the first messages of each, at ``most`` so many; includes tombstones that delete."""
        if self._router is None:
            return {}
        decoded = self._decoder.decode(messages)
        rows = Rows.from_decoded(decoded).through(self._steps[: self._steps.index(self._router)], messages)
        firsts = self._router.new_routes(rows, messages, most)
        if deletes_by_tombstones(self._stream) and len(decoded.tombstones):
            firsts = {**self._router.new_routes(self._without_fields(decoded.tombstones), messages, most), **firsts}
        return firsts

    def slices(self, batches: Sequence[MessageBatch], stage: Stage) -> Iterator[Staged]:
        """The batches with the rows that ``stage`` makes of what `of` returns for them, in its slices."""
        if not batches:
            return
        messages = Messages.from_batches(batches)
        chosen, tombstones = self.of(messages)
        if chosen.stops:
            yield from until_stops(messages, chosen.stops, partial(self.slices, stage=stage))
        else:
            yield from stage(messages, chosen, tombstones)

    def of(self, messages: Messages) -> tuple[Rows, Index]:
        """The messages' tables, rejects and filtered ones; and the tombstones, of which those that delete are rows."""
        decoded = self._decoder.decode(messages)
        rows = Rows.from_decoded(decoded)
        if self._numbers_rows:
            rows = rows.with_table(rows.table.append_column(ROW_NUMBER, pa.array(row_numbers(rows.index))))
        rows = rows.through(self._steps, messages)
        if self._routing is None or not deletes_by_tombstones(self._stream):
            return rows, decoded.tombstones
        gone = self._routing.apply(replace(self._without_fields(decoded.tombstones), tables=rows.tables), messages)
        index = np.concatenate([rows.index, gone.index])
        order = np.argsort(index, kind="stable")
        chosen = replace(gone, table=self._without_fields(index).table, index=index[order])
        if self._numbers_rows:
            numbers = np.concatenate([rows.table[ROW_NUMBER].to_numpy(), np.zeros(len(gone), np.int64)])
            chosen = chosen.with_table(chosen.table.append_column(ROW_NUMBER, pa.array(numbers[order])))
        rejects = (*rows.rejects, *gone.rejects)
        chosen = replace(chosen, rejects=rejects, filtered=rows.filtered, violations=rows.violations, stops=rows.stops)
        return chosen, decoded.tombstones[:0]

    def _without_fields(self, index: Index) -> Rows:
        """Rows of tombstones, of which no field is known."""
        columns = () if self._routing is None else self._routing.columns
        nulls = [pa.nulls(len(index), to_arrow_type(field.type)) for field in columns]
        return Rows(pa.table(nulls, names=[field.name for field in columns]), index)

    @property
    def stream(self) -> Stream:
        """The stream's settings, with the routes that have appeared."""
        return self._stream if self._router is None else self._router.stream


class _NoFields:
    """Decodes messages into rows without a field, for expressions that name none."""

    columns = StructType((Field("_", Primitive.STRING),))

    def decode(self, messages: Messages) -> Decoded:
        """A row for each message that is not a tombstone."""
        is_null = messages.values.is_null().to_numpy(zero_copy_only=False)
        index = np.flatnonzero(~is_null)
        return Decoded(pa.table({"_": pa.nulls(len(index), pa.string())}), index, (), np.flatnonzero(is_null))


def _seen_by_expressions(stream: Stream) -> Stream | None:
    """The stream with only the fields that its `where`, `route` and `expect` name; None if they name none.

    Raises ExpressionError.
    """
    made = made_columns(stream)
    columns = stream.record.schema_of_columns
    derived = stream.shaping.derive
    before = ExpressionChecker((*columns.names, *(name for name in made if name not in derived)))
    after = ExpressionChecker((*columns.names, *made))
    named = set[str]() if stream.shaping.where is None else set(before.check("where", stream.shaping.where).fields)
    later = {} if stream.routing.route is None else {"route": stream.routing.route}
    later |= {f"expect.{name}": expectation.rule for name, expectation in stream.shaping.expect.items()}
    by_later = {field for setting, text in later.items() for field in after.check(setting, text).fields}
    derive = {name: text for name, text in stream.shaping.derive.items() if name.casefold() in by_later}
    named |= by_later - {name.casefold() for name in derive}
    for name, text in derive.items():
        named |= before.check(f"derive.{name}", text).fields
    if not named and not derive:
        return None
    named.discard(CDC_COLUMN)  # each message of an envelope has it
    kept = StructType(tuple(field for field in columns if field.name.casefold() in named))
    if not named.issubset(map(str.casefold, kept.names)):  # others are made of the whole record
        return stream.model_copy(update={"derive": derive})
    own = {field.name for field in kept}
    formats = {path: form for path, form in stream.record.formats.items() if path_steps(path)[0] in own}
    if not own:  # a field that any record may have, of any kind: decoding needs one
        kept, formats = StructType((Field("_", Primitive.STRING),)), {"_": ValueFormat.JSON}
    update: dict[str, object] = {
        "columns": to_ddl(kept),
        "derive": derive,
        "unknown_fields": UnknownFields.IGNORE,
        "formats": formats,
        "jmespath": {path: text for path, text in stream.record.jmespath.items() if path_steps(path)[0] in own},
    }
    return stream.model_copy(update=update)
