"""The data of a service's status page.

Rules:

1. It is made on request from what the service already knows: a page needs no access to the store or Kafka.
2. Both services use the same form: a stream's *stops*, starting with Kafka, and for each Kafka partition the positions
   at them, the last stop first.
3. A problem has the command that fixes it. Nothing here is a secret or record content, except for samples enabled in
   the settings, which are masked (common/pages/samples.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from common.spans import Position, TopicPartition

if TYPE_CHECKING:
    from common.lagging.history import EndHistory


class ProblemLevel(StrEnum):
    ERROR = "error"
    """Records wait for an operator."""
    WARNING = "warning"
    """Needs attention, or may resolve itself."""


class State(StrEnum):
    """The state of a Kafka partition; the worst first."""

    HELD = "held"
    WAITING = "waiting"
    """Its chain cannot be read now."""
    PAUSED = "paused"
    BEHIND = "behind"
    FLUSHING = "flushing"
    WELL = "well"


class Unit(StrEnum):
    TEXT = "text"
    COUNT = "count"
    BYTES = "bytes"
    SINCE = "since"
    """Milliseconds since 1970, shown as an age."""
    UNTIL = "until"
    """The same, shown as the time until then."""


@dataclass(frozen=True, slots=True)
class Figure:
    label: str
    value: str | float | None
    unit: Unit = Unit.TEXT
    of: float | None = None
    """The limit, where there is one."""


@dataclass(frozen=True, slots=True)
class Problem:
    level: ProblemLevel
    title: str
    problem: str
    remedy: str
    """May contain commands in backquotes."""
    also: int = 0
    """The number of further problems of the same kind."""


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of one stop behind the one before."""

    records: int | None
    seconds: float | None

    @classmethod
    def behind(cls, history: EndHistory, partition: TopicPartition, position: Position | None, now_s: float) -> Lag:
        """How far a position is behind Kafka's end; ``now_s`` by the monotonic clock of the history."""
        return cls(history.lag_records(partition, position), history.lag_s(partition, position, now_s))


def added(lags: Sequence[Lag]) -> Lag:
    """The total lag of several: the sum of records, the maximum of seconds; unknown only if all are unknown."""
    records = [lag.records for lag in lags if lag.records is not None]
    seconds = [lag.seconds for lag in lags if lag.seconds is not None]
    return Lag(sum(records) if records else None, max(seconds, default=None))


@dataclass(frozen=True, slots=True)
class FlowStep:
    name: str
    lag: Lag | None
    """Behind the previous stop; None for the first one."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class StreamFlow:
    app_id: str
    table: str
    way: str
    """Additional details, in a few words."""
    stops: tuple[FlowStep, ...]
    partitions: int
    held: int
    valid_through_ms: int | None
    level: ProblemLevel | None
    """The level of its worst problem, or None."""


@dataclass(frozen=True, slots=True)
class PartitionRow:
    stream: str
    topic: str
    partition: int
    state: State
    positions: tuple[int | None, ...]
    """At the stops, the last stop first; the end of Kafka comes last."""
    lag: Lag
    """The lag of the last stop behind Kafka's end, as far as it is known."""
    note: str = ""

    def to_json(self) -> Mapping[str, object]:
        """Handwritten, because there may be thousands, and `asdict` would take too much of the service's time."""
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
    place: str
    text: str


@dataclass(frozen=True, slots=True)
class DeadLetters:
    stream: str
    error_class: str
    count: int
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True)
class Violations:
    """The records that break one rule of a stream's `expect`."""

    stream: str
    rule: str
    count: int


@dataclass(frozen=True, slots=True)
class Status:
    service: str
    version: str
    now_ms: int
    started_ms: int
    state: str
    """The service's current activity, in a few words."""
    verdict: str
    """An additional sentence."""
    figures: tuple[Figure, ...] = ()
    problems: tuple[Problem, ...] = ()
    streams: tuple[StreamFlow, ...] = ()
    stops: tuple[str, ...] = ()
    """The names of a row's positions."""
    partitions: tuple[PartitionRow, ...] = ()
    events_title: str = ""
    events: tuple[Event, ...] = ()
    dead_letters: tuple[DeadLetters, ...] = ()
    violations: tuple[Violations, ...] = ()
    is_known: bool = True
    """Whether enough is known to report that there are no problems: not at startup, or on standby."""

    def to_json(self) -> Mapping[str, object]:
        """For the page; keys are only ever added."""
        return asdict(replace(self, partitions=())) | {"partitions": [row.to_json() for row in self.partitions]}
