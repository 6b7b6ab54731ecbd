"""VARIANT columns of a table: they are staged as JSON text, and Spark converts it to values.

Rules:

1. Only a column of the table itself, not a field inside of one, is converted like that.
2. Writers have no VARIANT type: they keep a value's text exactly (``formats: {column: json}``). Whether the text stays
   text or becomes a VARIANT depends on the table, so it is decided when rows are loaded.
"""

from dataclasses import replace

from common.schema.spark_json import schema_from_json
from common.schema.types import Primitive, StructType


def variants_of(schema: str) -> tuple[str, ...]:
    return tuple(field.name for field in schema_from_json(schema) if field.type is Primitive.VARIANT)


def staged_form(columns: StructType) -> StructType:
    """The table's columns with the types that are staged for them."""
    return StructType(
        tuple(replace(field, type=Primitive.STRING) if field.type is Primitive.VARIANT else field for field in columns)
    )
