"""When the loader runs: an interval, or a cron line, by apscheduler's triggers.

Rule: a run that takes longer than its interval delays the next one, and two never overlap; missed times are skipped.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from common.errors import ConfigError
from common.settings.values import ON_MARKER, parse_duration_s

_CRON_FIELDS = 5
_EVERYTHING_EVERY_S = 60.0
"""With ``on-marker``: the interval of full scans for markers without a notification
(delta_loader/on_marker/load_trigger.py)."""


class Schedule:
    """The times at which to load."""

    def __init__(self, text: str, key: str = "loader.schedule") -> None:
        """From a setting's text; raises ConfigError for an invalid cron line."""
        try:
            if len(text.split()) == _CRON_FIELDS:
                self._trigger = CronTrigger.from_crontab(text, timezone=UTC)
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
        found = self._trigger.get_next_fire_time(None, now)
        return found if isinstance(found, datetime) else now + timedelta(days=1)
