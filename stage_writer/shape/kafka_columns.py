"""Adds what Kafka knows of each row's record: `kafka_columns`, what `include` names, and its position in Kafka.

Rule: a record whose headers are asked for and cannot be represented is refused (headers.py); nothing else is.
"""

import pyarrow as pa

from common.schema import StructType, to_arrow_type
from common.settings import Stream
from common.settings.columns import INCLUDED_FIELDS, kafka_fields_of
from common.tables.changes import IdentityColumns, identity_fields
from stage_writer.decode.batch import Index, Messages
from stage_writer.shape.headers import headers_as, with_readable_headers
from stage_writer.shape.outcome import kafka_columns_of
from stage_writer.shape.rows import Rows

_KEY, _HEADERS = INCLUDED_FIELDS
_HEADERS_TYPE = to_arrow_type(_HEADERS.type)


class KafkaColumns:
    """Adds the columns: a `Step`."""

    def __init__(self, columns: StructType, stream: Stream) -> None:
        self._names = tuple(field.name for field in kafka_fields_of(stream))
        self.columns = columns.with_fields(kafka_fields_of(stream))

    @property
    def needs_headers(self) -> bool:
        """Whether the rows have their headers."""
        return _HEADERS.name in self._names

    def apply(self, rows: Rows, messages: Messages) -> Rows:
        if self.needs_headers:
            rows = with_readable_headers(rows, messages)
        table = rows.table
        for name, column in zip(self._names, made_of(self._names, messages, rows.index), strict=True):
            table = table.append_column(name, column)
        return rows.with_table(table)


def made_of(names: tuple[str, ...], messages: Messages, index: Index) -> list[pa.Array]:
    """The columns with these names (`kafka_fields_of`) of some messages, given by their rising indices."""
    makers = {
        _KEY.name: lambda: messages.keys.take(pa.array(index)).cast(pa.binary()),
        _HEADERS.name: lambda: headers_as(_HEADERS_TYPE, messages, index),
    }
    of_place = len([name for name in names if name not in makers])
    identity_columns = kafka_columns_of(messages, index) if of_place else ()
    return [*identity_columns, *(makers[name]() for name in names[of_place:])]


class AddIdentityColumns:
    """Adds the columns: the last `Step` of such a stream."""

    needs_headers = False

    def __init__(self, columns: StructType, identity: IdentityColumns) -> None:
        self._identity = identity
        self.columns = columns.with_fields(identity_fields(identity))

    def apply(self, rows: Rows, messages: Messages) -> Rows:
        table = rows.table
        for name, column in zip(self._identity, kafka_columns_of(messages, rows.index)[:3], strict=True):
            table = table.append_column(name, column)
        return rows.with_table(table)
