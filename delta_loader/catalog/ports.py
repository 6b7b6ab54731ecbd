"""What the loader needs of a catalog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from common.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Entry:
    """A catalog's entry for one name."""

    kind: str
    """Spark's term: ``EXTERNAL``, ``MANAGED``, ``VIEW``."""
    provider: str
    """The format, for example ``delta``; empty if there is none."""
    location: str
    """The table's location; empty if it has none."""


class UnknownCatalogError(ConfigError):
    """The settings name a catalog that Spark is not configured for."""


class Catalog(Protocol):
    """Spark's catalogs. Methods raise TableError for a catalog that does not answer, ConfigError for a wrong setup."""

    def entry(self, name: str) -> Entry | None:
        """The entry of a name, or None. Raises ConfigError when there is no such catalog or schema."""

    def register(self, name: str, url: str) -> None:
        """Register the Delta table at ``url`` under a name; does nothing when the name is taken."""
