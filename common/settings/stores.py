"""The object stores of a config: the stage's, and those of its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.storage.store import FsspecStore, stores_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from common.settings.model import Settings


def stage_store(settings: Settings) -> FsspecStore:
    """A new store of the stage. Raises ConfigError for a URL that fsspec cannot open."""
    return FsspecStore(settings.stage.url, settings.stage.storage_options)


def table_stores(settings: Settings) -> Callable[[str], FsspecStore]:
    """Opens the store below a table's URL, once for each."""
    return stores_of(settings.stage.storage_options)
