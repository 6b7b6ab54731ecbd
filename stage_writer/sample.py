"""A stream's config applied to the newest records of its topics: the part of ``check`` that reads records.

Rules:

1. Nothing is staged, no group is joined and nothing is committed. A sample is the newest few hundred records of each
   topic: the next ones will be similar.
2. No value of a record is shown: quoted values are left out of errors.
3. A stream with a topology is tried with empty stores, in tasks whose output is neither kept nor sent: a state built
   over days may give different records for the same messages. So its dead letters prove nothing where it has stores.
4. Tables with columns of their own are tried with those that the sample offers: without its key columns, each event of
   a table that is merged would be a dead letter.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from common.errors import BrokerError
from common.kafka.reader import KafkaReader
from common.remedies import CONFIG
from common.schema import StructType
from common.schema.agreement import joined_offers
from common.schema.evolution import NO_COLUMNS, joined_columns
from common.settings import Settings, Stream
from common.spans import Position, Span, TopicPartition
from common.stage.markers import TableKind
from common.stage.merged import topics_of
from stage_writer.convert import StreamConverter
from stage_writer.convert_by_table import RecordConverter, TablesConverter
from stage_writer.decode.batch import MessageBatch
from stage_writer.decode.unknown.census import FieldCensus
from stage_writer.fetch.consumer_properties import consumer_properties
from stage_writer.fetch.fetched import batches_of
from stage_writer.partitions.dead_letter_alarm import DeadLetterShare
from stage_writer.shape.opening import census_of, opener_of

if TYPE_CHECKING:
    from stage_writer.tasks.columns import ColumnsConverter
    from stage_writer.tasks.topology import SampledTasks, TopologyConverter
    from stage_writer.tasks.wiring import AnyTopologyConverter

    BatchConverter = RecordConverter | ColumnsConverter | SampledTasks

SAMPLE_RECORDS = 1_000
"""Per topic, approximately."""
_AT_A_TIME = 1_000
_SCHEMAS_WITHIN_S = 10.0
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|“[^”]*”|\'[^\']*\'|(?<![\w(,.])-?\d[\w.+-]*')
_MOST_REASONS = 3


@dataclass(slots=True)
class StreamSample:
    stream: Stream
    census: FieldCensus | None
    """None for a topology, where only its code knows which fields it uses."""
    records: int = 0
    dead_letters: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    """The errors of dead letters (rule 2)."""
    violations: Counter[str] = field(default_factory=Counter)
    """By rule of `expect`."""
    stops: list[str] = field(default_factory=list)
    """Why partitions would be held; what follows in their samples is not tried."""
    derived: Counter[str] = field(default_factory=Counter)
    """How many rows have a value, by column of `derive`; those of tables that drop the column are not counted."""
    gained: StructType = NO_COLUMNS
    """The columns that the tables would gain, by route (rule 4)."""

    @property
    def share(self) -> DeadLetterShare:
        return DeadLetterShare(self.records, self.dead_letters)

    def is_well(self, alarm: float | None) -> bool:
        """Whether most of them would be staged, and none would hold its partition."""
        return not self.stops and not self.share.passes(alarm)

    def add(self, converter: BatchConverter, batches: Sequence[MessageBatch]) -> None:
        """Convert some records, and count the results."""
        dead_letters_index = next(
            index for index, table in enumerate(converter.formats) if table.kind is TableKind.DEAD_LETTERS
        )
        if isinstance(converter, TablesConverter) and converter.stream.record.evolves:
            offers = [staged.offered for part in converter.slices(batches) for _, staged in part]
            self.gained = joined_columns(self.gained, joined_offers(offers))
            converter = converter.at(self.gained)
        for part in converter.slices(batches):
            for batch, staged in part:
                if staged.stop is not None:
                    problem = _without_values(staged.stop)
                    self.stops.append(f"{batch.partition} would be held at offset {staged.end}: {problem}")
                    continue
                self.violations.update(staged.violations)
                self.records += staged.records
                self.dead_letters.update(staged.dead_letters)
                tables = [*staged.rows, *(rows for _, rows in staged.routed)]
                errors = tables.pop(dead_letters_index)["error"]
                self.reasons.update(_without_values(text) for text in errors.to_pylist())
                self._count_derived(tables)
        if self.census is not None:
            json_of = converter.json_of if isinstance(converter, StreamConverter) else None
            opened = opener_of(self.stream, json_of)
            for value in (value.as_py() for batch in batches for value in batch.values.drop_null()):
                record = opened(value)
                if record is not None:
                    self.census.add_text(record)

    def _count_derived(self, tables: Sequence[pa.Table]) -> None:
        for rows in tables:
            for name in self.stream.shaping.derive:
                if rows.num_rows and name in rows.column_names:
                    self.derived[name] += rows.num_rows - rows[name].null_count

    def lines(self, alarm: float | None) -> Iterator[str]:
        """Text for operators; the first line starts with ``ok`` or with the problem."""
        app_id, dead_letter_share = self.stream.app_id, self.share
        if not self.records and not self.stops:
            yield f"ok: {app_id}: its topics have no records to sample"
            return
        total = dead_letter_share.total
        verdict = (
            "records with on_fail: hold"
            if self.stops
            else "many dead letters"
            if dead_letter_share.passes(alarm)
            else "ok"
        )
        yield f"{verdict}: {app_id}: {total:,} of the newest {self.records:,} records would be dead letters"
        for reason, count in self.reasons.most_common(_MOST_REASONS):
            yield f"  {count:,} because {reason}"
        if dead_letter_share.passes(alarm):
            ours = "columns, formats or coerce" if self.stream.topology is None else "columns, the topology's code"
            again = f"then `stage-writer check {CONFIG}` again"
            yield f"  → fix streams[].{ours}, or what the producers send; {again}"
        for rule, count in self.violations.most_common():
            yield f"  {count:,} break the rule expect.{rule}"
        yield from (f"  {stop}" for stop in self.stops)
        yield from (f"  no row has a value for derive.{name}" for name, count in self.derived.items() if not count)
        if self.census is not None and self.census.records:
            yield from self._fields(self.census)

    def _fields(self, census: FieldCensus) -> Iterator[str]:
        for path, meant in census.missing():
            hint = "" if meant is None else f"; did you mean {meant}, which {census.undeclared[meant]:,} have?"
            yield f"  no record has the declared column {path}, so it is null{hint}"
        if census.undeclared:
            named = ", ".join(f"{path} {count:,}" for path, count in census.undeclared.most_common(10))
            more = len(census.undeclared) - 10
            rest = f" and {more} more" if more > 0 else ""
            kept = "are kept in the rescue column" if self.stream.record.rescues else "are dropped"
            yield f"  undeclared fields {kept}: {named}{rest}"


class Sampler(KafkaReader):
    def __init__(self, settings: Settings) -> None:
        """Raises ConfigError for properties that librdkafka rejects."""
        super().__init__(consumer_properties(settings), _AT_A_TIME)

    def sample(
        self, of_stream: RecordConverter | AnyTopologyConverter, partitions: Collection[TopicPartition]
    ) -> StreamSample:
        """The newest records of a stream's partitions, and the result of its config for them.

        Raises BrokerError, and TopologyError.
        """
        converter, stream = _for_sample(of_stream), of_stream.stream
        stream_sample = StreamSample(stream, census_of(stream))
        inputs = {
            TopicPartition(topic, partition.partition)
            for partition in partitions
            for topic in topics_of(partition.topic)
        }
        spans = self._spans(inputs)
        for messages in self.newest(spans) if spans else ():
            batches = batches_of(messages, with_headers=converter.needs_headers)
            for batch in batches:
                _wait_for_schemas(converter, batch)
            stream_sample.add(converter, batches)
        return stream_sample

    def _spans(self, topic_partitions: Collection[TopicPartition]) -> dict[TopicPartition, Span]:
        partitions = Counter(partition.topic for partition in topic_partitions)
        spans = {}
        for partition in topic_partitions:
            low, high = self.ends(partition)
            start = max(low, high - max(1, SAMPLE_RECORDS // partitions[partition.topic]))
            if start < high:
                spans[partition] = Span(Position(start), high)
        return spans


def _for_sample(converter: RecordConverter | AnyTopologyConverter) -> BatchConverter:
    """The converter of a stream's sample (rule 3)."""
    if isinstance(converter, RecordConverter) or converter.topology.is_columns_only:
        return cast("RecordConverter | ColumnsConverter", converter)
    from stage_writer.tasks.topology import SampledTasks  # noqa: PLC0415 - only with topologies

    return SampledTasks(cast("TopologyConverter", converter))


def _wait_for_schemas(converter: BatchConverter, batch: MessageBatch) -> None:
    wait, until_s = converter.waits(batch), time.monotonic() + _SCHEMAS_WITHIN_S
    while wait is not None and not wait.is_over():
        if time.monotonic() > until_s:
            raise BrokerError(wait.error.problem, wait.error.remedy)
        time.sleep(0.1)


def _without_values(error: str) -> str:
    """A dead letter's error without the values that it quotes of the record (rule 2)."""
    return _QUOTED.sub("…", error)
