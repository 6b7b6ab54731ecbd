"""When the loader runs: an interval, or a cron line, by apscheduler's triggers.

Rule: a run that takes longer than its interval delays the next one, and two never overlap; missed times are skipped.
"""

from datetime import UTC, datetime, timedelta

from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from common.settings.values import CRON_FIELDS, ON_MARKER, parse_duration_s

_EVERYTHING_EVERY_S = 60.0
"""With ``on-marker``: the interval of full scans for markers without a notification
(delta_loader/scheduling/load_trigger.py)."""


class Schedule:
    def __init__(self, text: str) -> None:
        """From a setting's text (common/settings/values.py)."""
        if len(text.split()) == CRON_FIELDS:
            self._trigger = CronTrigger.from_crontab(text, timezone=UTC)
        else:
            seconds = _EVERYTHING_EVERY_S if text == ON_MARKER else parse_duration_s(text)
            self._trigger = IntervalTrigger(seconds=seconds, timezone=UTC)

    def next_after(self, last: datetime, now: datetime) -> datetime:
        """The next time to load, after a run that started at ``last``; never before ``now``."""
        if isinstance(self._trigger, IntervalTrigger):
            return max(now, last + timedelta(seconds=float(self._trigger.interval_length)))
        next_time: datetime = self._trigger.get_next_fire_time(None, now)
        return next_time
