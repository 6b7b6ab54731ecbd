"""The loop of a task: message by message through the processors, with undo, time and punctuations."""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from common.errors import KafkaDeltaExpressError
from stage_writer.decode.rejects import ErrorClass, Reject
from stage_writer.stopping import Stopping
from stage_writer.topologies.errors import RowRefusedError, TopologyError, error_text
from stage_writer.topologies.stores import TaskStores
from stage_writer.topologies.task.clock import TaskClock, Timers
from stage_writer.topologies.task.context import PUNCTUATING, Current, LateRecordError
from stage_writer.topologies.task.feeds import Feed, in_order
from stage_writer.topologies.task.graph import Graph
from stage_writer.topologies.task.inputs import Outbox

Rejects = dict[int, Reject]

_WITH_LEFT_OUT = 2
"""The number of feeds: one to process, and one of messages that were left out, whose times still count."""
_REMEDY = "fix the topology's code; the writer then continues with this message"


class Runner:
    def __init__(
        self,
        task_id: str,
        graph: Graph,
        stores: TaskStores,
        shared: tuple[Current, TaskClock, Outbox],
        *,
        fails_on_error: bool,
        stopping: Stopping,
    ) -> None:
        self._task_id = task_id
        self._graph = graph
        self._stores = stores
        self._current, self._clock, self._outbox = shared
        self._fails_on_error = fails_on_error
        self._stopping = stopping

    def run(self, feeds: Sequence[Feed], rejects: Rejects) -> None:
        """Process the messages that are not refused; those that fail are added to the rejects."""
        left_out = feeds[1] if len(feeds) == _WITH_LEFT_OUT and feeds[1].is_left_out else None
        if len(feeds) == 1 or (left_out is not None and not self._clock.stream.heap):
            self._run_one(feeds[0], rejects, left_out)
        else:
            self._run_several(feeds, rejects)
        if feeds and self._clock.wall.next_ms <= self._clock.wall_clock_ms:
            self._punctuate_by_wall_clock(feeds, rejects)

    def _run_one(self, feed: Feed, rejects: Rejects, left_out: Feed | None) -> None:
        """`_run_several` for a single feed: the common case, and the hot loop of a task.

        Only the times of left-out messages count, as long as no punctuation is due at one of them.
        """
        current, clock, stores = self._current, self._clock, self._stores
        journal, timers, target, stopping = clock.journal, clock.stream, feed.target, self._stopping
        current.input = feed.input
        for current.index, current.input_index, current.time_ms, floor_ms, record in feed.records(rejects, left_out):
            if stopping.is_on:
                stopping.require_time()
            clock.stream_time_ms = max(clock.stream_time_ms, floor_ms)
            before = clock.stream_time_ms
            savepoint = stores.savepoint()
            if journal:
                journal.clear()
            if current.time_ms > before:
                clock.stream_time_ms = current.time_ms
            try:
                target(record)
            except (Exception, RowRefusedError) as error:  # noqa: BLE001 - the user's code may raise anything
                self._failed(error, before, savepoint, rejects)
            else:
                if timers.heap and timers.heap[0][0] <= clock.stream_time_ms:
                    self._punctuate(timers, clock.stream_time_ms)
        if left_out is not None:
            clock.stream_time_ms = max(clock.stream_time_ms, left_out.highest_time(rejects))

    def _run_several(self, feeds: Sequence[Feed], rejects: Rejects) -> None:
        current, clock, stores = self._current, self._clock, self._stores
        for current.index, steps in groupby(in_order(feeds, rejects), key=itemgetter(0)):
            self._stopping.require_time()
            before, savepoint = clock.stream_time_ms, stores.savepoint()
            clock.journal.clear()
            try:
                for _, _, current.input_index, current.time_ms, current.input, target, record in steps:
                    clock.stream_time_ms = max(clock.stream_time_ms, current.time_ms)
                    target(record)
            except (Exception, RowRefusedError) as error:  # noqa: BLE001 - the user's code may raise anything
                self._failed(error, before, savepoint, rejects)
            else:
                if clock.stream.next_ms <= clock.stream_time_ms:
                    self._punctuate(clock.stream, clock.stream_time_ms)

    def _failed(self, error: Exception | RowRefusedError, before_ms: int, savepoint: int, rejects: Rejects) -> None:
        """Undo the message, and refuse it; or end the work."""
        if isinstance(error, KafkaDeltaExpressError):
            raise error
        reject = error.reject if isinstance(error, RowRefusedError) else self._reject(error)
        self._stores.undo_to(savepoint)
        self._outbox.undo(reject.index)
        self._clock.undo(before_ms)
        rejects[reject.index] = reject

    def _reject(self, error: Exception) -> Reject:
        """The reason why the message is refused; raises TopologyError where a failure ends the work."""
        index, is_late = self._current.index, isinstance(error, LateRecordError)
        text = str(error) if is_late else f"{self._graph.node_of(error)}: {type(error).__name__}: {error_text(error)}"
        if self._fails_on_error and not is_late:
            location = self._current.where()
            raise TopologyError(f"the topology failed for the message at {location}: {text}", _REMEDY) from error
        return Reject(index, ErrorClass.LATE if is_late else ErrorClass.TOPOLOGY, text)

    def _punctuate_by_wall_clock(self, feeds: Sequence[Feed], rejects: Rejects) -> None:
        """For the last message that is not refused; without one, the next conversion does it."""
        numbers = [int(index) for feed in feeds for index in feed.input.index.tolist() if index not in rejects]
        if numbers:
            self._current.index = max(numbers)
            self._punctuate(self._clock.wall, self._clock.wall_clock_ms)

    def _punctuate(self, timers: Timers, now_ms: int) -> None:
        current = self._current
        current.input_index, current.time_ms = PUNCTUATING, now_ms
        ends = [(collected, len(collected.index)) for collected in self._outbox.collections()]
        for timer in timers.due(now_ms):
            self._stopping.require_time()
            try:
                timer.callback(now_ms)
            except KafkaDeltaExpressError:
                raise
            except Exception as error:
                msg = f"the punctuation of the node {timer.name[0]!r} in the task {self._task_id} failed"
                raise TopologyError(f"{msg}: {type(error).__name__}: {error_text(error)}", _REMEDY) from error
        for collected, end in ends:
            if len(collected.index) > end:
                collected.punctuated.append((end, len(collected.index)))
