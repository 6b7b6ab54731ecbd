"""The SQL of a service's task.

Rule: a value is compared with its column's type, by casting Delta's own text of it, so exactly the partition itself is
matched.
"""

from collections.abc import Mapping, Sequence

from common.schema import DataType, Primitive, quote_name, quote_text, type_to_ddl
from delta_loader.maintenance.services.facts import PartitionValues


def where(partitions: Sequence[PartitionValues], types: Mapping[str, DataType]) -> str:
    """The condition that selects these partitions; empty for the whole table."""
    conditions = [" AND ".join(_is(name, value, types.get(name)) for name, value in values) for values in partitions]
    return " OR ".join(f"({text})" for text in conditions if text)


def _is(name: str, value: str | None, data_type: DataType | None) -> str:
    if value is None:
        return f"{quote_name(name)} IS NULL"
    literal = quote_text(value)
    if data_type is not None and data_type is not Primitive.STRING:
        literal = f"CAST({literal} AS {type_to_ddl(data_type)})"
    return f"{quote_name(name)} = {literal}"


def z_order_by(columns: Sequence[str]) -> str:
    """The ZORDER BY clause; empty for no columns."""
    names = [".".join(quote_name(part) for part in column.split(".")) for column in columns]
    return f" ZORDER BY ({', '.join(names)})" if names else ""
