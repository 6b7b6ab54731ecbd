"""Which columns of a staged row hold its record identity, which ties a row that a table refuses to its bytes in Kafka.

Rules:

1. Rows with Kafka's columns identify their record; change events always do (common/tables/changes.py).
2. Rows of a stream with ``kafka_columns: false`` have three additional columns where they wait for Spark (``load:
   append``), `STAGED_IDENTITY`: the marker names them, and no table ever gets them. Where files may become part of a
   table as they are, such columns are not possible, and a row's record is unknown.
3. A marker without them is just as good: they are read only where a row was refused.
"""

from common.schema.types import Field, Primitive

IdentityColumns = tuple[str, str, str]
"""The names of a record's topic, partition and offset."""
STAGED_IDENTITY: IdentityColumns = ("_staged_topic", "_staged_partition", "_staged_offset")
IDENTITY_TYPES = (Primitive.STRING, Primitive.INTEGER, Primitive.LONG)


def identity_fields(identity: IdentityColumns) -> tuple[Field, ...]:
    return tuple(Field(name, data_type) for name, data_type in zip(identity, IDENTITY_TYPES, strict=True))
