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
