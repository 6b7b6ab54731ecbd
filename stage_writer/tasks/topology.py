"""The conversion of a stream with a topology.

Rules:

1. Only tasks convert: the state belongs to a Kafka partition. This class makes tasks, from the state of a chain's end.
2. A disk that already holds the state of that end is reused; any other content is discarded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from common.schema import to_arrow_schema
from common.settings import Stream
from common.spans import Topic, TopicPartition
from common.stage.task_files import EMPTY_STATE, StateFiles
from stage_writer.decode.batch import MessageBatch
from stage_writer.parquet.buffer import StagedRows
from stage_writer.ports import StateStore
from stage_writer.tasks.joint_converter import JointConverter
from stage_writer.tasks.kept import KeptTask
from stage_writer.tasks.shared import StreamTasks, TaskEnvironment
from stage_writer.tasks.tables import TopologyConverterBase, declared_of
from stage_writer.topologies.built import BuiltTopology
from stage_writer.topologies.stores import Changes, MemoryBackend, TaskStores
from stage_writer.topologies.stores.files import changes_from_bytes, snapshot_from_file
from stage_writer.topologies.task.task import Task, TaskId


class TopologyConverter(TopologyConverterBase, StreamTasks):
    """A `stage_writer.ports.Converter` whose partitions have tasks. Raises SchemaError."""

    def __init__(self, stream: Stream, topology: BuiltTopology, environment: TaskEnvironment) -> None:
        super().__init__(stream, topology, environment)
        self.needs_headers = topology.needs_headers
        self.output_schemas = {name: to_arrow_schema(columns) for name, columns in declared_of(stream).items()}

    def restores(self, partition: TopicPartition, state: StateFiles, store: StateStore) -> Callable[[], KeptTask]:
        return partial(self.restored, partition, state, store)

    def restored(self, partition: TopicPartition, state: StateFiles, store: StateStore) -> KeptTask:
        """The task of a Kafka partition, at the end of the chain that names these files.

        Raises StoreError, BrokerError, StateError, and ConfigError for a store of another shape.
        """
        builders = self.topology.group_of(partition.topic).stores
        started_ms = self.environment.wall_ms()
        stores = TaskStores(builders, self.storage.backend(partition, builders))
        try:
            changed = _Changed(partition, state, store)
            read_bytes = 0
            if stores.mark != state.mark or state == EMPTY_STATE:
                read_bytes = _restore(stores, state, changed, store)
            task = Task(self.topology, partition, stores, self.output_schemas, self.environment.stopping)
        except BaseException:
            stores.close()
            raise
        self.storage.report_restored(read_bytes, (self.environment.wall_ms() - started_ms) / 1000)
        return KeptTask(self, partition, task, state, changed_bytes=changed.size_bytes)


def _restore(stores: TaskStores, state: StateFiles, changed: _Changed, store: StateStore) -> int:
    """Returns the bytes of files that were read."""
    if state.snapshot is None:
        stores.restore((), changed, state.mark)
        return changed.read_bytes
    with store.open(state.snapshot) as opened:
        stores.restore(snapshot_from_file(state.snapshot, opened), changed, state.mark)
        return opened.tell() + changed.read_bytes


class _Changed:
    """The changes on top of the snapshot, read one after the other, and their total size."""

    def __init__(self, partition: TopicPartition, state: StateFiles, store: StateStore) -> None:
        self._source = partition
        self._state = state
        self._store = store
        self.size_bytes = 0
        self.read_bytes = 0

    def __iter__(self) -> Iterator[Changes]:
        for path, data in self._store.changes(self._source, self._state):
            self.read_bytes += len(data)
            changes = changes_from_bytes(path, data)
            self.size_bytes += changes.size_bytes
            yield changes


class SampledTasks(TopologyConverterBase):
    """Converts batches of single partitions, each with a task of its group."""

    def __init__(self, parent: TopologyConverter) -> None:
        self._parent = parent
        self.stream, self.formats, self.needs_headers = parent.stream, parent.formats, parent.needs_headers
        self._tasks: dict[TaskId, KeptTask] = {}

    def slices(self, batches: Sequence[MessageBatch]) -> Iterator[list[tuple[MessageBatch, StagedRows]]]:
        """The batches with their rows. Raises TopologyError."""
        return JointConverter(self._parent, [self._task(batch.partition) for batch in batches]).slices(batches)

    def _task(self, partition: TopicPartition) -> KeptTask:
        group = self._parent.topology.group_of(partition.topic)
        task_id = TaskId(Topic(group.name), partition.partition)
        if task_id not in self._tasks:
            stores = TaskStores(group.stores, MemoryBackend())
            stores.restore((), (), None)
            task = Task(self._parent.topology, task_id, stores, self._parent.output_schemas)
            self._tasks[task_id] = KeptTask(self._parent, task_id, task, EMPTY_STATE, changed_bytes=0)
        return self._tasks[task_id]
