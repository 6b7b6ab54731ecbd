"""Ensures that a stream's tables are in the catalog under the names in the settings.

Rules:

1. A name must stand for a Delta table at the location in the settings. A view, a table of another format, or one at
   another location keeps the stream from being loaded: readers of that name would not see what is loaded.
2. A table that the catalog does not have is registered, as an external one, once it exists. The catalog's schemas are
   created by their owner.
3. A table that was found correct is not checked again by this process, so a load costs nothing more.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from common.errors import ConfigError, KafkaDeltaExpressError
from common.settings import Stream
from common.settings.catalog import name_of_table
from common.tables.urls import comparable
from delta_loader.check_result import Check, Level, StreamChecks


@dataclass(frozen=True, slots=True)
class Entry:
    kind: str
    """Spark's term: ``EXTERNAL``, ``MANAGED``, ``VIEW``."""
    provider: str
    """The format, for example ``delta``; empty if it has none."""
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


class Registering:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._right: set[tuple[str, str]] = set()

    def register_table(self, stream: Stream, url: str, *, exists: bool) -> bool:
        """Register one of a stream's tables if necessary; returns whether it did. Raises TableError, ConfigError.

        ``exists`` says whether a Delta table exists at its URL by now.
        """
        name = name_of_table(stream.catalog_tables, url)
        if name is None or (name, url) in self._right:
            return False
        entry = self._catalog.entry(name)
        registers = entry is None and exists
        if registers:
            self._catalog.register(name, url)
            entry = self._catalog.entry(name)  # another loader may have been faster
        if entry is not None:
            require_right(name, url, entry)
            self._right.add((name, url))
        return registers

    def checks(self, stream: Stream) -> Iterator[Check]:
        """The catalog's checks of a stream's tables, before anything is loaded."""
        for url in stream.tables:
            name = name_of_table(stream.catalog_tables, url)
            if name is None:
                continue
            try:
                entry = self._catalog.entry(name)
                if entry is not None:
                    require_right(name, url, entry)
            except KafkaDeltaExpressError as error:
                away = not isinstance(error, ConfigError)
                text = f"{stream.app_id}: {error.problem}"
                concerns = None if isinstance(error, UnknownCatalogError) else stream.app_id  # the settings are wrong
                yield Check("catalog", Level.ERROR, text, error.remedy, concerns, away, error.exit_code)
                continue
            state = "is registered when it is loaded" if entry is None else f"is the table at {url}"
            yield StreamChecks(stream.app_id).ok("catalog", f"{name} {state}")


def require_right(name: str, url: str, entry: Entry) -> None:
    """Raise ConfigError for a name that stands for something else (rule 1)."""
    if "VIEW" in entry.kind:
        msg = f"{name} is a view, but rows can only be loaded into tables"
        raise ConfigError(msg, "set streams[].table to the view's table, or choose another name")
    if entry.provider.lower() != "delta":
        msg = f"{name} is a table of the format {entry.provider or 'an unknown format'}, not a Delta table"
        raise ConfigError(msg, f"choose another name, or convert it: CONVERT TO DELTA {name}")
    if comparable(entry.location) != comparable(url):
        msg = f"{name} is located at {entry.location}, but streams[].catalog_tables says {url}"
        raise ConfigError(msg, f"use its own location there, or drop it from the catalog: DROP TABLE {name}")
