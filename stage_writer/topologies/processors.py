"""A user's processor and its context: Kafka Streams' terms, in Python's spelling.

Rules:

1. A task makes its own instance of each processor, and calls it from one thread, one record after the other.
2. `ProcessorContext.forward` runs the children before it returns (depth first), each to its end, in their order.
3. Data that must survive a restart is kept in state stores. An instance's own attributes are lost with it, and are not
   undone for a record that fails.
4. Punctuations are scheduled in `Processor.init`; their next times are part of the task's state. A punctuation that is
   scheduled later is lost at a restart.
"""

from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from typing import Any, Protocol

from stage_writer.topologies.records import Headers, Record

Punctuator = Callable[[int], None]


class PunctuationType(StrEnum):
    """The time that triggers a punctuation."""

    STREAM_TIME = "stream_time"
    """The highest time of the task's records: driven by data, with the same result when the data is read again."""

    WALL_CLOCK_TIME = "wall_clock_time"
    """The machine's clock, read when the task is given records."""


class Cancellable(Protocol):
    """A scheduled punctuation."""

    def cancel(self) -> None:
        """Stop calling it."""


class ProcessorContext(Protocol):
    """A processor's view of its task, and its way to forward records."""

    def forward(self, record: Record, child: str | None = None) -> None:
        """Pass a record to all children, or to the one with the given name."""

    def schedule(
        self, interval: timedelta, punctuation: PunctuationType, callback: Punctuator | None = None
    ) -> Cancellable:
        """Call ``callback`` (default: `Processor.punctuate`) with the time, each time an interval is over.

        By stream time, first with the first record, then at multiples of the interval; when several are over at once,
        it is called once.
        """

    def commit(self) -> None:
        """Request a flush now."""

    def store(self, name: str) -> Any:  # noqa: ANN401 - one of the three kinds of stores, which the user knows
        """The state store with that name, which the processor must be connected to."""

    def drop(self, record: Record, reason: str = "late") -> None:
        """Leave a record out, counted by its reason; a late record is treated as the topology declares (`Late`)."""

    @property
    def topic(self) -> str | None:
        """The topic of the current message; None in a punctuation."""

    @property
    def partition(self) -> int:
        """The Kafka partition of that message; -1 in a punctuation."""

    @property
    def offset(self) -> int:
        """The offset of that message; -1 in a punctuation."""

    @property
    def timestamp_ms(self) -> int:
        """The time of the record that the message started as; in a punctuation, its time."""

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
        """Called once, before the first record: get stores and schedule punctuations here."""
        self.context = context

    def process(self, record: Record) -> None:
        """Process one record. An exception sends the message to the dead letters, and undoes everything done for it."""
        raise NotImplementedError

    def punctuate(self, timestamp_ms: int) -> None:
        """Called for a scheduled time without a callback of its own."""

    def close(self) -> None:
        """Called when the task ends; records can no longer be forwarded."""
