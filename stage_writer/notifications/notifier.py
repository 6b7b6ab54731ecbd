"""Notifies a waiting loader of streams with new markers, at most once per second for each.

Rules:

1. The first flush of a stream after a quiet second is notified at once; those of the next second together, when it is
   over.
2. With a control topic, notifications go there. Undelivered ones, and all of them without such a topic, are sent as an
   object in the stage; while the topic fails, both are used at once.
3. A failure of the stage has no consequence; it is tried again half a minute later, so that a store that is slow to
   fail does not delay the writer.
"""

from collections.abc import Collection
from typing import Protocol

from structlog.typing import FilteringBoundLogger

from common import metrics as all_metrics
from common.errors import StoreError
from common.metrics import Metrics
from common.ports import Clock
from common.settings import Settings
from common.stage.notifications import NOTIFY_EVERY_S
from stage_writer.notifications.topic import KafkaControlTopic
from stage_writer.stage.staging import ObjectStage


class Notifier:
    """Notifies loaders that wait for markers. This one is for writers whose loaders do not wait, and does nothing."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for operators. Safe to call from any thread."""
        return ()

    def sealed(self, app_id: str) -> None:
        """A stream has a new marker."""

    def send_due(self) -> None:
        """Send pending notifications, if they are due."""

    def end(self) -> None:
        """Send all pending notifications, before the service ends."""


NO_NOTIFIER = Notifier()


class NotificationTopic(Protocol):
    """The topic for notifications (``loader.control_topic``). Only `end` waits."""

    @property
    def problem(self) -> str | None:
        """Why it accepts no messages now; None while it does. Safe to call from any thread."""

    def send(self, app_id: str) -> bool:
        """Send the notification of a stream, without waiting for its delivery; False while the topic fails.

        It is still sent then, to find out whether that has changed, and is not part of `undelivered`.
        """

    def undelivered(self) -> frozenset[str]:
        """The streams whose notifications were sent and not delivered, since the last call."""

    def end(self, within_s: float) -> frozenset[str]:
        """Stop sending; returns the streams whose notifications are not known to be delivered within the given time."""


_AFTER_A_FAILURE_S = 30.0
_LAST_WORDS_S = 2.0


class LoaderNotifier(Notifier):
    def __init__(
        self,
        stage: ObjectStage,
        clock: Clock,
        log: FilteringBoundLogger,
        metrics: Metrics,
        control: NotificationTopic | None = None,
        *,
        app_ids: Collection[str] | None = None,
    ) -> None:
        """``app_ids`` are the streams whose loader waits for markers; None for all."""
        self._app_ids = app_ids
        self._stage = stage
        self._clock = clock
        self._log = log
        self._metrics = metrics
        self._control = control
        self._unsent: set[str] = set()
        self._not_before_s: dict[str, float] = {}
        self._unsigned: set[str] = set()
        self._no_signs_before_s = clock.monotonic_s()

    @property
    def notes(self) -> tuple[str, ...]:
        problem = None if self._control is None else self._control.problem
        return () if problem is None else (f"{problem}; until then, notifications go to the stage",)

    def sealed(self, app_id: str) -> None:
        if self._app_ids is None or app_id in self._app_ids:
            self._unsent.add(app_id)

    def send_due(self) -> None:
        now_s = self._clock.monotonic_s()
        due = {app_id for app_id in self._unsent if self._not_before_s.get(app_id, now_s) <= now_s}
        self._send(due, now_s)
        if self._unsigned and now_s >= self._no_signs_before_s:
            self._sign(now_s)

    def end(self) -> None:
        now_s = self._clock.monotonic_s()
        self._send(self._unsent.copy(), now_s)
        if self._control is not None:
            self._unsigned |= self._control.end(_LAST_WORDS_S)
        self._sign(now_s)

    def _send(self, due: set[str], now_s: float) -> None:
        self._unsent -= due
        self._not_before_s.update(dict.fromkeys(due, now_s + NOTIFY_EVERY_S))
        if self._control is None:
            self._unsigned |= due
            return
        self._unsigned |= {app_id for app_id in sorted(due) if not self._control.send(app_id)}
        self._unsigned |= self._control.undelivered()

    def _sign(self, now_s: float) -> None:
        try:
            for app_id in sorted(self._unsigned):
                self._stage.put_notification(app_id)
                self._unsigned.discard(app_id)
                self._metrics.add(all_metrics.WRITER_NOTIFICATIONS, way="stage")
        except StoreError as error:
            self._log.debug("notification failed", problem=error.problem)
            self._no_signs_before_s = now_s + _AFTER_A_FAILURE_S


def notifier_of(
    settings: Settings, stage: ObjectStage, clock: Clock, log: FilteringBoundLogger, metrics: Metrics
) -> Notifier:
    """Notifies the loaders of streams that wait for markers."""
    waiting = frozenset(stream.app_id for stream in settings.streams_on_marker)
    if not waiting:
        return NO_NOTIFIER
    topic = settings.loader.control_topic
    control = None if topic is None else KafkaControlTopic(settings.kafka, topic, log, metrics)
    return LoaderNotifier(stage, clock, log, metrics, control, app_ids=waiting)
