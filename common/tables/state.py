"""A Delta table at one version, as its log describes it (common/tables/delta_log.py reads it)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TableState:
    """A Delta table at one version."""

    version: int
    table_id: str
    schema: str
    """Spark's JSON for the schema."""
    partition_by: tuple[str, ...]
    properties: Mapping[str, str]
    reader_version: int
    writer_version: int
    features: frozenset[str]
    """Reader and writer features that the protocol names."""
    transactions: Mapping[str, int] = field(default_factory=dict)
    """The version of each txn action by its app id: for this product's, the last offset loaded."""

    @property
    def names_in_log(self) -> dict[str, str]:
        """The columns' names in the log and in files, which are others under column mapping; by their names in SQL."""
        columns = json.loads(self.schema)["fields"]
        physical = "delta.columnMapping.physicalName"
        return {column["name"]: (column.get("metadata") or {}).get(physical, column["name"]) for column in columns}


TXN_RETENTION = "delta.setTransactionRetentionDuration"
_UNITS_MS = {
    "week": 604_800_000.0,
    "day": 86_400_000.0,
    "hour": 3_600_000.0,
    "minute": 60_000.0,
    "second": 1_000.0,
    "millisecond": 1.0,
    "microsecond": 0.001,
}


def retention_ms(text: str) -> int | None:
    """A table property's interval, such as ``interval 30 days``; None if it cannot be parsed."""
    words = text.strip().lower().removeprefix("interval").split()
    if not words or len(words) % 2:
        return None
    total = 0.0
    for number, unit in zip(words[::2], words[1::2], strict=True):
        unit_ms = _UNITS_MS.get(unit.removesuffix("s"))
        try:
            total += float(number) * (unit_ms or 0)
        except ValueError:
            return None
        if unit_ms is None:
            return None
    return int(total)
