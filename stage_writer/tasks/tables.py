"""The common part of the converters of a stream with a topology: its sources' decoders, and its tables' formats."""

from typing import Self

from common.schema import StructType, nullable_columns
from common.settings import Stream
from common.settings.columns import kafka_fields_of
from common.tables.changes import identity_fields
from stage_writer.convert import dead_letters_format, require_can_partition, rows_format
from stage_writer.decode.batch import MessageBatch
from stage_writer.decode.decode import Decoder
from stage_writer.decode.decode_options import DecodeOptions, MakeNativeDecoder
from stage_writer.parquet.buffer import TableFormat
from stage_writer.topologies.built import BuiltTopology


class TopologyConverterBase:
    """The common part of the converters of a stream with a topology."""

    def waits(self, batch: MessageBatch) -> None:
        """Always None: a topology's messages wait for nothing."""

    def at(self, gained: StructType) -> Self:  # noqa: ARG002 - the port's
        """This converter unchanged: a table that a topology fills gains no columns."""
        return self


def declared_of(stream: Stream) -> dict[str, StructType]:
    """The columns of rows, by the names of sinks' tables; "" is the stream's main one."""
    routed = {route: stream.at(url).record.schema_of_columns for route, url in stream.routing.routes.items()}
    return {"": stream.record.schema_of_columns, **routed}


def formats_of(stream: Stream) -> tuple[TableFormat, TableFormat]:
    """The stream's main table, and the one for dead letters. Raises SchemaError."""
    return row_format(stream, stream.table), dead_letters_format(stream)


def row_format(stream: Stream, url: str) -> TableFormat:
    stream = stream.at(url)
    table = nullable_columns(stream.record.schema_of_columns)
    table = table.with_fields(kafka_fields_of(stream))
    if stream.staged_identity is not None:
        table = table.with_fields(identity_fields(stream.staged_identity))
    rows = rows_format(stream, table)
    require_can_partition(rows)
    return rows


def decoders_of(stream: Stream, topology: BuiltTopology, native_decoder: MakeNativeDecoder) -> dict[str, Decoder]:
    """The decoders by topic; none for a source without columns, which accepts any JSON value. Raises SchemaError."""
    reading = DecodeOptions(lenient=stream.record.coerce == "lenient")
    return {
        topic: Decoder(source.columns, reading, native_decoder=native_decoder)
        for topic, source in topology.sources.items()
        if source.columns is not None
    }
