"""A topology's tasks for the sample of ``check``: with empty stores in memory, which are discarded."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, cast

from common.schema import to_arrow_schema
from common.spans import Topic
from stage_writer.tasks.converting import TaskConverter
from stage_writer.tasks.tables import OfTopology, declared_of
from stage_writer.tasks.together import Together
from stage_writer.topologies.stores import MemoryBackend, Stores
from stage_writer.topologies.task.task import Task, TaskId

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from common.spans import TopicPartition
    from stage_writer.decode.batch import MessageBatch
    from stage_writer.parquet.buffer import StagedRows
    from stage_writer.tasks.topology import TopologyConverter
    from stage_writer.topologies.stores import StoreBuilder


class SampledTasks(OfTopology):
    """Converts batches of single partitions, each with a task of its group."""

    def __init__(self, parent: TopologyConverter) -> None:
        self._parent = parent
        self.stream, self.formats, self.needs_headers = parent.stream, parent.formats, parent.needs_headers
        self._schemas = {name: to_arrow_schema(columns) for name, columns in declared_of(parent.stream).items()}
        self._tasks: dict[TaskId, TaskConverter] = {}

    def slices(self, batches: Sequence[MessageBatch]) -> Iterator[list[tuple[MessageBatch, StagedRows]]]:
        """The batches with their rows. Raises TopologyError."""
        return Together(self._parent, [self._task(batch.partition) for batch in batches]).slices(batches)

    def _task(self, partition: TopicPartition) -> TaskConverter:
        group = self._parent.topology.group_of(partition.topic)
        task_id = TaskId(Topic(group.name), partition.partition)
        if task_id not in self._tasks:
            stores = Stores.open(cast("tuple[StoreBuilder, ...]", group.stores), MemoryBackend())
            stores.restore((), (), None)
            task = Task(self._parent.topology, task_id, stores, self._schemas)
            self._tasks[task_id] = TaskConverter(self._parent, task, Lock())
        return self._tasks[task_id]
