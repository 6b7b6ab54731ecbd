"""The columns of dead-letter tables, and of rows with their origin: both services write them."""

from __future__ import annotations

from common.schema.types import Field, Primitive, StructType
from common.settings.stream import KAFKA_COLUMNS

KAFKA_FIELDS = tuple(
    Field(name, data_type)
    for name, data_type in zip(
        KAFKA_COLUMNS, (Primitive.STRING, Primitive.INTEGER, Primitive.LONG, Primitive.TIMESTAMP), strict=True
    )
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
