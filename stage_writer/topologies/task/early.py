"""The steps before the first processors, on whole batches of columns.

Rules:

1. A step's cost per call is paid once for all tasks: their messages of one topic go through it together.
2. A tombstone has no columns. It goes to processors, but through no step, and into no table.
3. A message that is refused on one path is refused as a whole, so this is done before any record is processed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stage_writer.decode.batch import Index, MessageBatch, Messages, headers_column
from stage_writer.decode.rejects import Reject
from stage_writer.shape.rows import Rows
from stage_writer.topologies.built import BuiltTopology
from stage_writer.topologies.task.inputs import Input


@dataclass(frozen=True, slots=True)
class Exit:
    """The result of a source or an early step for one input."""

    node: str
    indexes: Index
    """The messages' indices in the input."""
    rows: pa.Table

    def without_tombstones(self, given: Input) -> tuple[Index, pa.Table]:
        """Indices and rows of the messages that have columns."""
        gone = given.is_null[self.indexes]
        if not gone.any():
            return self.indexes, self.rows
        return self.indexes[~gone], self.rows.filter(pa.array(~gone))


@dataclass(slots=True)
class Early:
    """The results of the sources and early steps for one input, in topology order (depth first)."""

    exits: list[Exit] = field(default_factory=list)
    """The result of the source, and the results of its steps in the order of `Graph.entries`."""
    rejects: list[Reject] = field(default_factory=list)
    """The refused messages, by their numbers."""

    def left_out(self, covered: NDArray[np.bool_]) -> Exit:
        """The messages that no processor receives. The first exit is the source's."""
        indexes = np.flatnonzero(~covered)
        source = self.exits[0]
        return Exit(source.node, indexes, source.rows.slice(0, 0))


def early_of(topology: BuiltTopology, inputs: Sequence[Input]) -> list[Early]:
    """The results of the early nodes for each input (rule 1)."""
    exits = [Early() for _ in inputs]
    by_topic: dict[str, list[int]] = {}
    for number, given in enumerate(inputs):
        by_topic.setdefault(given.topic, []).append(number)
    for topic, numbers in by_topic.items():
        source = topology.sources[topic].name
        for number in numbers:
            given = inputs[number]
            exits[number].exits.append(Exit(source, np.arange(len(given)), given.rows))
        if any(child.name in topology.early for child in topology.children[source]):
            of_topic = [inputs[number] for number in numbers]
            _through_steps(topology, source, of_topic, [exits[number] for number in numbers])
    return exits


def _through_steps(topology: BuiltTopology, source: str, inputs: Sequence[Input], exits: Sequence[Early]) -> None:
    messages = Messages.from_batches([_batch(given) for given in inputs])
    table = inputs[0].rows if len(inputs) == 1 else pa.concat_tables([given.rows for given in inputs])
    gone = inputs[0].is_null if len(inputs) == 1 else np.concatenate([given.is_null for given in inputs])
    index = np.flatnonzero(~gone)
    rows = Rows(table.filter(pa.array(~gone)) if gone.any() else table, index)
    for node, given in _walk(topology, source, rows, messages):
        bounds = messages.bounds(given.index).tolist()
        for number, (start, end) in enumerate(pairwise(bounds)):
            indexes = given.index[start:end] - messages.starts[number]
            exits[number].exits.append(Exit(node, indexes, given.table.slice(start, end - start)))
        for reject in given.rejects:
            number = int(np.searchsorted(messages.starts, reject.index, side="right")) - 1
            of_message = int(inputs[number].index[reject.index - int(messages.starts[number])])
            exits[number].rejects.append(replace(reject, index=of_message))


def _walk(topology: BuiltTopology, node: str, rows: Rows, messages: Messages) -> Iterator[tuple[str, Rows]]:
    """The early steps below a node with their rows, depth first."""
    for child in topology.children.get(node, ()):
        step = topology.early.get(child.name)
        if step is not None:
            made = step.apply(rows, messages)
            yield child.name, made
            yield from _walk(topology, child.name, made, messages)


def _batch(given: Input) -> MessageBatch:
    """An input in the form that a stream's steps use; they do not read the values' bytes."""
    return MessageBatch(
        given.topic_partition,
        given.offsets,
        given.timestamps_ms,
        pa.nulls(len(given), pa.binary()),
        given.keys,
        None if given.headers is None else headers_column(given.headers),
    )
