"""A table's columns for what Kafka knows of a row's record."""

from common.schema.types import ArrayType, Field, Primitive, StructType
from common.settings.stream import INCLUDED_COLUMNS, KAFKA_COLUMNS, Included, Stream

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
