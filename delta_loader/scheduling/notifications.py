"""Writers' notifications, in the stage or in a control topic (common/stage/notifications.py).

Rule: with a control topic, notifications in the stage are a fallback for when it does not work, and for writers that do
not know of it. The stage is checked every second while the topic is not being read, and seldom while it is: a writer
that cannot reach the topic notifies in the stage, too.
"""

from collections.abc import Callable, Collection
from threading import Lock
from typing import Protocol

from structlog.typing import FilteringBoundLogger

from common.errors import StoreError
from common.ports import Clock, ObjectStore
from common.stage.notifications import NOTIFICATIONS, notification_folder

CHECK_EVERY_S = 1.0
"""How often the stage is checked."""
CHECK_SELDOM_EVERY_S = 10.0
"""The same while a control topic is being read."""
_LOST_MS = 3_600_000
"""A notification older than the newest one by this much belongs to no running loader; a new loader scans everything."""


class Notifications(Protocol):
    def take(self) -> frozenset[str]:
        """The streams that have new markers since the last call; they are returned once."""


class ControlTopic(Notifications, Protocol):
    """The topic with writers' notifications (``loader.control_topic``). `take` does not wait.

    When reading starts, at first or again, all streams count as notified: there may have been earlier messages.
    """

    @property
    def is_connected(self) -> bool: ...


class StoredNotifications:
    """Notifications in the stage: one listing of one folder, regardless of the number of streams and partitions."""

    def __init__(
        self,
        store: ObjectStore,
        app_ids: Collection[str],
        log: FilteringBoundLogger,
        may_load: Callable[[str], bool] = lambda _app_id: True,
    ) -> None:
        """Notifications of a stream that this process may not load belong to another loader, and stay."""
        self._store = store
        self._folders = {notification_folder(app_id): app_id for app_id in app_ids}
        self._log = log
        self._may_load = may_load

    def take(self) -> frozenset[str]:
        """One listing, and a request per notification. A store that fails returns none, and is checked again."""
        own_folders = {folder: app_id for folder, app_id in self._folders.items() if self._may_load(app_id)}
        try:
            listed = list(self._store.list(f"{NOTIFICATIONS}/"))
            newest_ms = max((item.modified_ms for item in listed), default=0)
            folders = {item.path: item.path[: item.path.rindex("/") + 1] for item in listed}
            # This also removes those of streams that no loader has anymore: two clocks of one store are never compared.
            lost = [item.path for item in listed if newest_ms - item.modified_ms > _LOST_MS]
            self._store.delete([*(path for path, folder in folders.items() if folder in own_folders), *lost])
        except StoreError as error:
            self._log.debug("notifications could not be listed", problem=error.problem)
            return frozenset()
        return frozenset(app_id for folder, app_id in own_folders.items() if folder in folders.values())


class PolledNotifications:
    """`Notifications` that a job fetches, so the caller waits for no store.

    `take` requests the next fetch, so nothing is fetched while nothing is taken.
    """

    def __init__(self, notifications: Notifications, clock: Clock, request: Callable[[], None]) -> None:
        """``request`` schedules a call of `fetch` in another thread; at most once in `CHECK_EVERY_S`."""
        self._notifications = notifications
        self._clock = clock
        self._ask = request
        self._lock = Lock()
        self._found: frozenset[str] = frozenset()
        self._requested_s: float | None = None
        self._is_looking = False

    def take(self) -> frozenset[str]:
        """The streams found since the last call."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            streams, self._found = self._found, frozenset()
            is_due = not self._is_looking and (self._requested_s is None or now_s >= self._requested_s + CHECK_EVERY_S)
            self._requested_s = now_s if is_due else self._requested_s
        if is_due:
            self._ask()
        return streams

    def fetch(self) -> None:
        """Fetch now, and wait for the store."""
        self._is_looking = True
        try:
            app_ids = self._notifications.take()
        finally:
            self._is_looking = False
        with self._lock:
            self._found |= app_ids


class ControlTopicNotifications:
    """Messages of a control topic, and the notifications in the stage."""

    def __init__(self, control: ControlTopic, stored: Notifications, clock: Clock) -> None:
        self._control = control
        self._stored = stored
        self._clock = clock
        self._checked_s: float | None = None

    def take(self) -> frozenset[str]:
        """The notified streams; also lists the stage if that is due."""
        notified, now_s = self._control.take(), self._clock.monotonic_s()
        every_s = CHECK_SELDOM_EVERY_S if self._control.is_connected else CHECK_EVERY_S
        if self._checked_s is not None and now_s < self._checked_s + every_s:
            return notified
        self._checked_s = now_s
        return notified | self._stored.take()
