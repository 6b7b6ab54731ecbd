"""Makes rows of a task's processor output: the steps after the last processor, and the tables.

Rules:

1. If a row is incompatible with its table or its step, its whole message is refused.
2. A punctuation's output belongs to no message that could be refused: an incompatible row ends the work, with an error
   that names the place.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from common.schema import to_arrow_schema
from common.spans import Partition, Topic, TopicPartition
from stage_writer.decode.batch import MessageBatch, Messages
from stage_writer.decode.rejects import ErrorClass, Reject
from stage_writer.shape.outcome import Part, joined
from stage_writer.shape.rows import Rows
from stage_writer.topologies.built import BuiltTopology, TaskGroup
from stage_writer.topologies.errors import TopologyError
from stage_writer.topologies.nodes import StepNode, TableSink
from stage_writer.topologies.task.inputs import Collected, Outbox
from stage_writer.topologies.task.writing import RowWriter


@dataclass(slots=True)
class Made:
    """The rows by table, and the refused messages."""

    tables: list[tuple[str, Part]]
    rejects: list[Reject]


class RowMaker:
    def __init__(self, topology: BuiltTopology, group: TaskGroup, writers: Mapping[str, RowWriter]) -> None:
        self._topology = topology
        self.tables = writers
        self._steps = [node for node in group.nodes if isinstance(node, StepNode) and node.name in topology.late]
        self.columns = {
            node.name: RowWriter(to_arrow_schema(node.columns)) for node in self._steps if node.columns is not None
        }

    def made_of(self, outbox: Outbox) -> Made:
        """The rows of the processors' output. Raises TopologyError (rule 2)."""
        made = Made([], [])
        for table, collected in outbox.rows.items():
            if collected.values:
                what = f"the table {table!r}" if table else "the stream's table"
                made.tables.append((table, _written(self.tables[table], collected, what, made.rejects)))
        given: dict[str, list[Part]] = {}
        for node in self._steps:
            here = outbox.late.get(node.name)
            if here is not None and here.values:
                part = _written(self.columns[node.name], here, f"the step {node.name!r}", made.rejects)
                given.setdefault(node.name, []).append(part)
            if node.name in given:
                self._pass_on(node, self._applied(node, joined(given[node.name]), outbox, made.rejects), given, made)
        return made

    def fitted(self, table: str, part: Part) -> tuple[Part, list[Reject]]:
        """Rows of columns as rows of a table, without those with null in a NOT NULL column."""
        rows, problems = self.tables[table].fitted(part.rows)
        rejects = [Reject(int(part.index[index]), ErrorClass.MISSING_FIELD, why) for index, why in problems.items()]
        return Part(np.delete(part.index, list(problems)) if problems else part.index, rows), rejects

    def _pass_on(self, node: StepNode, part: Part, given: dict[str, list[Part]], made: Made) -> None:
        for child in self._topology.children.get(node.name, ()):
            if isinstance(child, TableSink):
                fitting, rejects = self.fitted(child.table, part)
                made.tables.append((child.table, fitting))
                made.rejects += rejects
            else:
                given.setdefault(child.name, []).append(part)

    def _applied(self, node: StepNode, part: Part, outbox: Outbox, rejects: list[Reject]) -> Part:
        count = len(part.index)
        done = self._topology.late[node.name].apply(Rows(part.rows, np.arange(count)), _without_positions(count))
        if done.rejects:
            of_punctuations = {
                message for collected in outbox.collections() for message in collected.punctuated_messages()
            }
            for reject in done.rejects:
                index = int(part.index[reject.index])
                if index in of_punctuations:
                    raise _punctuation_refused(f"the step {node.name!r}", reject.error)
                rejects.append(Reject(index, reject.error_class, reject.error))
        return Part(part.index[done.index], done.table)


def _written(writer: RowWriter, collected: Collected, what: str, rejects: list[Reject]) -> Part:
    rows, problems = writer.rows_of(collected.values)
    index = np.array(collected.index, np.int64)
    if not problems:
        return Part(index, rows)
    for row, why in problems.items():
        if collected.is_punctuated(row):
            raise _punctuation_refused(what, why)
        rejects.append(Reject(collected.index[row], ErrorClass.TOPOLOGY, f"a row for {what} does not match: {why}"))
    return Part(np.delete(index, list(problems)), rows)


def _punctuation_refused(what: str, why: str) -> TopologyError:
    msg = f"a row that a punctuation returned does not match {what}: {why}"
    return TopologyError(msg, "fix the punctuation: there is no message that could become a dead letter")


def _without_positions(count: int) -> Messages:
    """As many messages as rows, without a position in Kafka: expressions after a processor do not see ``kafka``."""
    zeros, nulls = np.zeros(count, np.int64), pa.nulls(count, pa.binary())
    return Messages.from_batches(
        [MessageBatch(TopicPartition(Topic(""), Partition(0)), zeros, zeros, nulls, nulls, None)]
    )
