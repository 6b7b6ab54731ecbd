"""The layers of a stream's messages, from the outside: frame, envelope, and the decoder of the record.

Each is a decoder around the next one, so a stream without one of them pays nothing for it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from stage_writer.decode.decode import Decoder
from stage_writer.decode.envelopes.debezium import EventDecoder
from stage_writer.decode.envelopes.framing import FramedDecoder
from stage_writer.decode.first_pass import no_first_pass
from stage_writer.decode.reading import Reading
from stage_writer.decode.unknown.evolving import EvolvingDecoder
from stage_writer.shape.jmespath.decoder import JmesPathDecoder

if TYPE_CHECKING:
    from common.schema import StructType
    from common.settings import Stream
    from stage_writer.decode.batch import Messages
    from stage_writer.decode.decode import Decoded, Decodes
    from stage_writer.decode.envelopes.framing import SchemaTypes
    from stage_writer.decode.first_pass import MakeFirstPass
    from stage_writer.decode.unknown.evolving import Way


class PlainRecords:
    """Decodes messages that are plain records."""

    def __init__(self, decoder: Decoder | EvolvingDecoder) -> None:
        self._decoder = decoder

    @property
    def columns(self) -> StructType:
        """The columns of the rows."""
        return self._decoder.columns

    def decode(self, messages: Messages) -> Decoded:
        """The result for the messages."""
        return self._decoder.decode(messages.values)


def decoder_of(
    stream: Stream, schemas: SchemaTypes | None, gained: Way = (), first_pass: MakeFirstPass = no_first_pass
) -> Decodes:
    """The decoder of a stream's messages, including columns that it has ``gained``.

    Raises SchemaError and ExpressionError for an invalid stream.
    """
    columns = stream.schema_of_columns
    rescue_column = stream.rescue_column if stream.rescues else None
    reading = Reading(stream.forms, lenient=stream.coerce == "lenient")
    decoder: Decodes
    if stream.jmespath:
        decoder = JmesPathDecoder(columns, stream.jmespath, reading, rescue_column=rescue_column, first_pass=first_pass)
    else:
        make = partial(Decoder, reading=reading, rescue_column=rescue_column, first_pass=first_pass)
        decoder = PlainRecords(EvolvingDecoder(columns, gained, make) if gained else make(columns))
    if stream.has_events:
        decoder = EventDecoder(decoder, first_pass)
    if stream.framing == "none":
        return decoder
    if schemas is None:
        msg = "a stream with frames needs a schema registry"
        raise TypeError(msg)
    return FramedDecoder(decoder, schemas)
