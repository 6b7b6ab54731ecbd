"""What writers told of, taken from the stage (common/news.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from common.errors import StoreError
from common.news import NEWS, news_folder

if TYPE_CHECKING:
    from collections.abc import Collection

    from structlog.typing import FilteringBoundLogger

    from common.ports import ObjectStore


class News(Protocol):
    """Where writers' signs come from."""

    def take(self) -> frozenset[str]:
        """The streams that have new markers since the last call; what is taken is gone."""


class StoredNews:
    """Signs in the stage: one listing of one folder, whatever the number of streams and partitions."""

    def __init__(self, store: ObjectStore, app_ids: Collection[str], log: FilteringBoundLogger) -> None:
        """Touches nothing yet."""
        self._store = store
        self._folders = {news_folder(app_id): app_id for app_id in app_ids}
        self._log = log

    def take(self) -> frozenset[str]:
        """One listing, and a request for each sign; a store that fails has no news, and is looked at again."""
        try:
            found = [item.path for item in self._store.list(f"{NEWS}/")]
            self._store.delete(found)  # also those of streams that are no more
        except StoreError as error:
            self._log.debug("no look at the news", problem=error.problem)
            return frozenset()
        folders = {path[: path.rindex("/") + 1] for path in found}
        return frozenset(app_id for folder, app_id in self._folders.items() if folder in folders)
