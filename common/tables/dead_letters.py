"""The columns of dead-letter tables, of rows with their origin, and the headers of dead letters in a Kafka topic.

Both services write them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.schema.types import ArrayType, Field, Primitive, StructType
from common.settings.stream import INCLUDED_COLUMNS, KAFKA_COLUMNS, Included

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from common.settings.stream import Stream

KAFKA_FIELDS = tuple(
    Field(name, data_type)
    for name, data_type in zip(
        KAFKA_COLUMNS, (Primitive.STRING, Primitive.INTEGER, Primitive.LONG, Primitive.TIMESTAMP), strict=True
    )
)
INCLUDED_FIELDS = (
    Field(INCLUDED_COLUMNS[Included.KEY], Primitive.BINARY),
    Field(
        INCLUDED_COLUMNS[Included.HEADERS],
        ArrayType(StructType((Field("key", Primitive.STRING), Field("value", Primitive.BINARY)))),
    ),
)


def kafka_fields_of(stream: Stream) -> tuple[Field, ...]:
    """The table's columns for what Kafka knows of a row's record, as the stream's settings ask for them."""
    return (
        *(KAFKA_FIELDS if stream.kafka_columns else ()),
        *(field for field in INCLUDED_FIELDS if field.name in stream.included_column_names),
    )


DEAD_LETTER_SCHEMA = StructType(
    (
        *KAFKA_FIELDS,
        Field("key", Primitive.BINARY),
        Field("value", Primitive.BINARY),
        Field("error_class", Primitive.STRING),
        Field("error", Primitive.STRING),
    )
)

HEADER_PREFIX = "dead_letter."


def dead_letter_headers(
    app_id: str, error: tuple[str, str], source: tuple[str, int | str, int | str]
) -> list[dict[str, str | bytes]]:
    """The headers of a dead letter in a topic; ``error`` is its class and its text, ``source`` its topic and so on."""
    names = ("app_id", "error_class", "error", "topic", "partition", "offset")
    given = zip(names, (app_id, *error, *source), strict=True)
    return [{"name": HEADER_PREFIX + name, "value": str(value).encode()} for name, value in given]


def is_dead_letter(headers: Iterable[Mapping[str, object]], app_id: str, partition: int, offset: int) -> bool:
    """Whether these are the headers of a dead letter: of that stream, made of the message at that position."""
    given = {header["name"]: header["value"] for header in headers}
    wanted = {"app_id": app_id, "partition": partition, "offset": offset}
    return all(given.get(HEADER_PREFIX + name) == str(value).encode() for name, value in wanted.items())
