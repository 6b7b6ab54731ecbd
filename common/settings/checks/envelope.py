"""A stream's `envelope`, and what its messages cannot be made into."""

import re
from collections.abc import Iterator

from common.settings.envelopes import UPDATE, may_have_several_rows
from common.settings.stream import Stream


def check_envelope(stream: Stream) -> None:
    for problem in _problems(stream):
        raise ValueError(problem)


def _problems(stream: Stream) -> Iterator[str]:
    record = stream.record
    if record.format != "json" and record.envelope in UPDATE:
        yield (
            f"envelope is {record.envelope}, which is JSON, and format is {record.format}; remove format, or write "
            "envelope: debezium"
        )
    if stream.shaping.explode is not None and may_have_several_rows(stream):
        yield (
            f"explode is set, but a message of envelope: {record.envelope} may have several rows already; leave "
            "explode out, and explode the array in a query of the table"
        )
    where = stream.shaping.where
    if where is None or stream.merge is None or not may_have_several_rows(stream):
        return
    words = set(re.findall(r"\w+", where.casefold()))
    named = [name for name in record.schema_of_columns.names if name.casefold() in words]
    if record.has_own_columns and named:
        yield (
            f"an update of envelope: {record.envelope} may also delete a row, by the keys of its table, and where "
            f"decides by {named[0]} about both rows at once; name only _cdc and kafka in where, or give each table a "
            "stream of its own"
        )
