"""A user's processor, and its view of its task: Kafka Streams' terms, in Python's spelling.

Rules:

1. A task makes its own instance of each processor, and calls it from one thread, one record after the other.
2. `ProcessorContext.forward` runs the children before it returns (depth first), each to its end, in their order.
3. Data that must survive a restart is kept in state stores. An instance's own attributes are lost with it, and are not
   undone for a record that fails.
4. Punctuations are scheduled in `Processor.init`; their next times are part of the task's state. A punctuation that is
   scheduled later is lost at a restart.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

from common.errors import ConfigError
from stage_writer.topologies.errors import TopologyError
from stage_writer.topologies.records import Headers, Record
from stage_writer.topologies.task.clock import NO_TIME_MS, PunctuationType, Punctuator, TaskClock, Timer
from stage_writer.topologies.task.inputs import Input, Outbox

Target = Callable[[Record], None]

LATE = "late"
"""The reason for which a record may go to the dead letters."""
PUNCTUATING = -1
"""The position while a punctuation is called: no message."""


class Forward(Protocol):
    """How a node passes records to its children."""

    def __call__(self, record: Record, child: str | None = None) -> None:
        """Pass it to all, or to the one with that name."""


class LateRecordError(Exception):
    """A processor dropped a record of a topology whose late records go to the dead letters."""


class Current:
    """The current position of a task; shared by its nodes."""

    __slots__ = ("index", "input", "input_index", "time_ms")

    def __init__(self) -> None:
        self.index = 0
        """The number of the message."""
        self.input: Input | None = None
        self.input_index = PUNCTUATING
        """Its index in the input."""
        self.time_ms = NO_TIME_MS
        """Its time, or the punctuation's."""

    def where(self) -> str:
        """The message as topic/partition/offset; None during a punctuation."""
        given = self.input
        return "?" if given is None else f"{given.topic}/{given.partition}/{int(given.offsets[self.input_index])}"


class ProcessorContext:
    """A processor's view of its task, and its way to forward records."""

    def __init__(
        self,
        node: str,
        task_id: str,
        forward: Forward,
        stores: Mapping[str, object],
        shared: tuple[Current, TaskClock, Outbox],
        *,
        late_to_dead_letters: bool,
    ) -> None:
        self.forward = forward
        """Pass a record to all children, or to the one with the given name."""
        self.node = node
        """The name of the processor's node."""
        self.task_id = task_id
        """The task, such as ``orders/0``."""
        self._stores = stores
        self._current, self._clock, self._outbox = shared
        self._late_to_dead_letters = late_to_dead_letters
        self._schedules = 0
        self.punctuate: Punctuator | None = None

    def schedule(self, interval: timedelta, punctuation: PunctuationType, callback: Punctuator | None = None) -> Timer:
        """Call ``callback`` (default: `Processor.punctuate`) with the time, each time an interval is over.

        By stream time, first with the first record, then at multiples of the interval; when several are over at once,
        it is called once.
        """
        interval_ms = round(interval.total_seconds() * 1000)
        callback = callback or self.punctuate
        if interval_ms < 1 or callback is None:
            problem = f"the node {self.node!r} schedules a punctuation every {interval}"
            raise ConfigError(problem, "use an interval of at least a millisecond")
        name = (self.node, self._schedules)
        self._schedules += 1
        if PunctuationType(punctuation) is PunctuationType.STREAM_TIME:
            return self._clock.stream.schedule(name, interval_ms, callback, 0)
        first_ms = interval_ms + max(self._clock.wall_clock_ms, 0)
        return self._clock.wall.schedule(name, interval_ms, callback, first_ms)

    def commit(self) -> None:
        """Request a flush now."""
        self._outbox.wants_commit = True

    def store(self, name: str) -> Any:  # noqa: ANN401 - one of the three kinds of stores, which the user knows
        """The state store with that name, which the processor must be connected to."""
        try:
            return self._stores[name]
        except KeyError:
            problem = f"the processor {self.node!r} uses the state store {name!r}, which is not connected to it"
            remedy = f"add it with add_state_store(…, {self.node!r}), and check its spelling"
            raise ConfigError(problem, remedy) from None

    def drop(self, record: Record, reason: str = "late") -> None:
        """Leave a record out, counted by its reason; a late record is treated as the topology declares (`Late`)."""
        if reason == LATE and self._late_to_dead_letters and self._current.input_index != PUNCTUATING:
            raise LateRecordError(f"{self.node}: the record's time {record.timestamp_ms} is too late for its window")
        self._outbox.dropped.append((self._current.index, reason))

    @property
    def topic(self) -> str | None:
        """The topic of the current message; None in a punctuation."""
        current = self._current
        return None if current.input is None or current.input_index == PUNCTUATING else current.input.topic

    @property
    def partition(self) -> int:
        """The Kafka partition of that message; -1 in a punctuation."""
        current = self._current
        return -1 if current.input is None or current.input_index == PUNCTUATING else current.input.partition

    @property
    def offset(self) -> int:
        """The offset of that message; -1 in a punctuation."""
        current = self._current
        if current.input is None or current.input_index == PUNCTUATING:
            return -1
        return int(current.input.offsets[current.input_index])

    @property
    def timestamp_ms(self) -> int:
        """The time of the record that the message started as; in a punctuation, its time."""
        return self._current.time_ms

    @property
    def headers(self) -> Headers:
        """The headers of that message, when its source is added with ``headers=True``."""
        current = self._current
        if current.input is None or current.input.headers is None or current.input_index == PUNCTUATING:
            return ()
        return tuple(current.input.headers[current.input_index] or ())

    @property
    def stream_time_ms(self) -> int:
        """The highest time of the records that the task has seen; -1 before the first one."""
        return self._clock.stream_time_ms

    @property
    def wall_clock_ms(self) -> int:
        """The machine's clock when the task was given these records."""
        return self._clock.wall_clock_ms


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


def forward_to(node: str, targets: Sequence[tuple[str, Target]]) -> Forward:
    """The function that passes records to these children, without overhead for unused cases."""
    by_name = dict(targets)
    functions = tuple(target for _, target in targets)

    def to_one(record: Record, child: str) -> None:
        target = by_name.get(child)
        if target is None:
            problem = f"the node {node!r} forwards to {child!r}, which is not one of its children"
            raise TopologyError(problem, f"forward to one of: {', '.join(by_name) or 'nothing: it has no children'}")
        target(record)

    if len(functions) == 1:
        (only,) = functions

        def forward(record: Record, child: str | None = None) -> None:
            if child is None:
                only(record)
            else:
                to_one(record, child)

    else:

        def forward(record: Record, child: str | None = None) -> None:
            if child is None:
                for function in functions:
                    function(record)
            else:
                to_one(record, child)

    return forward
