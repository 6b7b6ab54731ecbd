"""A task: it takes decoded messages of its partitions, and returns rows, records and rejects.

Rules:

1. Messages are processed one after the other in the order of their numbers, each through all nodes (depth first, in the
   children's order), followed by the punctuations that are due at its time.
2. A failed message has no effect: its rows, records, changes of state, and its time are undone, and it is refused. So a
   task's output is the same as without its refused messages. Rows are made and checked together. When one is
   incompatible, all input is processed again from the previous state, once, with each row checked as it is made: a
   refused message then costs only its own undo.
3. A punctuation's output belongs to the message that made it due; by wall clock, to the last one of the input.
4. Stream time and the punctuations' next times are kept in a store, and so are part of the state.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from common.spans import TopicPartition
from stage_writer.decode.rejects import Reject
from stage_writer.shape.outcome import Part, joined
from stage_writer.stopping import NEVER_STOPPING, Stopping
from stage_writer.topologies.built import BuiltTopology
from stage_writer.topologies.nodes import TableSink
from stage_writer.topologies.stores import TaskStores
from stage_writer.topologies.task.clock import ClockMemory, TaskClock
from stage_writer.topologies.task.context import Current
from stage_writer.topologies.task.early import Early, early_of
from stage_writer.topologies.task.feeds import feeds_of
from stage_writer.topologies.task.graph import GraphMaker
from stage_writer.topologies.task.inputs import Input, Outbox, Output
from stage_writer.topologies.task.late import RowMaker
from stage_writer.topologies.task.row_checks import RowChecks
from stage_writer.topologies.task.running import Runner
from stage_writer.topologies.task.writing import RowWriter

Tables = list[tuple[str, Part]]
Rejects = dict[int, Reject]

TaskId = TopicPartition
"""A task's chain: the group's name as topic, and the partition."""


class Task:
    """One instance of a group of a topology. Not thread-safe."""

    def __init__(
        self,
        topology: BuiltTopology,
        task_id: TaskId,
        stores: TaskStores,
        output_schema: Mapping[str, pa.Schema | RowWriter],
        stopping: Stopping = NEVER_STOPPING,
    ) -> None:
        """The stores are open, at the state that the task continues from.

        ``output_schema`` has the columns of each table that the topology's sinks name, or the object that makes its
        rows. Once ``stopping`` has been set for too long, `process` and `finish` raise ConversionInterruptedError, and
        the task is of no more use.
        """
        self.topology = topology
        self.task_id = task_id
        self.stores = stores
        self.group = topology.group_of(task_id.topic)
        self._clock, self._outbox = TaskClock(), Outbox()
        shared = (Current(), self._clock, self._outbox)
        by_name = {builder.name: stores.store(builder.name) for builder in self.group.stores}
        self._graph = GraphMaker(topology, self.group, str(task_id), by_name, shared).make()
        fails = topology.fails_on_error
        self._runner = Runner(str(task_id), self._graph, stores, shared, fails_on_error=fails, stopping=stopping)
        writers = {
            table: schema if isinstance(schema, RowWriter) else RowWriter(schema)
            for table, schema in output_schema.items()
        }
        self._maker = RowMaker(topology, self.group, writers)
        self._checks = RowChecks(self._maker, self._outbox, shared[0])
        self._memory = ClockMemory(stores)
        self._memory.recall(self._clock)
        self._is_record_wise = any(self._graph.entries.values())

    @property
    def stream_time_ms(self) -> int:
        """The highest time of the messages that were processed; -1 before the first one."""
        return self._clock.stream_time_ms

    def process(self, inputs: Sequence[Input], wall_clock_ms: int) -> Output:
        (output,) = process_together([(self, inputs)], wall_clock_ms)
        return output

    def close(self) -> None:
        """Close the processors; the stores belong to their opener."""
        for processor in self._graph.processors.values():
            processor.close()

    def finish(self, inputs: Sequence[Input], early: Sequence[Early], wall_clock_ms: int) -> Output:
        """The result for the messages, after their early steps."""
        rejects: Rejects = {}
        for before in early:
            for reject in before.rejects:
                rejects.setdefault(reject.index, reject)
        tables = self._columns(inputs, early, rejects)
        if not self._is_record_wise:
            return _output(tables, rejects)
        self._clock.set_wall_clock(wall_clock_ms)
        tables += self._records(inputs, early, rejects)
        self._memory.keep(self._clock)
        output = _output(tables, rejects)
        output.topics = list(self._outbox.topics)
        output.dropped = Counter(reason for _, reason in self._outbox.dropped)
        output.wants_commit = self._outbox.wants_commit
        self._outbox.clear()
        return output

    def _columns(self, inputs: Sequence[Input], early: Sequence[Early], rejects: Rejects) -> Tables:
        """The rows that go directly from sources and early steps into tables."""
        tables = []
        for given, before in zip(inputs, early, strict=True):
            for left_rows in before.exits:
                for child in self.topology.children.get(left_rows.node, ()):
                    if isinstance(child, TableSink):
                        indexes, rows = left_rows.without_tombstones(given)
                        part, refused = self._maker.fitted(child.table, Part(given.index[indexes], rows))
                        tables.append((child.table, part))
                        rejects.update((reject.index, reject) for reject in refused)
        return tables

    def _records(self, inputs: Sequence[Input], early: Sequence[Early], rejects: Rejects) -> Tables:
        feeds = feeds_of(self.topology, self._graph, inputs, early, rejects)
        saved, before = self._clock.saved(), dict(rejects)
        self.stores.begin_record()
        self._checks.begin()
        while True:
            self._runner.run(feeds, rejects)
            made = self._maker.made_of(self._outbox)
            if not made.rejects:
                return made.tables
            self.stores.undo_record()
            self._clock.restore(saved)
            self._outbox.clear()
            if self._checks.are_on:  # the user's code caught even the exception that refuses a message
                rejects.update((reject.index, reject) for reject in made.rejects)
            else:
                rejects.clear()
                rejects.update(before)
                self._checks.turn_on()


def process_together(work: Sequence[tuple[Task, Sequence[Input]]], wall_clock_ms: int) -> list[Output]:
    """The result for messages of several tasks of one topology; early steps run for all of them at once."""
    if not work:
        return []
    inputs = [given for _, of_task in work for given in of_task]
    early = iter(early_of(work[0][0].topology, inputs))
    return [task.finish(of_task, [next(early) for _ in of_task], wall_clock_ms) for task, of_task in work]


def _output(tables: Tables, rejects: Rejects) -> Output:
    refused = np.fromiter(rejects, np.int64, len(rejects))
    by_table: dict[str, list[Part]] = {}
    for table, part in tables:
        if rejects:
            kept = ~np.isin(part.index, refused)
            part = part if kept.all() else Part(part.index[kept], part.rows.filter(kept))  # noqa: PLW2901
        if len(part.index):
            by_table.setdefault(table, []).append(part)
    together = {table: joined(parts) for table, parts in by_table.items()}
    return Output(
        tables={table: (part.index, part.rows) for table, part in together.items()},
        rejects=[rejects[index] for index in sorted(rejects)],
    )
