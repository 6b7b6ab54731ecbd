"""A data file that a table's newest version has, as a value; `delta_loader.shell.live_files` reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class LiveFile:
    """One file."""

    path: str
    """Below the table's root, as the object store knows it."""
    size_bytes: int
    modified_ms: int
    """When the table got it."""
    partition_values: Mapping[str, str | None]
    """By the columns' names in the log, which are others than SQL's under column mapping."""
    has_statistics: bool
    statistics: str | None = None
    """Delta's JSON; None where nobody asked for it."""
    is_clustered: bool = False
    """By liquid clustering."""
    deleted_rows: int = 0
    """Rows that its deletion vector takes out."""
