"""Delta types as Arrow types, for data files and batches, and back for computed columns.

Rules:

1. An Arrow type here is the only physical form of a Delta type: microseconds for both timestamps, ``UTC`` for the one
   with a zone, 128-bit decimals, 32-bit string offsets.
2. The names inside of lists and maps (``element``, ``key``, ``value``) are those that Spark writes to Parquet.
"""

import pyarrow as pa

from common.errors import SchemaError
from common.schema.types import ArrayType, DataType, DecimalType, Field, MapType, Primitive, StructType

_ARROW: dict[Primitive, pa.DataType] = {
    Primitive.BYTE: pa.int8(),
    Primitive.SHORT: pa.int16(),
    Primitive.INTEGER: pa.int32(),
    Primitive.LONG: pa.int64(),
    Primitive.FLOAT: pa.float32(),
    Primitive.DOUBLE: pa.float64(),
    Primitive.STRING: pa.string(),
    Primitive.BINARY: pa.binary(),
    Primitive.BOOLEAN: pa.bool_(),
    Primitive.DATE: pa.date32(),
    Primitive.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    Primitive.TIMESTAMP_NTZ: pa.timestamp("us"),
}
_WIDENED: dict[pa.DataType, DataType] = {
    pa.uint8(): Primitive.SHORT,
    pa.uint16(): Primitive.INTEGER,
    pa.uint32(): Primitive.LONG,
    pa.uint64(): DecimalType(20, 0),
    pa.large_string(): Primitive.STRING,
    pa.large_binary(): Primitive.BINARY,
}
_BY_ARROW: dict[pa.DataType, DataType] = {**{arrow: delta for delta, arrow in _ARROW.items()}, **_WIDENED}


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of batches and data files with these columns. Raises SchemaError for VARIANT."""
    return pa.schema([to_arrow_field(field) for field in schema])


def to_arrow_field(field: Field) -> pa.Field:
    """One column as an Arrow field. Raises SchemaError for VARIANT."""
    try:
        return pa.field(field.name, to_arrow_type(field.type), field.nullable)
    except SchemaError as error:
        raise SchemaError(f"the column `{field.name}`: {error.problem}", error.remedy) from error


def to_arrow_type(data_type: DataType) -> pa.DataType:
    """The physical form of a Delta type. Raises SchemaError for VARIANT."""
    match data_type:
        case Primitive.VARIANT:
            msg = "VARIANT cannot be written yet"
            raise SchemaError(msg, "declare it as STRING, or as the STRUCT or MAP that it is")
        case Primitive():
            return _ARROW[data_type]
        case DecimalType(precision, scale):
            return pa.decimal128(precision, scale)
        case ArrayType(element, contains_null):
            return pa.list_(pa.field("element", to_arrow_type(element), contains_null))
        case MapType(key, value, contains_null):
            keys = pa.field("key", to_arrow_type(key), nullable=False)
            return pa.map_(keys, pa.field("value", to_arrow_type(value), contains_null))
        case StructType(fields):
            return pa.struct([to_arrow_field(field) for field in fields])


def from_arrow_type(arrow: pa.DataType) -> DataType:
    """The narrowest Delta type that holds every value of an Arrow type. Raises SchemaError where there is none."""
    if arrow in _BY_ARROW:
        return _BY_ARROW[arrow]
    if pa.types.is_decimal(arrow) and 0 <= arrow.scale <= arrow.precision <= 38:  # noqa: PLR2004 - Delta's limit
        return DecimalType(arrow.precision, arrow.scale)
    if pa.types.is_timestamp(arrow) and arrow.unit != "ns":
        return Primitive.TIMESTAMP_NTZ if arrow.tz is None else Primitive.TIMESTAMP
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow):
        return ArrayType(from_arrow_type(arrow.value_type))
    if pa.types.is_map(arrow):
        return MapType(from_arrow_type(arrow.key_type), from_arrow_type(arrow.item_type))
    if pa.types.is_struct(arrow):
        return StructType(tuple(Field(part.name, from_arrow_type(part.type)) for part in arrow))
    raise SchemaError(f"Delta has no type {arrow}", "cast the value, for example to STRING")
