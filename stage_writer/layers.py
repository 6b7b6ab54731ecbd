"""The layers of a stream's messages, from the outside: frame, binary record, envelope, and the decoder of the record.

Each is a decoder around the next one, so a stream without one of them pays nothing for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from common.errors import SchemaError
from common.schema import Field, Primitive, StructType
from common.schema.avro import parse_avro
from common.settings import Stream
from common.settings.envelopes import is_lenient
from common.settings.formats import Forms, path_steps
from common.settings.merging import merge_by_of, record_names
from stage_writer.decode.batch import Messages
from stage_writer.decode.binary.avro import AvroReader, MakeAvroPass, make_avro_reader, no_avro_pass
from stage_writer.decode.binary.json_schema import JsonSchemaReader
from stage_writer.decode.binary.protobuf import Compile, ProtobufReader, make_protobuf_reader
from stage_writer.decode.binary.texts import MakeRecordReader, RecordReader
from stage_writer.decode.decode import Decoded, Decoder, MessageDecoder
from stage_writer.decode.decode_options import DecodeOptions, MakeNativeDecoder, no_native_decoder
from stage_writer.decode.envelopes.debezium import DebeziumOpener
from stage_writer.decode.envelopes.framing import (
    FramedDecoder,
    HeaderFramedDecoder,
    KeyHeaderFramedDecoder,
    SchemaCoverage,
    SchemaTypes,
    UnframedDecoder,
)
from stage_writer.decode.envelopes.row_change_decoder import EnvelopeOpener, RowChangeDecoder, old_keys_of
from stage_writer.decode.envelopes.row_changes import ENVELOPES
from stage_writer.decode.unknown.evolving import Additions, EvolvingDecoder
from stage_writer.shape.jmespath.decoder import JmesPathDecoder


class PlainRecords:
    def __init__(self, decoder: Decoder | EvolvingDecoder) -> None:
        self.columns = decoder.columns
        self._decoder = decoder

    def decode(self, messages: Messages) -> Decoded:
        return self._decoder.decode(messages.values)


@dataclass(frozen=True, slots=True)
class RecordInputs:
    """The external inputs for reading a stream's records."""

    schemas: SchemaTypes | None = None
    """The registry of a stream whose messages have frames."""
    native_decoder: MakeNativeDecoder = no_native_decoder
    schema_file: bytes | None = None
    """The content of the stream's ``schema_file``."""
    avro_pass: MakeAvroPass = no_avro_pass
    compile_protobuf: Compile | None = None
    covers: SchemaCoverage | None = None
    """The columns of a stream that takes them from a registry."""


NO_INPUTS = RecordInputs()


def decoder_of(
    stream: Stream, inputs: RecordInputs = NO_INPUTS, gained: Additions = (), *, part_of: Stream | None = None
) -> MessageDecoder:
    """The decoder of a stream's messages, including columns that it has ``gained``.

    ``part_of`` is the stream with all columns, where this one has only some: its keys decide which rows messages have.
    Raises SchemaError and ExpressionError for an invalid stream.
    """
    columns, native_decoder = stream.record.schema_of_columns, inputs.native_decoder
    rescue_column = stream.record.rescue_column if stream.record.rescues else None
    reading = DecodeOptions(stream.record.forms, lenient=is_lenient(stream), non_finite=stream.record.format != "json")
    make = partial(Decoder, reading=reading, rescue_column=rescue_column, native_decoder=native_decoder)
    records = EvolvingDecoder(columns, gained, make) if gained else make(columns)
    decoder: MessageDecoder = PlainRecords(records)
    if stream.record.jmespath:
        rescuing = None if rescue_column is None else records
        decoder = JmesPathDecoder(
            columns, stream.record.jmespath, reading, rescuing=rescuing, native_decoder=native_decoder
        )
    if stream.record.has_events:
        envelope = ENVELOPES.get(stream.record.envelope)
        opener = DebeziumOpener(native_decoder) if envelope is None else EnvelopeOpener(envelope, native_decoder)
        decoder = RowChangeDecoder(decoder, opener, old_keys_of(part_of or stream))
    if stream.record.framing == "none":
        return (
            decoder if stream.record.schema_file is None else UnframedDecoder(decoder, reader_of_file(stream, inputs))
        )
    if inputs.schemas is None:
        raise TypeError("a stream with frames needs a schema registry")
    framed = FramedDecoder if stream.record.framing == "confluent" else HeaderFramedDecoder
    return framed(decoder, inputs.schemas, stream.record.format.upper(), _make_reader(stream, inputs), inputs.covers)


def reader_of_file(stream: Stream, inputs: RecordInputs) -> RecordReader:
    """The reader of messages that have the schema of the stream's file. Raises SchemaError for an invalid one."""
    if inputs.schema_file is None:
        raise TypeError("a stream with a schema_file needs its content")
    columns, reading = _hints(stream)
    with _naming_file(stream):
        match stream.record.format:
            case "protobuf":
                files = _compiler(inputs)(inputs.schema_file, {})
                return ProtobufReader(files, columns, reading, message=stream.record.message)
            case "avro":
                return AvroReader(parse_avro(text_of(inputs.schema_file)), columns, reading, make_pass=inputs.avro_pass)
            case _:
                return JsonSchemaReader(text_of(inputs.schema_file))


@contextmanager
def _naming_file(stream: Stream) -> Iterator[None]:
    """Name the stream's file in a SchemaError about its content."""
    try:
        yield
    except SchemaError as error:
        raise SchemaError(f"schema_file {stream.record.schema_file}: {error.problem}", error.remedy) from None


def keys_decoder_of(stream: Stream, inputs: RecordInputs) -> FramedDecoder | None:
    """Opens message keys that have the records' format in a frame; None where keys are JSON or text."""
    if stream.record.format == "json" or stream.record.framing == "none" or inputs.schemas is None:
        return None
    columns, reading = stream.record.schema_of_columns, DecodeOptions(stream.record.forms, lenient=is_lenient(stream))
    if stream.record.format == "avro":
        named = (columns.field(name) or Field(name, Primitive.STRING) for name in _key_names(stream))
        # Gained columns have the types of values that no column decides about.
        keys = columns if stream.record.has_own_columns else StructType(tuple(named))
        make = make_avro_reader(keys, reading, None, inputs.avro_pass, is_key=True)
    else:
        make = make_protobuf_reader(columns, reading, _compiler(inputs))
    framed = FramedDecoder if stream.record.framing == "confluent" else KeyHeaderFramedDecoder
    return framed(PlainRecords(Decoder(columns)), inputs.schemas, stream.record.format.upper(), make)


def _key_names(stream: Stream) -> tuple[str, ...]:
    names = record_names(stream)
    by = merge_by_of(stream)
    return () if by is None else tuple(names.get(key, key) for key in by.record)


def _make_reader(stream: Stream, inputs: RecordInputs) -> MakeRecordReader | None:
    """Makes the readers of a stream's framed messages; None where no schema decides how one is read."""
    columns, reading = _hints(stream)
    match stream.record.format:
        case "protobuf":
            return make_protobuf_reader(columns, reading, _compiler(inputs), stream.record.message)
        case "avro":
            with _naming_file(stream):
                file = inputs.schema_file
                resolved = None if file is None else parse_avro(text_of(file), checks_defaults=True)
                return make_avro_reader(columns, reading, resolved, inputs.avro_pass)
        case _:
            return JsonSchemaReader if stream.record.validates else None


def _hints(stream: Stream) -> tuple[StructType, DecodeOptions]:
    """The columns that decide a value's text, by where it is in the message, and how they are read."""
    columns, forms = stream.record.schema_of_columns, stream.record.forms
    if stream.record.jmespath:
        filled = {path_steps(column)[0] for column in stream.record.jmespath}
        columns = StructType(tuple(field for field in columns if field.name not in filled))
    if stream.record.has_events:
        images = ("before", "after")
        columns = StructType(tuple(Field(image, columns) for image in images))
        forms = Forms(None, dict.fromkeys(images, forms))
    return columns, DecodeOptions(forms, lenient=is_lenient(stream))


def _compiler(inputs: RecordInputs) -> Compile:
    if inputs.compile_protobuf is None:
        raise TypeError("a stream of Protobuf needs its compiler")
    return inputs.compile_protobuf


def text_of(file: bytes) -> str:
    """The text of a schema's file. Raises SchemaError for other bytes."""
    try:
        return file.decode()
    except UnicodeDecodeError:
        raise SchemaError("it is not UTF-8 text", "write the schema as UTF-8 text") from None
