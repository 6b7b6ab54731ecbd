"""Delta table schemas without Spark: the types, SQL column lists, Delta's schema JSON, and Arrow.

One module for each format; each reads and writes its own, as inverses.
"""

from common.schema.arrow import from_arrow_type, to_arrow_field, to_arrow_schema, to_arrow_type
from common.schema.ddl import backticks, parse_ddl, quote_name, quote_path, quote_text, to_ddl, type_to_ddl
from common.schema.spark_json import schema_from_json, schema_to_json
from common.schema.types import (
    CHAR_VARCHAR_KEY,
    INTEGER_BITS,
    ArrayType,
    DataType,
    DecimalType,
    Field,
    MapType,
    Primitive,
    StructType,
    nullable_columns,
)

__all__ = [
    "CHAR_VARCHAR_KEY",
    "INTEGER_BITS",
    "ArrayType",
    "DataType",
    "DecimalType",
    "Field",
    "MapType",
    "Primitive",
    "StructType",
    "backticks",
    "from_arrow_type",
    "nullable_columns",
    "parse_ddl",
    "quote_name",
    "quote_path",
    "quote_text",
    "schema_from_json",
    "schema_to_json",
    "to_arrow_field",
    "to_arrow_schema",
    "to_arrow_type",
    "to_ddl",
    "type_to_ddl",
]
