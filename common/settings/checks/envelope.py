"""A stream's `envelope`, and what its messages cannot be made into."""

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
    is_merged = stream.merge is not None and may_have_several_rows(stream)
    if is_merged and stream.has_several_columns and stream.shaping.where is not None:
        yield (
            f"an update of envelope: {record.envelope} may also delete a row, by the keys of its table, and where does "
            "not see the columns that this table alone has; remove where, or give each table a stream of its own"
        )
