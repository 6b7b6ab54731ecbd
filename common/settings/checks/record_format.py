"""`format` and `envelope` of a stream, and what they need to read its records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.settings.envelopes import UPDATE, may_have_several_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from common.settings.stream import Stream


def check_format(stream: Stream) -> None:
    """Raise ValueError where the schema of the records is missing, or has no use."""
    for problem in _problems(stream):
        raise ValueError(problem)


def _problems(stream: Stream) -> Iterator[str]:
    binary, framed, file = stream.format != "json", stream.framing != "none", stream.schema_file
    if binary and not framed and file is None:
        yield (
            f"format is {stream.format}, and nothing tells the schema that records were written with; write framing: "
            "confluent, or give a schema_file"
        )
    if binary and stream.envelope in UPDATE:
        yield (
            f"envelope is {stream.envelope}, which is JSON, and format is {stream.format}; leave format out, or write "
            "envelope: debezium"
        )
    if stream.explode is not None and may_have_several_rows(stream):
        yield (
            f"explode is given, and a message of envelope: {stream.envelope} may have several rows already; leave "
            "explode out, and explode the array in a query of the table"
        )
    if stream.has_several_columns and may_have_several_rows(stream):
        yield (
            f"a table has columns of its own, and a message of envelope: {stream.envelope} may have several rows, with "
            "the same columns; give each table a stream of its own, with `where`"
        )
    if stream.validates and binary:
        yield f"validate is for JSON, and format is {stream.format}, whose records have its schema; leave validate out"
    if stream.validates and not framed and file is None:
        yield "validate needs a JSON Schema; write framing: confluent, or give a schema_file"
    if file is not None and not binary and not stream.validates:
        yield "schema_file is given, and format: json reads by the columns alone; write validate: true, or leave it out"
    if file is not None and framed and stream.format != "avro":
        yield f"schema_file is given, and framing: {stream.framing} has the schema in the registry; leave one out"
    if stream.message is not None and (stream.format != "protobuf" or file is None):
        yield "message names one of a schema_file's with format: protobuf, which is not so here; leave message out"
