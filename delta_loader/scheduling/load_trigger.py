"""Decides when the loader loads, and which streams; it never waits itself.

Rules:

1. The first turn after the start, a pause, or a regained lease is of all streams, and so is each that is requested. A
   scheduled turn is of the streams with that schedule: most often all, because `streams[].schedule` is optional. A
   scheduled time that passes during a turn is skipped.
2. With ``schedule: on-marker``, the streams that writers' notifications name are loaded, each at its pace
   (delta_loader/scheduling/pacing.py). A full scan once per minute finds markers without a notification.
3. A notification that arrives during a turn does not wait for the turn's slowest stream (`another_is_due`), and neither
   does another schedule's time. A stream in its own turn is loaded once more after that (stream_scheduler.py, rule 4).
4. While the loader is paused there is no turn; notifications stay in the stage until it resumes.
"""

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from common import metrics as all_metrics
from common.metrics import Metrics
from common.ports import Clock
from common.settings import Settings
from common.settings.pace import loader_of
from common.settings.values import ON_MARKER
from delta_loader.load.report import StreamReport
from delta_loader.scheduling.notifications import Notifications
from delta_loader.scheduling.pacing import Pace
from delta_loader.scheduling.schedule import Schedule

_A_MINUTE_S = 60.0


class Reason(StrEnum):
    START = "start"
    SCHEDULE = "schedule"
    ON_MARKER = "on_marker"
    REQUESTED = "asked"


@dataclass(eq=False, slots=True)
class LoadRequest:
    _ended: threading.Event = field(default_factory=threading.Event)
    _reports: Sequence[StreamReport] | None = None

    def wait(self, timeout_s: float) -> Sequence[StreamReport] | None:
        """The results of the load; None when it has not ended in time, or was canceled."""
        self._ended.wait(timeout_s)
        return self._reports

    def complete(self, reports: Sequence[StreamReport] | None) -> None:
        """The load has ended; None when it was canceled."""
        self._reports = reports
        self._ended.set()


class RequestQueue:
    """Requests from any thread, taken by the loader's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[LoadRequest] = []

    def ask(self) -> LoadRequest:
        """Request a load of everything that starts after this call."""
        with self._lock:
            self._waiting.append(LoadRequest())
            return self._waiting[-1]

    @property
    def is_requested(self) -> bool:
        return bool(self._waiting)

    def take(self) -> tuple[LoadRequest, ...]:
        with self._lock:
            taken, self._waiting = tuple(self._waiting), []
            return taken


@dataclass(frozen=True, slots=True)
class DueLoad:
    reason: Reason
    app_ids: frozenset[str] | None
    """The streams; None for all."""
    began_s: float
    """On the monotonic clock: the date may be set while the pass runs."""
    requests: tuple[LoadRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamTrigger:
    schedule: Schedule
    """Streams with the same schedule are loaded together."""
    waits: bool
    """Whether writers' notifications trigger a load."""
    loads_per_minute: int


def stream_triggers(settings: Settings) -> dict[str, StreamTrigger]:
    """When each stream is loaded, by its app id."""
    paces = {stream.app_id: loader_of(settings.loader, stream) for stream in settings.streams}
    schedules = {pace.schedule: Schedule(pace.schedule) for pace in paces.values()}
    return {
        app_id: StreamTrigger(schedules[pace.schedule], pace.schedule == ON_MARKER, pace.max_commits_per_minute)
        for app_id, pace in paces.items()
    }


@dataclass(slots=True)
class _Timetable:
    """The streams of one schedule, which are loaded together."""

    schedule: Schedule
    app_ids: frozenset[str]
    due: datetime | None = None
    """None for at once."""
    due_s: float = 0.0
    """The same on the monotonic clock."""

    def is_due(self, now: datetime, now_s: float) -> bool:
        return self.due is None or now >= self.due or now_s >= self.due_s  # the wall clock may be set back

    def began(self, began_s: float, now: datetime, now_s: float) -> None:
        """A load that began at a time of the monotonic clock counts as the last one."""
        self.due = self.schedule.next_after(now - timedelta(seconds=now_s - began_s), now)
        self.due_s = now_s + (self.due - now).total_seconds()


class LoadTrigger:
    """Polled by the loop, which carries out its decisions."""

    def __init__(
        self,
        streams: Mapping[str, StreamTrigger],
        requests: RequestQueue,
        clock: Clock,
        metrics: Metrics,
        notifications: Notifications | None = None,
    ) -> None:
        """Without ``notifications`` only the schedules and requests decide."""
        self._requests = requests
        self._clock = clock
        self._metrics = metrics
        self._notifications = notifications
        together: dict[Schedule, list[str]] = {}
        for app_id, stream in streams.items():
            together.setdefault(stream.schedule, []).append(app_id)
        self._tables = [_Timetable(schedule, frozenset(app_ids)) for schedule, app_ids in together.items()]
        self._paces = {
            app_id: Pace(_A_MINUTE_S / stream.loads_per_minute) for app_id, stream in streams.items() if stream.waits
        }

    @property
    def due(self) -> datetime | None:
        times = [table.due for table in self._tables if table.due is not None]
        return min(times) if len(times) == len(self._tables) else None

    def begin_again(self, app_ids: Collection[str] | None = None) -> None:
        """Some streams, or all, are loaded at once: another loader may have changed anything, or they were paused."""
        for table in self._tables:
            if app_ids is None or not table.app_ids.isdisjoint(app_ids):
                table.due = None

    def next(self, now: datetime, *, paused: bool = False) -> DueLoad | None:
        """The load that is due now, or None."""
        if paused:
            self.begin_again()
            return None
        due_load = self._due_load(now)
        if due_load is not None:
            self._metrics.add(all_metrics.LOADER_TURNS, reason=due_load.reason.value)
        return due_load

    def ended(
        self, due_load: DueLoad, reports: Sequence[StreamReport], now: datetime, *, cut_short: bool = False
    ) -> None:
        """A turn's pass has finished, or was ``cut_short``. Streams without a report are still running."""
        if cut_short:
            of_turn = self._paces.keys() if due_load.app_ids is None else due_load.app_ids & self._paces.keys()
            for app_id in of_turn - {report.app_id for report in reports}:
                self._paces[app_id] = self._paces[app_id].notified()
        self.collected(reports)
        if due_load.reason is not Reason.ON_MARKER:
            for table in self._tables:
                if due_load.app_ids is None or table.app_ids <= due_load.app_ids:
                    table.began(due_load.began_s, now, self._clock.monotonic_s())
        for request in due_load.requests:
            request.complete(None if cut_short else reports)

    def collected(self, reports: Sequence[StreamReport]) -> None:
        """Streams of an earlier pass have ended their turns."""
        now_s = self._clock.monotonic_s()
        for report in reports:
            if report.app_id in self._paces:
                failed = report.failure is not None
                self._paces[report.app_id] = self._paces[report.app_id].ended(now_s, failed=failed)

    def another_is_due(self, unfinished: frozenset[str]) -> bool:
        """Whether a stream other than these is due, by a notification or by a schedule of its own (rule 3)."""
        if self._due_now() - unfinished:
            return True
        now_s = self._clock.monotonic_s()
        return len(self._tables) > 1 and any(
            table.app_ids - unfinished for table in self._tables if now_s >= table.due_s
        )

    def give_up(self) -> None:
        """Complete the waiting requests without a load: the loader stops, or has lost its lease."""
        for request in self._requests.take():
            request.complete(None)

    def _due_load(self, now: datetime) -> DueLoad | None:
        now_s = self._clock.monotonic_s()
        if self._requests.is_requested:
            return self._of(self._tables, Reason.REQUESTED, now)
        due = [table for table in self._tables if table.is_due(now, now_s)]
        if not due:
            return self._requested_load()
        return self._of(due, Reason.SCHEDULE if all(table.due for table in due) else Reason.START, now)

    def _of(self, tables: Sequence[_Timetable], reason: Reason, now: datetime) -> DueLoad:
        # A notification from here on is for the next turn; earlier ones are in this turn's listing.
        requests, now_s = self._requests.take(), self._clock.monotonic_s()
        self._take_notifications()
        if len(tables) == len(self._tables):
            app_ids = None
            self._begin(self._paces)
        else:
            app_ids = frozenset[str]().union(*(table.app_ids for table in tables))
            self._begin(app_ids)
        if len(self._tables) > 1:  # while this turn runs, others may be due
            for table in tables:
                table.began(now_s, now, now_s)
        return DueLoad(reason, app_ids, now_s, requests)

    def _requested_load(self) -> DueLoad | None:
        due = self._due_now()
        if not due:
            return None
        self._begin(due)
        return DueLoad(Reason.ON_MARKER, due, self._clock.monotonic_s())

    def _due_now(self) -> frozenset[str]:
        if self._notifications is None:
            return frozenset()
        self._take_notifications()
        now_s = self._clock.monotonic_s()
        due = (app_id for app_id, pace in self._paces.items() if pace.due_s is not None and pace.due_s <= now_s)
        return frozenset(due)

    def _take_notifications(self) -> None:
        for app_id in () if self._notifications is None else self._notifications.take() & self._paces.keys():
            self._paces[app_id] = self._paces[app_id].notified()

    def _begin(self, app_ids: Collection[str]) -> None:
        now_s = self._clock.monotonic_s()
        for app_id in self._paces.keys() & set(app_ids):
            self._paces[app_id] = self._paces[app_id].begun(now_s)
