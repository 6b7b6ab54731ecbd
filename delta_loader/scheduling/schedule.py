"""When the loader runs: an interval, or a cron line, by apscheduler's triggers.

Rule: a run that takes longer than its interval delays the next one, and two never overlap; missed times are skipped.
"""

from datetime import UTC, datetime, timedelta

from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from common.errors import ConfigError
from common.settings import Settings
from common.settings.services import OFF
from common.settings.values import ON_MARKER, parse_duration_s

_CRON_FIELDS = 5
_ANY_MOMENT = datetime(2000, 1, 1, tzinfo=UTC)
_EVERYTHING_EVERY_S = 60.0
"""With ``on-marker``: the interval of full scans for markers without a notification
(delta_loader/scheduling/load_trigger.py)."""


class Schedule:
    def __init__(self, text: str, key: str = "loader.schedule") -> None:
        """From a setting's text; raises ConfigError for an invalid cron line, or one that never fires."""
        try:
            if len(text.split()) == _CRON_FIELDS:
                self._trigger = CronTrigger.from_crontab(text, timezone=UTC)
                _require_a_time(self._trigger)
            else:
                seconds = _EVERYTHING_EVERY_S if text == ON_MARKER else parse_duration_s(text)
                self._trigger = IntervalTrigger(seconds=seconds, timezone=UTC)
        except ValueError as error:
            msg = f"{key}: {text!r} is not a schedule: {error}"
            raise ConfigError(msg, 'write an interval such as 15m, or a cron line such as "*/15 * * * *"') from error

    def next_after(self, last: datetime, now: datetime) -> datetime:
        """The next time to load, after a run that started at ``last``; never before ``now``."""
        if isinstance(self._trigger, IntervalTrigger):
            return max(now, last + timedelta(seconds=float(self._trigger.interval_length)))
        next_time: datetime = self._trigger.get_next_fire_time(None, now)
        return next_time


def _require_a_time(trigger: CronTrigger) -> None:
    if trigger.get_next_fire_time(None, _ANY_MOMENT) is None:
        msg = "no such day exists"
        raise ValueError(msg)


def load_schedules(settings: Settings) -> list[tuple[str, str]]:
    """The schedules for loads, each with its key: the loader's, and those of streams."""
    own = [
        (stream.pace.schedule, index)
        for index, stream in enumerate(settings.streams)
        if stream.pace.schedule is not None
    ]
    return [
        (settings.loader.schedule, "loader.schedule"),
        *((text, f"streams[{index}].schedule") for text, index in own),
    ]


def require_schedules(settings: Settings) -> None:
    """Raise ConfigError for an invalid schedule, before anything is started for it."""
    for text, key in (
        *load_schedules(settings),
        (settings.loader.clean_up, "loader.clean_up"),
        (settings.table_services.schedule, "table_services.schedule"),
    ):
        if text != OFF:
            Schedule(text, key)
