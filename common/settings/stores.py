"""The object stores of a config: the stage's, and those of its tables."""

from collections.abc import Callable

from common.settings.model import Settings
from common.storage.store import FsspecStore, stores_of


def stage_store(settings: Settings) -> FsspecStore:
    """A new store of the stage. Raises ConfigError for a URL that fsspec cannot open."""
    return FsspecStore(settings.stage.url, settings.stage.storage_options)


def table_stores(settings: Settings) -> Callable[[str], FsspecStore]:
    """Opens the store below a table's URL, once for each."""
    return stores_of(settings.stage.storage_options)
