"""What the loader needs of a catalog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from common.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Entry:
    """What a catalog says of one name."""

    kind: str
    """As Spark calls it: ``EXTERNAL``, ``MANAGED``, ``VIEW``."""
    provider: str
    """The format, ``delta`` for one; empty for what has none."""
    location: str
    """Where the table lies; empty for what lies nowhere."""


class UnknownCatalogError(ConfigError):
    """The settings name a catalog that Spark was not told of."""


class Catalog(Protocol):
    """Spark's catalogs. A method raises TableError when one cannot be asked, ConfigError where it has to be fixed."""

    def entry(self, name: str) -> Entry | None:
        """What a name stands for; None for nothing. Raises ConfigError when there is no such catalog, or schema."""

    def register(self, name: str, url: str) -> None:
        """Give the Delta table that lies at ``url`` a name; nothing happens when the name is taken."""
