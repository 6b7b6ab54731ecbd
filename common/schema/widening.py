"""The types that Delta widens a column to. Pure."""

from common.schema.types import INTEGER_BITS, MAX_DECIMAL_PRECISION, DataType, DecimalType, Primitive

FRACTIONS = (Primitive.FLOAT, Primitive.DOUBLE)
_DIGITS = {Primitive.BYTE: 10, Primitive.SHORT: 10, Primitive.INTEGER: 10, Primitive.LONG: 20}


def widened(table: DataType, staged: DataType) -> DataType | None:
    """The narrowest type that Delta widens a table's type to and that takes a staged one, or None."""
    data_type: DataType | None = None
    match table, staged:
        case _ if table == staged:
            data_type = table
        case Primitive(), Primitive():
            data_type = _widened_primitive(table, staged)
        case DecimalType(), DecimalType():
            data_type = _decimal(max(table.precision - table.scale, staged.precision - staged.scale), table, staged)
        case DecimalType(), Primitive() if staged in _DIGITS:
            data_type = _decimal(max(table.precision - table.scale, _DIGITS[staged]), table)
        case Primitive(), DecimalType() if table in _DIGITS:
            data_type = _decimal(max(staged.precision - staged.scale, _DIGITS[table]), staged)
        case _:
            data_type = None
    return data_type


def _widened_primitive(table: Primitive, staged: Primitive) -> Primitive | None:
    small = {Primitive.BYTE, Primitive.SHORT, Primitive.INTEGER}
    primitive: Primitive | None = None
    if table in INTEGER_BITS and staged in INTEGER_BITS:
        primitive = max(table, staged, key=INTEGER_BITS.__getitem__)
    elif table in small and staged in FRACTIONS:
        primitive = Primitive.DOUBLE
    elif table in FRACTIONS and (staged in small or staged in FRACTIONS):
        is_float = table is Primitive.FLOAT and staged in {Primitive.FLOAT, Primitive.BYTE, Primitive.SHORT}
        primitive = Primitive.FLOAT if is_float else Primitive.DOUBLE
    elif (table, staged) == (Primitive.DATE, Primitive.TIMESTAMP_NTZ):
        primitive = Primitive.TIMESTAMP_NTZ
    return primitive


def _decimal(whole_digits: int, *types: DecimalType) -> DecimalType | None:
    scale = max(decimal.scale for decimal in types)
    precision = whole_digits + scale
    return DecimalType(precision, scale) if precision <= MAX_DECIMAL_PRECISION else None
