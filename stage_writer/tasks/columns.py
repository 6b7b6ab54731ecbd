"""The conversion of a stream whose topology only has steps on columns between sources and tables: without tasks.

    decode ─► steps ─► the sink's columns ─► Kafka's columns ─► the tables' rows

Rules:

1. It works like the settings `where` and `derive`: the messages of a topic, of all its partitions, in one call for each
   step, without an object per record, without reading keys or times, and without state in the chain.
2. The result for a message is the same as in a task (stage_writer/topologies/task): a message that any step or table
   refuses is refused as a whole, and further rows, over all tables, are counted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter

import numpy as np

from common.schema import to_arrow_schema
from common.settings import Stream
from common.tables.urls import comparable
from stage_writer.decode.batch import MessageBatch, Messages
from stage_writer.decode.decode_options import MakeNativeDecoder
from stage_writer.decode.rejects import ErrorClass, Reject
from stage_writer.parquet.buffer import StagedRows, TableFormat
from stage_writer.shape.kafka_columns import AddIdentityColumns, KafkaColumns
from stage_writer.shape.outcome import Outcome, Part, staged_of, together
from stage_writer.shape.rows import Rows, Step
from stage_writer.shape.slicing import StatelessConverter
from stage_writer.tasks.tables import TopologyConverterBase, decoders_of, formats_of, row_format
from stage_writer.topologies.built import BuiltTopology
from stage_writer.topologies.nodes import TableSink
from stage_writer.topologies.task.writing import RowWriter


@dataclass(frozen=True, slots=True)
class _Arrived:
    table: int
    rows: Rows


class ColumnsConverter(TopologyConverterBase, StatelessConverter):
    """A `stage_writer.ports.Converter`. ``topology.is_columns_only`` holds. Raises SchemaError."""

    def __init__(self, stream: Stream, topology: BuiltTopology, native_decoder: MakeNativeDecoder) -> None:
        self.stream = stream
        self.topology = topology
        self.needs_headers = topology.needs_headers
        self.formats = formats_of(stream)
        self._row_formats = tuple(row_format(stream, url) for url in stream.row_tables)
        self._row_makers = tuple(
            _RowMaker(stream.at(table_format.url), table_format) for table_format in self._row_formats
        )
        numbers = {comparable(url): number for number, url in enumerate(stream.row_tables)}
        self._numbers = {name: numbers[comparable(url)] for name, url in stream.routing.routes.items()}
        self._numbers[""] = numbers[comparable(stream.table)]
        self._decoders = decoders_of(stream, topology, native_decoder)

    def slices(self, batches: Sequence[MessageBatch]) -> Iterator[list[tuple[MessageBatch, StagedRows]]]:
        """The batches with their rows, topic by topic (rule 1)."""
        by_topic: dict[str, list[MessageBatch]] = {}
        for batch in batches:
            by_topic.setdefault(batch.partition.topic, []).append(batch)
        for topic, of_topic in by_topic.items():
            messages = Messages.from_batches(of_topic)
            outcome = self._outcome(topic, messages)
            staged = staged_of(messages, outcome, self._row_formats, self.formats[1])
            yield list(zip(of_topic, staged, strict=True))

    def _outcome(self, topic: str, messages: Messages) -> Outcome:
        decoded = self._decoders[topic].decode(messages.values)
        arrived = list(self._walk(self.topology.sources[topic].name, Rows.from_decoded(decoded), messages))
        if len(arrived) == 1:
            (only,) = arrived
            parts = {only.table: Part(only.rows.index, only.rows.table)}
            rejects = sorted(only.rows.rejects, key=attrgetter("index"))
            filtered = np.sort(only.rows.filtered)  # by several steps
            return Outcome(only.rows.index, parts, rejects, decoded.tombstones, filtered)
        parts_by_table = [(output.table, Part(output.rows.index, output.rows.table)) for output in arrived]
        all_rejects = chain.from_iterable(output.rows.rejects for output in arrived)
        return together(parts_by_table, all_rejects, decoded.tombstones, len(messages))

    def _walk(self, node: str, rows: Rows, messages: Messages) -> Iterator[_Arrived]:
        """The rows at the sinks below a node, depth first."""
        for child in self.topology.children.get(node, ()):
            if isinstance(child, TableSink):
                number = self._numbers[child.table]
                yield _Arrived(number, self._row_makers[number].fitted(rows, messages))
            else:
                yield from self._walk(child.name, self.topology.early[child.name].apply(rows, messages), messages)


class _RowMaker:
    def __init__(self, stream: Stream, table: TableFormat) -> None:
        """``stream`` has that table as its main one."""
        self._schema = table.arrow_schema
        self._writer = RowWriter(to_arrow_schema(stream.record.schema_of_columns))
        self._more: list[Step] = [KafkaColumns(stream.record.schema_of_columns, stream)]
        if stream.staged_identity is not None:
            self._more.append(AddIdentityColumns(self._more[0].columns, stream.staged_identity))

    def fitted(self, rows: Rows, messages: Messages) -> Rows:
        """The rows with the table's columns, without those with null in a NOT NULL column."""
        table, problems = self._writer.fitted(rows.table)
        if problems:
            failing = np.zeros(len(rows), np.bool_)
            failing[list(problems)] = True
            rejects = [Reject(int(rows.index[index]), ErrorClass.MISSING_FIELD, why) for index, why in problems.items()]
            rows = rows.without(failing, rejects)
        rows = rows.with_table(table).through(self._more, messages)
        return rows.with_table(rows.table.cast(self._schema))
