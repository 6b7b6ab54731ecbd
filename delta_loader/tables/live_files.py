"""A data file of a table's newest version, as a value; `delta_loader.maintenance.live_files` reads them."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LiveFile:
    path: str
    """Relative to the table's root, as in the object store."""
    size_bytes: int
    modified_ms: int
    """When the file was added to the table."""
    partition_values: Mapping[str, str | None]
    """By column name in the log, which differs from SQL's under column mapping."""
    has_statistics: bool
    statistics: str | None = None
    """Delta's JSON; None if not requested."""
    is_clustered: bool = False
    """By liquid clustering."""
    deleted_rows: int = 0
    """How many rows its deletion vector removes."""
