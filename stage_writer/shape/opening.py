"""The record in a message, as JSON text: the input of a sample of a stream's fields.

Rules:

1. The frame and the envelope are removed one message at a time, by the decoders' own strict code; a message that they
   refuse is a dead letter and has no record.
2. A field that a `jmespath` expression names anywhere counts as used by a column. Which part of an object an expression
   uses is not analyzed: no part of such a field is reported as dropped.
"""

from collections.abc import Callable

from common.settings import Stream
from common.settings.formats import path_steps
from stage_writer.decode.envelopes.debezium import open_strictly
from stage_writer.decode.envelopes.framing import body_of
from stage_writer.decode.envelopes.row_changes import ENVELOPES
from stage_writer.decode.json_document import Object, json_text
from stage_writer.decode.rejects import Refusal
from stage_writer.decode.strict import document_of
from stage_writer.decode.unknown.census import FieldCensus, paths_of
from stage_writer.shape.jmespath.expressions import fields_of

OpenMessage = Callable[[bytes], bytes | None]


def census_of(stream: Stream) -> FieldCensus | None:
    """Counts the fields of a stream's records; None where no columns belong to all of them.

    A topology makes its own rows, and tables may have columns of their own.
    """
    if stream.topology is not None or stream.has_several_columns or stream.record.has_own_columns:
        return None
    columns = stream.record.schema_of_columns
    filled = [".".join(path_steps(column)) for column in stream.record.jmespath]
    made = {path for path in paths_of(columns) if any(_touch(path, other) for other in filled)}
    return FieldCensus(columns, taken=fields_of(stream.record.jmespath.values()), seen=made)


def _touch(first: str, other: str) -> bool:
    return first == other or first.startswith(f"{other}.") or other.startswith(f"{first}.")


def opener_of(stream: Stream, json_of: OpenMessage | None = None) -> OpenMessage:
    """Returns the record's JSON in a message, or None if it has none.

    ``json_of`` opens messages of a format that only their schema does.
    """
    if json_of is not None:
        opens = json_of
    elif stream.record.format != "json":
        return lambda _: None
    else:
        opens = (lambda message: message) if stream.record.framing != "confluent" else body_of

    def opened(message: bytes) -> bytes | None:
        body = opens(message)
        if body is None or not stream.record.has_events:
            return body
        envelope = ENVELOPES.get(stream.record.envelope)
        if envelope is not None:
            document = document_of(body, sourced=True)
            image = None if isinstance(document, Refusal) else envelope.image_of(document)
            return json_text(image).encode() if isinstance(image, Object) else None
        opened_body = open_strictly(body)
        return None if opened_body is None or isinstance(opened_body, Refusal) else opened_body[0].encode()

    return opened
