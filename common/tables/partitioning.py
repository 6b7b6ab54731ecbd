"""By which types a table may be partitioned."""

from common.schema import DataType, DecimalType, Primitive

INSTEAD = "partition by a string, a whole number, a date or a timestamp, for example a derived column"
_WITHOUT_TEXT = (Primitive.FLOAT, Primitive.DOUBLE, Primitive.BINARY, Primitive.VARIANT)


def can_partition(data_type: DataType) -> bool:
    """Whether each value has an exact text."""
    return data_type not in _WITHOUT_TEXT and isinstance(data_type, Primitive | DecimalType)
