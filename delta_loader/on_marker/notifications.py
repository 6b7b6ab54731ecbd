"""What writers told of, in the stage or in a control topic (common/stage/news.py).

Rule: where there is a control topic, signs in the stage are for when it does not work, and for writers that do not know
of it. The stage is looked at each second while the topic is not heard, and seldom while it is: a writer for whom alone
it does not work tells in the stage, too.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from common.errors import StoreError
from common.stage.news import NEWS, news_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from structlog.typing import FilteringBoundLogger

    from common.ports import Clock, ObjectStore
    from delta_loader.on_marker.ports import ControlTopic, News

LOOK_EVERY_S = 1.0
"""How often the stage is looked at."""
LOOK_SELDOM_EVERY_S = 10.0
"""The same while a control topic is heard."""
_LOST_MS = 3_600_000
"""A sign that is so much older than the newest one is of no loader that runs; one that starts looks at everything."""


class StoredNotifications:
    """Signs in the stage: one listing of one folder, whatever the number of streams and partitions."""

    def __init__(
        self,
        store: ObjectStore,
        app_ids: Collection[str],
        log: FilteringBoundLogger,
        may_load: Callable[[str], bool] = lambda _app_id: True,
    ) -> None:
        """Touches nothing yet. Signs of a stream that this process may not load are another loader's, and stay."""
        self._store = store
        self._folders = {news_folder(app_id): app_id for app_id in app_ids}
        self._log = log
        self._may_load = may_load

    def take(self) -> frozenset[str]:
        """One listing, and a request for each sign; a store that fails has no news, and is looked at again."""
        mine = {folder: app_id for folder, app_id in self._folders.items() if self._may_load(app_id)}
        try:
            listed = list(self._store.list(f"{NEWS}/"))
            newest_ms = max((item.modified_ms for item in listed), default=0)
            found = {item.path: item.path[: item.path.rindex("/") + 1] for item in listed}
            # Those of streams that no loader has any more go, too: two clocks of one store are never compared.
            lost = [item.path for item in listed if newest_ms - item.modified_ms > _LOST_MS]
            self._store.delete([*(path for path, folder in found.items() if folder in mine), *lost])
        except StoreError as error:
            self._log.debug("no look at the news", problem=error.problem)
            return frozenset()
        return frozenset(app_id for folder, app_id in mine.items() if folder in found.values())


class PolledNotifications:
    """`News` that a job looks for, so that who takes them waits for no store.

    Taking them asks for the next look, so that there is none while nobody takes any.
    """

    def __init__(self, news: News, clock: Clock, ask: Callable[[], None], every_s: float = LOOK_EVERY_S) -> None:
        """``ask`` has `look` called soon, in another thread; at most once in ``every_s``."""
        self._news = news
        self._clock = clock
        self._ask = ask
        self._every_s = every_s
        self._lock = Lock()
        self._found: frozenset[str] = frozenset()
        self._asked_s: float | None = None
        self._is_looking = False

    def take(self) -> frozenset[str]:
        """What has been found since the last call."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            found, self._found = self._found, frozenset()
            is_due = not self._is_looking and (self._asked_s is None or now_s >= self._asked_s + self._every_s)
            self._asked_s = now_s if is_due else self._asked_s
        if is_due:
            self._ask()
        return found

    def look(self) -> None:
        """Look, and wait for the store."""
        self._is_looking = True
        try:
            found = self._news.take()
        finally:
            self._is_looking = False
        with self._lock:
            self._found |= found


class ControlTopicNotifications:
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
