"""By which columns Delta can cluster or partition a table. Pure."""

from collections.abc import Iterator, Sequence

from common.schema import DataType, DecimalType, Primitive, StructType, type_to_ddl
from common.schema.evolution import type_at

INDEXED_COLUMNS = 32
"""How many leading columns have statistics in Delta by default."""
INSTEAD = "partition by a string, a whole number, a date or a timestamp, for example a derived column"
_WITHOUT_TEXT = (Primitive.FLOAT, Primitive.DOUBLE, Primitive.BINARY, Primitive.VARIANT)
_WITHOUT_BOUNDS = (Primitive.BOOLEAN, Primitive.BINARY, Primitive.VARIANT)


def clustering_problem(columns: StructType, cluster_by: Sequence[str]) -> str | None:
    """Why Delta cannot cluster by these; None where it can. ``columns`` are those whose types are known."""
    for name in cluster_by:
        path = tuple(name.split("."))
        data_type = type_at(columns, path)
        if path[0] in columns.names and not _has_bounds(data_type):
            what = "is not a field of it" if data_type is None else f"has the type {type_to_ddl(data_type)}"
            return f"cluster_by names {name!r}, which {what}; Delta clusters by numbers, text, dates and times"
    return None


def columns_with_statistics(columns: StructType, cluster_by: Sequence[str]) -> int:
    """How many columns, those inside structs counted, need statistics for a table to be clustered by these."""
    leaves = list(_leaves(columns, ()))
    return max((leaves.index(path) + 1 for name in cluster_by if (path := tuple(name.split("."))) in leaves), default=0)


def _leaves(columns: StructType, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for field in columns:
        here = (*path, field.name)
        if isinstance(field.type, StructType):
            yield from _leaves(field.type, here)
        else:
            yield here


def _has_bounds(data_type: DataType | None) -> bool:
    """Whether Delta has the lowest and the highest value of such a column."""
    return isinstance(data_type, DecimalType) or (isinstance(data_type, Primitive) and data_type not in _WITHOUT_BOUNDS)


def can_partition(data_type: DataType) -> bool:
    """Whether each value has an exact text."""
    return data_type not in _WITHOUT_TEXT and isinstance(data_type, Primitive | DecimalType)
