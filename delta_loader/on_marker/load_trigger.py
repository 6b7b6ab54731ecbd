"""Decides when the loader loads, and which streams; it never waits itself.

Rules:

1. The first turn after the start, a pause, or a regained lease is of all streams; so is each scheduled turn, and each
   that is requested. A scheduled time that passes during a turn is skipped.
2. With ``schedule: on-marker``, writers' notifications in the stage are checked once per second, and the streams that
   they name are loaded, each at its pace (delta_loader/core/pacing.py). A full scan once per minute finds markers
   without a notification.
3. A notification that arrives during a turn does not wait for the turn's slowest stream (`hurries`). A stream in its
   own turn is loaded once more after that (delta_loader/streams/scheduler.py, rule 4).
4. While the loader is paused there is no turn; notifications stay in the stage until it resumes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from common import metrics as catalogue
from delta_loader.core.pacing import Pace
from delta_loader.on_marker.notifications import LOOK_EVERY_S

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from common.metrics import Metrics
    from common.ports import Clock
    from delta_loader.on_marker.ports import News
    from delta_loader.on_marker.requests import LoadRequest, RequestQueue
    from delta_loader.schedule import Schedule
    from delta_loader.streams.report import StreamReport

_A_MINUTE_S = 60.0


class Reason(StrEnum):
    """Why a turn runs."""

    START = "start"
    SCHEDULE = "schedule"
    ON_MARKER = "on_marker"
    ASKED = "asked"


@dataclass(frozen=True, slots=True)
class DueLoad:
    """A pass to run."""

    reason: Reason
    app_ids: frozenset[str] | None
    """The streams; None for all."""
    began_s: float
    """On the monotonic clock: the date may be set while the pass runs."""
    asked: tuple[LoadRequest, ...] = ()


class LoadTrigger:
    """Polled by the loop, which carries out its decisions."""

    def __init__(
        self,
        schedule: Schedule,
        desk: RequestQueue,
        clock: Clock,
        metrics: Metrics,
        *,
        news: News | None = None,
        look_every_s: float = LOOK_EVERY_S,
        app_ids: Collection[str] = (),
        loads_per_minute: int = 6,
    ) -> None:
        """Without ``news`` only the schedule and the desk decide; ``look_every_s`` is the interval for taking them."""
        self._schedule = schedule
        self._desk = desk
        self._clock = clock
        self._metrics = metrics
        self._news = news
        pace = Pace(_A_MINUTE_S / loads_per_minute)
        self._paces = dict.fromkeys(app_ids, pace)
        self._look_every_s = look_every_s
        self._look_at_s = 0.0
        self._due: datetime | None = None
        self._due_s = 0.0  # the same on the monotonic clock

    @property
    def due(self) -> datetime | None:
        """When the next full scan is due; None for at once."""
        return self._due

    def begin_again(self) -> None:
        """The lease was lost and regained, or covers more streams: another loader may have changed anything."""
        self._due = None

    def next(self, now: datetime, *, paused: bool = False) -> DueLoad | None:
        """What to load now; None for nothing yet."""
        if paused:
            self._due = None
            return None
        turn = self._turn(now)
        if turn is not None:
            self._metrics.add(catalogue.LOADER_TURNS, reason=turn.reason.value)
        return turn

    def ended(self, turn: DueLoad, reports: Sequence[StreamReport], now: datetime, *, cut_short: bool = False) -> None:
        """A turn's pass has finished, or was ``cut_short``. Streams without a report are still running."""
        if cut_short:
            for app_id in (self._paces.keys() if turn.app_ids is None else turn.app_ids) - {
                one.app_id for one in reports
            }:
                self._paces[app_id] = self._paces[app_id].told()
        self.collected(reports)
        if turn.app_ids is None:
            now_s = self._clock.monotonic_s()
            self._due = self._schedule.next_after(now - timedelta(seconds=now_s - turn.began_s), now)
            self._due_s = now_s + (self._due - now).total_seconds()
        for asked in turn.asked:
            asked.answer(None if cut_short else reports)

    def collected(self, reports: Sequence[StreamReport]) -> None:
        """Streams have ended their turns."""
        now_s = self._clock.monotonic_s()
        for report in reports:
            if report.app_id in self._paces:
                failed = report.failure is not None
                self._paces[report.app_id] = self._paces[report.app_id].ended(now_s, failed=failed)

    def hurries(self, at_it: frozenset[str]) -> bool:
        """Whether a stream other than these has a notification that is due (rule 3)."""
        return bool(self._due_now() - at_it)

    def give_up(self) -> None:
        """Answer the waiting requests without a load: the loader stops, or has lost its lease."""
        for asked in self._desk.take():
            asked.answer(None)

    def _turn(self, now: datetime) -> DueLoad | None:
        if self._desk.is_asked:
            return self._all(Reason.ASKED)
        if self._due is None:
            return self._all(Reason.START)
        is_due = now >= self._due or self._clock.monotonic_s() >= self._due_s  # the wall clock may be set back
        return self._all(Reason.SCHEDULE) if is_due else self._told()

    def _all(self, reason: Reason) -> DueLoad:
        # A notification from here on is for the next turn; earlier ones are in this turn's listing.
        asked = self._desk.take()
        if self._news is not None:
            self._news.take()
        self._begin(self._paces)
        return DueLoad(reason, None, self._clock.monotonic_s(), asked)

    def _told(self) -> DueLoad | None:
        due = self._due_now()
        if not due:
            return None
        self._begin(due)
        return DueLoad(Reason.ON_MARKER, due, self._clock.monotonic_s())

    def _due_now(self) -> frozenset[str]:
        if self._news is None:
            return frozenset()
        now_s = self._clock.monotonic_s()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + self._look_every_s
            for app_id in self._news.take() & self._paces.keys():
                self._paces[app_id] = self._paces[app_id].told()
        due = (app_id for app_id, pace in self._paces.items() if pace.due_s is not None and pace.due_s <= now_s)
        return frozenset(due)

    def _begin(self, app_ids: Collection[str]) -> None:
        now_s = self._clock.monotonic_s()
        for app_id in tuple(app_ids):
            self._paces[app_id] = self._paces[app_id].begun(now_s)
