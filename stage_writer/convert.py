"""From batches of messages to the rows of a stream's tables.

    decode, jmespath ─► where ─► derive ─► route ─► expect ─► explode ─► drop, rename ─► Kafka's columns ─► rows
    (with `merge`:                      operation ─►  elements ─►                       events ─► )
         └─ rejects ──────┴────────┴────────┴─────────┴─► the dead-letter table's rows

Rules:

1. Each message ends in exactly one of: a row, a dead letter, the count of tombstones, the count of filtered ones.
2. Everything after decoding is a step (`stage_writer.shape`), each made for the columns of the previous step. A
   stream without a feature has no step for it. Errors in columns are found at construction.
3. The batches of all Kafka partitions of a stream are converted together, and their rows split again: the cost per call
   of the JSON reader and the SQL engine is paid once per poll, not per partition.
4. A message that may not be staged (`expect` with `on_fail: hold`) ends its batch: that is converted again without it
   and what follows, and the last slice says so (`StagedRows.stop`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from common.errors import SchemaError
from common.schema import StructType, from_arrow_type, schema_to_json, to_arrow_schema, type_to_ddl
from common.schema.agreement import PublishedColumns
from common.schema.evolution import NO_COLUMNS
from common.settings import Stream
from common.settings.columns import kafka_fields_of, made_columns, naming_of, rescue_column_of_table
from common.settings.merging import merge_by_of, operation_of, settings_of_columns
from common.stage.markers import TableKind
from common.tables.changes import MergeBy, table_columns
from common.tables.clustering import INSTEAD, can_partition, clustering_problem
from common.tables.dead_letters import DEAD_LETTER_SCHEMA
from stage_writer.decode.batch import Index, MessageBatch, Messages
from stage_writer.decode.dependency import Dependency
from stage_writer.decode.envelopes.framing import FramedDecoder, OpeningDecoder
from stage_writer.decode.unknown.column_names import ColumnNames
from stage_writer.decode.unknown.evolving import Additions, usable
from stage_writer.decode.unknown.offers import Offers
from stage_writer.layers import NO_INPUTS, RecordInputs, decoder_of, keys_decoder_of
from stage_writer.parquet.buffer import StagedRows, TableFormat
from stage_writer.record_choice import RecordChoice
from stage_writer.shape.changes.elements import Elements
from stage_writer.shape.changes.events import Events, deletes_by_tombstones
from stage_writer.shape.changes.operation import ChangeTime, Operation
from stage_writer.shape.evaluation import Condition, Deriver
from stage_writer.shape.expectations import Expectations
from stage_writer.shape.explode import Exploder
from stage_writer.shape.jmespath.expressions import fields_of
from stage_writer.shape.kafka_columns import AddIdentityColumns, KafkaColumns
from stage_writer.shape.names import Names
from stage_writer.shape.opening import OpenMessage
from stage_writer.shape.outcome import Outcome, Part, index_of, staged_of
from stage_writer.shape.route import AppearingRoutes, Router, Routing, ToAllTables, parted, routing_of
from stage_writer.shape.rows import Rows, Step
from stage_writer.shape.slicing import ExplodeLimits, Slice, StatelessConverter, sliced, until_stops

_NOTHING = np.zeros(0, np.int64)


class RecordPipeline:
    """From messages to rows with the same columns. Raises SchemaError and ExpressionError for an invalid stream."""

    def __init__(
        self,
        stream: Stream,
        inputs: RecordInputs = NO_INPUTS,
        *,
        gained: Additions = (),
        appearing: AppearingRoutes | None = None,
    ) -> None:
        """``gained`` are columns in addition to the declared ones."""
        self._stream = stream
        self._decoder = decoder_of(stream, inputs, gained)
        self._frames = self._decoder if isinstance(self._decoder, FramedDecoder) else None
        self._keys = keys_decoder_of(stream, inputs) if deletes_by_tombstones(stream) else None
        self._steps = tuple(_steps(stream, self._decoder.columns, self._keys, appearing))
        self._router = next((step for step in self._steps if isinstance(step, Router)), None)
        self.exploder = next((step for step in self._steps if isinstance(step, Exploder)), None)
        self._before = len(self._steps) if self.exploder is None else self._steps.index(self.exploder)
        self._events = next((step for step in self._steps if isinstance(step, Events)), None)
        self.columns = self._steps[-1].columns if self._steps else self._decoder.columns
        self._arrow_schema = to_arrow_schema(self.columns)

    @property
    def stream(self) -> Stream:
        """The stream's settings, with the routes that have appeared."""
        return self._stream if self._router is None else self._router.stream

    @property
    def record_columns(self) -> StructType:
        return self._decoder.columns

    @property
    def needs_headers(self) -> bool:
        """Whether a step uses the records' headers, or one names the schema."""
        return self._stream.record.framing == "confluent_header" or any(step.needs_headers for step in self._steps)

    @property
    def json_of(self) -> OpenMessage | None:
        """Returns the JSON of the record in a message, for a format that only its schema opens."""
        if self._stream.record.format == "json" or not isinstance(self._decoder, OpeningDecoder):
            return None
        return self._decoder.body_of if self._stream.record.framing != "confluent_header" else None

    def bodies_of(self, messages: Messages) -> pa.BinaryArray | pa.LargeBinaryArray:
        """The JSON in the messages; null for tombstones, and maybe for refused ones."""
        return self._decoder.bodies_of(messages) if isinstance(self._decoder, OpeningDecoder) else messages.values

    def waits(self, batch: MessageBatch) -> Dependency | None:
        """What must be available before this batch can be decoded."""
        dependency = None if self._frames is None else self._frames.waits(batch.values, batch.headers)
        if dependency is not None or self._keys is None or not batch.values.null_count:
            return dependency
        tombstones = batch.values.is_null()
        headers = None if batch.headers is None else batch.headers.filter(tombstones)
        return self._keys.waits(batch.keys.filter(tombstones), headers)

    def routes_of_tombstones(self, messages: Messages) -> list[str]:
        return [] if self._events is None else self._events.routes_of_tombstones(messages)

    def begin(self, messages: Messages, keep: Callable[[Rows], Rows] | None = None) -> Slice:
        """The steps before a row may become several; ``keep`` is the first, after decoding."""
        decoded = self._decoder.decode(messages)
        rows = Rows.from_decoded(decoded) if keep is None else keep(Rows.from_decoded(decoded))
        rows = rows.through(self._steps[: self._before], messages)
        return Slice(messages, rows, decoded.tombstones)

    def finish(self, begun: Slice) -> Rows:
        rows = begun.rows.through(self._steps[self._before :], begun.messages)
        return rows.with_table(rows.table.cast(self._arrow_schema))

    def offered(self, offers: Offers, texts: pa.ChunkedArray, index: Index, messages: Messages) -> list[StructType]:
        """What the rescue column of rows offers, by batch; ``index`` are the messages of its ``texts``."""
        if texts.null_count == len(texts):
            return [NO_COLUMNS] * len(messages.batches)
        if self.exploder is not None:  # all rows of a message have one text
            index, firsts = np.unique(index, return_index=True)
            texts = texts.take(pa.array(firsts))
        parts = pairwise(messages.bounds(index).tolist())
        return [offers.of(texts.slice(start, end - start).drop_null().to_pylist()) for start, end in parts]


class StreamConverter(StatelessConverter):
    """The conversion of one stream. Raises SchemaError and ExpressionError for an invalid stream."""

    def __init__(
        self,
        stream: Stream,
        inputs: RecordInputs = NO_INPUTS,
        *,
        gained: Additions = (),
        room: int | None = None,
        names: ColumnNames | None = None,
        limits: ExplodeLimits = ExplodeLimits(),  # noqa: B008 - frozen
        appearing: AppearingRoutes | None = None,
    ) -> None:
        """``appearing`` are the routes of a template.

        ``limits`` bound the rows that are made of one message (`slices`). ``gained`` are columns in addition to the
        declared ones, ``names`` those that they can have: see `at`. ``room`` is how many more fields the stream may
        gain; None for all of `evolve_limit`.
        """
        self.stream = stream
        self._inputs = inputs
        self._limits = limits
        self._appearing = appearing
        self._route_choice = None if appearing is None else RecordChoice(to_route(stream), inputs)
        self._pipeline = RecordPipeline(stream, inputs, gained=gained, appearing=appearing)
        schema = self._pipeline.columns
        self._row_formats: list[TableFormat] = []
        for rows in self._formats_of_rows():
            require_can_partition(rows)
        self.formats = (self._row_formats[0], dead_letters_format(stream))
        """The stream's main table, and the one for dead letters. Those of its routes appear with their rows."""
        self._names = names or ColumnNames(stream, schema.names)
        self._offers = None
        if stream.record.evolves:
            room = stream.record.evolve_limit if room is None else room
            self._offers = offers_of(stream, self._pipeline, self._names, room)

    def at(self, gained: StructType) -> StreamConverter:
        """The conversion once the stream has gained columns; ignores columns that are not for it."""
        additions = usable(self.stream.record.schema_of_columns, gained, self._names)
        return StreamConverter(
            self.stream,
            self._inputs,
            gained=additions,
            room=PublishedColumns(self.stream.record.schema_of_columns, gained, self.stream.record.evolve_limit).room,
            names=self._names,
            limits=self._limits,
            appearing=self._appearing,
        )

    def _formats_of_rows(self) -> Sequence[TableFormat]:
        """The tables for rows, by their numbers; those of routes that have appeared are the last ones."""
        urls = self._pipeline.stream.row_tables
        for url in urls[len(self._row_formats) :]:
            self._row_formats.append(rows_format(self.stream.at(url), self._pipeline.columns))
        return self._row_formats

    @property
    def all_formats(self) -> tuple[TableFormat, ...]:
        """The stream's tables, those of its routes included."""
        return (*self._row_formats, self.formats[1])

    @property
    def needs_headers(self) -> bool:
        return self._pipeline.needs_headers

    @property
    def json_of(self) -> OpenMessage | None:
        return self._pipeline.json_of

    def waits(self, batch: MessageBatch) -> Dependency | None:
        """What must be available before this batch can be converted: schemas, and tables of routes that appear."""
        dependency = self._pipeline.waits(batch)
        if dependency is not None or self._route_choice is None or self._appearing is None:
            return dependency
        messages = Messages.from_batches([batch])
        routes = self._route_choice.routes(messages)
        return self._appearing.waits([*routes, *self._pipeline.routes_of_tombstones(messages)])

    def slices(self, batches: Sequence[MessageBatch]) -> Iterator[list[tuple[MessageBatch, StagedRows]]]:
        """Parts of the batches with their rows, in as many slices as the rows require (`slicing`)."""
        if not batches:
            return
        begun, exploder = self._pipeline.begin(Messages.from_batches(batches)), self._pipeline.exploder
        if begun.rows.stops:
            yield from until_stops(begun.messages, begun.rows.stops, self.slices)
            return
        is_more = False
        for cut in (begun,) if exploder is None else sliced(begun, exploder, self._limits):
            staged = self._finished(cut)
            if is_more:  # of a record that may be in a buffer already, and that has made its offer
                staged = [replace(part, offered=NO_COLUMNS) for part in staged]
            is_more = not cut.is_last
            if not cut.is_last:
                staged = [part.as_segment(batch) for batch, part in zip(cut.messages.batches, staged, strict=True)]
            yield list(zip(cut.messages.batches, staged, strict=True))

    def _finished(self, begun: Slice) -> list[StagedRows]:
        """The remaining steps, for each of the slice's batches."""
        messages, rows = begun.messages, self._pipeline.finish(begun)
        tables = {number: Part(index, part) for number, part, index in parted(rows)}
        outcome = Outcome(
            rows.index if rows.tables is None else index_of(tables),
            tables,
            sorted(rows.rejects),
            _NOTHING if deletes_by_tombstones(self.stream) else begun.tombstones,
            rows.filtered,
            rows.violations,
        )
        staged = staged_of(messages, outcome, self._formats_of_rows(), self.formats[1])
        return staged if self._offers is None else self._with_offers(self._offers, staged, rows, messages)

    def _with_offers(
        self, offers: Offers, staged: list[StagedRows], rows: Rows, messages: Messages
    ) -> list[StagedRows]:
        """The content of each batch's rescue column, as an offer; filtered rows offer nothing."""
        texts = rows.table[rescue_column_of_table(self.stream)]
        offered = self._pipeline.offered(offers, texts, rows.index, messages)
        return [replace(rows, offered=offer) for rows, offer in zip(staged, offered, strict=True)]


def offers_of(stream: Stream, pipeline: RecordPipeline, names: ColumnNames, room: int) -> Offers:
    """The new fields that the stream's rows offer, at most ``room``."""
    kept = (field for field in pipeline.record_columns if (field.name,) not in naming_of(stream).drop)
    return Offers(StructType(tuple(kept)), names, room, consumed=fields_of(stream.record.jmespath.values()))


def to_route(stream: Stream) -> Stream:
    """The stream with what decides on its records' routes, and no more."""
    return stream.model_copy(update={"expect": {}})


def _steps(
    stream: Stream, columns: StructType, keys: FramedDecoder | None, appearing: AppearingRoutes | None
) -> Iterator[Step]:
    """The steps of the stream's settings, in order; ``columns`` are the decoder's."""
    routing: Routing | None = None
    for step in _record_steps(stream, columns, appearing):
        yield step
        columns = step.columns
        routing = step if isinstance(step, Router | ToAllTables) else routing
    named = naming_of(stream).of(columns, made_columns(stream))
    if named.plan is not None:
        yield Names(named.columns, named.plan)
        columns = named.columns
    if kafka_fields_of(stream):
        kafka = KafkaColumns(columns, stream)
        yield kafka
        columns = kafka.columns
    by = merge_by_of(stream)
    if by is not None:
        yield Events(columns, stream, by, keys, routing)
    if stream.staged_identity is not None:
        yield AddIdentityColumns(columns, stream.staged_identity)


def _record_steps(stream: Stream, columns: StructType, appearing: AppearingRoutes | None) -> Iterator[Step]:
    """The steps that see the record's fields by their own names."""
    if stream.shaping.where is not None:
        yield Condition(columns, stream.shaping.where)
    if stream.shaping.derive:
        deriver = Deriver(columns, stream.shaping.derive)
        yield deriver
        columns = deriver.columns
    yield from routing_of(columns, stream, appearing)
    if stream.merge is not None:
        operation = Operation(columns, operation_of(stream))
        yield operation
        columns = operation.columns
        if stream.merge.history and stream.merge.sequence is None and stream.record.has_events:
            time = ChangeTime(columns)
            yield time
            columns = time.columns
    if stream.shaping.expect:
        yield Expectations(columns, stream)
    if stream.shaping.explode is not None:
        by = merge_by_of(stream)
        if by is not None:
            yield Elements(columns, stream, by)
        yield Exploder(columns, stream.shaping.explode)


def dead_letters_format(stream: Stream) -> TableFormat:
    return table_format(stream.dead_letters, TableKind.DEAD_LETTERS, DEAD_LETTER_SCHEMA, ())


def require_can_partition(rows: TableFormat) -> None:
    """Raises SchemaError for a partition column of an unsupported type."""
    for name in rows.partition_by:
        data_type = from_arrow_type(rows.arrow_schema.field(name).type)
        if not can_partition(data_type):
            raise SchemaError(f"partition_by names {name!r}, which has the type {type_to_ddl(data_type)}", INSTEAD)


def rows_format(stream: Stream, schema: StructType) -> TableFormat:
    """How the stream's main table is written; ``schema`` has all columns of the staged rows. Raises SchemaError."""
    merge, identity = merge_by_of(stream), stream.staged_identity
    problem = clustering_problem(schema, stream.layout.cluster_by)
    if problem is not None:
        raise SchemaError(problem, "cluster by another column")
    made = table_format(stream.table, TableKind.ROWS, schema, stream.layout.partition_by, merge)
    if identity is not None:
        table = StructType(tuple(field for field in schema if field.name not in identity))
        made = replace(made, schema=schema_to_json(table), place=identity)
    return replace(made, waits=stream.load.waits_for_spark, settings=settings_of_columns(stream))


def table_format(
    url: str, kind: TableKind, schema: StructType, partition_by: Sequence[str], merge: MergeBy | None = None
) -> TableFormat:
    table = schema if merge is None else table_columns(schema)
    return TableFormat(url, kind, schema_to_json(table), to_arrow_schema(schema), tuple(partition_by), merge=merge)
