"""What a service says of itself on its status page.

Rules:

1. It is made from what the service knows anyway, when somebody asks: no store and no Kafka is asked for a page.
2. Both services say it in one form: a stream's *stops*, from Kafka on, and of each Kafka partition the positions at
   them, the last stop first.
3. A problem has the command that fixes it. Nothing here is a secret, or a record's content, but for samples that the
   settings ask for, which are masked (common/pages/samples.py).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from common.lagging.history import EndHistory
    from common.spans import Position, TopicPartition


class Level(StrEnum):
    """How bad a problem is."""

    ERROR = "error"
    """Records wait until somebody does something."""
    WARNING = "warning"
    """Something to look at, or that may fix itself."""


class State(StrEnum):
    """What a Kafka partition does; the worst first."""

    HELD = "held"
    WAITING = "waiting"
    """Its chain cannot be read now."""
    PAUSED = "paused"
    BEHIND = "behind"
    FLUSHING = "flushing"
    WELL = "well"


class Unit(StrEnum):
    """How a figure is to be written."""

    TEXT = "text"
    COUNT = "count"
    BYTES = "bytes"
    SINCE = "since"
    """Milliseconds since 1970, shown as how long ago."""
    UNTIL = "until"
    """The same, as how long from now."""


def counted(number: int, what: str) -> str:
    """So many of something."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that tells something about the whole service."""

    label: str
    value: str | float | None
    unit: Unit = Unit.TEXT
    of: float | None = None
    """The bound, where there is one."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong."""

    level: Level
    title: str
    problem: str
    remedy: str
    """May hold commands in backquotes."""
    also: int = 0
    """How many more of the same there are."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far one stop is behind the one before."""

    records: int | None
    seconds: float | None

    @classmethod
    def behind(cls, history: EndHistory, source: TopicPartition, position: Position | None, now_s: float) -> Lag:
        """How far a position is behind Kafka's end; ``now_s`` by the monotonic clock of the history."""
        return cls(history.lag_records(source, position), history.lag_s(source, position, now_s))


def added(lags: Sequence[Lag]) -> Lag:
    """The lag of several: records of all, seconds of the last; unknown while all are."""
    records = [lag.records for lag in lags if lag.records is not None]
    seconds = [lag.seconds for lag in lags if lag.seconds is not None]
    return Lag(sum(records) if records else None, max(seconds, default=None))


@dataclass(frozen=True, slots=True)
class Stop:
    """A place on a stream's way."""

    name: str
    lag: Lag | None
    """Behind the stop before; None at the first one."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class StreamFlow:
    """One stream."""

    app_id: str
    table: str
    way: str
    """What more there is to say of it, in a few words."""
    stops: tuple[Stop, ...]
    partitions: int
    held: int
    valid_through_ms: int | None
    level: Level | None
    """Of its worst problem; None when all is well."""


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """One Kafka partition."""

    stream: str
    topic: str
    partition: int
    state: State
    positions: tuple[int | None, ...]
    """At the stops, the last stop first; the end of Kafka comes last."""
    lag: Lag
    """Of the last stop, behind Kafka's end, or what is known of it."""
    note: str = ""

    def to_json(self) -> Mapping[str, object]:
        """By hand, for there may be thousands, and the service has other things to do than `asdict`."""
        return {
            "stream": self.stream,
            "topic": self.topic,
            "partition": self.partition,
            "state": self.state,
            "positions": self.positions,
            "lag": {"records": self.lag.records, "seconds": self.lag.seconds},
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class Event:
    """A flush, or a commit."""

    time_ms: int
    stream: str
    what: str
    rows: int
    files: int
    size_bytes: int
    seconds: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """A dead letter, masked."""

    place: str
    text: str


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Those of one class."""

    stream: str
    error_class: str
    count: int
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """All of it."""

    service: str
    version: str
    now_ms: int
    started_ms: int
    state: str
    """What the service does now, in a few words."""
    verdict: str
    """One sentence more."""
    figures: tuple[Figure, ...] = ()
    problems: tuple[Problem, ...] = ()
    streams: tuple[StreamFlow, ...] = ()
    stops: tuple[str, ...] = ()
    """The names of a row's positions."""
    partitions: tuple[PartitionRow, ...] = ()
    events_title: str = ""
    events: tuple[Event, ...] = ()
    dead_letters: tuple[DeadLetters, ...] = ()
    is_known: bool = True
    """Whether enough is known to say that all is well: not while it starts, or stands by."""

    def to_json(self) -> Mapping[str, object]:
        """For the page; keys are only ever added."""
        return asdict(replace(self, partitions=())) | {"partitions": [row.to_json() for row in self.partitions]}
