"""What a user's processor is, and what it is given: Kafka Streams' terms, in Python's spelling.

Rules:

1. A task makes its own instance of each processor, and calls it from one thread, one record after the other.
2. `ProcessorContext.forward` runs the children before it returns (depth first), each to its end, in their order.
3. What has to outlive a restart is kept in state stores. An instance's own attributes are lost with it, and are not
   undone for a record that fails.
4. Punctuations are scheduled in `Processor.init`; their next times are part of the task's state. One that is scheduled
   later is forgotten at a restart.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from stage_writer.topologies.records import Headers, Record

    Punctuator = Callable[[int], None]


class PunctuationType(StrEnum):
    """Which time calls a punctuation."""

    STREAM_TIME = "stream_time"
    """The highest time of the task's records: data drive it, and it gives the same when they are read again."""

    WALL_CLOCK_TIME = "wall_clock_time"
    """The machine's clock, looked at when the task is given records."""


class Cancellable(Protocol):
    """A punctuation that is scheduled."""

    def cancel(self) -> None:
        """Call it no more."""


class ProcessorContext(Protocol):
    """What a processor sees of its task, and how it gives records on."""

    def forward(self, record: Record, child: str | None = None) -> None:
        """Give a record to all children, or to the one of that name."""

    def schedule(
        self, interval: timedelta, punctuation: PunctuationType, callback: Punctuator | None = None
    ) -> Cancellable:
        """Have ``callback`` (or else `Processor.punctuate`) called each time that an interval is over, with the time.

        By stream time first with the first record, then at multiples of the interval; when several are over at once,
        it is called once.
        """

    def commit(self) -> None:
        """Ask for a flush now."""

    def store(self, name: str) -> Any:  # noqa: ANN401 - one of the three kinds of stores, which the user knows
        """The state store of that name, which the processor must be connected to."""

    def drop(self, record: Record, reason: str = "late") -> None:
        """Leave a record out, counted by its reason; or, when it is late, as the topology says (`Late`)."""

    @property
    def topic(self) -> str | None:
        """The topic of the message that is processed; None in a punctuation."""

    @property
    def partition(self) -> int:
        """The Kafka partition of that message; -1 in a punctuation."""

    @property
    def offset(self) -> int:
        """The offset of that message; -1 in a punctuation."""

    @property
    def timestamp_ms(self) -> int:
        """The time of the record that the message began as; in a punctuation, its time."""

    @property
    def headers(self) -> Headers:
        """The headers of that message, when its source is added with ``headers=True``."""

    @property
    def task_id(self) -> str:
        """The task, such as ``orders/0``."""

    @property
    def node(self) -> str:
        """The name of the processor's node."""

    @property
    def stream_time_ms(self) -> int:
        """The highest time of the records that the task has seen; -1 before the first one."""

    @property
    def wall_clock_ms(self) -> int:
        """The machine's clock when the task was given these records."""


class Processor:
    """A node's code: subclass it."""

    context: ProcessorContext

    def init(self, context: ProcessorContext) -> None:
        """Called once, before the first record: take stores and schedule punctuations here."""
        self.context = context

    def process(self, record: Record) -> None:
        """One record. What it raises sends the message to the dead letters, with all that was done for it undone."""
        raise NotImplementedError

    def punctuate(self, timestamp_ms: int) -> None:
        """A time that was scheduled without a callback of its own has come."""

    def close(self) -> None:
        """The task ends; records cannot be forwarded any more."""
