"""What writers told of, in the stage or in a control topic (common/stage/news.py).

Rule: where there is a control topic, signs in the stage are for when it does not work, and for writers that do not know
of it. The stage is looked at each second while the topic is not heard, and seldom while it is: a writer for whom alone
it does not work tells in the stage, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.errors import StoreError
from common.stage.news import NEWS, news_folder

if TYPE_CHECKING:
    from collections.abc import Collection

    from structlog.typing import FilteringBoundLogger

    from common.ports import Clock, ObjectStore
    from delta_loader.on_marker.ports import ControlTopic, News

LOOK_EVERY_S = 1.0
"""How often the stage is looked at."""
LOOK_SELDOM_EVERY_S = 10.0
"""The same while a control topic is heard."""


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


class ToldNews:
    """Messages of a control topic, and the signs beside it."""

    def __init__(self, control: ControlTopic, stored: News, clock: Clock) -> None:
        """Looks at nothing yet."""
        self._control = control
        self._stored = stored
        self._clock = clock
        self._looked_s: float | None = None

    def take(self) -> frozenset[str]:
        """What was said; and one listing, if it is time for it."""
        told, now_s = self._control.take(), self._clock.monotonic_s()
        every_s = LOOK_SELDOM_EVERY_S if self._control.is_heard else LOOK_EVERY_S
        if self._looked_s is not None and now_s < self._looked_s + every_s:
            return told
        self._looked_s = now_s
        return told | self._stored.take()
