"""`format` of a stream, and what it needs to read its records."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
