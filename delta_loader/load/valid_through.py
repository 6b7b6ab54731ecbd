"""Writes the time through which a table is complete to a property of the table, for streams that configure it.

Rules:

1. The property is written by a separate commit, after the load's, at most once in the interval that the stream
   configures. A change of a table's metadata makes Delta refuse any other commit at that moment, such as a user's
   OPTIMIZE or MERGE. In the load's own commit, it would do so with each load, and the load would no longer be a blind
   append.
2. Writing the property never makes a load fail: an error is logged, and a later load tries again. It runs in the thread
   of the stream's own load, so a store that hangs keeps no other stream from loading.
3. The truth is the commits' user metadata. The property may lag behind it, and is never ahead.
"""

from collections.abc import Iterable
from typing import Protocol

from structlog.typing import FilteringBoundLogger

from common.errors import KafkaDeltaExpressError
from common.ports import Clock
from common.settings import Stream
from delta_loader.load.report import StreamReport
from delta_loader.tables.valid_through import PROPERTY, moment_text


class PropertySetter(Protocol):
    def set_property(self, url: str, key: str, value: str) -> None:
        """Set a property by a commit that does nothing else. Raises TableError."""


class ValidThrough:
    """The values that this process has set, by stream."""

    def __init__(
        self, streams: Iterable[Stream], setter: PropertySetter, clock: Clock, log: FilteringBoundLogger
    ) -> None:
        self._wanted = {
            stream.app_id: (stream.table, stream.valid_through_property_s)
            for stream in streams
            if stream.valid_through_property_s is not None
        }
        self._setter = setter
        self._clock = clock
        self._log = log
        self._waiting_ms: dict[str, int] = {}
        self._updated_s: dict[str, float] = {}

    def update(self, report: StreamReport) -> None:
        """After a load of a stream, in its thread: set a new value, if it is due (rule 1)."""
        if report.app_id in self._wanted and report.valid_through_ms is not None:
            self._waiting_ms[report.app_id] = report.valid_through_ms
        if report.app_id in self._waiting_ms:
            self._update_one(report.app_id)

    def _update_one(self, app_id: str) -> None:
        url, every_s = self._wanted[app_id]
        now_s, last_s = self._clock.monotonic_s(), self._updated_s.get(app_id)
        if last_s is not None and now_s - last_s < (every_s or 0.0):
            return
        value = moment_text(self._waiting_ms[app_id])
        try:
            self._setter.set_property(url, PROPERTY, value)
        except KafkaDeltaExpressError as error:
            self._log.warning("table property not set", app_id=app_id, table=url, problem=error.problem)
            return
        self._updated_s[app_id] = now_s
        del self._waiting_ms[app_id]
        self._log.debug("property set", app_id=app_id, table=url, key=PROPERTY, value=value)
