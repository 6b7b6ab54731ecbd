"""The object stores of a config: the stage's, and those of its tables."""

import os
from collections.abc import Callable

from common.errors import ConfigError
from common.settings.checks.tables import nested
from common.settings.model import Settings
from common.storage.store import FsspecStore, stores_of
from common.tables.urls import comparable


def stage_store(settings: Settings) -> FsspecStore:
    """A new store of the stage.

    Raises ConfigError for a URL that fsspec cannot open, and for a local folder that a symbolic link puts into a table.
    """
    tables = [(key, _linked(url)) for stream in settings.streams for key, url in stream.table_locations]
    problem = nested(_linked(settings.stage.url), tables)
    if problem is not None:
        raise ConfigError(f"by a symbolic link, {problem}", "change the link, or the URL")
    return FsspecStore(settings.stage.url, settings.stage.storage_options)


def table_stores(settings: Settings) -> Callable[[str], FsspecStore]:
    """Opens the store below a table's URL, once for each."""
    return stores_of(settings.stage.storage_options)


def _linked(url: str) -> str:
    """The place of a URL, with the symbolic links of a local one followed."""
    place = comparable(url)
    return os.path.realpath(place) if place.startswith("/") else place
