"""Windows of event time, as in Kafka Streams.

Rules:

1. A time window is ``[start, end)``: tumbling windows are adjacent, hopping ones overlap. They are aligned to 1970, so
   every task and every run has the same ones; none starts before 1970.
2. A session is ``[first record, last record]``, both inclusive, and includes each record within the gap of it.
3. A window is closed when the stream time that its operator has seen is past the window's end and grace. A record for a
   closed window is late: it changes nothing, and is counted or put aside (`ProcessorContext.drop`).
4. The grace is always explicit, because it decides which records are dropped: there is a factory with it and one
   without.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from common.errors import ConfigError

_MILLISECOND = timedelta(milliseconds=1)


def milliseconds(duration: timedelta, what: str) -> int:
    """A duration as whole milliseconds. Raises ConfigError for a negative one, or a part of a millisecond."""
    whole, rest = divmod(duration, _MILLISECOND)
    if whole < 0 or rest:
        raise ConfigError(f"{what} is {duration}", "use zero or more whole milliseconds")
    return whole


@dataclass(frozen=True, slots=True)
class TimeWindows:
    """Windows of a fixed size: tumbling, or hopping when they advance by less than their size."""

    size_ms: int
    advance_ms: int
    grace_ms: int

    @classmethod
    def of_size_with_no_grace(cls, size: timedelta) -> TimeWindows:
        """Windows that close as soon as stream time reaches their end."""
        return cls.of_size_and_grace(size, timedelta())

    @classmethod
    def of_size_and_grace(cls, size: timedelta, grace: timedelta) -> TimeWindows:
        """Windows that accept late records until stream time is ``grace`` past their end."""
        size_ms = milliseconds(size, "a window's size")
        if size_ms == 0:
            raise ConfigError("a window's size is zero", "use at least a millisecond")
        return cls(size_ms, size_ms, milliseconds(grace, "a window's grace"))

    def advance_by(self, advance: timedelta) -> TimeWindows:
        """Hopping windows: one starts each ``advance``, so a record is in several."""
        advance_ms = milliseconds(advance, "the windows' advance")
        if not 0 < advance_ms <= self.size_ms:
            problem = f"windows of {self.size_ms} ms advance by {advance_ms} ms"
            raise ConfigError(problem, "let them advance by at least a millisecond, and at most by their size")
        return replace(self, advance_ms=advance_ms)

    def starts(self, timestamp_ms: int) -> range:
        """The starts of the windows that contain a time (of 1970 or later), earliest first."""
        first = max(0, timestamp_ms - self.size_ms + self.advance_ms) // self.advance_ms * self.advance_ms
        return range(first, timestamp_ms + 1, self.advance_ms)


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """Windows of activity: a key's records that follow each other within the gap."""

    gap_ms: int
    grace_ms: int

    @classmethod
    def of_inactivity_gap_with_no_grace(cls, gap: timedelta) -> SessionWindows:
        """Sessions that close as soon as stream time is the gap past their end."""
        return cls.of_inactivity_gap_and_grace(gap, timedelta())

    @classmethod
    def of_inactivity_gap_and_grace(cls, gap: timedelta, grace: timedelta) -> SessionWindows:
        """Sessions that accept late records until stream time is the gap and ``grace`` past their end."""
        gap_ms = milliseconds(gap, "a session's gap")
        if gap_ms == 0:
            raise ConfigError("a session's gap is zero", "use at least a millisecond")
        return cls(gap_ms, milliseconds(grace, "a session's grace"))

    @property
    def closing_ms(self) -> int:
        """How long after its end a session is final."""
        return self.gap_ms + self.grace_ms + 1


@dataclass(frozen=True, slots=True)
class JoinWindows:
    """The maximum time difference of joined records: the right one from ``before`` to ``after`` the left one."""

    before_ms: int
    after_ms: int
    grace_ms: int

    @classmethod
    def of_time_difference_with_no_grace(cls, difference: timedelta) -> JoinWindows:
        """Records at most ``difference`` apart; a missing match is final as soon as stream time is past that."""
        return cls.of_time_difference_and_grace(difference, timedelta())

    @classmethod
    def of_time_difference_and_grace(cls, difference: timedelta, grace: timedelta) -> JoinWindows:
        """Records at most ``difference`` apart; matches may arrive until stream time is ``grace`` past that."""
        apart_ms = milliseconds(difference, "the time between joined records")
        return cls(apart_ms, apart_ms, milliseconds(grace, "a join's grace"))

    def before(self, difference: timedelta) -> JoinWindows:
        """The right record may be this much earlier than the left one."""
        return replace(self, before_ms=milliseconds(difference, "how much earlier a joined record may be"))

    def after(self, difference: timedelta) -> JoinWindows:
        """The right record may be this much later than the left one."""
        return replace(self, after_ms=milliseconds(difference, "how much later a joined record may be"))

    @property
    def retention_ms(self) -> int:
        """How long a record waits for join partners."""
        return self.before_ms + self.after_ms + self.grace_ms
