"""When a loader loads, by its settings; and the control topic, if they name one."""

from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

from common.clock import SystemClock
from common.metrics import Metrics
from common.settings import Settings
from common.settings.pace import loader_of
from common.settings.stores import stage_store
from common.settings.values import ON_MARKER
from common.stage.notifications import NOTIFICATIONS
from delta_loader.scheduling.jobs import Jobs
from delta_loader.scheduling.listening import Listener
from delta_loader.scheduling.load_trigger import LoadTrigger, RequestQueue, StreamTrigger
from delta_loader.scheduling.notifications import (
    ControlTopicNotifications,
    Notifications,
    PolledNotifications,
    StoredNotifications,
)
from delta_loader.scheduling.schedule import Schedule


def listener_of(settings: Settings, *, log: FilteringBoundLogger, metrics: Metrics) -> Listener | None:
    """The control topic's listener, already started, or None. Raises ConfigError."""
    topic = settings.loader.control_topic
    if topic is None:
        return None
    return Listener(settings.kafka, topic, [stream.app_id for stream in settings.streams], log=log, metrics=metrics)


def load_trigger_of(
    settings: Settings,
    requests: RequestQueue,
    control: Listener | None,
    jobs: Jobs,
    may_load: Callable[[str], bool],
    *,
    log: FilteringBoundLogger,
    metrics: Metrics,
) -> LoadTrigger:
    """The load trigger for the schedule, writers' notifications, and requests; a job checks the stage."""
    notifications = _notifications(settings, control, jobs, may_load, log)
    return LoadTrigger(stream_triggers(settings), requests, SystemClock(), metrics, notifications)


def stream_triggers(settings: Settings) -> dict[str, StreamTrigger]:
    """When each stream is loaded, by its app id."""
    paces = {stream.app_id: loader_of(settings.loader, stream) for stream in settings.streams}
    schedules = {pace.schedule: Schedule(pace.schedule) for pace in paces.values()}
    return {
        app_id: StreamTrigger(schedules[pace.schedule], pace.schedule == ON_MARKER, pace.max_commits_per_minute)
        for app_id, pace in paces.items()
    }


def _notifications(
    settings: Settings, control: Listener | None, jobs: Jobs, may_load: Callable[[str], bool], log: FilteringBoundLogger
) -> Notifications | None:
    waiting = [stream.app_id for stream in settings.streams_on_marker]
    if not waiting:
        return None
    store = stage_store(settings)
    stored = StoredNotifications(store, waiting, log, may_load)
    polled = PolledNotifications(stored, SystemClock(), lambda: jobs.soon(NOTIFICATIONS))
    jobs.add(NOTIFICATIONS, polled.fetch)
    return polled if control is None else ControlTopicNotifications(control, polled, SystemClock())
